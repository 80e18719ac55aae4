//! A stand-in for an OpenTelemetry collector: it accepts exports over gRPC or HTTP, with the types
//! that OpenTelemetry generates, and keeps them.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::serve::Listener;
use flate2::read::GzDecoder;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, StatusCode};
use opentelemetry_proto::tonic::collector::metrics::v1 as metrics_pb;
use opentelemetry_proto::tonic::collector::trace::v1 as traces_pb;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::papers::Papers;

/// A collector that listens until the test's runtime ends.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    kept: Arc<Mutex<Kept>>,
    /// Exports to refuse before the first is accepted, as an unavailable collector would.
    refusals: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Kept {
    spans: Vec<ResourceSpans>,
    metrics: Vec<ResourceMetrics>,
    /// The head of each request.
    heads: Vec<HeaderMap>,
}

// === impl Collector ===

impl Collector {
    /// Starts one that speaks gRPC.
    pub(crate) async fn grpc() -> (Self, SocketAddr) {
        let (collector, listener, addr) = Self::bound().await;
        serve(listener, collector.grpc_routes());
        (collector, addr)
    }

    /// Starts one that accepts protobuf over HTTP/1.1, below `/base`.
    pub(crate) async fn http() -> (Self, SocketAddr) {
        let (collector, listener, addr) = Self::bound().await;
        serve(listener, collector.http_routes());
        (collector, addr)
    }

    /// Starts one that speaks both over TLS, with these certificates, and requires client
    /// certificates.
    pub(crate) async fn tls(papers: &Papers) -> (Self, SocketAddr) {
        let (collector, tcp, addr) = Self::bound().await;
        let routes = collector.grpc_routes().merge(collector.http_routes());
        serve(Tls { tcp, acceptor: acceptor(papers) }, routes);
        (collector, addr)
    }

    /// Refuses the next `exports` exports, and accepts those after them.
    pub(crate) fn refuse(&self, exports: usize) {
        self.refusals.store(exports, Ordering::SeqCst);
    }

    /// Whether to refuse this export.
    fn refuses(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    fn grpc_routes(&self) -> Router {
        let traces = traces_pb::trace_service_server::TraceServiceServer::new(self.clone());
        let metrics = metrics_pb::metrics_service_server::MetricsServiceServer::new(self.clone());
        let (traces, metrics) = (traces.accept_compressed(Gzip), metrics.accept_compressed(Gzip));
        Routes::new(traces).add_service(metrics).into_axum_router()
    }

    fn http_routes(&self) -> Router {
        Router::new()
            .route("/base/v1/traces", post(take_traces))
            .route("/base/v1/metrics", post(take_metrics))
            .with_state(self.clone())
    }

    async fn bound() -> (Self, TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (Self::default(), listener, addr)
    }

    /// All spans so far, in the order in which they began. They end, and are sent, in another
    /// order: a span may end after the next call has begun, since the answer is already on its way
    /// then.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let kept = self.kept.lock();
        let scopes = kept.spans.iter().flat_map(|resource| &resource.scope_spans);
        let mut spans: Vec<_> = scopes.flat_map(|scope| scope.spans.clone()).collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    /// Attributes of the resources that sent spans or metrics, as `key=value`, without duplicates.
    pub(crate) fn resources(&self) -> Vec<String> {
        let kept = self.kept.lock();
        let of_spans = kept.spans.iter().filter_map(|it| it.resource.as_ref());
        let of_metrics = kept.metrics.iter().filter_map(|it| it.resource.as_ref());
        let mut shown: Vec<_> =
            of_spans.chain(of_metrics).flat_map(|it| shown(&it.attributes)).collect();
        shown.sort();
        shown.dedup();
        shown
    }

    /// Pushes of metrics so far.
    pub(crate) fn metrics(&self) -> Vec<ResourceMetrics> {
        self.kept.lock().metrics.clone()
    }

    /// The values of a header, one for each request.
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        let kept = self.kept.lock();
        let values = kept.heads.iter().map(|head| head.get(name).map(|it| it.to_str().unwrap()));
        values.map(|value| value.unwrap_or_default().to_owned()).collect()
    }
}

/// An id in hexadecimal, as in headers and logs.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn serve<L>(listener: L, routes: Router)
where
    L: Listener<Addr = SocketAddr>,
{
    tokio::spawn(async move { axum::serve(listener, routes).await });
}

/// Accepts connections whose client has shown a certificate.
pub(crate) struct Tls {
    pub(crate) tcp: TcpListener,
    pub(crate) acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (tcp, addr) = self.tcp.accept().await.unwrap();
            if let Ok(tls) = self.acceptor.accept(tcp).await {
                return (tls, addr);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

pub(crate) fn acceptor(papers: &Papers) -> TlsAcceptor {
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&papers.root)).unwrap();
    let provider = Arc::new(ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let key = PrivateKeyDer::from_pem_slice(papers.server.key.as_bytes()).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(vec![certificate(&papers.server.cert)], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// The attributes as `key=value`.
pub(crate) fn shown(attributes: &[KeyValue]) -> Vec<String> {
    let value = |value: &Option<AnyValue>| match value.as_ref().and_then(|it| it.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|it| format!("{}={}", it.key, value(&it.value))).collect()
}

#[tonic::async_trait]
impl traces_pb::trace_service_server::TraceService for Collector {
    async fn export(
        &self,
        request: Request<traces_pb::ExportTraceServiceRequest>,
    ) -> Result<Response<traces_pb::ExportTraceServiceResponse>, Status> {
        if self.refuses() {
            return Err(Status::unavailable("for a while"));
        }
        let (head, _, message) = request.into_parts();
        let mut kept = self.kept.lock();
        kept.heads.push(head.into_headers());
        kept.spans.extend(message.resource_spans);
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl metrics_pb::metrics_service_server::MetricsService for Collector {
    async fn export(
        &self,
        request: Request<metrics_pb::ExportMetricsServiceRequest>,
    ) -> Result<Response<metrics_pb::ExportMetricsServiceResponse>, Status> {
        let (head, _, message) = request.into_parts();
        let mut kept = self.kept.lock();
        kept.heads.push(head.into_headers());
        kept.metrics.extend(message.resource_metrics);
        Ok(Response::new(Default::default()))
    }
}

/// The message in a body, decompressed if its headers say that it is compressed.
fn decoded<M: Message + Default>(head: &HeaderMap, body: Bytes) -> Option<M> {
    if head.get(CONTENT_ENCODING).is_none_or(|it| it != "gzip") {
        return M::decode(body).ok();
    }
    let mut plain = Vec::new();
    GzDecoder::new(&body[..]).read_to_end(&mut plain).ok()?;
    M::decode(plain.as_slice()).ok()
}

async fn take_traces(
    State(collector): State<Collector>,
    head: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    if collector.refuses() {
        return (StatusCode::SERVICE_UNAVAILABLE, Vec::new());
    }
    let Some(message) = decoded::<traces_pb::ExportTraceServiceRequest>(&head, body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let mut kept = collector.kept.lock();
    kept.heads.push(head);
    kept.spans.extend(message.resource_spans);
    (StatusCode::OK, traces_pb::ExportTraceServiceResponse::default().encode_to_vec())
}

async fn take_metrics(
    State(collector): State<Collector>,
    head: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let Some(message) = decoded::<metrics_pb::ExportMetricsServiceRequest>(&head, body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let mut kept = collector.kept.lock();
    kept.heads.push(head);
    kept.metrics.extend(message.resource_metrics);
    (StatusCode::OK, metrics_pb::ExportMetricsServiceResponse::default().encode_to_vec())
}
