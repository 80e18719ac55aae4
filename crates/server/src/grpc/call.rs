//! One call on a connection. A plain one is answered beneath tonic: by
//! [`PlainCall::answer_at_once`], or by the future [`PlainCall::answer`] if it has to wait, settles
//! a cost or cannot be read. An access log is read by `access_log`, and any other call is handed on
//! to tonic.
//!
//! The stream of a call owns the start that the call asks for, until the client has read the answer. A
//! call whose reset is known is not decided, unless it is the end of a request: that has happened.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ratelease_engine::limiter::owners::{ClosedBy, Origin, StartId};
use ratelease_engine::time::Time;
use ratelease_rules::request::Request as RateLimitRequest;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::access_log;
use super::answered_starts::AnsweredStarts;
use super::fallback::{FallbackCall, SHOULD_RATE_LIMIT};
use super::wire::DecodeError;
use super::{PREFIX_BYTES, status_of, wire};
use crate::request::{RequestError, Transport};
use crate::service::{Answer, Caller, DecisionService, Owner, Peer};
use crate::trace::{Outcome, Span};
use ratelease_listener::{FIELDS_MAX, TurnHandle};

/// What a further descriptor of a request costs of its connection's turn, in bytes that take as
/// long to read. A call of Envoy has one descriptor or a few; one of 256 would otherwise take as
/// long as a hundred calls.
const DESCRIPTOR_COST: usize = 128;

/// What the calls of a connection share.
pub(super) struct CallContext {
    pub(super) service: DecisionService,
    pub(super) peer: Peer,
    pub(super) turn: TurnHandle,
    /// The starts whose answers may not have been read.
    pub(super) answered: Arc<AnsweredStarts>,
    origin: Origin,
    /// The owner of the starts, from the first call on that an Envoy makes.
    owner: OnceLock<Owner>,
    /// Whether the client has closed the connection, or is gone.
    is_left: AtomicBool,
}

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

/// The answer to a plain call.
pub(super) struct Answered {
    /// A gRPC frame.
    pub(super) frame: BytesMut,
    /// The start that the answer grants.
    pub(super) started: Option<StartId>,
}

// === impl CallContext ===

impl CallContext {
    pub(super) fn new(
        service: DecisionService,
        turn: TurnHandle,
        answered: Arc<AnsweredStarts>,
        origin: Origin,
    ) -> Self {
        let (owner, is_left) = (OnceLock::new(), AtomicBool::new(false));
        Self { service, peer: Peer::new(), turn, answered, origin, owner, is_left }
    }

    /// The owner of the starts of this connection. Calls for a verdict and access logs ask for it, and
    /// make the connection one of an Envoy; health checks do not.
    pub(super) fn owner(&self) -> Owner {
        *self.owner.get_or_init(|| self.service.starts().connect(self.origin))
    }

    /// Notes the end that has closed the connection.
    pub(super) fn note_closed(&self, by: ClosedBy) {
        self.is_left.store(by == ClosedBy::Client, Ordering::Relaxed);
    }

    /// The end that has closed the connection, once it is closed.
    pub(super) fn closed_by(&self) -> ClosedBy {
        match self.is_left.load(Ordering::Relaxed) {
            true => ClosedBy::Client,
            false => ClosedBy::Server,
        }
    }

    /// Watches the start of a call whose answer on `stream` was queued, or undoes it.
    pub(super) fn note_answer(&self, stream: u32, started: Option<StartId>, is_queued: bool) {
        match started {
            None => {}
            Some(start) if is_queued => self.answered.watch(stream, start),
            Some(start) => self.service.starts().undo(start),
        }
    }
}

