//! Serves the API on a listener, within bounds of number and time.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::LONG_REQUEST_MAX;
use super::admission::ClientAddress;
use crate::connections::{ConnectionPlace, Connections};

/// Maximum number of connections; further ones wait in the backlog of the listener.
const CONNECTIONS_MAX: usize = 1024;

/// Maximum number of connections of one client; further ones are closed at once. All clients behind
/// a proxy are one.
const CONNECTIONS_OF_PEER_MAX: usize = CONNECTIONS_MAX / 2;

/// Maximum time until the head of a request is there, and until the next one begins.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// Age at which a connection takes no further requests.
const AGE_MAX: Duration = Duration::from_secs(120);

/// Maximum time for the rest of a connection after that, in which its last request is handled and
/// the answer is read.
const LAST_MAX: Duration = LONG_REQUEST_MAX.saturating_add(Duration::from_secs(15));

/// Maximum bytes of the head of a request.
const HEAD_BYTES_MAX: u32 = 32 << 10;

/// Maximum number of requests at a time of an HTTP/2 connection.
const STREAMS_MAX: u32 = 32;

/// Pause after a connection could not be accepted, such as without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` resolves, and the requests that are under way are answered.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()> + Clone + Send + 'static,
) {
    let clients = Connections::new(CONNECTIONS_MAX, CONNECTIONS_OF_PEER_MAX);
    serve_within(listener, routes, clients, stop).await;
}

async fn serve_within(
    listener: TcpListener,
    routes: Router,
    clients: Connections,
    stop: impl Future<Output = ()> + Clone + Send + 'static,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut stopped = pin!(stop.clone());
    loop {
        let (stream, address, place) = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next() => continue,
            Some(accepted) = accept(&listener, &places) => accepted,
        };
        let Some(of_client) = clients.admit(address) else { continue };
        let routes = routes.clone().layer(Extension(ClientAddress(address.ip())));
        connections.spawn(connection(stream, (place, of_client), routes, stop.clone()));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Waits for a place and a connection. `None` if there are no places any more.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => return Some((stream, address, place)),
            Err(error) => {
                debug!("a connection was not accepted: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    _places: (OwnedSemaphorePermit, ConnectionPlace),
    routes: Router,
    stop: impl Future<Output = ()>,
) {
    // The time of the head begins once the version of HTTP is known, so the first byte has its own.
    if !matches!(timeout(HEAD_MAX, stream.peek(&mut [0])).await, Ok(Ok(1))) {
        return;
    }
    let builder = builder();
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut serving = pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => Ok(served),
        () = async { tokio::select! { () = stop => {}, () = sleep(AGE_MAX) => {} } } => {
            serving.as_mut().graceful_shutdown();
            timeout(LAST_MAX, serving).await
        }
    };
    match served {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("a connection failed: {error}"),
        Err(_) => debug!("a connection was closed: its client did not read the answer"),
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX);
    builder
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::*;

    /// Reads until the server closes the connection, long before a silent one is closed.
    async fn rest(mut stream: TcpStream) -> String {
        let mut all = Vec::new();
        let read = timeout(HEAD_MAX / 2, stream.read_to_end(&mut all)).await.expect("an end");
        // What is closed before it was read may be reset.
        let _ = read;
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn silent_connections_of_one_client_leave_places_to_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = stopped.map(|_| ()).shared();
        let routes = Router::new().route("/", get(|| async { "answered" }));
        let served = tokio::spawn(serve_within(listener, routes, Connections::new(4, 2), stopped));
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let connect = async || {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // It may be closed already.
            let _ = stream.write_all(request).await;
            stream
        };
        let first = TcpStream::connect(address).await.unwrap();
        let second = TcpStream::connect(address).await.unwrap();
        assert_eq!(rest(connect().await).await, "", "a third is closed at once");
        drop(first);
        // The server notices the end after a moment.
        let answered = async { while !rest(connect().await).await.ends_with("answered") {} };
        timeout(HEAD_MAX / 2, answered).await.expect("a place");
        drop((second, stop));
        served.await.unwrap();
    }
}
