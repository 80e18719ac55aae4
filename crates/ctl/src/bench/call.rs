//! One request in flight, and the parts of its answer that are read.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::ResponseFuture;
use http::{HeaderMap, StatusCode};
use ratelease_engine::time::Time;

/// Maximum bytes of an answer. A verdict on 64 descriptors takes a few thousand.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A request whose answer is awaited.
pub(super) struct Call {
    due: Time,
    stage: Stage,
    message: Bytes,
}

enum Stage {
    Head(ResponseFuture),
    Body(RecvStream),
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallResult {
    /// The request may pass.
    Ok,
    /// The request is denied.
    OverLimit,
    /// There was no verdict.
    Failed(Failure),
}

/// The reason why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// gRPC returned an error with this code.
    Grpc(u16),
    /// HTTP returned an error with this status, or the answer is not gRPC.
    NotGrpc(u16),
    /// An answer without an overall code, or one that does not decode.
    NoVerdict,
    /// The stream was reset.
    Reset,
    /// The connection ended.
    Lost,
    /// The run ended before the answer arrived.
    Unanswered,
    /// No stream became free in time to send the request.
    Unsent,
}

// === impl Call ===

impl Call {
    pub(super) fn new(due: Time, response: ResponseFuture) -> Self {
        Self { due, stage: Stage::Head(response), message: Bytes::new() }
    }

    /// Returns when the request was due.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// Appends to the message. It arrives in one piece unless it is very long.
    fn take_in(&mut self, data: Bytes) {
        if self.message.is_empty() {
            self.message = data;
        } else if self.message.len() < ANSWER_BYTES_MAX {
            let mut joined = BytesMut::from(self.message.as_ref());
            joined.extend_from_slice(&data);
            self.message = joined.freeze();
        }
    }

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Result<CallResult, h2::Error>> {
        loop {
            match &mut self.stage {
                Stage::Head(response) => {
                    let response = ready!(Pin::new(response).poll(cx))?;
                    if let Some(refusal) = refusal(response.status(), response.headers()) {
                        return Poll::Ready(Ok(refusal));
                    }
                    self.stage = Stage::Body(response.into_body());
                }
                Stage::Body(body) => match ready!(body.poll_data(cx)) {
                    Some(data) => {
                        let data = data?;
                        body.flow_control().release_capacity(data.len())?;
                        self.take_in(data);
                    }
                    None => {
                        let trailers = ready!(body.poll_trailers(cx))?.unwrap_or_default();
                        return Poll::Ready(Ok(outcome(&self.message, &trailers)));
                    }
                },
            }
        }
    }
}

impl Future for Call {
    type Output = (Time, CallResult);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match ready!(self.poll_outcome(cx)) {
            Ok(outcome) => outcome,
            Err(error) if error.is_reset() => CallResult::Failed(Failure::Reset),
            Err(_) => CallResult::Failed(Failure::Lost),
        };
        Poll::Ready((self.due, outcome))
    }
}

/// Returns the result if the head alone decides it, because no message follows.
fn refusal(status: StatusCode, headers: &HeaderMap) -> Option<CallResult> {
    match code(headers) {
        Some(0) | None if status == StatusCode::OK => None,
        Some(code) if code != 0 => Some(CallResult::Failed(Failure::Grpc(code))),
        _ => Some(CallResult::Failed(Failure::NotGrpc(status.as_u16()))),
    }
}

fn outcome(message: &[u8], trailers: &HeaderMap) -> CallResult {
    match code(trailers) {
        Some(0) => match overall_code(message) {
            Some(1) => CallResult::Ok,
            Some(2) => CallResult::OverLimit,
            _ => CallResult::Failed(Failure::NoVerdict),
        },
        Some(code) => CallResult::Failed(Failure::Grpc(code)),
        None => CallResult::Failed(Failure::NotGrpc(StatusCode::OK.as_u16())),
    }
}

fn code(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Returns `RateLimitResponse.overall_code`, field 1, from a message with gRPC's prefix. Every
/// encoder in use writes fields in order, so this field is first.
fn overall_code(message: &[u8]) -> Option<u8> {
    const OVERALL_CODE: u8 = 1 << 3;
    match message {
        [0, _, _, _, _, OVERALL_CODE, code, ..] => Some(*code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static(code),
        )])
    }

    #[test]
    fn a_verdict_is_the_overall_code_under_status_0() {
        for (message, trailers, expected) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], status("0"), CallResult::Ok),
            (&[0, 0, 0, 0, 4, 8, 2, 18, 0], status("0"), CallResult::OverLimit),
            (&[0, 0, 0, 0, 2, 8, 0], status("0"), CallResult::Failed(Failure::NoVerdict)),
            (&[0, 0, 0, 0, 0], status("0"), CallResult::Failed(Failure::NoVerdict)),
            (&[], status("0"), CallResult::Failed(Failure::NoVerdict)),
            (&[0, 0, 0, 0, 2, 8, 1], status("14"), CallResult::Failed(Failure::Grpc(14))),
            (&[0, 0, 0, 0, 2, 8, 1], HeaderMap::new(), CallResult::Failed(Failure::NotGrpc(200))),
        ] {
            assert_eq!(outcome(message, &trailers), expected, "{message:?} {trailers:?}");
        }
    }

    #[test]
    fn a_head_may_say_all_there_is() {
        let ok = StatusCode::OK;
        assert_eq!(refusal(ok, &HeaderMap::new()), None);
        assert_eq!(refusal(ok, &status("12")), Some(CallResult::Failed(Failure::Grpc(12))));
        let gone = refusal(StatusCode::NOT_FOUND, &HeaderMap::new());
        assert_eq!(gone, Some(CallResult::Failed(Failure::NotGrpc(404))));
    }
}
