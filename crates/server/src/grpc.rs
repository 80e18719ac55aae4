//! The gRPC server: `ShouldRateLimit`, Envoy's access log and the standard health service on one
//! listener. Uses
//! [`service`](crate::service) to decide, and [`ratelease_listener`] for its connections; the
//! sidecar's `app` runs it.
//!
//! ```text
//! listener ─▶ connection ─▶ call ──plain──▶ service ──▶ answered in the connection's own task,
//!                           │                           or in a task of its own if it waits
//!                           ├─▶ fallback ──message complete──▶ tonic ──▶ service
//!                           └─▶ access_log ──entry by entry──▶ starts
//! ```
//! tonic's processing of a call costs more than the decision (`docs/performance.md`): plain calls
//! bypass tonic.

mod access_log;
mod answered_starts;
mod call;
mod connection;
mod context;
mod fallback;
mod headers;
mod health;
mod reply;
pub(crate) mod wire;
mod write_coalescing;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::Stream;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Status;
use tonic::codec::{CompressionEncoding, EnabledCompressionEncodings};
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tracing::{debug, warn};

use self::connection::ConnectionContext;
use self::fallback::RateLimitService;
use crate::request::RequestError;
use crate::service::DecisionService;
use ratelease_listener::tls::TlsAcceptor;
use ratelease_listener::{Accept, Accepted, Connection, Cores, OpenConnections, PREFACE};
use ratelease_listener::{connections, serve_each};

pub use self::access_log::{Entry, EntryId, Fault, Reader, Report, Sink};
pub use self::health::{Health, HealthHandle, health};
pub use self::wire::{DecodeError, frame, read};

/// Maximum size in bytes of one message from a client. Envoy limits its own headers to far less by
/// default, and a value of any length within this size is counted: if long values were refused, a
/// client that sends one would escape its limit wherever Envoy lets requests pass on errors.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// The path of the health check of plain HTTP/2.
const HEALTHCHECK: &str = "/healthcheck";

/// Size in bytes of the prefix of each gRPC message: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// The encodings in which the answer to a call may be sent: that of its message, as the reference
/// implementation does. tonic sends it only to a client that accepts it.
fn answer_encodings(headers: &HeaderMap) -> EnabledCompressionEncodings {
    let mut encodings = EnabledCompressionEncodings::default();
    if is_compressed(headers) {
        encodings.enable(CompressionEncoding::Gzip);
    }
    encodings
}

/// The encodings of messages that are read.
fn message_encodings() -> EnabledCompressionEncodings {
    let mut encodings = EnabledCompressionEncodings::default();
    encodings.enable(CompressionEncoding::Gzip);
    encodings
}

/// Whether the message of a call may be compressed.
fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_some_and(|encoding| encoding == "gzip")
}

/// Maps errors to gRPC codes; nothing else does. The first three have the reference
/// implementation's code and text.
fn status_of(error: &RequestError) -> Status {
    let reason = error.to_string();
    match error {
        RequestError::EmptyDomain | RequestError::NoDescriptors | RequestError::NoRules => {
            Status::unknown(reason)
        }
        RequestError::Invalid(_) => Status::invalid_argument(reason),
        RequestError::AwaitsRules | RequestError::Store(_) => Status::unavailable(reason),
        RequestError::Overloaded | RequestError::NoRoom => Status::resource_exhausted(reason),
        RequestError::Panicked => Status::internal(reason),
    }
}

// === Serving a listener ===

/// The listening socket.
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket, for Envoy's `pipe`.
    Unix(UnixListener),
}

/// How long a connection lives; `None` for no limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionAge {
    /// The connection is asked to go away at this age.
    pub age: Option<Duration>,
    /// Calls in progress have this long to finish then, before the connection is cut off.
    pub grace: Option<Duration>,
}

