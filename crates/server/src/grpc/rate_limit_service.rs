//! `ShouldRateLimit` as tonic routes to it: calls that are not plain, or came without their
//! message.

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::body::Body;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request as GrpcRequest, Response, Status, Status as GrpcStatus};

use super::call::{answer, unreadable};
use super::deadline::Deadline;
use super::wire::SERVICE_NAME;
use super::{MESSAGE_BYTES_MAX, PREFIX_BYTES, status_of, wire};
use crate::service::{BodyReservation, DecisionService, Peer};
use crate::trace::{Outcome, Span};
use crate::transport::Transport;

/// The service in the form that tonic routes to; its clones share all state.
pub(super) fn service(service: DecisionService) -> RateLimitService {
    RateLimitService { service, span: None, is_compressed: false }
}

/// `RateLimitService`. Does not use the generated server, which would answer in Envoy's messages.
#[derive(Clone)]
pub(super) struct RateLimitService {
    service: DecisionService,
    /// The span of the call that this clone serves, if it is traced.
    span: Option<Span>,
    /// Whether the message of that call may be compressed.
    is_compressed: bool,
}

/// The only method of the service.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

// === impl RateLimitService ===

impl NamedService for RateLimitService {
    const NAME: &'static str = SERVICE_NAME;
}

impl tonic::codegen::Service<http::Request<Body>> for RateLimitService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async { Ok(GrpcStatus::unimplemented("").into_http()) });
        }
        let service = self.service.clone();
        let span = service.begin(Transport::Grpc, request.headers());
        let (service_of_call, span_of_call) = (service.clone(), span.clone());
        let is_compressed = super::is_compressed(request.headers());
        let handler = Self { service: service_of_call, span: span_of_call, is_compressed };
        let answered = async move {
            let encodings = super::answer_encodings(request.headers());
            let mut grpc = Grpc::new(Codec)
                .apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None)
                .apply_compression_config(super::message_encodings(), encodings);
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
    answered: impl Future<Output = Result<http::Response<Body>, Infallible>>,
) -> Result<http::Response<Body>, Infallible> {
    let response = span.around(answered).await?;
    // Only a response without a message has its status in the headers.
    let status = GrpcStatus::from_header_map(response.headers());
    let code = status.map_or(Code::Ok, |status| status.code());
    span.end(Outcome::Grpc(code.into()));
    Ok(response)
}

impl UnaryService<Bytes> for RateLimitService {
    type Response = BytesMut;
    type Future = BoxFuture<Response<BytesMut>, GrpcStatus>;

    /// The message is complete: from here on the call counts as waiting.
    fn call(&mut self, request: GrpcRequest<Bytes>) -> Self::Future {
        let Self { service, span, is_compressed } = self.clone();
        Box::pin(async move {
            let deadline = request.extensions().get().map(|Deadline(deadline)| *deadline);
            let reservation =
                request.extensions().get::<BodyReservation>().cloned().unwrap_or_else(|| {
                    // For a call that came through a connection not made by this crate.
                    service.reserve_body(Transport::Grpc, &Peer::new())
                });
            let message = request.into_inner();
            // Its sender paid for fewer bytes than it takes.
            let grown = if is_compressed { reservation.grow(message.len()) } else { Ok(()) };
            grown.and_then(|()| reservation.complete()).map_err(|error| status_of(&error))?;
            let decoded = wire::read(&message).map_err(|fault| unreadable(fault, &service))?;
            let patience = deadline.map(|deadline| deadline.since(service.now()));
            let peer = reservation.peer();
            let mut frame = answer(&service, peer, patience, &decoded, span.as_ref()).await?;
            frame.advance(PREFIX_BYTES); // tonic writes its own
            Ok(Response::new(frame))
        })
    }
}

// tonic's codec for requests and answers: messages are bytes, which `decode.rs` reads and
// `encode.rs` has written.

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
