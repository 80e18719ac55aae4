//! One call on a connection. A plain one is answered beneath tonic: by
//! [`PlainCall::answer_at_once`], or by the future [`PlainCall::answer`] if it has to wait, settles
//! a cost or cannot be read. An access log is read by `access_log`, and any other call is handed on
//! to tonic.
//!
//! The stream of a call owns the start that the call asks for, until the client has read the answer. A
//! call whose reset is known is not decided, unless it is the end of a request: that has happened.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode, Uri};
use ratelease_engine::time::Time;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::context::CallContext;
use super::fallback::{FallbackCall, SHOULD_RATE_LIMIT};
use super::headers::{are_large, keep_those_read, time_left, timeout_of};
use super::reply::{Answered, GRPC, answer, expired, send_message, send_status, unreadable};
use super::{PREFIX_BYTES, status_of, wire};
use crate::request::Transport;
use crate::service::{Answer, Caller};
use crate::trace::{Outcome, Span};
use ratelease_listener::FIELDS_MAX;

/// What a further descriptor of a request costs of its connection's turn, in bytes that take as
/// long to read. A call of Envoy has one descriptor or a few; one of 256 would otherwise take as
/// long as a hundred calls.
const DESCRIPTOR_COST: usize = 128;

/// The path of the method that opens an access log.
const STREAM_ACCESS_LOGS: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

/// The other content type that the calls of this method may have.
const GRPC_PROTO: &str = "application/grpc+proto";

/// A call that has just begun.
pub(super) struct Call {
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    /// When it began, if that was a while ago.
    started: Option<Time>,
}

/// What a call is, by what has arrived of it.
pub(super) enum Kind {
    /// It is plain, and its message is complete.
    Plain(PlainCall),
    /// It is for tonic: it is not plain, or its message is not complete.
    Fallback(Box<FallbackCall>),
    /// The call opens an access log, which both ends keep open.
    AccessLog(Call),
    /// No part of the message has arrived.
    Unknown(Call),
    /// It has been refused, or its client has reset it.
    Ended,
}

/// A plain call: one message that is complete and not compressed.
pub(super) struct PlainCall {
    /// The message, without gRPC's prefix.
    message: Bytes,
    respond: SendResponse<Bytes>,
    span: Option<Span>,
    /// How long its caller still waits for the answer, if it says so.
    patience: Option<Duration>,
    /// Maximum time until its answer.
    limit: Duration,
    /// Whether the client has reset the call already.
    is_reset: bool,
}

// === impl Call ===

impl Call {
    pub(super) fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>) -> Self {
        Self { request, respond, started: None }
    }

    /// Reads what has arrived of the call.
    pub(super) fn read(mut self, context: &CallContext, cx: &mut Context<'_>) -> Kind {
        if self.request.headers().len() > FIELDS_MAX {
            refuse(&mut self.respond);
            return Kind::Ended;
        }
        if !self.is_plain() {
            return match self.is_access_log() {
                true => Kind::AccessLog(self),
                false => self.into_fallback(context, Bytes::new()),
            };
        }
        let body = self.request.body_mut();
        let mut read = Bytes::new();
        loop {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(more))) => {
                    // An error means that the stream is over, which the next poll reports.
                    let _ = body.flow_control().release_capacity(more.len());
                    read = concat(read, more);
                    // Some clients end the message with an empty frame.
                    if body.is_end_stream() {
                        return self.complete(context, read, cx);
                    }
                }
                Poll::Ready(None) => return self.complete(context, read, cx),
                Poll::Ready(Some(Err(_))) => return Kind::Ended,
                Poll::Pending if read.is_empty() => return Kind::Unknown(self),
                Poll::Pending => return self.into_fallback(context, read),
            }
        }
    }

    /// The call, of which all has arrived: `frame`.
    fn complete(mut self, context: &CallContext, frame: Bytes, cx: &mut Context<'_>) -> Kind {
        let Some(message) = plain_message(&frame) else {
            return self.into_fallback(context, frame);
        };
        // A reset that was read with the message, or since its head.
        let may_be_reset = context.turn.has_resets() || self.started.is_some();
        let is_reset = may_be_reset && self.respond.poll_reset(cx).is_ready();
        let headers = self.request.headers();
        let waited = self.started.map_or(Duration::ZERO, |at| context.service.now().since(at));
        let timeout = timeout_of(headers);
        Kind::Plain(PlainCall {
            message: frame.slice_ref(message),
            span: context.service.begin(Transport::Grpc, headers),
            patience: timeout.map(|timeout| timeout.saturating_sub(waited)),
            limit: time_left(timeout, waited),
            respond: self.respond,
            is_reset,
        })
    }

    /// The same call, whose message has not arrived by `now`, without what takes more memory than
    /// the rest of it.
    pub(super) fn into_waiting(mut self, now: Time) -> Self {
        if are_large(self.request.headers()) {
            keep_those_read(self.request.headers_mut());
        }
        // `h2` gives the path as a part of the buffer that it was read into, which it would keep.
        *self.request.uri_mut() = Uri::from_static(SHOULD_RATE_LIMIT);
        Self { started: Some(now), ..self }
    }

    /// How long the call has waited for its message.
    pub(super) fn waited(&self, now: Time) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now.since(started))
    }

    /// The parts of the call.
    pub(super) fn into_parts(self) -> (Request<RecvStream>, SendResponse<Bytes>) {
        (self.request, self.respond)
    }

    fn is_plain(&self) -> bool {
        let request = &self.request;
        request.uri().path() == SHOULD_RATE_LIMIT
            && request.method() == Method::POST
            && request.headers().get(CONTENT_TYPE) == Some(&GRPC)
            && !request.headers().contains_key(CONTENT_ENCODING)
    }

    /// Whether the call opens an access log.
    fn is_access_log(&self) -> bool {
        let request = &self.request;
        let is_grpc = |value| value == GRPC || value == GRPC_PROTO;
        request.uri().path() == STREAM_ACCESS_LOGS
            && request.method() == Method::POST
            && request.headers().get(CONTENT_TYPE).is_some_and(is_grpc)
    }

    /// Converts the call for tonic: its message, or the answer, takes a while. `read` is the part
    /// of the message that has arrived.
    pub(super) fn into_fallback(self, context: &CallContext, read: Bytes) -> Kind {
        // From here on the message and the wait for a place may take a while.
        let now = context.service.now();
        let waited = self.waited(now);
        let Self { request, respond, started } = self;
        let timeout = timeout_of(request.headers());
        let deadline = timeout.map(|timeout| started.unwrap_or(now) + timeout);
        let limit = time_left(timeout, waited);
        let reservation = context.service.reserve_body(Transport::Grpc, &context.peer);
        let call = FallbackCall::new(request, respond, read, reservation, deadline, limit);
        Kind::Fallback(Box::new(call))
    }
}

