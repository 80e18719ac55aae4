//! The gRPC server: `ShouldRateLimit` and the standard health service on one listener. Uses
//! [`service`](crate::service) to decide, and [`ratelease_listener`] for its connections; `app`
//! runs it.
//!
//! ```text
//! accept ─▶ connection ─▶ call ──plain, no wait──▶ answered in the connection's own task
//!                           ├─▶ waiting ──plain, a lease arrives──▶ answered in a task of its own
//!                           └─▶ fallback ──message complete──▶ tonic ─▶ rate_limit_service
//! ```
//! tonic's processing of a call costs more than the decision (`docs/performance.md`): plain calls
//! bypass tonic. One that has to wait for a lease is decoded and matched a second time.

mod answer;
mod call;
mod connection;
mod deadline;
mod fallback;
mod h2_waker;
mod headers;
mod health;
mod preface;
mod rate_limit_service;
pub mod serve;
pub(crate) mod wire;
mod write_coalescing;

use http::HeaderMap;
use tonic::Status;
use tonic::codec::{CompressionEncoding, EnabledCompressionEncodings};
pub use wire::{DecodeError, frame, read};

use crate::request_error::RequestError;

/// Maximum size in bytes of one message from a client. Envoy limits its own headers to far less by
/// default, and a value of any length within this size is counted: if long values were refused, a
/// client that sends one would escape its limit wherever Envoy lets requests pass on errors.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Size in bytes of the prefix of each gRPC message: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// The encodings in which the answer to a call may be sent: that of its message, as the reference
/// implementation does. tonic sends it only to a client that accepts it.
fn answer_encodings(headers: &HeaderMap) -> EnabledCompressionEncodings {
    let mut encodings = EnabledCompressionEncodings::default();
    if is_compressed(headers) {
        encodings.enable(CompressionEncoding::Gzip);
    }
    encodings
}

/// The encodings of messages that are read.
fn message_encodings() -> EnabledCompressionEncodings {
    let mut encodings = EnabledCompressionEncodings::default();
    encodings.enable(CompressionEncoding::Gzip);
    encodings
}

/// Whether the message of a call may be compressed.
fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_some_and(|encoding| encoding == "gzip")
}

/// Maps errors to gRPC codes; nothing else does. The first three have the reference
/// implementation's code and text.
fn status_of(error: &RequestError) -> Status {
    let reason = error.to_string();
    match error {
        RequestError::EmptyDomain | RequestError::NoDescriptors | RequestError::NoRules => {
            Status::unknown(reason)
        }
        RequestError::Invalid(_) => Status::invalid_argument(reason),
        RequestError::AwaitsRules | RequestError::Store(_) => Status::unavailable(reason),
        RequestError::Overloaded | RequestError::NoRoom => Status::resource_exhausted(reason),
        RequestError::Panicked => Status::internal(reason),
    }
}
