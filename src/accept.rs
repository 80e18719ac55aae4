//! Taking connections, before any protocol sees them. No error of accepting ends a listener, no
//! client shuts others out, and none holds a connection without ever saying what it wants.
//!
//! ```text
//! accept ─▶ pool (room is made by closing what is idle) ─▶ io: deadlines ─▶ frames ─▶ ledger
//! ```

mod frames;
mod io;
mod ledger;
mod pool;

use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::sleep;
use tonic::transport::server::Connected;
use tracing::{error, info};

pub use io::{Connection, PREFACE};
pub use pool::{CONNECTIONS_MAX, ConnectionHandle, Half, Lasting, OpenConnections};

use pool::ConnectionGuard;

/// A pause after an error that the next attempt would meet too, such as no files left. They come
/// back when connections end, which nothing tells us.
const PAUSE: Duration = Duration::from_millis(250);

/// How long a connection waits for one that is cut off to be gone.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(50);

/// How often it does, before it is refused: no longer than its client would wait.
const ROOM_WAITS: u32 = 20;

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
    let guard = OpenConnections::default().admit(None);
    Connection::new(io, None, guard.expect("room in an empty pool"))
}

#[cfg(test)]
mod tests;
