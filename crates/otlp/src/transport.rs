//! Connections to a collector: a channel of tonic for gRPC, a client of hyper for HTTP, and the
//! TLS of the settings for both.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, USER_AGENT};
use http::uri::{Scheme, Uri};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{HttpClient, HttpError};
use ratelease_cli::settings::Otlp;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};

use crate::failure_log::{FailureLog, causes};

/// Connects to a collector, with TLS or without. One type for both, since each connector that the
/// HTTP libraries are compiled for costs a tenth of a megabyte.
type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, HttpError>;

/// The user agent, if the settings contain no such header.
const AGENT: &str = concat!("ratelease/", env!("CARGO_PKG_VERSION"));

/// Creates a channel that connects when it is first used. It must be called in a runtime.
///
/// The channel pings a collector that has not answered a call for half of the timeout, and
/// reconnects if there is no answer either: HTTP/2 would otherwise keep a connection whose other
/// end has vanished until the kernel gives it up, after a quarter of an hour.
pub(crate) fn channel(otlp: &Otlp, log: &Arc<FailureLog>) -> Channel {
    let limit = otlp.timeout;
    let endpoint = Endpoint::from(without_tls(&otlp.endpoint))
        .origin(otlp.endpoint.clone())
        .connect_timeout(limit)
        .timeout(limit)
        .http2_keep_alive_interval(limit / 2)
        .keep_alive_timeout(limit / 4);
    let connector = connector(otlp, log);
    let target = otlp.endpoint.clone();
    let connect = move |_| connector.clone().oneshot(target.clone());
    endpoint.connect_with_connector_lazy(service_fn(connect))
}

/// The metadata of gRPC calls: the headers of the settings.
pub(crate) fn metadata(otlp: &Otlp) -> MetadataMap {
    MetadataMap::from_headers(headers(otlp))
}

fn headers(otlp: &Otlp) -> HeaderMap {
    let mut headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(AGENT))]);
    headers.extend(otlp.headers.clone());
    headers
}

/// Creates a connector that logs failures when they happen: a batch is retried for a while before
/// its exporter returns an error.
fn connector(otlp: &Otlp, log: &Arc<FailureLog>) -> Connector {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(otlp.tls.is_none());
    let log = Arc::clone(log);
    let failed = move |error: HttpError| {
        log.failed(&causes(&*error));
        error
    };
    match &otlp.tls {
        None => {
            let plain = http.map_response(MaybeHttpsStream::Http).map_err(HttpError::from);
            Connector::new(plain.map_err(failed))
        }
        Some(tls) => Connector::new(HttpsConnector::from((http, tls.config())).map_err(failed)),
    }
}

/// Returns the endpoint with `http` as its scheme: tonic refuses to connect to `https` by a
/// connector that does TLS itself.
fn without_tls(endpoint: &Uri) -> Uri {
    let mut parts = endpoint.clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    Uri::from_parts(parts).unwrap_or_default()
}

/// An HTTP client for exporters, and for whatever else is posted to a collector.
///
/// Requests run on the runtime in which it was created, since hyper needs one and the thread that
/// exports spans has none.
#[derive(Debug, Clone)]
pub(crate) struct Poster {
    client: HyperClient<Connector>,
    headers: HeaderMap,
    runtime: Handle,
    log: Arc<FailureLog>,
}

// === impl Poster ===

impl Poster {
    /// Creates a client that connects when it is first used. It must be called in a runtime.
    pub(crate) fn new(otlp: &Otlp, log: &Arc<FailureLog>) -> Self {
        let client = HyperClient::new(connector(otlp, log), otlp.timeout, None);
        let headers = headers(otlp);
        let runtime = Handle::current();
        let log = Arc::clone(log);
        Self { client, headers, runtime, log }
    }
}

#[tonic::async_trait]
impl HttpClient for Poster {
    /// Posts a body with the headers of the settings. Of the request's own headers, only those
    /// that describe the body are sent: exporters read the others from the environment, and do not
    /// mark them as sensitive, so that logs of connections would show them.
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut headers = self.headers.clone();
        for name in [CONTENT_TYPE, CONTENT_ENCODING] {
            if let Some(value) = request.headers_mut().remove(&name) {
                headers.insert(name, value);
            }
        }
        *request.headers_mut() = headers;
        let client = self.client.clone();
        let sending = self.runtime.spawn(async move { client.send_bytes(request).await });
        let sent = sending.await.unwrap_or_else(|gone| Err(gone.into()));
        match &sent {
            Ok(answer) if !answer.status().is_success() => {
                self.log.failed(&format!("it answered {}", answer.status()));
            }
            Ok(_) => {}
            Err(error) => self.log.failed(&causes(&**error as &(dyn Error + 'static))),
        }
        sent
    }
}
