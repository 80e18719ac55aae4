//! The listener of the webhook: HTTPS, with bounds on all that a client may take.

mod route;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{debug, warn};

use crate::annotation::Defaults;
use crate::inject::Cluster;

/// Maximum number of connections; an API server keeps a few open. Further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 256;
/// Maximum number of bodies that are read at a time, of 4 MiB each.
const BODIES_MAX: usize = 8;
/// Maximum number of calls at a time on a connection of HTTP/2.
const STREAMS_MAX: u32 = 32;
/// Maximum time of a handshake, of the head of a request, and between two requests.
const HEAD_MAX: Duration = Duration::from_secs(10);
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
    bodies: Semaphore,
}

// === impl Webhook ===

impl Webhook {
    pub(crate) fn new(defaults: Defaults, cluster: watch::Receiver<Cluster>) -> Self {
        Self { defaults, cluster, bodies: Semaphore::new(BODIES_MAX) }
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
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (ending, is_ending) = watch::channel(false);
    let accepting = async {
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let stream = accept(&listener).await;
            let (config, webhook, is_ending) =
                (Arc::clone(&tls.borrow()), Arc::clone(&webhook), is_ending.clone());
            tokio::spawn(async move {
                connection(stream, config, webhook, is_ending).await;
                drop(place);
            });
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
    let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
    if timeout(DRAIN_MAX, places.acquire_many(all)).await.is_err() {
        warn!("connections are still open after {DRAIN_MAX:?}; ending anyway");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
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
    mut is_ending: watch::Receiver<bool>,
) {
    let accepted = timeout(HEAD_MAX, TlsAcceptor::from(config).accept(stream)).await;
    let stream = match accepted.map_err(|_| io::ErrorKind::TimedOut.into()).flatten() {
        Ok(stream) => stream,
        Err(error) => return debug!("no handshake: {error}"),
    };
    let answer = service_fn(move |request| {
        let webhook = Arc::clone(&webhook);
        async move { route::answer(&webhook, request).await }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(HEAD_MAX)
        .keep_alive_timeout(HEAD_MAX);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = async { tokio::select! {
            _ = is_ending.wait_for(|is_ending| *is_ending) => {}
            () = sleep(AGE_MAX) => {}
        } } => {
            serving.as_mut().graceful_shutdown();
            timeout(DRAIN_MAX, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        debug!("a connection ended: {error}");
    }
}
