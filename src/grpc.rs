//! The gRPC door: `ShouldRateLimit` and the standard health service on one listener.
//!
//! ```text
//! accept ─▶ connection ─▶ call ──plain, nobody waits──▶ answered in the connection's own task
//!                           └─▶ rest ──message whole──▶ tonic ─▶ wire ─▶ answered
//! ```
//! tonic's machinery for a call costs more than the decision (`docs/performance.md`): the plain
//! call goes beneath it, and everything else is left to it.

mod call;
mod connection;
mod cork;
mod deadline;
mod greeting;
mod headers;
mod health;
mod rest;
pub mod serve;
pub(crate) mod wire;

pub use call::answer_at_once;
use tonic::Status;
pub use wire::{Unreadable, frame, read};

use crate::refusal::Refusal;

/// What a client may send in one message. Envoy's own headers are bounded far below by default, and
/// a value of any length within it is counted: refusing long values would let a client that sends
/// one slip past a limit wherever Envoy lets requests pass on errors.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Before each message of gRPC: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// The one map from refusals to gRPC codes. The first three are the reference's, code and text.
fn status_of(refusal: &Refusal) -> Status {
    let reason = refusal.to_string();
    match refusal {
        Refusal::EmptyDomain | Refusal::NoDescriptors | Refusal::NoRules => Status::unknown(reason),
        Refusal::Invalid(_) => Status::invalid_argument(reason),
        Refusal::Store(_) => Status::unavailable(reason),
        Refusal::Overloaded | Refusal::NoRoom => Status::resource_exhausted(reason),
        Refusal::Panicked => Status::internal(reason),
    }
}
