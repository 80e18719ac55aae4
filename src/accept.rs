//! Accepts connections, before any protocol reads from them. No accept error ends a listener, no
//! client can keep others from connecting, and no connection stays open without sending a request.
//!
//! ```text
//! accept ─▶ pool (room by closing what is idle) ─▶ io: deadlines, turns ─▶ frames ─▶ ledger
//! ```

mod frames;
mod io;
mod ledger;
mod pool;
mod turn;
mod waiting;

use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use tonic::transport::server::Connected;
use tracing::{error, info};

pub use io::{Connection, PREFACE};
pub use pool::{CONNECTIONS_MAX, ConnectionHandle, Half, Lasting, OpenConnections};
pub use turn::TurnHandle;

use pool::ConnectionGuard;

/// Pause after an error that the next attempt would meet too, such as too many open files. File
/// descriptors are freed when connections end, and no event announces that.
const PAUSE: Duration = Duration::from_millis(250);

/// Maximum wait for an evicted connection to end.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(50);

/// Number of such waits before a new connection is refused; in total no longer than its client
/// would wait.
const ROOM_WAITS: u32 = 20;

/// Connections that are accepted one after the other before those that came earlier have their
/// turn. Otherwise a crowd that connects and leaves would fill the pool before any of them is
/// looked at, and a probe among them would be closed for those that came after it.
const ACCEPTED_IN_TURN: u32 = 8;

/// Maximum number of header fields of one request, on every port. Envoy sends a dozen, plus what
/// `initial_metadata` adds.
pub const FIELDS_MAX: usize = 64;

/// Maximum size in bytes of the headers of one HTTP/2 request, as HTTP/2 counts it: with 32 bytes
/// added for each field. A call from Envoy has a dozen fields, 1 KiB in all. A field that is only a
/// reference to the header table takes one byte on the wire and 90 bytes in memory, so this limit
/// bounds the decoded size before the fields can be counted.
pub const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// A silent HTTP/2 connection is pinged after this interval, and closed if it does not answer in
/// time.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// A source of connections.
pub trait Accept {
    /// The type of a connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;

    /// Returns the next connection, and its client's address if it has one.
    fn accept(&self) -> impl Future<Output = Result<(Self::Io, Option<IpAddr>)>> + Send;
}

/// Returns every connection of `listener`; the stream never ends. When `open` is full, other
/// connections are closed to make room. Each connection is cut off after `life`, if given.
pub fn connections<L: Accept>(
    listener: L,
    life: Option<Duration>,
    open: OpenConnections,
) -> impl Stream<Item = Result<Connection<L::Io>>> {
    stream::unfold((listener, open, false), move |(listener, open, mut failing)| async move {
        loop {
            match listener.accept().await {
                Ok((io, address)) => {
                    let Some(guard) = admitted(&open, address).await else {
                        if !failing {
                            let max = open.max();
                            error!(
                                "{max} connections are open, none of which ends: more are closed"
                            );
                        }
                        failing = true;
                        continue;
                    };
                    if failing {
                        info!("accepting connections again");
                    }
                    let connection = Connection::new(io, life, guard);
                    return Some((Ok(connection), (listener, open, false)));
                }
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    if !failing {
                        error!("cannot accept connections: {error}; raise the limit on open files");
                    }
                    failing = true;
                    sleep(PAUSE).await;
                }
            }
        }
    })
}

/// Serves each of the `incoming` connections in a task of its own until `stop` resolves, then waits
/// for those tasks. When `stop` resolves, the receiver passed to `serve` becomes true, so that the
/// connection asks its client to go away. Dropping the future ends every connection.
pub async fn serve_each<I, F>(
    incoming: impl Stream<Item = Result<Connection<I>>>,
    stop: impl Future<Output = ()>,
    serve: impl Fn(Connection<I>, watch::Receiver<bool>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (end, ended) = watch::channel(false);
    let mut open = JoinSet::new();
    let mut accepted_in_turn = 0;
    let mut incoming = Box::pin(incoming);
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(accepted) = incoming.next() => {
                // An error concerns that connection alone.
                if let Ok(io) = accepted {
                    open.spawn(serve(io, ended.clone()));
                }
                accepted_in_turn += 1;
                if accepted_in_turn == ACCEPTED_IN_TURN {
                    accepted_in_turn = 0;
                    yield_now().await;
                }
            }
            Some(_) = open.join_next(), if !open.is_empty() => {}
        }
    }
    // The listener is closed now rather than when the last request has been answered: a new client
    // is refused at once and can go to another pod, instead of waiting in a queue that is never
    // served.
    drop(incoming);
    end.send_replace(true);
    while open.join_next().await.is_some() {}
}

/// Returns a place in the pool, which may require another connection to end first; `None` if none
/// ends.
async fn admitted(open: &OpenConnections, address: Option<IpAddr>) -> Option<ConnectionGuard> {
    for _ in 0..ROOM_WAITS {
        if let Some(guard) = open.admit(address) {
            return Some(guard);
        }
        open.wait_for_room(ROOM_WAIT_MAX).await;
    }
    open.note_refused();
    None
}

/// Whether the client was gone before its connection was accepted; the next connection may be fine.
fn is_of_the_client(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

// === impl Accept ===

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> Result<(TcpStream, Option<IpAddr>)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // Fails only if the connection is broken already; the next read reports that.
        let _ = stream.set_nodelay(true);
        Ok((stream, Some(address.ip())))
    }
}

impl Accept for UnixListener {
    type Io = UnixStream;

    async fn accept(&self) -> Result<(UnixStream, Option<IpAddr>)> {
        UnixListener::accept(self).await.map(|(stream, _)| (stream, None))
    }
}

/// A connection in a pool of its own.
#[cfg(test)]
pub(crate) fn alone<I>(io: I) -> Connection<I> {
    let guard = OpenConnections::for_calls(1).admit(None);
    Connection::new(io, None, guard.expect("room in an empty pool"))
}

#[cfg(test)]
mod tests;