impl Drop for CallContext {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.get() {
            self.service.starts().disconnect(*owner, self.closed_by());
        }
    }
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
            return match access_log::is_access_log(&self.request) {
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
    fn new(request: &RateLimitRequest<'_>, answer: &Answer<'_>, span: Option<&Span>) -> Self {
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

// === The time that a caller waits ===
//
// How long the caller of a gRPC method waits for its answer: the header `grpc-timeout` (gRPC over
// HTTP/2, Requests). Envoy sends the timeout of its filter in this header.

static TIMEOUT_HEADER: HeaderName = HeaderName::from_static("grpc-timeout");

/// Maximum time until a call's answer begins; a verdict takes a few milliseconds at most.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Maximum number of digits in the specification.
const DIGITS_MAX: usize = 8;

/// The timeout in `headers`: one to eight digits and a unit. Any other value is ignored: an answer
/// is worth more than an error about a header.
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(&TIMEOUT_HEADER)?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0, |amount, digit| 10 * amount + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(amount * 3600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// How long a call with this timeout may still take until its answer begins, if it has `waited`
/// already.
fn time_left(timeout: Option<Duration>, waited: Duration) -> Duration {
    timeout.unwrap_or(CALL_MAX).min(CALL_MAX).saturating_sub(waited)
}

/// The status of a call that took longer.
pub(super) fn expired() -> Status {
    Status::deadline_exceeded("Timeout expired")
}

// === The headers of a call: their maximum number, and which of them are kept while it lasts ===

/// Names, and prefixes of names, that are read after a call has begun: those of gRPC, and those in
/// which tracers propagate their contexts.
const NAMES_READ: [&str; 8] = [
    "content-type",
    "content-length",
    "content-encoding",
    "te",
    "traceparent",
    "tracestate",
    "b3",
    "baggage",
];
const PREFIXES_READ: [&str; 2] = ["grpc-", "x-b3-"];

/// Header fields, and bytes of their values, that a call may keep while its message has not
/// arrived. A gRPC client sends six fields, plus those that tracers add.
const SMALL_FIELDS_MAX: usize = 16;
const SMALL_VALUE_BYTES_MAX: usize = 1024;

/// Whether the headers take more memory than the rest of a call.
fn are_large(headers: &HeaderMap) -> bool {
    headers.len() > SMALL_FIELDS_MAX
        || headers.values().map(|value| value.len()).sum::<usize>() > SMALL_VALUE_BYTES_MAX
}

/// Answers a call with more than [`FIELDS_MAX`] as `h2` does when the headers have too many bytes.
fn refuse(respond: &mut SendResponse<Bytes>) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    // An error means that the client is gone, or has reset the call.
    let _ = respond.send_response(response, true);
}

/// Drops the headers that are not read any more, and their memory: the call may last.
pub(super) fn keep_those_read(headers: &mut HeaderMap) {
    let is_read = |name: &str| {
        NAMES_READ.contains(&name) || PREFIXES_READ.iter().any(|prefix| name.starts_with(prefix))
    };
    // Copied into a new map: a map that was drained keeps its capacity.
    *headers = headers
        .iter()
        .filter(|(name, _)| is_read(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
}

// === The answer to a plain call, on its stream of `h2` ===

/// The content type of a plain call and of its answer.
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

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

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn headers(value: &[u8]) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(&TIMEOUT_HEADER, HeaderValue::from_bytes(value).ok()?);
        Some(headers)
    }

    fn read(text: &str) -> Option<Duration> {
        timeout_of(&headers(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_timeout_has_one_to_eight_digits_and_a_unit() {
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("0m"), Some(Duration::ZERO));
        assert_eq!(read("00000007S"), Some(Duration::from_secs(7)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("15u"), Some(Duration::from_micros(15)));
        assert_eq!(read("1n"), Some(Duration::from_nanos(1)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    }

    #[test]
    fn anything_else_is_no_timeout() {
        for bad in [
            "",
            "m",
            "20",
            "123456789S",
            "-1S",
            "+1S",
            "1x",
            "1ms",
            "1 m",
            " 1m",
            "1.5S",
            "0x1m",
            "1s",
            "1h",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(timeout_of(&headers("1\u{b5}".as_bytes()).unwrap()), None);
        assert_eq!(
            timeout_of(&headers("\u{661}m".as_bytes()).unwrap()),
            None,
            "not an ASCII digit"
        );
        assert_eq!(timeout_of(&HeaderMap::new()), None);
    }

    #[test]
    fn the_longest_timeout_ends_with_the_clock() {
        let headers = headers(b"99999999H").unwrap();
        let late = Time::from_nanos(7) + timeout_of(&headers).unwrap();
        assert_eq!(late, Time::from_nanos(u64::MAX));
    }

    proptest! {
        #[test]
        fn no_value_panics(value in prop::collection::vec(any::<u8>(), 0..16)) {
            if let Some(headers) = headers(&value) {
                let _ = timeout_of(&headers).map(|it| Time::from_nanos(u64::MAX / 2) + it);
            }
        }

        #[test]
        fn every_amount_of_the_specification_is_read(amount in 0_u32..100_000_000) {
            let read = read(&format!("{amount}u"));
            prop_assert_eq!(read, Some(Duration::from_micros(amount.into())));
        }
    }

    #[test]
    fn headers_that_are_read_are_kept_in_little_memory() {
        let mut headers = HeaderMap::new();
        for n in 0..300 {
            let name = HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_static("v"));
        }
        for name in ["content-type", "grpc-timeout", "traceparent", "x-b3-traceid"] {
            headers.append(name, HeaderValue::from_static("kept"));
        }
        keep_those_read(&mut headers);
        assert_eq!(headers.len(), 4);
        assert!(headers.values().all(|value| value == "kept"));
        assert!(headers.capacity() < 64);
    }
}
