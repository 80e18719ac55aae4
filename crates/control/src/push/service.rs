//! The call of ADS. Its responses are encoded from resources that all streams share: each stream
//! copies them once, into what it sends.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::server::PodServer;
use super::wire::{DiscoveryRequest, DiscoveryResponse};

/// The call of pods.
const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// Maximum bytes of a request: a node, and the faults of a refusal.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// Maximum bytes of a response.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// The responses of a stream.
pub(super) type Responses = BoxStream<'static, Result<DiscoveryResponse, Status>>;

/// Serves the call.
#[derive(Debug, Clone)]
pub(super) struct DiscoveryService(pub(super) PodServer);

/// Protocol buffers.
#[derive(Debug, Clone, Copy)]
struct DiscoveryCodec;

impl NamedService for DiscoveryService {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl<B> Service<http::Request<B>> for DiscoveryService
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("state of the world only").into_http());
            }
            let (request_max, response_max) = (REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX);
            let mut grpc = Grpc::new(DiscoveryCodec)
                .apply_max_message_size_config(Some(request_max), Some(response_max));
            Ok(grpc.streaming(service, request).await)
        })
    }
}

impl StreamingService<DiscoveryRequest> for DiscoveryService {
    type Response = DiscoveryResponse;
    type ResponseStream = Responses;
    type Future = BoxFuture<'static, Result<Response<Responses>, Status>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let opened = self.0.open(request).map(Response::new);
        Box::pin(async move { opened })
    }
}

impl Codec for DiscoveryCodec {
    type Encode = DiscoveryResponse;
    type Decode = DiscoveryRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for DiscoveryCodec {
    type Item = DiscoveryResponse;
    type Error = Status;

    fn encode(&mut self, item: DiscoveryResponse, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for DiscoveryCodec {
    type Item = DiscoveryRequest;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<DiscoveryRequest>, Status> {
        let request = DiscoveryRequest::decode(buf);
        request.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
