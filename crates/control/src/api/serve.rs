//! Serves the API on a listener, within bounds of number and time; and probes on another.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Extension, Router};
use hyper_util::service::TowerToHyperService;
use ratelease_listener::{
    Client, ConnectionHandle, HttpServer, OpenConnections, Peer, UnreadAnswers, UnreadBounds,
};
use tokio::net::TcpListener;

use super::{LONG_REQUEST_MAX, MIB};

/// Maximum number of connections of the API. A further one closes one that never had a request with
/// a valid token, or else the one whose last such request is the longest ago; first those of the
/// client with the most. None closes while such a request is handled and its answer is read.
const CONNECTIONS_MAX: usize = 1024;

/// Time without such a request after which a connection is asked to go away.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Maximum number of connections of the port for probes, on which those go first that are idle.
const PROBES_MAX: usize = 256;

/// Age at which a connection takes no further requests.
const AGE_MAX: Duration = Duration::from_secs(120);

/// Maximum time for the rest of a connection after that, in which its last request is handled and
/// the answer is read.
const LAST_MAX: Duration = LONG_REQUEST_MAX.saturating_add(Duration::from_secs(15));

/// Maximum bytes of the head of a request.
const HEAD_BYTES_MAX: u32 = 32 << 10;

/// Maximum number of requests at a time of an HTTP/2 connection.
const STREAMS_MAX: u32 = 32;

/// Maximum bytes of the answers that are not read yet, of all clients and of one, which may be two
/// exports of the largest domain and a few pages.
const UNREAD_MAX: usize = 128 * MIB;
const UNREAD_OF_CLIENT_MAX: usize = 40 * MIB;

/// Bytes a second that a client has to read of an answer.
const BYTES_PER_SECOND_MIN: u32 = 128 << 10;

/// Who reads an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reader {
    /// The holder of the token of this name.
    Token(String),
    /// A client without a valid token.
    Peer(Peer),
}

/// The budget of answers that are not read yet.
pub fn unread_answers() -> UnreadAnswers<Reader> {
    UnreadAnswers::new(UnreadBounds {
        bytes_max: UNREAD_MAX,
        counted_max: UNREAD_OF_CLIENT_MAX,
        of_client_max: UNREAD_OF_CLIENT_MAX,
        bytes_per_second_min: Some(BYTES_PER_SECOND_MIN),
    })
}

/// Serves the API until `stop` resolves, and the requests that are under way are answered.
pub async fn serve(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    let open = OpenConnections::for_known_clients(CONNECTIONS_MAX, None, IDLE_MAX);
    serve_within(listener, routes, open, stop).await;
}

/// Serves probes, whose clients have no token, in the same way.
pub async fn serve_probes(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    serve_within(listener, routes, OpenConnections::new(PROBES_MAX), stop).await;
}

async fn serve_within(
    listener: TcpListener,
    routes: Router,
    open: OpenConnections,
    stop: impl Future<Output = ()>,
) {
    let server = HttpServer::new(STREAMS_MAX).head_bytes(HEAD_BYTES_MAX);
    let server = server.age(AGE_MAX).leaving(LAST_MAX);
    let service = move |client: Client| {
        TowerToHyperService::new(routes.clone().layer(Extension(client.connection)))
    };
    server.serve_listener(listener, open, None, stop, service).await;
}

/// Has the answers of these routes counted, which need no token.
pub(super) fn count_public(routes: Router, unread: UnreadAnswers<Reader>) -> Router {
    routes.layer(from_fn(move |request: Request, next: Next| {
        let unread = unread.clone();
        let connection = request.extensions().get::<ConnectionHandle>().cloned();
        async move {
            let response = next.run(request).await;
            match connection {
                Some(connection) => {
                    let reader = Reader::Peer(connection.peer());
                    count(&unread, response, reader, &connection, None::<()>)
                }
                None => response,
            }
        }
    }))
}

/// Counts an answer, which holds the permit of its request until it is read.
pub(super) fn count<P: Send + 'static>(
    unread: &UnreadAnswers<Reader>,
    response: Response,
    reader: Reader,
    connection: &ConnectionHandle,
    permit: Option<P>,
) -> Response {
    unread.count(response, reader, connection, permit).map(Body::new)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use crate::api::serve::*;

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn connections_without_a_valid_request_give_way_to_a_new_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = stopped.map(|_| ());
        let routes = Router::new().route("/", get(|| async { "answered" }));
        let open = OpenConnections::for_known_clients(2, None, IDLE_MAX);
        let served = tokio::spawn(serve_within(listener, routes, open, stopped));
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.ends_with("answered"), "{answer}");
        drop((silent, stop));
        served.await.unwrap();
    }
}
