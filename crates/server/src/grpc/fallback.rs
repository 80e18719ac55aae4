//! Serves every call that is not plain, or whose message is not complete: tonic's routes, over a
//! stream of `h2`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::Full;
use parking_lot::Mutex;
use ratelease_engine::limiter::owners::StartId;
use ratelease_engine::time::Time;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::body::Body as TonicBody;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Code, Status};
use tower_service::Service;

use super::context::CallContext;
use super::headers::keep_those_read;
use super::reply::{answer, expired, unreadable};
use super::{
    HEALTHCHECK, MESSAGE_BYTES_MAX, PREFIX_BYTES, answer_encodings, is_compressed,
    message_encodings,
};
use super::{status_of, wire};
use crate::request::{RequestError, Transport};
use crate::service::{BodyReservation, Caller, DecisionService, Owner, PartialMessage, Peer};
use crate::trace::{Outcome, Span};
use ratelease_listener::{ConnectionHandle, IncompleteRequest};

/// Maximum time for a message to be complete, from the first wait for it; after that its call ends.
/// Envoy sends a message together with the headers of its call; the longest takes 16 round trips.
const MESSAGE_MAX: Duration = Duration::from_secs(2);

/// Maximum length of a compressed message. Decompression is work that its output does not bound:
/// a MiB of blocks without content takes seconds, 4 KiB of them some milliseconds. A message of
/// this length has as many entries as callers send.
const COMPRESSED_BYTES_MAX: usize = 4 << 10;

/// A call for tonic: its message is not plain, not complete, or absent.
pub(super) struct FallbackCall {
    request: Request<Message>,
    respond: SendResponse<Bytes>,
    /// Maximum time until its answer begins.
    limit: Duration,
}

/// When the caller of a call gives up, if it says so: an extension of the call's request.
#[derive(Debug, Clone, Copy)]
struct Deadline(Option<Time>);

/// The start of a call for tonic, until its answer was queued: an extension of the call's request. To
/// drop the last clone before that undoes the start.
#[derive(Clone)]
struct StartSlot(Arc<Slot>);

struct Slot {
    context: Arc<CallContext>,
    started: Mutex<Option<StartId>>,
}

/// The message of a call, as far as it has arrived.
struct Message {
    read: Bytes,
    rest: RecvStream,
    reservation: BodyReservation,
}

/// Decompression of a message takes up to some milliseconds, during which its thread does nothing
/// else. So one is decompressed at a time, and other tasks run before the next one.
static DECOMPRESSION: Semaphore = Semaphore::const_new(1);

/// Awaits `answered`, which decompresses its message when it is polled first.
async fn decompressed_in_turn<T>(answered: impl Future<Output = T>) -> T {
    let mut answered = pin!(answered);
    // An error would mean that the semaphore is closed, which nothing does.
    let turn = DECOMPRESSION.acquire().await;
    let first = futures_util::poll!(&mut answered);
    tokio::task::yield_now().await;
    drop(turn);
    match first {
        Poll::Ready(answered) => answered,
        Poll::Pending => answered.await,
    }
}

