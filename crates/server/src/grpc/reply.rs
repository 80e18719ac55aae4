//! The answer to a call for a verdict, and how an answer goes out on its stream of `h2`.

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use ratelease_engine::limiter::owners::StartId;
use ratelease_rules::request::Request as RateLimitRequest;
use tonic::Status;

use super::wire::DecodeError;
use super::{status_of, wire};
use crate::request::RequestError;
use crate::service::{Answer, Caller, DecisionService};
use crate::trace::Span;

/// The content type of a plain call and of its answer.
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// The answer to a plain call.
pub(super) struct Answered {
    /// A gRPC frame.
    pub(super) frame: BytesMut,
    /// The start that the answer grants.
    pub(super) started: Option<StartId>,
}

/// Returns the answer to `request` of `caller`, and records it in `span`.
pub(super) async fn answer(
    service: &DecisionService,
    caller: &Caller<'_>,
    request: &RateLimitRequest<'_>,
    span: Option<&Span>,
) -> Result<Answered, Status> {
    let answered = service.answer(caller, request, |answer| Answered::new(request, answer, span));
    answered.await.map_err(|error| status_of(&error))
}

// === impl Answered ===

impl Answered {
    /// The answer to `request`; records it in `span`.
    pub(super) fn new(
        request: &RateLimitRequest<'_>,
        answer: &Answer<'_>,
        span: Option<&Span>,
    ) -> Self {
        if let Some(span) = span {
            span.note(request, &answer.verdict);
        }
        let mut frame = BytesMut::new();
        wire::frame(answer, &mut frame);
        Self { frame, started: answer.verdict.started }
    }
}

/// The reference implementation's server returns INTERNAL for a message that it cannot decode.
pub(super) fn unreadable(fault: DecodeError, service: &DecisionService) -> Status {
    match fault {
        DecodeError::Malformed(fault) => Status::internal(fault.to_string()),
        DecodeError::Invalid(fault) => {
            let error = RequestError::Invalid(fault);
            service.note_error(&error);
            status_of(&error)
        }
    }
}

/// The status of a call that took longer.
pub(super) fn expired() -> Status {
    Status::deadline_exceeded("Timeout expired")
}

/// Sends `message`, a gRPC frame, with the status OK. Nothing is sent to a client that is gone or
/// has reset the call: then returns false.
pub(super) fn send_message(respond: &mut SendResponse<Bytes>, message: Bytes) -> bool {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    let Ok(mut stream) = respond.send_response(response, false) else { return false };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, OK);
    stream.send_data(message, false).is_ok() && stream.send_trailers(trailers).is_ok()
}

/// Sends `status` without a message, as [`send_message`] does.
pub(super) fn send_status(respond: &mut SendResponse<Bytes>, status: Status) {
    let (head, _) = status.into_http::<()>().into_parts();
    let _ = respond.send_response(Response::from_parts(head, ()), true);
}
