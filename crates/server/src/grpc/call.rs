//! One call on a connection: answered in place if it is plain and need not wait. A plain call that
//! has to wait gets a task of its own; any other call is handed on to tonic.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Method, Request, Uri};
use ratelease_engine::time::Time;
use tonic::Code;

use super::answer::{GRPC, send_message, send_status};
use super::deadline::{self, Deadline};
use super::fallback::{FallbackCall, Message};
use super::rate_limit_service::SHOULD_RATE_LIMIT;
use super::waiting::WaitingCall;
use super::{PREFIX_BYTES, headers, status_of, wire};
use crate::request_error::RequestError;
use crate::service::{DecisionService, Peer};
use crate::trace::{Outcome, Span};
use crate::transport::Transport;
use ratelease_listener::TurnHandle;

/// What a further descriptor of a request costs of its connection's turn, in bytes that take as
/// long to read. A call of Envoy has one descriptor or a few; one of 256 would otherwise take as
/// long as a hundred calls.
const DESCRIPTOR_COST: usize = 128;

/// A call that has just begun.
pub(super) struct Call {
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
    /// When it began, if that was a while ago.
    pub(super) started: Option<Time>,
}

/// The result of an attempt to answer a call.
pub(super) enum Step {
    /// The call has ended.
    Done,
    /// No part of the message has arrived.
    AwaitsMessage(Call),
    /// The call takes longer.
    HandedOn(HandedOn),
}

/// A call that takes longer.
pub(super) enum HandedOn {
    /// It is plain, and waits for a lease, or is to be refused.
    Waiting(WaitingCall),
    /// It is for tonic: it is not plain, or its message is not complete.
    Fallback(Box<FallbackCall>),
}

/// What has arrived of a call's message.
enum Received {
    Complete(Bytes),
    Partial(Bytes),
    Nothing,
    /// The client has reset the call.
    Reset,
}

// === impl Call ===

impl Call {
    /// Answers the call if that is possible without waiting; else returns it.
    pub(super) fn answer(
        mut self,
        service: &DecisionService,
        peer: &Peer,
        turn: &TurnHandle,
        cx: &mut Context<'_>,
    ) -> Step {
        let for_tonic = |call: Self, read| Step::HandedOn(call.into_fallback(service, peer, read));
        if !self.is_plain() {
            return for_tonic(self, None);
        }
        let read = match self.read(cx) {
            Received::Complete(read) if read.is_empty() => return for_tonic(self, None),
            Received::Complete(read) => read,
            Received::Partial(read) => return for_tonic(self, Some(read)),
            Received::Nothing => return Step::AwaitsMessage(self),
            Received::Reset => return Step::Done,
        };
        let mut answer = BytesMut::new();
        let mut descriptors = 0;
        let span = service.begin(Transport::Grpc, self.request.headers());
        let mut answered =
            || answer_frame(service, &read, &mut answer, span.as_ref(), &mut descriptors);
        let answered = match &span {
            None => answered(),
            Some(span) => span.within(answered),
        };
        turn.note_work(descriptors.saturating_sub(1) * DESCRIPTOR_COST);
        let code = match answered {
            None => {
                let Some(message) = plain_message(&read) else {
                    // tonic's route begins another span for the call.
                    span.inspect(Span::discard);
                    return for_tonic(self, Some(read));
                };
                let message = read.slice_ref(message);
                let waiting = self.into_waiting_call(service, message, span);
                return Step::HandedOn(HandedOn::Waiting(waiting));
            }
            Some(Ok(())) => {
                send_message(&mut self.respond, answer.freeze());
                Code::Ok
            }
            Some(Err(error)) => {
                let status = status_of(&error);
                let code = status.code();
                send_status(&mut self.respond, status);
                code
            }
        };
        if let Some(span) = span {
            span.end(Outcome::Grpc(code.into()));
        }
        Step::Done
    }

