//! **The process around the path of a call**: loads the rules, binds ports, shows its state, pushes
//! its metrics, restarts what panics, and drains.
//!
//! ```text
//! files ─▶ rule_source ─▶ CurrentRules ─▶ ratelease-server decides by them
//! main ─▶ app ─▶ listeners, background tasks, drain
//! ```
//!
//! It is compiled for size, since little of it runs once the process serves (`docs/design.md`). It
//! may use every crate but the tools; the binary `ratelease`, tests and benches use it.
//! `docs/design.md` is the whole design: crates, words, the path of a request, and the invariants.
//! `tests/it/tidy.rs` checks those that the compiler does not.
//!
//! # Modules
//!
//! [`supervise`] restarts background tasks; [`telemetry`] is the log and what is pushed.
//! `file_watch` reports changes of files: [`certificates`] keeps the certificate of the gRPC port
//! up to date with it, and [`rule_source`] the rules. [`admin`] shows the state of the process, and
//! [`http`] serves that and decisions over HTTP. [`app`] builds all parts and runs them.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "`pub` in a private module is what another file uses")]

pub mod admin;
pub mod app;
pub mod certificates;
mod control_group;
mod file_watch;
pub mod http;
pub mod rule_source;
pub mod supervise;
pub mod telemetry;
