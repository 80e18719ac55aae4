//! Serves gRPC on a listener until told to stop, with every HTTP/2 bound named.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::wire;
use crate::accept::{OpenConnections, connections};
use crate::intake::Intake;

/// Calls under way on one connection at most. A connection's calls are read and get a task each
/// before any of them runs, so that this bounds what one connection can have waiting for the CPU.
/// An Envoy opens a connection for each of its workers, and another when one has no stream left.
/// With each call waiting 5 ms for a lease, this many are 51 000 a second.
const STREAMS_MAX: u32 = 256;

/// Streams that a client reset before they were handled, at most, before the connection is closed
/// (CVE-2023-44487). Envoy resets a stream whenever its timeout strikes, so a stall must not look
/// like an attack: this many is far above h2's own 20.
const PENDING_RESETS_MAX: usize = 1024;

/// Streams reset here because of the client's faults at most (CVE-2025-8671). hyper's default,
/// which tonic would lift.
const LOCAL_RESETS_MAX: usize = 1024;

/// Bytes of headers of one call at most.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// A silent connection is probed after this and closed when it does not answer in time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A call ends after this whatever happens; a verdict takes a few milliseconds at most. It bounds
/// clients that open a call and never finish their message.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Where to listen.
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket, for Envoy's `pipe`.
    Unix(UnixListener),
}

/// How long a connection lives; `None` for as long as it likes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionAge {
    /// It is asked to go away after this.
    pub age: Option<Duration>,
    /// Calls under way have this long to finish then, before it is cut off.
    pub grace: Option<Duration>,
}

/// What is behind the listener.
pub struct Door {
    /// Decides.
    pub intake: Intake,
    /// Answers health checks.
    pub health: Health,
    /// How long a connection lives.
    pub age: ConnectionAge,
    /// Counts connections.
    pub open: OpenConnections,
}

/// Serves until `stop` resolves and every call has finished. Connections are told to go away
/// first; one that does not is the caller's to bound.
///
/// # Errors
///
/// The listener failed.
pub async fn serve(
    listener: Listener,
    door: Door,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let Door { intake, health, age, open } = door;
    let router = router(intake, health, age.age);
    let life = age.age.zip(age.grace).and_then(|(age, grace)| age.checked_add(grace));
    let served = match listener {
        Listener::Tcp(listener) => {
            let incoming = connections(listener, life, open);
            router.serve_with_incoming_shutdown(incoming, stop).await
        }
        Listener::Unix(listener) => {
            let incoming = connections(listener, life, open);
            router.serve_with_incoming_shutdown(incoming, stop).await
        }
    };
    served.map_err(io::Error::other)
}

/// tonic is told the age alone: with a grace as well it waits for both and then cuts connections
/// off without having asked them to go (0.14.9, `connection_timeout_future`).
fn router(intake: Intake, health: Health, age: Option<Duration>) -> Router {
    let mut server = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT));
    if let Some(age) = age {
        server = server.max_connection_age(age);
    }
    server.timeout(CALL_MAX).add_service(health.service).add_service(wire::service(intake))
}

/// The standard health service, under the reference's name `ratelimit` and under none.
pub struct Health {
    service: tonic_health::pb::health_server::HealthServer<tonic_health::server::HealthService>,
}

/// Says whether this process is healthy.
#[derive(Clone)]
pub struct HealthHandle {
    reporter: HealthReporter,
}

/// A health service that says no until told otherwise, and the handle to tell it.
pub async fn health() -> (Health, HealthHandle) {
    let reporter = HealthReporter::new();
    let service = tonic_health::server::HealthService::from_health_reporter(reporter.clone());
    let service = tonic_health::pb::health_server::HealthServer::new(service);
    let handle = HealthHandle { reporter };
    handle.set(false).await;
    (Health { service }, handle)
}

impl HealthHandle {
    /// Says no from now on, and ends the calls of watchers once they have read what they were told:
    /// none holds up the end of the process.
    pub async fn end(&self) {
        for service in ["", "ratelimit"] {
            self.reporter.clone().clear_service_status(service).await;
        }
        // For those who ask once more.
        self.set(false).await;
    }

    /// Every later check, and every watcher, is told.
    pub async fn set(&self, healthy: bool) {
        let status = if healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", "ratelimit"] {
            self.reporter.set_service_status(service, status).await;
        }
    }
}