/// The answer to a request that is not a gRPC call, which tonic would accept as one. The HTTP
/// status reports the error as well, for clients that know no gRPC status (gRPC over HTTP/2,
/// Requests).
fn rejection<B>(request: &Request<B>) -> Option<Response<TonicBody>> {
    if request.uri().path() == HEALTHCHECK {
        return None;
    }
    let is_post = request.method() == Method::POST;
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_grpc = content_type
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')));
    let (code, reason) = match (is_post, is_grpc) {
        (true, true) => return None,
        (false, _) => (StatusCode::METHOD_NOT_ALLOWED, "gRPC calls must use POST"),
        _ => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content-type must be application/grpc"),
    };
    let mut response = Status::internal(reason).into_http();
    *response.status_mut() = code;
    if !is_post {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    Some(response)
}

/// Replaces OUT_OF_RANGE, which tonic returns for a message that is too long, by
/// RESOURCE_EXHAUSTED, as in gRPC's own table of statuses and the reference implementation. No
/// other error here is OUT_OF_RANGE.
fn normalize_status(mut response: Response<TonicBody>) -> Response<TonicBody> {
    if let Some(status) = response.headers_mut().get_mut("grpc-status")
        && Code::from_bytes(status.as_bytes()) == Code::OutOfRange
    {
        *status = HeaderValue::from(i32::from(Code::ResourceExhausted));
    }
    response
}

/// Sends `response` as fast as the client accepts it. Returns whether all of it was queued.
async fn send(response: Response<TonicBody>, mut respond: SendResponse<Bytes>) -> bool {
    let (head, mut body) = response.into_parts();
    let is_over = body.is_end_stream();
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), is_over) else {
        return false;
    };
    if is_over {
        return true;
    }
    loop {
        let frame = tokio::select! {
            biased;
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return false,
            frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => frame,
        };
        let sent = match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => send_data(&mut stream, data).await,
            Some(Ok(Err(frame))) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                return stream.send_trailers(trailers).is_ok();
            }
            Some(Err(_)) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return false;
            }
            None => return stream.send_data(Bytes::new(), true).is_ok(),
        };
        if sent.is_none() {
            return false;
        }
    }
}

/// Sends `data` in pieces that fit the client's window; `None` once the client is gone.
async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Option<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, false).ok()?;
    }
    Some(())
}

// === impl FallbackCall ===

impl FallbackCall {
    /// Creates the call from what has been `read` of its message, which is counted on
    /// `reservation`. Its caller gives up at `deadline`, and its answer begins within `limit`.
    pub(super) fn new(
        mut request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        read: Bytes,
        reservation: BodyReservation,
        deadline: Option<Time>,
        limit: Duration,
    ) -> Self {
        request.extensions_mut().insert(reservation.clone());
        request.extensions_mut().insert(Deadline(deadline));
        let request = request.map(|rest| Message { read, rest, reservation });
        Self { request, respond, limit }
    }

    pub(super) fn is_for_verdict(&self) -> bool {
        self.request.uri().path() == SHOULD_RATE_LIMIT
    }

    /// Answers the call, until its client cancels it. Until the message is complete the call takes
    /// little memory, and a slot of its connection: tonic is involved only after that. If there is
    /// no slot, the call is reset, and its client may try again, since nothing was done.
    pub(super) fn answer(
        mut self,
        context: &Arc<CallContext>,
        handle: &ConnectionHandle,
        routes: Routes,
    ) -> impl Future<Output = ()> + Send + use<> {
        keep_those_read(self.request.headers_mut());
        self.request.extensions_mut().insert(handle.clone());
        let slot = StartSlot::new(context);
        self.request.extensions_mut().insert(slot.clone());
        let is_complete = self.request.body().rest.is_end_stream();
        let incomplete = if is_complete { None } else { handle.register_incomplete() };
        async move {
            let Self { request, mut respond, limit } = self;
            if !is_complete && incomplete.is_none() {
                return respond.send_reset(Reason::REFUSED_STREAM);
            }
            let mut answered = pin!(timeout(limit, by_tonic(request, incomplete, routes)));
            // A call that need not wait is decided even if it was reset: it may be an end. A start is
            // undone when its answer cannot be sent.
            let answered = match futures_util::poll!(&mut answered) {
                Poll::Ready(answered) => answered,
                Poll::Pending => tokio::select! {
                    // As in `PlainCall::answer`.
                    biased;
                    _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
                    answered = answered => answered,
                },
            };
            let stream = respond.stream_id().into();
            if send(answered.unwrap_or_else(|_| expired().into_http()), respond).await {
                slot.note_queued(stream);
            }
        }
    }
}

/// `incomplete` counts the call until its message is complete.
async fn by_tonic(
    request: Request<Message>,
    incomplete: Option<IncompleteRequest>,
    mut routes: Routes,
) -> Response<TonicBody> {
    if let Some(response) = rejection(&request) {
        return response;
    }
    let (head, message) = request.into_parts();
    let is_compressed = is_compressed(&head.headers);
    let body = match message.message(is_compressed).await {
        Ok(message) => TonicBody::new(Full::new(message)),
        Err(status) => return status.into_http(),
    };
    drop(incomplete);
    let answered = routes.call(Request::from_parts(head, body));
    let answered = match is_compressed {
        true => decompressed_in_turn(answered).await,
        false => answered.await,
    };
    match answered {
        Ok(response) => normalize_status(response),
        Err(never) => match never {},
    }
}

