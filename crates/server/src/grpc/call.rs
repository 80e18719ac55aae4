//! One call on a connection. A plain one is answered by [`PlainCall::answer`], beneath tonic; any
//! other is handed on to tonic.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Method, Request, Uri};
use ratelease_engine::time::Time;
use ratelease_rules::request::Request as RateLimitRequest;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::answer::{GRPC, send_message, send_status};
use super::deadline::{self, Deadline};
use super::fallback::{FallbackCall, Message};
use super::rate_limit_service::SHOULD_RATE_LIMIT;
use super::wire::DecodeError;
use super::{PREFIX_BYTES, headers, status_of, wire};
use crate::request_error::RequestError;
use crate::service::{Caller, DecisionService, Peer};
use crate::trace::{Outcome, Span};
use crate::transport::Transport;
use ratelease_listener::TurnHandle;

/// What a further descriptor of a request costs of its connection's turn, in bytes that take as
/// long to read. A call of Envoy has one descriptor or a few; one of 256 would otherwise take as
/// long as a hundred calls.
const DESCRIPTOR_COST: usize = 128;

/// What the calls of a connection share.
pub(super) struct CallContext {
    pub(super) service: DecisionService,
    pub(super) peer: Peer,
    pub(super) turn: TurnHandle,
}

/// A call that has just begun.
pub(super) struct Call {
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
    /// When it began, if that was a while ago.
    pub(super) started: Option<Time>,
}

/// What a call is, by what has arrived of it.
pub(super) enum Kind {
    /// It is plain, and its message is complete.
    Plain(PlainCall),
    /// It is for tonic: it is not plain, or its message is not complete.
    Fallback(Box<FallbackCall>),
    /// No part of the message has arrived.
    Unknown(Call),
    /// The client has reset it.
    Reset,
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
}

// === impl Call ===

impl Call {
    /// Reads what has arrived of the call.
    pub(super) fn read(mut self, context: &CallContext, cx: &mut Context<'_>) -> Kind {
        if !self.is_plain() {
            return self.into_fallback(context, Bytes::new());
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
                        return self.complete(context, read);
                    }
                }
                Poll::Ready(None) => return self.complete(context, read),
                Poll::Ready(Some(Err(_))) => return Kind::Reset,
                Poll::Pending if read.is_empty() => return Kind::Unknown(self),
                Poll::Pending => return self.into_fallback(context, read),
            }
        }
    }

    /// The call, of which all has arrived: `frame`.
    fn complete(self, context: &CallContext, frame: Bytes) -> Kind {
        let Some(message) = plain_message(&frame) else {
            return self.into_fallback(context, frame);
        };
        let headers = self.request.headers();
        let waited = self.started.map_or(Duration::ZERO, |at| context.service.now().since(at));
        let timeout = deadline::timeout(headers);
        Kind::Plain(PlainCall {
            message: frame.slice_ref(message),
            span: context.service.begin(Transport::Grpc, headers),
            patience: timeout.map(|timeout| timeout.saturating_sub(waited)),
            limit: deadline::time_left(timeout, waited),
            respond: self.respond,
        })
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

    /// Converts the call for tonic: its message, or the answer, takes a while. `read` is the part
    /// of the message that has arrived.
    pub(super) fn into_fallback(self, context: &CallContext, read: Bytes) -> Kind {
        // From here on the message and the wait for a place may take a while.
        let now = context.service.now();
        let waited = self.waited(now);
        let Self { mut request, respond, started } = self;
        let timeout = deadline::timeout(request.headers());
        if let Some(timeout) = timeout {
            let deadline = Deadline(started.unwrap_or(now) + timeout);
            request.extensions_mut().insert(deadline);
        }
        let reservation = context.service.reserve_body(Transport::Grpc, &context.peer);
        request.extensions_mut().insert(reservation.clone());
        let request = request.map(|body| Message::new(read, body, reservation));
        let limit = deadline::time_left(timeout, waited);
        Kind::Fallback(Box::new(FallbackCall { request, respond, limit }))
    }
}

// === impl PlainCall ===

impl PlainCall {
    /// Answers the call, when this is polled first if it need not wait. Nothing is sent to a client
    /// that is gone or has reset the call.
    pub(super) async fn answer(self, context: Arc<CallContext>) {
        let Self { message, mut respond, span, patience, limit } = self;
        let decided = decide(&context, &message, patience, span.as_ref());
        let mut decided = pin!(context.service.catch_panic(Transport::Grpc, decided));
        let mut decide = |cx: &mut Context<'_>| match &span {
            None => decided.as_mut().poll(cx),
            Some(span) => span.within(|| decided.as_mut().poll(cx)),
        };
        let decided = match poll_fn(|cx| Poll::Ready(decide(cx))).await {
            Poll::Ready(decided) => Ok(decided),
            Poll::Pending => tokio::select! {
                decided = timeout(limit, poll_fn(decide)) => decided,
                _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            },
        };
        let answered = match decided {
            Ok(Ok(answered)) => answered,
            Ok(Err(panicked)) => Err(status_of(&panicked)),
            Err(_) => Err(deadline::expired()),
        };
        let code = answered.as_ref().map_or_else(Status::code, |_| Code::Ok);
        match answered {
            Ok(frame) => send_message(&mut respond, frame.freeze()),
            Err(status) => send_status(&mut respond, status),
        }
        if let Some(span) = &span {
            span.end(Outcome::Grpc(code.into()));
        }
    }
}

/// Decides the request in `message`, and returns the answer as a gRPC frame.
async fn decide(
    context: &CallContext,
    message: &[u8],
    patience: Option<Duration>,
    span: Option<&Span>,
) -> Result<BytesMut, Status> {
    let CallContext { service, peer, turn } = context;
    let request = wire::read(message).map_err(|fault| unreadable(fault, service))?;
    turn.note_work(request.descriptors.len().saturating_sub(1) * DESCRIPTOR_COST);
    answer(service, peer, patience, &request, span).await
}

/// Returns the answer to `request` of `peer` as a gRPC frame, and records it in `span`.
pub(super) async fn answer(
    service: &DecisionService,
    peer: &Peer,
    patience: Option<Duration>,
    request: &RateLimitRequest<'_>,
    span: Option<&Span>,
) -> Result<BytesMut, Status> {
    let caller = Caller { transport: Transport::Grpc, peer, patience };
    let framed = service.answer(&caller, request, |answer| {
        if let Some(span) = span {
            span.note(request, &answer.verdict);
        }
        let mut frame = BytesMut::new();
        wire::frame(answer, &mut frame);
        frame
    });
    framed.await.map_err(|error| status_of(&error))
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
