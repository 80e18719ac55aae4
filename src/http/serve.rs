//! Serves HTTP/1.1 and HTTP/2 on a listener until told to stop.
//!
//! Neither axum's server nor tonic's is used: they leave hyper's bounds of HTTP/1.1 as they are,
//! by which half a head keeps 400 KB for 30 s, or for ever.

use std::io;
use std::pin::pin;
use std::time::Duration;

use ::http::StatusCode;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use futures_util::StreamExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::accept::{OpenConnections, connections};
use crate::intake::Peer;

/// A request ends after this whatever happens, as a gRPC call does.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The head of a request of HTTP/1.1 comes within this, from the end of the one before it: an idle
/// connection is closed as well, which a client that keeps one notices before it asks again.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// Bytes of the head of one request at most.
const HEAD_BYTES_MAX: u32 = 16 * 1024;

/// Requests under way on one HTTP/2 connection at most (people and scrapers have one or two), those
/// that its client reset before they were handled, and those that were reset here for its faults.
const STREAMS_MAX: u32 = 16;
const PENDING_RESETS_MAX: usize = 128;
const LOCAL_RESETS_MAX: usize = 128;

/// A silent HTTP/2 connection is probed after this and closed when it does not answer in time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Serves `routes` until `stop` resolves and every request has been answered. `open` counts its
/// connections. Clients that keep their connection are told to go; one that leaves a request
/// unfinished is the caller's to bound. Dropped, this ends every connection.
///
/// # Errors
///
/// None at present: no error of accepting ends it.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    open: OpenConnections,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let routes = routes.layer(middleware::from_fn(bounded));
    let (builder, shutdown) = (builder(), GracefulShutdown::new());
    let mut serving = JoinSet::new();
    let mut stop = pin!(stop);
    let mut incoming = Box::pin(connections(listener, None, open));
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(accepted) = incoming.next() => accepted,
            Some(_) = serving.join_next(), if !serving.is_empty() => continue,
        };
        // An error was of that connection alone.
        let Ok(io) = accepted else { continue };
        let service = TowerToHyperService::new(routes.clone().layer(Extension(Peer::new())));
        let connection = builder.serve_connection(TokioIo::new(io), service).into_owned();
        let served = shutdown.watch(connection);
        serving.spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    // Closed, not left open until the last request has been answered.
    drop(incoming);
    shutdown.shutdown().await;
    Ok(())
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE_INTERVAL);
    builder
}

async fn bounded(request: Request, next: Next) -> Response {
    let answered = timeout(REQUEST_MAX, next.run(request)).await;
    answered.unwrap_or_else(|_| {
        (StatusCode::REQUEST_TIMEOUT, "the request was not finished in time\n").into_response()
    })
}