// === impl StartSlot ===

impl StartSlot {
    fn new(context: &Arc<CallContext>) -> Self {
        let context = Arc::clone(context);
        Self(Arc::new(Slot { context, started: Mutex::new(None) }))
    }

    /// The owner of the start.
    fn owner(&self) -> Owner {
        self.0.context.owner()
    }

    fn put(&self, started: Option<StartId>) {
        *self.0.started.lock() = started;
    }

    /// Notes that the whole answer was queued on `stream`, which owns the start from then on.
    fn note_queued(&self, stream: u32) {
        self.0.context.note_answer(stream, self.0.started.lock().take(), true);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.context.note_answer(0, self.started.get_mut().take(), false);
    }
}

// === impl Message ===

impl Message {
    /// Returns the whole message, or a beginning of it that is longer than the maximum.
    ///
    /// # Errors
    ///
    /// Fails if the message was not complete in time, lost its memory to others, or was reset by
    /// its client, or if it is compressed and too long to be decompressed.
    async fn message(self, is_compressed: bool) -> Result<Bytes, Status> {
        let max = if is_compressed { COMPRESSED_BYTES_MAX } else { MESSAGE_BYTES_MAX };
        let message = self.collect(PREFIX_BYTES + max).await?;
        if is_compressed && message.len() > PREFIX_BYTES + COMPRESSED_BYTES_MAX {
            let reason = format!(
                "the message has more than {COMPRESSED_BYTES_MAX} compressed bytes; send it \
                 without compression"
            );
            return Err(Status::resource_exhausted(reason));
        }
        Ok(message)
    }

    /// Reads the message until it is complete or longer than `max`.
    async fn collect(self, max: usize) -> Result<Bytes, Status> {
        let Self { read, mut rest, reservation } = self;
        if rest.is_end_stream() {
            return Ok(read);
        }
        let collected = async {
            let mut message = PartialMessage::new(&reservation);
            message.push(&read).map_err(|error| status_of(&error))?;
            drop(read);
            while message.bytes() <= max
                && let Some(part) = rest.data().await
            {
                let part = part.map_err(|error| Status::cancelled(error.to_string()))?;
                // Fails only on a stream that has ended; the next read reports that.
                let _ = rest.flow_control().release_capacity(part.len());
                message.push(&part).map_err(|error| status_of(&error))?;
            }
            Ok(message.into_bytes())
        };
        tokio::select! {
            collected = timeout(MESSAGE_MAX, collected) => collected.unwrap_or_else(|_| {
                let reason = format!("the message was not complete within {MESSAGE_MAX:?}");
                Err(Status::deadline_exceeded(reason))
            }),
            () = poll_fn(|cx| reservation.poll_revoked(cx)) => {
                Err(status_of(&RequestError::NoRoom))
            }
        }
    }
}

// === `ShouldRateLimit` as tonic routes to it ===

/// `RateLimitService`. Does not use the generated server, which would answer in Envoy's messages.
#[derive(Clone)]
pub(super) struct RateLimitService {
    service: DecisionService,
    /// The span of the call that this clone serves, if it is traced.
    span: Option<Span>,
    /// Whether the message of that call may be compressed.
    is_compressed: bool,
}

/// The path of the only method of the service.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

// === impl RateLimitService ===

impl RateLimitService {
    pub(super) fn new(service: DecisionService) -> Self {
        Self { service, span: None, is_compressed: false }
    }
}

impl NamedService for RateLimitService {
    const NAME: &'static str = wire::SERVICE_NAME;
}

