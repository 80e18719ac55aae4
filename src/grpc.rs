//! The gRPC door: `ShouldRateLimit` and the standard health service on one listener.

pub mod serve;
mod wire;

use tonic::Status;

use crate::intake::Refusal;

/// What a client may send in one message. Envoy's own headers are bounded far below by default, and
/// a value of any length within it is counted: refusing long values would let a client that sends
/// one slip past a limit wherever Envoy lets requests pass on errors.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// The one map from refusals to gRPC codes. The first three are the reference's, code and text.
fn status_of(refusal: &Refusal) -> Status {
    let reason = refusal.to_string();
    match refusal {
        Refusal::EmptyDomain | Refusal::NoDescriptors | Refusal::NoRules => Status::unknown(reason),
        Refusal::Invalid(_) => Status::invalid_argument(reason),
        Refusal::Store(_) => Status::unavailable(reason),
        Refusal::Overloaded => Status::resource_exhausted(reason),
        Refusal::Panicked => Status::internal(reason),
    }
}
