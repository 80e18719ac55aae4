//! Serves HTTP/1.1 and HTTP/2 on a listener until it is asked to stop.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::StatusCode;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::future::RouteFuture;
use axum::{BoxError, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tower_service::Service;

pub use super::unread_pages::UnreadPages;
use ratelease_listener::{
    Connection, ConnectionHandle, Cores, OpenConnections, connections, serve_each,
};
use ratelease_listener::{FIELDS_MAX, HEADER_BYTES_MAX, KEEPALIVE_INTERVAL};
use ratelease_server::service::Peer;

/// Maximum duration of a request, the same as for a gRPC call: it bounds clients that never finish
/// their body.
const REQUEST_MAX: Duration = Duration::from_secs(10);

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

/// The pages and limits of a port.
#[derive(Clone)]
pub struct HttpServerParts {
    /// The routes, by path.
    pub routes: Router,
    /// Counts and limits its connections.
    pub open: OpenConnections,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub streams_max: u32,
    /// The order in which the requests of one connection are handled.
    pub order: RequestOrder,
    /// Counts the bytes of large answers until they are read; may be shared with other servers.
    pub unread: UnreadPages,
    /// Where connections are served.
    pub cores: Cores,
}

/// The order in which the requests of one connection are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOrder {
    /// All at once.
    Concurrent,
    /// One after the other: if a client asks for many pages at once, others wait for only one of
    /// them.
    Sequential,
}

/// Serves `parts` until `stop` resolves and every request has been answered. Clients that keep
/// their connection are asked to go away; the caller has to bound the wait for one that leaves a
/// request unfinished.
///
/// # Errors
///
/// None at present: no accept error ends it.
pub async fn serve(
    listener: TcpListener,
    parts: HttpServerParts,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let HttpServerParts { routes, open, streams_max, order, unread, cores } = parts;
    let bounds =
        middleware::from_fn(move |request, next| limit_request(request, next, unread.clone()));
    let routes = routes.layer(bounds).with_state(());
    let builder = builder(streams_max);
    let serve = move |io: Connection<_>, end| {
        let turn = (order == RequestOrder::Sequential).then(Turn::default);
        let (routes, peer) = (routes.clone(), Peer::new());
        let served = ConnectionService { routes, handle: io.handle(), peer, turn };
        serve_one(io, builder.clone(), served, end)
    };
    serve_each(connections(listener, None, open), &cores, stop, serve).await;
    Ok(())
}

async fn serve_one<I>(
    mut io: Connection<I>,
    builder: auto::Builder<TokioExecutor>,
    served: ConnectionService,
    mut stop: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (handle, turn) = (io.handle(), io.require_turns());
    let service = TowerToHyperService::new(served);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut close_requested = pin!(async {
        tokio::select! {
            () = handle.close_requested() => {}
            // An error means that the sender is gone, together with the server.
            _ = stop.wait_for(|stop| *stop) => {}
        }
    });
    let mut over = pin!(handle.run_until_closed());
    let mut is_leaving = false;
    loop {
        tokio::select! {
            // One turn a poll, however many requests it has.
            ended = poll_fn(|cx| {
                turn.note_handled();
                connection.as_mut().poll(cx)
            }) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection failed");
                }
                return;
            }
            () = &mut close_requested, if !is_leaving => {
                is_leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = &mut over => return,
        }
    }
}

fn builder(streams_max: u32) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
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
    builder
}

/// The routes; adds the connection to each request.
#[derive(Clone)]
struct ConnectionService {
    routes: Router,
    handle: ConnectionHandle,
    peer: Peer,
    turn: Option<Turn>,
}

/// Held by the request of a connection that is being handled.
type Turn = Arc<Mutex<()>>;

impl<B> Service<Request<B>> for ConnectionService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.handle.clone());
        request.extensions_mut().insert(self.peer.clone());
        if let Some(turn) = &self.turn {
            request.extensions_mut().insert(Arc::clone(turn));
        }
        self.routes.call(request)
    }
}

async fn limit_request(request: Request, next: Next, unread: UnreadPages) -> Response {
    if request.headers().len() > FIELDS_MAX {
        let reason = format!("more than {FIELDS_MAX} header fields\n");
        return (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, reason).into_response();
    }
    let handle = request.extensions().get::<ConnectionHandle>().cloned();
    let turn = request.extensions().get::<Turn>().cloned();
    let answered = async {
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        next.run(request).await
    };
    let answered = timeout(REQUEST_MAX, answered).await;
    match (answered, handle) {
        (Ok(response), Some(handle)) => unread.count(response, handle),
        (Ok(response), None) => response,
        (Err(_), _) => {
            (StatusCode::REQUEST_TIMEOUT, "the request was not finished in time\n").into_response()
        }
    }
}
