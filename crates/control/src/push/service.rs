//! The calls of pods: ADS for rules, and LRS for hits. Requests are bounded in the memory that they
//! take once they are decoded. Responses of ADS are encoded from resources that all streams share:
//! each stream copies them once, into what it sends.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use bytes::Buf;
use envoy_types::pb::envoy::service::load_stats::v3::LoadStatsResponse;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use prost::Message;
use ratelease_xds::shape::{Shape, Undecoded, decode};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::messages::{
    DISCOVERY_SHAPE, DiscoveryRequest, DiscoveryResponse, LoadStatsRequest, REPORT_SHAPE,
};
use super::server::PodServer;

/// Maximum bytes of a request of ADS: a node, and the faults of a refusal.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// Maximum bytes of a report: the hits of as many domains as a rollout has.
const REPORT_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of a response.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// The responses of a stream.
type Responses<T> = BoxStream<'static, Result<T, Status>>;

/// A call of a service, with a stream in each direction.
pub(super) trait Call: Send + Sync + 'static {
    /// The service, and the path of the call.
    const SERVICE: &'static str;
    const PATH: &'static str;
    /// Maximum bytes of a request.
    const BYTES_MAX: usize;
    /// The memory that a request takes.
    const SHAPE: &'static Shape;
    type Request: Message + Default + 'static;
    type Response: Message + 'static;

    /// Opens a stream.
    ///
    /// # Errors
    /// Fails if the request names no connection.
    fn open(
        server: &PodServer,
        request: Request<Streaming<Self::Request>>,
    ) -> Result<Responses<Self::Response>, Status>;
}

/// ADS.
pub(super) struct Discovery;

impl Call for Discovery {
    const SERVICE: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
    const PATH: &'static str =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    const BYTES_MAX: usize = REQUEST_BYTES_MAX;
    const SHAPE: &'static Shape = &DISCOVERY_SHAPE;
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn open(
        server: &PodServer,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Responses<DiscoveryResponse>, Status> {
        server.open(request)
    }
}

/// LRS.
pub(super) struct LoadReports;

impl Call for LoadReports {
    const SERVICE: &'static str = "envoy.service.load_stats.v3.LoadReportingService";
    const PATH: &'static str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";
    const BYTES_MAX: usize = REPORT_BYTES_MAX;
    const SHAPE: &'static Shape = &REPORT_SHAPE;
    type Request = LoadStatsRequest;
    type Response = LoadStatsResponse;

    fn open(
        server: &PodServer,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Responses<LoadStatsResponse>, Status> {
        server.open_reports(request)
    }
}

/// Serves a call.
pub(super) struct PodService<C>(PodServer, PhantomData<C>);

/// Protocol buffers of a call.
struct PodCodec<C>(PhantomData<C>);

// === impl PodService ===

impl<C> PodService<C> {
    pub(super) fn new(server: PodServer) -> Self {
        Self(server, PhantomData)
    }
}

impl<C> Clone for PodService<C> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl<C: Call> NamedService for PodService<C> {
    const NAME: &'static str = C::SERVICE;
}

impl<C: Call, B> Service<http::Request<B>> for PodService<C>
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
            if request.uri().path() != C::PATH {
                return Ok(Status::unimplemented("state of the world only").into_http());
            }
            let mut grpc = Grpc::new(PodCodec::<C>(PhantomData))
                .apply_max_message_size_config(Some(C::BYTES_MAX), Some(RESPONSE_BYTES_MAX));
            Ok(grpc.streaming(service, request).await)
        })
    }
}

impl<C: Call> StreamingService<C::Request> for PodService<C> {
    type Response = C::Response;
    type ResponseStream = Responses<C::Response>;
    type Future = BoxFuture<'static, Result<Response<Responses<C::Response>>, Status>>;

    fn call(&mut self, request: Request<Streaming<C::Request>>) -> Self::Future {
        let opened = C::open(&self.0, request).map(Response::new);
        Box::pin(async move { opened })
    }
}

// === impl PodCodec ===

impl<C: Call> Codec for PodCodec<C> {
    type Encode = C::Response;
    type Decode = C::Request;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<C: Call> Encoder for PodCodec<C> {
    type Item = C::Response;
    type Error = Status;

    fn encode(&mut self, item: C::Response, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<C: Call> Decoder for PodCodec<C> {
    type Item = C::Request;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<C::Request>, Status> {
        let request = buf.copy_to_bytes(buf.remaining());
        decode(&request, C::SHAPE, usize::MAX).map(Some).map_err(|error| match error {
            Undecoded::Malformed(error) => Status::internal(error.to_string()),
            Undecoded::TooLarge(_) => Status::out_of_range(error.to_string()),
        })
    }
}