// === impl PlainCall ===

impl PlainCall {
    /// Answers the call if it need not wait, as nearly all calls; else returns it, and nothing of it
    /// is charged. A call that was reset is dropped, unless it settles a cost. The future of [`PlainCall::answer`] would be copied for each call, which costs
    /// 4 % of its CPU.
    pub(super) fn answer_at_once(mut self, context: &CallContext) -> Option<Self> {
        if self.is_reset {
            return self.settles(context).then_some(self);
        }
        let span = self.span.as_ref();
        let decide = || decide_at_once(context, &self.message, span);
        let Some(answered) = span.map_or_else(decide, |span| span.within(decide)) else {
            return Some(self);
        };
        send(context, &mut self.respond, self.span.as_ref(), answered);
        None
    }

    /// Whether the request has costs that were incurred.
    #[cold]
    fn settles(&self, context: &CallContext) -> bool {
        wire::read(&self.message).is_ok_and(|request| context.service.settles(&request))
    }

    /// Answers the call, when this is polled first if it need not wait. Nothing is sent to a client
    /// that is gone or has reset the call.
    pub(super) async fn answer(self, context: Arc<CallContext>) {
        let Self { message, mut respond, span, patience, limit, .. } = self;
        let decided = decide(&context, &message, patience, span.as_ref());
        let mut decided = pin!(context.service.catch_panic(Transport::Grpc, decided));
        let mut decide = |cx: &mut Context<'_>| match &span {
            None => decided.as_mut().poll(cx),
            Some(span) => span.within(|| decided.as_mut().poll(cx)),
        };
        let decided = match poll_fn(|cx| Poll::Ready(decide(cx))).await {
            Poll::Ready(decided) => Ok(decided),
            Poll::Pending => tokio::select! {
                // A reset may have been read together with the end of the request, which the lease
                // must not overtake.
                biased;
                _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
                decided = timeout(limit, poll_fn(decide)) => decided,
            },
        };
        let answered = match decided {
            Ok(Ok(answered)) => answered,
            Ok(Err(panicked)) => Err(status_of(&panicked)),
            Err(_) => Err(expired()),
        };
        send(&context, &mut respond, span.as_ref(), answered);
    }
}

/// Sends the answer, a frame or a status, and ends the span of its call.
fn send(
    context: &CallContext,
    respond: &mut SendResponse<Bytes>,
    span: Option<&Span>,
    answered: Result<Answered, Status>,
) {
    let code = answered.as_ref().map_or_else(Status::code, |_| Code::Ok);
    match answered {
        Ok(Answered { frame, started }) => {
            let stream = respond.stream_id().into();
            let is_queued = send_message(respond, frame.freeze());
            context.note_answer(stream, started, is_queued);
        }
        Err(status) => send_status(respond, status),
    }
    if let Some(span) = span {
        span.end(Outcome::Grpc(code.into()));
    }
}

/// Decides the request in `message` as [`decide`] does, if it can be read and need not wait.
fn decide_at_once(
    context: &CallContext,
    message: &[u8],
    span: Option<&Span>,
) -> Option<Result<Answered, Status>> {
    let CallContext { service, turn, .. } = context;
    let request = wire::read(message).ok()?;
    let make = |answer: &Answer<'_>| Answered::new(&request, answer, span);
    let answered = service.answer_at_once(Transport::Grpc, context.owner(), &request, make)?;
    turn.note_work(request.descriptors.len().saturating_sub(1) * DESCRIPTOR_COST);
    Some(answered.map_err(|error| status_of(&error)))
}

/// Decides the request in `message`.
async fn decide(
    context: &CallContext,
    message: &[u8],
    patience: Option<Duration>,
    span: Option<&Span>,
) -> Result<Answered, Status> {
    let CallContext { service, peer, turn, .. } = context;
    let request = wire::read(message).map_err(|fault| unreadable(fault, service))?;
    turn.note_work(request.descriptors.len().saturating_sub(1) * DESCRIPTOR_COST);
    let caller = Caller { transport: Transport::Grpc, peer, patience, owner: context.owner() };
    answer(service, &caller, &request, span).await
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

/// Answers a call with more than [`FIELDS_MAX`] as `h2` does when the headers have too many bytes.
fn refuse(respond: &mut SendResponse<Bytes>) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    // An error means that the client is gone, or has reset the call.
    let _ = respond.send_response(response, true);
}
