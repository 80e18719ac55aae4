//! Serves gRPC on a listener until told to stop.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::connection::{self, Inside};
use super::wire;
use crate::accept::{OpenConnections, connections};
use crate::intake::Intake;

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
/// None at present: no error of accepting ends it.
pub async fn serve(
    listener: Listener,
    door: Door,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let Door { intake, health, age, open } = door;
    let routes = Routes::new(health.service).add_service(wire::service(intake.clone())).prepare();
    let life = age.age.zip(age.grace).and_then(|(age, grace)| age.checked_add(grace));
    let inside = Inside { intake, routes, age: age.age };
    match listener {
        Listener::Tcp(listener) => serve_all(connections(listener, life, open), inside, stop).await,
        Listener::Unix(listener) => {
            serve_all(connections(listener, life, open), inside, stop).await;
        }
    }
    Ok(())
}

/// Each connection has a task of its own. Dropped, this ends all of them.
async fn serve_all<I>(
    incoming: impl Stream<Item = io::Result<I>>,
    inside: Inside,
    stop: impl Future<Output = ()>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (end, ended) = watch::channel(false);
    let mut open = JoinSet::new();
    let mut incoming = pin!(incoming);
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(accepted) = incoming.next() => {
                // An error was of that connection alone.
                if let Ok(io) = accepted {
                    open.spawn(connection::serve(io, inside.clone(), ended.clone()));
                }
            }
            Some(_) = open.join_next(), if !open.is_empty() => {}
        }
    }
    end.send_replace(true);
    while open.join_next().await.is_some() {}
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