/// The parts needed to serve a listener.
pub struct ServerParts {
    /// Decides requests.
    pub service: DecisionService,
    /// Answers health checks.
    pub health: Health,
    /// How long a connection lives.
    pub age: ConnectionAge,
    /// Counts and limits connections.
    pub open: OpenConnections,
    /// Where connections are served.
    pub cores: Cores,
    /// Secures connections; `None` to serve in plaintext.
    pub tls: Option<TlsAcceptor>,
}

/// Serves until `stop` resolves and every call has finished. From then on no connection is
/// accepted, and open ones are asked to go away; the caller has to bound the wait for those that
/// stay open.
///
/// # Errors
///
/// None at present: no accept error ends it.
pub async fn serve(
    listener: Listener,
    parts: ServerParts,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let ServerParts { service, health, age, open, cores, tls } = parts;
    let page = health.page();
    let health = HealthServer::new(health)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .accept_compressed(CompressionEncoding::Gzip);
    let services = Routes::new(health).add_service(RateLimitService::new(service.clone()));
    let routes = Routes::from(services.into_axum_router().merge(page)).prepare();
    let max_age = age.age.zip(age.grace).and_then(|(age, grace)| age.checked_add(grace));
    let inside =
        ConnectionContext { service, routes, non_http2: NonHttp2Clients::default(), age: age.age };
    match listener {
        Listener::Tcp(listener) => {
            serve_all(connections(listener, max_age, open), inside, tls, &cores, stop).await;
        }
        Listener::Unix(listener) => {
            serve_all(connections(listener, max_age, open), inside, tls, &cores, stop).await;
        }
    }
    Ok(())
}

/// The bytes of a connection, whatever kind of listener it came from, and with or without TLS: the
/// code that serves connections would take more memory if there were one copy for each.
type BoxedIo = Box<dyn ReadWrite>;

trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for I {}

async fn serve_all<L: Accept + 'static>(
    incoming: impl Stream<Item = Accepted<L>>,
    context: ConnectionContext,
    tls: Option<TlsAcceptor>,
    cores: &Cores,
    stop: impl Future<Output = ()>,
) {
    let serve = move |io: Connection<L::Io>, mut end: watch::Receiver<bool>| {
        let context = context.clone();
        let tls = tls.clone();
        async move {
            let io = match tls {
                None => io.map(|io| Box::new(io) as BoxedIo),
                Some(tls) => {
                    let peer = io.handle().peer();
                    let secure = async |io| Ok(Box::new(tls.accept(io, peer).await?) as BoxedIo);
                    let secured = tokio::select! {
                        secured = Box::pin(io.secured(secure)) => secured,
                        _ = end.wait_for(|end| *end) => return,
                    };
                    // The reason of a failure has been counted.
                    let Ok(io) = secured else { return };
                    io
                }
            };
            connection::serve(io, context, end).await;
        }
    };
    serve_each(incoming, cores, stop, serve).await;
}

// === The preface ===
//
// Read before any HTTP/2 state is set up, so that clients that came to the wrong port are
// recognised, and the log tells their operator how to correct that.

/// Limits on reading what a client without HTTP/2 has sent already before the connection is closed:
/// unread data would cause a reset, and the client would not see an orderly end.
const LINGER_BYTES_MAX: usize = 16 * 1024;
const LINGER_MAX: Duration = Duration::from_millis(500);

/// Remembers which kinds of such clients came, so that each kind is logged once: they come back. A
/// cheap handle: clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct NonHttp2Clients(Arc<LoggedOnce>);

#[derive(Debug, Default)]
struct LoggedOnce {
    tls: AtomicBool,
    http1: AtomicBool,
}

/// A client that does not speak HTTP/2, classified by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tls,
    Http1,
    Other,
}

/// The type of a TLS record that holds a handshake (RFC 8446 §5.1): the first byte from every TLS
/// client.
const TLS_HANDSHAKE: u8 = 22;

/// Reads the preface and nothing more. Returns `None` if other bytes arrive, which are reported to
/// `non_http2`, or if the connection ends.
pub(super) async fn read_preface<I>(io: &mut I, non_http2: &NonHttp2Clients) -> Option<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let mut read = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        length += match io.read(read.get_mut(length..)?).await {
            Ok(0) | Err(_) => return None,
            Ok(more) => more,
        };
        let read = read.get(..length)?;
        if !PREFACE.starts_with(read) {
            non_http2.log_once(Protocol::of(read));
            let _ = timeout(LINGER_MAX, linger(io)).await;
            return None;
        }
    }
    Some(())
}

