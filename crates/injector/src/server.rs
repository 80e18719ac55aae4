//! The listener of the webhook: HTTPS, with bounds on all that a client may take.

mod bodies;
mod connections;
mod route;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{debug, warn};

use crate::annotation::Defaults;
use crate::inject::Cluster;
use bodies::Bodies;
use connections::{Connection, Connections};

// The limit of memory in the chart is 128 MiB. At most: 15 MiB of the program; 28 MiB of the one
// review that is parsed (REVIEW_BYTES_MAX); 24 MiB of bodies, as buffers grow by doubling; 13 MiB
// of 64 connections, with two buffers of 64 KiB and 64 KiB of TLS each; 25 MiB of answers that are
// not read, 4 of 100 KiB on each connection. That is 105 MiB.

/// Maximum number of connections; an API server keeps a few open. A further one takes the place of
/// the one that was idle for longest, of the client that has the most.
const CONNECTIONS_MAX: usize = 64;
/// Maximum bytes of all bodies that are arriving.
const BODIES_BYTES_MAX: usize = 12 << 20;
/// Maximum number of calls at a time on a connection of HTTP/2.
const STREAMS_MAX: u32 = 4;
/// Maximum bytes of each buffer of a connection.
const BUFFER_MAX: u32 = 64 << 10;
/// Maximum time from the accept to the head of the first request, of the head of a request, and
/// between two requests.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Maximum time that calls have to finish on a connection that lost its place.
const LOST_MAX: Duration = Duration::from_secs(1);
/// Age at which a connection is closed, so that a client finds new injectors and certificates.
const AGE_MAX: Duration = Duration::from_secs(300);
/// Time for which connections are still accepted after a signal: until then the API server may not
/// know that this injector ends.
const LAME_DUCK: Duration = Duration::from_secs(2);
/// Maximum time that calls have to finish after that.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Wait after a failed accept, for example when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What answers are made of.
#[derive(Debug)]
pub(crate) struct Webhook {
    pub(crate) defaults: Defaults,
    pub(crate) cluster: watch::Receiver<Cluster>,
    bodies: Bodies,
}

// === impl Webhook ===

impl Webhook {
    pub(crate) fn new(defaults: Defaults, cluster: watch::Receiver<Cluster>) -> Self {
        Self { defaults, cluster, bodies: Bodies::new(BODIES_BYTES_MAX) }
    }
}

/// Serves until `stop` resolves, and then until the calls in flight are finished. Each connection
/// is secured with the configuration that is in force when it begins.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: watch::Receiver<Arc<ServerConfig>>,
    webhook: Webhook,
    stop: impl Future<Output = ()>,
) {
    let webhook = Arc::new(webhook);
    let (connections, mut tasks) = (Connections::new(CONNECTIONS_MAX), JoinSet::new());
    let (ending, is_ending) = watch::channel(false);
    let accepting = async {
        loop {
            let (stream, from) = accept(&listener).await;
            while tasks.try_join_next().is_some() {}
            // Connections that lost their places end within `LOST_MAX`.
            while tasks.len() >= 2 * CONNECTIONS_MAX {
                tasks.join_next().await;
            }
            let (config, webhook, is_ending) =
                (Arc::clone(&tls.borrow()), Arc::clone(&webhook), is_ending.clone());
            tasks.spawn(connection(stream, config, webhook, (connections.open(from), is_ending)));
        }
    };
    let stopped = async {
        stop.await;
        sleep(LAME_DUCK).await;
    };
    tokio::select! {
        () = accepting => {}
        () = stopped => {}
    }
    drop(listener);
    let _ = ending.send(true);
    let ended = async { while tasks.join_next().await.is_some() {} };
    if timeout(DRAIN_MAX, ended).await.is_err() {
        warn!("connections are still open after {DRAIN_MAX:?}; ending anyway");
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => return (stream, address.ip()),
            Err(error) => {
                warn!("a connection cannot be accepted: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    webhook: Arc<Webhook>,
    (place, is_ending): (Arc<Connection>, watch::Receiver<bool>),
) {
    let silent = sleep(HEAD_MAX);
    let mut silent = std::pin::pin!(silent);
    let accepted = tokio::select! {
        accepted = TlsAcceptor::from(config).accept(stream) => accepted,
        () = &mut silent => Err(io::ErrorKind::TimedOut.into()),
        () = place.lost() => Err(io::ErrorKind::ConnectionAborted.into()),
    };
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => return debug!("no handshake: {error}"),
    };
    let of_calls = Arc::clone(&place);
    let answer = service_fn(move |request| {
        let (webhook, place) = (Arc::clone(&webhook), Arc::clone(&of_calls));
        async move {
            place.used();
            route::answer(&webhook, request).await
        }
    });
    let builder = builder();
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        time = end(&place, silent, is_ending) => {
            serving.as_mut().graceful_shutdown();
            timeout(time, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        debug!("a connection ended: {error}");
    }
}

/// Resolves once a connection is to end; returns the time that its calls have to finish.
async fn end(
    place: &Connection,
    silent: impl Future<Output = ()>,
    mut is_ending: watch::Receiver<bool>,
) -> Duration {
    let without_call = async {
        silent.await;
        if place.has_called() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = is_ending.wait_for(|is_ending| *is_ending) => DRAIN_MAX,
        () = sleep(AGE_MAX) => DRAIN_MAX,
        () = without_call => Duration::ZERO,
        () = place.lost() => LOST_MAX,
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(BUFFER_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(BUFFER_MAX)
        .initial_connection_window_size(BUFFER_MAX)
        .max_send_buf_size(BUFFER_MAX as usize)
        .max_header_list_size(BUFFER_MAX)
        .keep_alive_interval(HEAD_MAX)
        .keep_alive_timeout(HEAD_MAX);
    builder
}