    /// Takes what has arrived of the message. Some clients end it with an empty frame.
    fn read(&mut self, cx: &mut Context<'_>) -> Received {
        let body = self.request.body_mut();
        let mut read = Bytes::new();
        loop {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(more))) => {
                    // An error means that the stream is over, which the next poll reports.
                    let _ = body.flow_control().release_capacity(more.len());
                    read = concat(read, more);
                    if body.is_end_stream() {
                        return Received::Complete(read);
                    }
                }
                Poll::Ready(None) => return Received::Complete(read),
                Poll::Ready(Some(Err(_))) => return Received::Reset,
                Poll::Pending if read.is_empty() => return Received::Nothing,
                Poll::Pending => return Received::Partial(read),
            }
        }
    }

    /// The same call, whose message has not arrived by `now`, without what takes more memory than
    /// the rest of it.
    pub(super) fn into_waiting(mut self, now: Time) -> Self {
        if headers::are_large(self.request.headers()) {
            headers::keep_those_read(self.request.headers_mut());
        }
        // `h2` gives the path as a part of the buffer that it was read into, which it would keep.
        *self.request.uri_mut() = Uri::from_static(SHOULD_RATE_LIMIT);
        Self { started: Some(now), ..self }
    }

    /// How long the call has waited for its message.
    pub(super) fn waited(&self, now: Time) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now.since(started))
    }

    fn is_plain(&self) -> bool {
        let request = &self.request;
        request.uri().path() == SHOULD_RATE_LIMIT
            && request.method() == Method::POST
            && request.headers().get(CONTENT_TYPE) == Some(&GRPC)
            && !request.headers().contains_key(CONTENT_ENCODING)
    }

    /// The same call, which has to wait. Its `message` is complete, and without gRPC's prefix.
    fn into_waiting_call(
        self,
        service: &DecisionService,
        message: Bytes,
        span: Option<Span>,
    ) -> WaitingCall {
        let (now, headers) = (service.now(), self.request.headers());
        let limit = deadline::time_left(headers, self.waited(now));
        let deadline = Deadline::of(headers, self.started.unwrap_or(now));
        WaitingCall { message, respond: self.respond, span, deadline, limit }
    }

    /// Converts the call for tonic: its message, or the answer, takes a while. `read` is the part
    /// of the message that has arrived.
    pub(super) fn into_fallback(
        self,
        service: &DecisionService,
        peer: &Peer,
        read: Option<Bytes>,
    ) -> HandedOn {
        // From here on the message and the wait for a place may take a while.
        let now = service.now();
        let waited = self.waited(now);
        let Self { mut request, respond, started } = self;
        if let Some(deadline) = Deadline::of(request.headers(), started.unwrap_or(now)) {
            request.extensions_mut().insert(deadline);
        }
        let reservation = service.reserve_body(Transport::Grpc, peer);
        request.extensions_mut().insert(reservation.clone());
        let request = request.map(|body| Message::new(read, body, reservation));
        HandedOn::Fallback(Box::new(FallbackCall { request, respond, waited }))
    }
}

/// Answers `frame`, a gRPC frame, and appends the answer to `answer`, as a frame. Allocates nothing
/// else for a request of one or two descriptors. Returns `None` for a call that is not plain, or
/// has to wait.
///
/// # Errors
///
/// Returns the error if the request has no verdict, and waiting would not change that.
pub fn answer_at_once(
    service: &DecisionService,
    frame: &[u8],
    answer: &mut BytesMut,
) -> Option<Result<(), RequestError>> {
    answer_frame(service, frame, answer, None, &mut 0)
}

/// Like [`answer_at_once`]; records the decision in `span`, and the number of descriptors of the
/// request in `descriptors`.
fn answer_frame(
    service: &DecisionService,
    frame: &[u8],
    answer: &mut BytesMut,
    span: Option<&Span>,
    descriptors: &mut usize,
) -> Option<Result<(), RequestError>> {
    let request = wire::read(plain_message(frame)?).ok()?;
    *descriptors = request.descriptors.len();
    service.answer_at_once(&request, |made| {
        wire::frame(made, answer);
        if let Some(span) = span {
            span.note(&request, &made.verdict);
        }
    })
}

fn concat(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (true, _) => second,
        (_, true) => first,
        (false, false) => [first, second].concat().into(),
    }
}

/// The message in a frame that holds exactly one, complete and not compressed.
fn plain_message(frame: &[u8]) -> Option<&[u8]> {
    let ([0, length @ ..], message) = frame.split_first_chunk::<PREFIX_BYTES>()? else {
        return None;
    };
    let length = u32::from_be_bytes(*length);
    (usize::try_from(length) == Ok(message.len())).then_some(message)
}
