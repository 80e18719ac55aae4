//! HTTP/1.1 and HTTP/2 on a connection, until it is asked to go away and its requests are answered.

use std::convert::Infallible;
use std::error::Error;
use std::future::{pending, poll_fn};
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
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::debug;

use super::accept::{FIELDS_MAX, HEADER_BYTES_MAX, KEEPALIVE_INTERVAL};
use super::io::Connection;

/// Maximum time until the headers of an HTTP/1 request are complete, and until the next request
/// begins.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// Maximum size in bytes of the headers of an HTTP/1 request, and of the part of its body that is
/// read ahead.
const BUFFER_MAX: usize = 8 * 1024;

/// Maximum number of streams that an HTTP/2 client resets before they are handled, and of those
/// that are reset by this end for the client's errors.
const PENDING_RESETS_MAX: usize = 128;
const LOCAL_RESETS_MAX: usize = 128;

/// How the connections of a port are served.
#[derive(Debug, Clone)]
pub struct HttpServer {
    builder: Builder<TokioExecutor>,
    age_max: Option<Duration>,
    leaving_max: Option<Duration>,
}

// === impl HttpServer ===

impl HttpServer {
    /// At most `streams_max` requests at a time of an HTTP/2 connection, and heads as small as
    /// those of calls.
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

    /// The same, with heads of at most this many bytes.
    #[must_use]
    pub fn head_bytes(mut self, max: u32) -> Self {
        self.builder.http1().max_buf_size(max as usize);
        self.builder.http2().max_header_list_size(max);
        self
    }

    /// The same, with a window of this many bytes for each request and each connection, and as many
    /// of an answer that `h2` holds: memory that a client can have used.
    #[must_use]
    pub fn windows(mut self, bytes: u32) -> Self {
        self.builder
            .http2()
            .initial_stream_window_size(bytes)
            .initial_connection_window_size(bytes)
            .max_send_buf_size(bytes as usize);
        self
    }

    /// The same, where a connection takes no further requests from the age `age_max` on.
    #[must_use]
    pub fn age(mut self, age_max: Duration) -> Self {
        self.age_max = Some(age_max);
        self
    }

    /// The same, where a connection ends at most `max` after it was asked to go away, even if
    /// requests are in progress. Without it, the caller has to bound that time.
    #[must_use]
    pub fn leaving(mut self, max: Duration) -> Self {
        self.leaving_max = Some(max);
        self
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
        let (handle, turn) = (io.handle(), io.require_turns());
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
        let (mut is_leaving, mut left) = (false, pin!(after(None)));
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
