//! Serves HTTP/1.1 and HTTP/2 on a listener until it is asked to stop.

use std::convert::Infallible;
use std::io;
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
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower_service::Service;

use ratelease_listener::{
    Connection, ConnectionHandle, Cores, FIELDS_MAX, HttpServer, OpenConnections, UnreadAnswers,
    UnreadBounds, connections, serve_each,
};
use ratelease_server::service::Peer;

/// Maximum duration of a request, the same as for a gRPC call: it bounds clients that never finish
/// their body.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Maximum number of bytes of large answers that are not read yet, over all servers that share the
/// budget. A page of ten thousand rules has 10 MB.
const UNREAD_MAX: usize = 8 * 1024 * 1024;

/// Creates a budget of answers, whose clients read at any pace that the connection allows.
pub fn unread_answers() -> UnreadAnswers {
    UnreadAnswers::new(UnreadBounds {
        bytes_max: UNREAD_MAX,
        counted_max: UNREAD_MAX / 4,
        of_client_max: UNREAD_MAX,
        bytes_per_second_min: None,
    })
}

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
    pub unread: UnreadAnswers,
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
    let server = HttpServer::new(streams_max);
    let serve = move |io: Connection<_>, end| {
        let turn = (order == RequestOrder::Sequential).then(Turn::default);
        let (routes, peer) = (routes.clone(), Peer::new());
        let served = ConnectionService { routes, handle: io.handle(), peer, turn };
        let server = server.clone();
        async move { server.serve(io, TowerToHyperService::new(served), end).await }
    };
    serve_each(connections(listener, None, open), &cores, stop, serve).await;
    Ok(())
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

async fn limit_request(request: Request, next: Next, unread: UnreadAnswers) -> Response {
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
        (Ok(response), Some(handle)) => {
            unread.count(response, handle.peer(), &handle, None::<()>).map(Body::new)
        }
        (Ok(response), None) => response,
        (Err(_), _) => {
            (StatusCode::REQUEST_TIMEOUT, "the request was not finished in time\n").into_response()
        }
    }
}
