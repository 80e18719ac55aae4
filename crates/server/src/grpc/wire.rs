//! Reads and writes Envoy's messages by their field numbers. The only file that names Envoy's
//! types.

mod decode;
mod encode;
mod proto;
mod reverse_encoder;

use bytes::BytesMut;
pub use decode::DecodeError;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
pub(super) use pb::rate_limit_service_server::SERVICE_NAME;
use ratelease_rules::request::Request;

use crate::service::Answer;

/// Reads a request from a protobuf message; its text is borrowed. The cost is bounded whatever
/// lengths the message claims.
///
/// # Errors
///
/// Fails if the message is not a request, or exceeds a bound of [`crate::service`].
pub fn read(message: &[u8]) -> Result<Request<'_>, DecodeError> {
    decode::request(message)
}

/// Appends `answer` to `bytes`, as one gRPC message with its prefix.
pub fn frame(answer: &Answer<'_>, bytes: &mut BytesMut) {
    encode::framed(answer, bytes);
}
