//! Serves gRPC on a listener until it is asked to stop.

use std::io;
use std::time::Duration;

use futures_util::stream::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use super::connection::{self, ConnectionContext};
pub use super::health::{Health, HealthHandle, health};
use super::preface::NonHttp2Clients;
use super::{MESSAGE_BYTES_MAX, rate_limit_service};
use crate::service::DecisionService;
use ratelease_listener::tls::TlsAcceptor;
use ratelease_listener::{Accept, Accepted, Connection, Cores, OpenConnections};
use ratelease_listener::{connections, serve_each};

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
    let services = Routes::new(health).add_service(rate_limit_service::service(service.clone()));
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
        let (context, tls) = (context.clone(), tls.clone());
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
