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
use tonic_health::pb::health_server::HealthServer;

use super::connection::{self, Inside};
use super::greeting::Strangers;
pub use super::health::{Health, HealthHandle, health};
use super::{MESSAGE_BYTES_MAX, wire};
use crate::accept::{Connection, OpenConnections, connections};
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

/// Serves until `stop` resolves and every call has finished. No connection is taken any more then,
/// and those that there are are told to go away; one that does not is the caller's to bound.
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
    let page = health.page();
    let health = HealthServer::new(health).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let services = Routes::new(health).add_service(wire::service(intake.clone()));
    let routes = Routes::from(services.into_axum_router().merge(page)).prepare();
    let life = age.age.zip(age.grace).and_then(|(age, grace)| age.checked_add(grace));
    let inside = Inside { intake, routes, strangers: Strangers::default(), age: age.age };
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
    incoming: impl Stream<Item = io::Result<Connection<I>>>,
    inside: Inside,
    stop: impl Future<Output = ()>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (end, ended) = watch::channel(false);
    let mut open = JoinSet::new();
    let mut incoming = Box::pin(incoming);
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
    // Closed, not left open until the last call has finished: whoever comes now is refused at once
    // and can go elsewhere, where it would wait in the queue for somebody to accept it.
    drop(incoming);
    end.send_replace(true);
    while open.join_next().await.is_some() {}
}