impl Service<Request<TonicBody>> for RateLimitService {
    type Response = Response<TonicBody>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<TonicBody>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async { Ok(Status::unimplemented("").into_http()) });
        }
        let service = self.service.clone();
        let span = service.begin(Transport::Grpc, request.headers());
        let handler = Self {
            service: service.clone(),
            span: span.clone(),
            is_compressed: is_compressed(request.headers()),
        };
        let answered = async move {
            let encodings = answer_encodings(request.headers());
            let mut grpc = Grpc::new(Codec)
                .apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None)
                .apply_compression_config(message_encodings(), encodings);
            let answered = service.catch_panic(Transport::Grpc, grpc.unary(handler, request)).await;
            Ok(answered.unwrap_or_else(|error| status_of(&error).into_http()))
        };
        match span {
            None => Box::pin(answered),
            Some(span) => Box::pin(traced(span, answered)),
        }
    }
}

/// Ends `span` with the status of the answer.
async fn traced(
    span: Span,
    answered: impl Future<Output = Result<Response<TonicBody>, Infallible>>,
) -> Result<Response<TonicBody>, Infallible> {
    let response = span.around(answered).await?;
    // Only a response without a message has its status in the headers.
    let status = Status::from_header_map(response.headers());
    let code = status.map_or(Code::Ok, |status| status.code());
    span.end(Outcome::Grpc(code.into()));
    Ok(response)
}

impl UnaryService<Bytes> for RateLimitService {
    type Response = BytesMut;
    type Future = BoxFuture<tonic::Response<BytesMut>, Status>;

    /// Decides the request, whose message is complete.
    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let Self { service, span, is_compressed } = self.clone();
        Box::pin(async move {
            let deadline = request.extensions().get().and_then(|Deadline(deadline)| *deadline);
            let reservation =
                request.extensions().get::<BodyReservation>().cloned().unwrap_or_else(|| {
                    // For a call that came through a connection not made by this crate.
                    service.reserve_body(Transport::Grpc, &Peer::new())
                });
            // `None` for the same.
            let slot = request.extensions().get::<StartSlot>().cloned();
            let message = request.into_inner();
            // Its sender paid for fewer bytes than it takes.
            let grown = if is_compressed { reservation.grow(message.len()) } else { Ok(()) };
            grown.and_then(|()| reservation.complete()).map_err(|error| status_of(&error))?;
            let decoded = wire::read(&message).map_err(|fault| unreadable(fault, &service))?;
            let patience = deadline.map(|deadline| deadline.since(service.now()));
            let peer = reservation.peer();
            let owner = slot.as_ref().map_or(Owner::UNKNOWN, StartSlot::owner);
            let caller = Caller { transport: Transport::Grpc, peer, patience, owner };
            let answered = answer(&service, &caller, &decoded, span.as_ref()).await?;
            if let Some(slot) = &slot {
                slot.put(answered.started);
            }
            let mut frame = answered.frame;
            frame.advance(PREFIX_BYTES); // tonic writes its own
            Ok(tonic::Response::new(frame))
        })
    }
}

// tonic's codec for requests and answers: messages are bytes, which `wire` reads and writes.

/// Passes messages through unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Codec;

/// Decodes the only message of a call.
#[derive(Debug, Default)]
pub(super) struct SingleMessageDecoder {
    has_read: bool,
}

/// Capacity that tonic reserves for a message before its length is known, and its threshold for
/// yielding to other tasks. tonic's default would reserve 8 KiB, twice for each call that waits.
fn buffers() -> BufferSettings {
    BufferSettings::new(512, 32 * 1024)
}

impl tonic::codec::Codec for Codec {
    type Encode = BytesMut;
    type Decode = Bytes;
    type Encoder = Codec;
    type Decoder = SingleMessageDecoder;

    fn encoder(&mut self) -> Codec {
        Codec
    }

    fn decoder(&mut self) -> SingleMessageDecoder {
        SingleMessageDecoder::default()
    }
}

impl Encoder for Codec {
    type Item = BytesMut;
    type Error = Status;

    fn encode(&mut self, message: BytesMut, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl Decoder for SingleMessageDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        if std::mem::replace(&mut self.has_read, true) {
            return Err(Status::unimplemented("more than one message in a call that takes one"));
        }
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}
