//! HTTP/1.1 and HTTP/2 on a connection, until it is asked to go away and its requests are answered.

use std::convert::Infallible;
use std::error::Error;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::debug;

use super::accept::{FIELDS_MAX, HEADER_BYTES_MAX, KEEPALIVE_INTERVAL, connections, serve_each};
use super::cores::Cores;
use super::io::Connection;
use super::pool::{ConnectionHandle, OpenConnections};
use super::tls::TlsAcceptor;

/// Maximum time until the headers of an HTTP/1 request are complete, and until the next request
/// begins.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// Maximum size in bytes of the headers of an HTTP/1 request, and of the part of its body that is
/// read ahead.
const BUFFER_MAX: usize = 8 * 1024;

/// Maximum number of streams that an HTTP/2 client resets before they are handled.
const PENDING_RESETS_MAX: usize = 128;

/// Maximum number of streams that this end resets for errors of an HTTP/2 client.
const LOCAL_RESETS_MAX: usize = 128;

/// How the connections of a port are served.
#[derive(Debug, Clone)]
pub struct HttpServer {
    builder: Builder<TokioExecutor>,
    age_max: Option<Duration>,
    leaving_max: Option<Duration>,
}

/// The client of a connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// The connection.
    pub connection: ConnectionHandle,
    /// The client's address.
    pub address: SocketAddr,
    /// The client's certificate, which the handshake has verified; `None` if clients need none.
    pub certificate: Option<CertificateDer<'static>>,
}

// === impl HttpServer ===

impl HttpServer {
    /// Serves at most `streams_max` requests at a time of an HTTP/2 connection. A head
    /// may have 8 KiB, which is enough for calls.
    pub fn new(streams_max: u32) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_MAX)
            .max_headers(FIELDS_MAX)
            .max_buf_size(BUFFER_MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams_max)
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_local_error_reset_streams(LOCAL_RESETS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(KEEPALIVE_INTERVAL);
        Self { builder, age_max: None, leaving_max: None }
    }

    /// Accepts heads of at most `max` bytes.
    #[must_use]
    pub fn head_bytes(mut self, max: u32) -> Self {
        self.builder.http1().max_buf_size(max as usize);
        self.builder.http2().max_header_list_size(max);
        self
    }

    /// Sets the window of each request and each connection to this many bytes, and the bytes of an
    /// answer that `h2` holds to as many. A client can have that memory used.
    #[must_use]
    pub fn windows(mut self, bytes: u32) -> Self {
        self.builder
            .http2()
            .initial_stream_window_size(bytes)
            .initial_connection_window_size(bytes)
            .max_send_buf_size(bytes as usize);
        self
    }

    /// Serves HTTP/2 alone. The client is pinged every `ping_interval`, and has to answer within
    /// `answer_max`. So a client that is gone without a word is noticed within the sum of both.
    #[must_use]
    pub fn http2_only(mut self, ping_interval: Duration, answer_max: Duration) -> Self {
        self.builder.http2().keep_alive_interval(ping_interval).keep_alive_timeout(answer_max);
        Self { builder: self.builder.http2_only(), ..self }
    }

    /// Lets a connection take no further requests from the age `age_max` on.
    #[must_use]
    pub fn age(mut self, age_max: Duration) -> Self {
        self.age_max = Some(age_max);
        self
    }

    /// Ends a connection at most `max` after it was asked to go away, even if requests are in
    /// progress. Without this bound, the caller has to bound that time.
    #[must_use]
    pub fn leaving(mut self, max: Duration) -> Self {
        self.leaving_max = Some(max);
        self
    }

    /// Serves the connections of a listener on the present runtime until `stop` resolves, and then
    /// until their requests are answered: each with the service that `service` makes for its
    /// client, and secured by `tls` if that is given.
    pub async fn serve_listener<S, B>(
        &self,
        listener: TcpListener,
        open: OpenConnections,
        tls: Option<TlsAcceptor>,
        stop: impl Future<Output = ()>,
        service: impl Fn(Client) -> S + Clone + Send + 'static,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let server = self.clone();
        let serve = move |io: Connection<TcpStream>, mut end: watch::Receiver<bool>| {
            let server = server.clone();
            let service = service.clone();
            let tls = tls.clone();
            async move {
                // An error means that the client is gone.
                let Ok(address) = io.get_ref().peer_addr() else { return };
                let connection = io.handle();
                let Some(tls) = tls else {
                    let service = service(Client { connection, address, certificate: None });
                    return server.serve(io, service, end).await;
                };
                let secured = tokio::select! {
                    secured = tls.secure(io) => secured,
                    _ = end.wait_for(|end| *end) => return,
                };
                // The reason of a failure has been counted.
                let Ok(io) = secured else { return };
                let certificates = io.get_ref().get_ref().1.peer_certificates();
                let certificate = certificates.and_then(|it| it.first()).cloned();
                let service = service(Client { connection, address, certificate });
                server.serve(io, service, end).await;
            }
        };
        serve_each(connections(listener, None, open), &Cores::current(), stop, serve).await;
    }

    /// Serves a connection until its client or its pool closes it, or until `stop` becomes true and
    /// its requests are answered.
    pub async fn serve<I, S, B>(
        &self,
        mut io: Connection<I>,
        service: S,
        mut stop: watch::Receiver<bool>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let handle = io.handle();
        let turn = io.require_turns();
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(io), service));
        let mut close_requested = pin!(async {
            tokio::select! {
                () = handle.close_requested() => {}
                // An error means that the sender is gone, together with the server.
                _ = stop.wait_for(|stop| *stop) => {}
                () = after(self.age_max) => {}
            }
        });
        let mut over = pin!(handle.run_until_closed());
        let mut is_leaving = false;
        let mut left = pin!(after(None));
        loop {
            tokio::select! {
                // One turn a poll, however many requests it has.
                ended = poll_fn(|cx| {
                    turn.note_handled();
                    connection.as_mut().poll(cx)
                }) => {
                    if let Err(error) = ended {
                        debug!(%error, "a connection failed");
                    }
                    return;
                }
                () = &mut close_requested, if !is_leaving => {
                    is_leaving = true;
                    left.set(after(self.leaving_max));
                    connection.as_mut().graceful_shutdown();
                }
                () = &mut left => return,
                () = &mut over => return,
            }
        }
    }
}

/// Resolves after this time; never if there is none.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}
