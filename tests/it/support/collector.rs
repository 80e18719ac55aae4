//! A stand-in for an OpenTelemetry collector: takes what is exported, over gRPC or HTTP, with the
//! types that OpenTelemetry generates, and keeps it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use opentelemetry_proto::tonic::collector::metrics::v1 as metrics_pb;
use opentelemetry_proto::tonic::collector::trace::v1 as traces_pb;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Listens until the test's runtime ends.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    kept: Arc<Mutex<Kept>>,
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
        let routes = Server::builder()
            .add_service(traces_pb::trace_service_server::TraceServiceServer::new(
                collector.clone(),
            ))
            .add_service(metrics_pb::metrics_service_server::MetricsServiceServer::new(
                collector.clone(),
            ));
        tokio::spawn(routes.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, addr)
    }

    /// Starts one that takes protobuf over HTTP/1.1, below `/base`.
    pub(crate) async fn http() -> (Self, SocketAddr) {
        let (collector, listener, addr) = Self::bound().await;
        let routes = Router::new()
            .route("/base/v1/traces", post(take_traces))
            .route("/base/v1/metrics", post(take_metrics))
            .with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (collector, addr)
    }

    async fn bound() -> (Self, TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (Self::default(), listener, addr)
    }

    /// All spans so far, in the order they ended.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let kept = self.kept.lock();
        let scopes = kept.spans.iter().flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Attributes of the resources that sent spans or metrics, as `key=value`, each once.
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

/// Attributes as `key=value`.
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

async fn take_traces(
    State(collector): State<Collector>,
    head: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let Ok(message) = traces_pb::ExportTraceServiceRequest::decode(body) else {
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
    let Ok(message) = metrics_pb::ExportMetricsServiceRequest::decode(body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let mut kept = collector.kept.lock();
    kept.heads.push(head);
    kept.metrics.extend(message.resource_metrics);
    (StatusCode::OK, metrics_pb::ExportMetricsServiceResponse::default().encode_to_vec())
}
