//! Taking connections, before any protocol sees them. No error of accepting ends a listener, no
//! client shuts others out, and none holds a connection without ever saying what it wants.
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
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::server::Connected;
use tracing::{error, info};

pub use io::{Connection, PREFACE};
pub use pool::{CONNECTIONS_MAX, ConnectionHandle, Half, Lasting, OpenConnections};
pub use turn::TurnHandle;

use pool::ConnectionGuard;

/// A pause after an error that the next attempt would meet too, such as no files left. They come
/// back when connections end, which nothing tells us.
const PAUSE: Duration = Duration::from_millis(250);

/// How long a connection waits for one that is cut off to be gone.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(50);

/// How often it does, before it is refused: no longer than its client would wait.
const ROOM_WAITS: u32 = 20;

/// Header fields of one request at most, on every port. Envoy sends a dozen, and what
/// `initial_metadata` adds.
pub const FIELDS_MAX: usize = 64;

/// Bytes of headers of one HTTP/2 request at most, as HTTP/2 counts them: 32 more for each. A call
/// of Envoy's has a dozen, of 1 KiB. One that is no more than a reference costs a byte and is 90
/// bytes here, so that this bounds what they grow to before they can be counted.
pub const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// A silent HTTP/2 connection is probed after this and closed when it does not answer in time.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Something to accept connections from.
pub trait Accept {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;

    /// The next one, and its client's address if it has one.
    fn accept(&self) -> impl Future<Output = Result<(Self::Io, Option<IpAddr>)>> + Send;
}

/// Every connection of `listener`, for ever. Above the ceiling of `open`, others are closed to make
/// room. Each is cut off after `life`, if given.
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

/// Serves each of the `incoming` connections in a task of its own until `stop` resolves, and waits
/// for those tasks. The receiver that `serve` is given becomes true then, so that the connection
/// tells its client to go. Dropped, this ends every connection.
pub async fn serve_each<I, F>(
    incoming: impl Stream<Item = Result<Connection<I>>>,
    stop: impl Future<Output = ()>,
    serve: impl Fn(Connection<I>, watch::Receiver<bool>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
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
                    open.spawn(serve(io, ended.clone()));
                }
            }
            Some(_) = open.join_next(), if !open.is_empty() => {}
        }
    }
    // Closed, not left open until the last request has been answered: whoever comes now is refused
    // at once and can go elsewhere, where it would wait in the queue for somebody to accept it.
    drop(incoming);
    end.send_replace(true);
    while open.join_next().await.is_some() {}
}

/// A place in the pool, for which another connection may have to end first; `None` if none does.
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

/// The client was gone before it was accepted: the next one may be well.
fn is_of_the_client(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

// === impl Accept ===

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> Result<(TcpStream, Option<IpAddr>)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // Fails only on a connection that is broken already, which reading it tells.
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

/// A connection that is alone in its pool.
#[cfg(test)]
pub(crate) fn alone<I>(io: I) -> Connection<I> {
    let guard = OpenConnections::for_calls(1).admit(None);
    Connection::new(io, None, guard.expect("room in an empty pool"))
}

#[cfg(test)]
mod tests;
