//! The port for pods, to which any client may connect: plaintext, or TLS with certificates that are
//! read again when they change; and its calls, ADS for rules and LRS for hits.
//!
//! Requests are bounded in the memory that they take once they are decoded. Responses of ADS are
//! encoded from resources that all streams share: each stream copies them once, into what it sends.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use bytes::Buf;
use envoy_types::pb::envoy::service::load_stats::v3::LoadStatsResponse;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use hyper_util::service::TowerToHyperService;
use prost::Message;
use ratelease_listener::tls::{CertificateFiles, HandshakeFailure, TlsPort};
use ratelease_listener::{HttpServer, OpenConnections};
use ratelease_tls::ALPN_HTTP2;
use ratelease_xds::shape::{Shape, Undecoded, decode};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::connections::ConnectedPod;
use super::load_reports::{LoadStatsRequest, REPORT_SHAPE};
use super::server::{DISCOVERY_SHAPE, DiscoveryRequest, DiscoveryResponse, PodServer};

/// Maximum number of connections, and of those of one client.
const CONNECTIONS_MAX: usize = 8192;
const CONNECTIONS_OF_PEER_MAX: usize = CONNECTIONS_MAX / 4;

/// Maximum time of a connection without a stream.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// A pod that is gone without a word is noticed within the sum of these.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_MAX: Duration = Duration::from_secs(20);

/// Maximum number of streams of a connection; a pod has one for rules and one for reports.
const STREAMS_MAX: u32 = 4;

/// Bytes that a pod may send before they are read, of a stream and of a connection.
const WINDOW_BYTES: u32 = 64 << 10;

/// Maximum bytes of the headers of a call.
const HEAD_BYTES_MAX: u32 = 16 << 10;

/// Interval at which the files of certificates are read.
const FILES_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum bytes of a request of ADS: a node, and the faults of a refusal.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// Maximum bytes of a report: the hits of as many domains as a rollout has.
const REPORT_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of a response.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// What the port tells its clients and operators.
pub const TLS_PORT: TlsPort =
    TlsPort { name: "the port for pods", protocols: &[ALPN_HTTP2], advice: advice_for };

/// Serves pods until `stop` resolves. Streams last for days, so that the end does not wait for
/// them: pods connect to another replica.
pub async fn serve(
    listener: TcpListener,
    certificates: Option<CertificateFiles>,
    server: PodServer,
    stop: impl Future<Output = ()>,
) {
    let http = HttpServer::new(STREAMS_MAX)
        .head_bytes(HEAD_BYTES_MAX)
        .windows(WINDOW_BYTES)
        .http2_only(PING_INTERVAL, PING_MAX);
    let open = OpenConnections::for_known_clients(
        CONNECTIONS_MAX,
        Some(CONNECTIONS_OF_PEER_MAX),
        IDLE_MAX,
    );
    let routes = Routes::new(PodService::<Discovery>::new(server.clone()))
        .add_service(PodService::<LoadReports>::new(server))
        .into_axum_router();
    let service = move |client| {
        TowerToHyperService::new(routes.clone().layer(Extension(ConnectedPod::new(client))))
    };
    let tls = certificates.as_ref().map(|it| it.acceptor().clone());
    let renewed = async {
        match certificates {
            Some(certificates) => certificates.renew_forever(FILES_INTERVAL).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = http.serve_listener(listener, open, tls, std::future::pending(), service) => {}
        () = renewed => {}
        () = stop => {}
    }
}

/// What the operator has to change after a failed handshake.
fn advice_for(failure: HandshakeFailure) -> Option<&'static str> {
    match failure {
        HandshakeFailure::NotTls => Some("set CONFIG_GRPC_XDS_SERVER_USE_TLS in its pod"),
        HandshakeFailure::NoCertificate => {
            Some("give its pod a client certificate, or leave out --pods-tls-client-ca")
        }
        HandshakeFailure::BadCertificate => {
            Some("check the certificate of its pod, and --pods-tls-client-ca")
        }
        HandshakeFailure::NotTrusted => {
            Some("check that its pod trusts the CA of --pods-tls-cert, and calls its name")
        }
        HandshakeFailure::Incompatible => Some("the client needs TLS 1.2 or 1.3, and HTTP/2"),
        HandshakeFailure::Abandoned => None,
        HandshakeFailure::Other => Some("nothing is known about it"),
    }
}

/// The responses of a stream.
type Responses<T> = BoxStream<'static, Result<T, Status>>;

/// A call of a service, with a stream in each direction.
pub trait Call: Send + Sync + 'static {
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
pub struct Discovery;

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
pub struct LoadReports;

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
pub struct PodService<C>(PodServer, PhantomData<C>);

/// Protocol buffers of a call.
struct PodCodec<C>(PhantomData<C>);

// === impl PodService ===

impl<C> PodService<C> {
    pub fn new(server: PodServer) -> Self {
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