/// Shuts the connection down and reads the data that is still in flight.
async fn linger<I: AsyncRead + AsyncWrite + Unpin>(io: &mut I) {
    // An error means that the client is gone, so there is no data in flight.
    let _ = io.shutdown().await;
    let mut rest = [0; 1024];
    let mut read = 0;
    while read < LINGER_BYTES_MAX {
        match io.read(&mut rest).await {
            Ok(0) | Err(_) => return,
            Ok(more) => read += more,
        }
    }
}

// === impl NonHttp2Clients ===

impl NonHttp2Clients {
    fn log_once(&self, protocol: Protocol) {
        let is_first = |seen: &AtomicBool| !seen.swap(true, Ordering::Relaxed);
        match protocol {
            Protocol::Tls if is_first(&self.0.tls) => warn!(
                "a client speaks TLS to the gRPC port, which has none: set GRPC_SERVER_USE_TLS, or \
                 remove the transport_socket of Envoy's cluster for it; such connections are \
                 closed; this is logged once"
            ),
            Protocol::Http1 if is_first(&self.0.http1) => warn!(
                "a client speaks HTTP/1 to the gRPC port: set http2_protocol_options on Envoy's \
                 cluster for it; /json and the probes of HTTP are on PORT; such connections are \
                 closed; this is logged once"
            ),
            other => debug!(?other, "a client of the gRPC port does not speak HTTP/2"),
        }
    }
}

// === impl Protocol ===

impl Protocol {
    fn of(read: &[u8]) -> Self {
        match read {
            [TLS_HANDSHAKE, ..] => Self::Tls,
            // A request of HTTP/1 begins with its method.
            [b'A'..=b'Z', ..] => Self::Http1,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Returns the result for a client that sends `pieces`, and the bytes that are left to read.
    async fn read_from(pieces: &[&[u8]]) -> (Option<()>, NonHttp2Clients, Vec<u8>) {
        let (mut client, mut server) = tokio::io::duplex(1024);
        let non_http2 = NonHttp2Clients::default();
        let sent = async move {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (result, ()) = tokio::join!(read_preface(&mut server, &non_http2), sent);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        (result, non_http2, rest)
    }

    #[tokio::test]
    async fn a_preface_is_read_in_pieces_and_nothing_after_it() {
        let (first, last) = PREFACE.split_at(1);
        for pieces in [&[PREFACE, b"more"][..], &[first, last, b"more"]] {
            let (result, _, rest) = read_from(pieces).await;
            assert_eq!((result, &rest[..]), (Some(()), &b"more"[..]));
        }
        let (result, ..) = read_from(&[&PREFACE[..23]]).await;
        assert_eq!(result, None, "the client is gone");
    }

    #[tokio::test]
    async fn other_protocols_are_recognised_by_their_first_bytes() {
        for (pieces, expected) in [
            (&[&b"\x16\x03\x01\x02\x00\x01"[..]][..], (true, false)),
            (&[b"\x16"], (true, false)),
            (&[b"GET / HTTP/1.1\r\n\r\n"], (false, true)),
            (&[b"P", b"OST /json HTTP/1.1\r\n"], (false, true)),
            (&[b"PRI * HTTP/2.0\r\n\r\nxx"], (false, true)),
            (&[b"*1\r\n$4\r\nPING\r\n"], (false, false)),
            (&[&[0; 100]], (false, false)),
        ] {
            let (result, non_http2, _) = read_from(pieces).await;
            let LoggedOnce { tls, http1 } = &*non_http2.0;
            let seen = (tls.load(Ordering::Relaxed), http1.load(Ordering::Relaxed));
            assert_eq!((result, seen), (None, expected), "{pieces:?}");
        }
    }
}
