//! Sends the answer to a plain call on its stream of `h2`.

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use tonic::Status;

/// The content type of a plain call and of its answer.
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Sends `message`, a gRPC frame, with the status OK. Nothing is sent to a client that is gone or
/// has reset the call.
pub(super) fn send_message(respond: &mut SendResponse<Bytes>, message: Bytes) {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    let Ok(mut stream) = respond.send_response(response, false) else { return };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, OK);
    if stream.send_data(message, false).is_ok() {
        let _ = stream.send_trailers(trailers);
    }
}

/// Sends `status` without a message, as [`send_message`] does.
pub(super) fn send_status(respond: &mut SendResponse<Bytes>, status: Status) {
    let (head, _) = status.into_http::<()>().into_parts();
    let _ = respond.send_response(Response::from_parts(head, ()), true);
}
