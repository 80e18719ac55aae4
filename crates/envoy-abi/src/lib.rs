//! **Envoy's C interface for dynamic modules**, made safe: the only crate with `unsafe` code.
//!
//! A module implements [`Module`] and calls [`export_module!`]. Every hook of Envoy becomes a call
//! of its traits, with a handle that is valid for that hook alone; `hooks` states the life of every
//! pointer and catches panics. Only the callbacks that the module needs are declared. It knows
//! nothing of rate limits.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[doc(hidden)]
pub mod abi;
mod bootstrap;
mod export;
#[cfg(any(test, feature = "fake-host"))]
pub mod fake_host;
#[doc(hidden)]
pub mod hooks;
mod module;
mod stream;
mod tagged;

pub use bootstrap::{BootstrapHost, ConfigScheduler};
pub use hooks::panics;
pub use module::{Bootstrap, Config, Filter, FilterStream, Module};
pub use stream::{Attribute, Counter, Flow, Headers, Metadata, Scheduler, Setup, Stream};

/// How grave a line of Envoy's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    /// An event.
    Info = 2,
    /// A possible problem.
    Warn = 3,
    /// A problem.
    Error = 4,
    /// A fault of the module itself.
    Critical = 5,
}

/// Writes a line into Envoy's log, in any thread.
pub fn log(level: Level, line: &str) {
    // SAFETY: Envoy copies the line.
    unsafe { abi::log(level as u32, line.as_bytes().into()) };
}

/// Whether Envoy only checks its configuration, so that nothing may be started. In the main thread
/// only.
pub fn is_validation_mode() -> bool {
    // SAFETY: it takes nothing.
    unsafe { abi::is_validation_mode() }
}

/// The number of Envoy's workers. In the main thread only.
pub fn concurrency() -> usize {
    // SAFETY: it takes nothing.
    unsafe { abi::get_concurrency() as usize }
}

/// The whole number at `key` of Envoy's runtime. In the main thread only: a worker finds nothing.
pub fn runtime_integer(key: &str) -> Option<u64> {
    const NONE: u64 = u64::MAX;
    // SAFETY: Envoy reads the key within the call.
    let found = unsafe { abi::get_runtime_int(key.as_bytes().into(), NONE) };
    (found != NONE).then_some(found)
}

#[cfg(test)]
mod tests;
