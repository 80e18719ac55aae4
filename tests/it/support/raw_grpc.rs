//! A gRPC client that can send invalid calls: any bytes, path, method and headers, on one HTTP/2
//! connection. Messages are written by hand, since Envoy's types cannot represent invalid ones.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::Result;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream::{self, Stream, StreamExt};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tonic::client::GrpcService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The path of the call that Envoy makes.
pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// No answer of a pod takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// One HTTP/2 connection. It is not reopened: once it is lost, every call fails.
#[derive(Clone)]
pub(crate) struct Connection {
    channel: Channel,
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) code: Code,
    /// The reason, if the code is not OK.
    pub(crate) reason: String,
    /// The answer's message without its frame.
    pub(crate) message: Vec<u8>,
    /// The HTTP status.
    pub(crate) status: u16,
    /// The headers, without the trailers.
    pub(crate) headers: HeaderMap,
}

// === impl Connection ===

impl Connection {
    /// Connects to a port.
    pub(crate) async fn open(server: SocketAddr) -> Self {
        Self::through(async {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true).map(|()| stream)
        })
        .await
    }

    /// Connects to a port over TLS; its certificate is of that address.
    pub(crate) async fn open_tls(server: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::through(tls(server, config)).await
    }

    /// Connects to a Unix socket.
    pub(crate) async fn open_unix(server: &Path) -> Self {
        Self::through(UnixStream::connect(server)).await
    }

    /// Connects through a relay that accepts a single connection. The relay connects to the server
    /// first, so that connections opened after this returns come after this one.
    async fn through<S>(server: impl Future<Output = Result<S>>) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut server = server.await.expect("the server takes a connection");
        let relay = TcpListener::bind("127.0.0.1:0").await.expect("a port for the relay");
        let addr = relay.local_addr().expect("the relay's address");
        tokio::spawn(async move {
            let (mut client, _) = relay.accept().await?;
            // Else the small frames of an answer wait for the delayed acknowledgement of the first.
            client.set_nodelay(true)?;
            drop(relay);
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("an address");
        Self { channel: endpoint.connect().await.expect("the relay takes a connection") }
    }

    /// Sends a request of a single message.
    pub(crate) async fn call(&self, message: &[u8]) -> Reply {
        let body = stream::iter([framed(message)]);
        self.request(post(SHOULD_RATE_LIMIT), body).await.expect("the connection lives")
    }

    /// Sends any request. An error is that of the connection or of the stream.
    pub(crate) async fn request(
        &self,
        head: http::request::Builder,
        body: impl Stream<Item = Vec<u8>> + Send + 'static,
    ) -> std::result::Result<Reply, String> {
        let exchange = self.exchange(head, body);
        let reported = tokio::time::timeout(ANSWER_MAX, exchange).await;
        reported.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_MAX:?}")))
    }

    async fn exchange(
        &self,
        head: http::request::Builder,
        body: impl Stream<Item = Vec<u8>> + Send + 'static,
    ) -> std::result::Result<Reply, String> {
        let body = body.map(|bytes| Ok::<_, Infallible>(Bytes::from(bytes)));
        let body = tonic::body::Body::new(Body::from_stream(body));
        let request: Request<_> = head.body(body).expect("a request");
        let mut channel = self.channel.clone();
        let ready = poll_fn(|cx| GrpcService::<tonic::body::Body>::poll_ready(&mut channel, cx));
        ready.await.map_err(|error| in_full(&error))?;
        let response = GrpcService::call(&mut channel, request).await;
        let (head, body) = response.map_err(|error| in_full(&error))?.into_parts();
        let collected = body.collect().await.map_err(|error| in_full(&error))?;
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let reported = status(&trailers).or_else(|| status(&head.headers));
        let status = reported.unwrap_or_else(|| {
            Status::unknown(format!("HTTP {} without a gRPC status", head.status.as_u16()))
        });
        let message = collected.to_bytes().get(FRAME..).unwrap_or_default().to_vec();
        let (code, reason) = (status.code(), status.message().to_owned());
        Ok(Reply { code, reason, message, status: head.status.as_u16(), headers: head.headers })
    }

    /// A channel for typed clients.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// Performs a TLS handshake with a server whose certificate is of its address.
pub(crate) async fn tls(
    server: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(Arc::clone(config)).connect(server.ip().into(), stream).await
}

// === impl Reply ===

impl Reply {
    /// Whether the verdict denies; `None` for an error.
    pub(crate) fn is_over_limit(&self) -> Option<bool> {
        // overall_code is the first field: OK is 1, OVER_LIMIT 2.
        match self.message.get(..2) {
            Some([0x08, 1]) => Some(false),
            Some([0x08, 2]) => Some(true),
            _ => None,
        }
    }
}

/// Bytes of a message's frame: a flag and a length.
const FRAME: usize = 5;

/// A message in its frame.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a message of less than 4 GiB");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// The head of a gRPC call.
pub(crate) fn post(path: &str) -> http::request::Builder {
    let head = Request::builder().method("POST").uri(path);
    head.header("content-type", "application/grpc").header("te", "trailers")
}

fn status(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// An error with the whole chain of its causes.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// A `RateLimitRequest` with these descriptors.
pub(crate) fn request(domain: impl AsRef<[u8]>, descriptors: &[Vec<u8>]) -> Vec<u8> {
    let descriptors = descriptors.iter().flat_map(|descriptor| bytes_field(2, descriptor));
    bytes_field(1, domain).into_iter().chain(descriptors).collect()
}

/// A `RateLimitRequest` with one descriptor of one entry.
pub(crate) fn request_of_entry(
    domain: impl AsRef<[u8]>,
    key: impl AsRef<[u8]>,
    value: impl AsRef<[u8]>,
) -> Vec<u8> {
    request(domain, &[descriptor(key, value)])
}

/// A descriptor of one entry; more fields of it can follow.
pub(crate) fn descriptor(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
    bytes_field(1, [bytes_field(1, key), bytes_field(2, value)].concat())
}

/// A protobuf field of bytes: a string or a message.
pub(crate) fn bytes_field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [&[number << 3 | 2], &varint(value.len() as u64)[..], value].concat()
}

/// A protobuf field of an integer.
pub(crate) fn number_field(number: u8, value: u64) -> Vec<u8> {
    [&[number << 3], &varint(value)[..]].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}
