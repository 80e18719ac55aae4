//! The port for pods, to which any client may connect: plaintext, or TLS with certificates that are
//! read again when they change; and its calls, ADS for rules and LRS for hits.
//!
//! Requests are bounded in the memory that they take once they are decoded. Responses of ADS are
//! encoded from resources that all streams share: each stream copies them once, into its response.

use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::time::Duration;

use axum::extract::{self, State};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Buf;
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
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::connections::ConnectedPod;
use super::load_reports::REPORT_SHAPE;
use super::server::{DISCOVERY_SHAPE, PodServer};

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 8192;

/// Maximum number of connections of one client, so that it leaves room to others.
const CONNECTIONS_OF_PEER_MAX: usize = CONNECTIONS_MAX / 4;

/// Maximum time of a connection without a stream.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Interval of the pings of a connection. A pod that is gone without a word is noticed within the
/// sum of this interval and [`PING_MAX`].
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time that a pod has to answer a ping.
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

/// The name of the port in messages, its protocols, and the advice after a failed handshake.
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
    let routes = routes(server);
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

/// The setting that the operator has to change after a failed handshake.
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

/// The calls of pods: ADS and LRS.
const ADS: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const LRS: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// The reason why any other call fails.
const CALLS: &str = "this port serves ADS, with the state of the world, and LRS alone";

fn routes(server: PodServer) -> Router {
    let ads = async |State(server): State<PodServer>, call: extract::Request| {
        let codec = PodCodec::new(REQUEST_BYTES_MAX, &DISCOVERY_SHAPE);
        codec.serve(call, Opening(server, PodServer::open)).await
    };
    let lrs = async |State(server): State<PodServer>, call: extract::Request| {
        let codec = PodCodec::new(REPORT_BYTES_MAX, &REPORT_SHAPE);
        codec.serve(call, Opening(server, PodServer::open_reports)).await
    };
    let others = async || Status::unimplemented(CALLS).into_http::<Body>();
    Router::new().route(ADS, post(ads)).route(LRS, post(lrs)).fallback(others).with_state(server)
}

/// The responses of a stream.
type Responses<R> = BoxStream<'static, Result<R, Status>>;

/// Protocol buffers of a call with a stream in each direction.
struct PodCodec<Q, R> {
    /// Maximum bytes of a request.
    bytes_max: usize,
    /// The memory that a request takes.
    shape: &'static Shape,
    messages: PhantomData<fn(Q) -> R>,
}

/// Opens a stream, by a method of the server.
struct Opening<Q, R>(PodServer, Open<Q, R>);

type Open<Q, R> = fn(&PodServer, Request<Streaming<Q>>) -> Result<Responses<R>, Status>;

// === impl Opening ===

impl<Q, R> StreamingService<Q> for Opening<Q, R> {
    type Response = R;
    type ResponseStream = Responses<R>;
    type Future = Ready<Result<Response<Responses<R>>, Status>>;

    fn call(&mut self, requests: Request<Streaming<Q>>) -> Self::Future {
        ready((self.1)(&self.0, requests).map(Response::new))
    }
}

// === impl PodCodec ===

impl<Q, R> PodCodec<Q, R> {
    fn new(bytes_max: usize, shape: &'static Shape) -> Self {
        Self { bytes_max, shape, messages: PhantomData }
    }
}

impl<Q: Message + Default + 'static, R: Message + 'static> PodCodec<Q, R> {
    /// Serves a call.
    async fn serve(self, call: extract::Request, opening: Opening<Q, R>) -> http::Response<Body> {
        let bytes_max = Some(self.bytes_max);
        let mut grpc =
            Grpc::new(self).apply_max_message_size_config(bytes_max, Some(RESPONSE_BYTES_MAX));
        grpc.streaming(opening, call).await
    }
}

impl<Q: Message + Default + 'static, R: Message + 'static> Codec for PodCodec<Q, R> {
    type Encode = R;
    type Decode = Q;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new(self.bytes_max, self.shape)
    }

    fn decoder(&mut self) -> Self {
        Self::new(self.bytes_max, self.shape)
    }
}

impl<Q, R: Message> Encoder for PodCodec<Q, R> {
    type Item = R;
    type Error = Status;

    fn encode(&mut self, item: R, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Q: Message + Default, R> Decoder for PodCodec<Q, R> {
    type Item = Q;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Q>, Status> {
        let request = buf.copy_to_bytes(buf.remaining());
        decode(&request, self.shape, usize::MAX).map(Some).map_err(|error| match error {
            Undecoded::Malformed(error) => Status::internal(error.to_string()),
            Undecoded::TooLarge(_) => Status::out_of_range(error.to_string()),
        })
    }
}
