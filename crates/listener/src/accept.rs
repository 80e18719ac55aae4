//! Accepts connections, and serves each on one of the cores until it ends.

use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tonic::transport::server::Connected;
use tracing::{error, info};

use crate::cores::{Cores, Slot};
use crate::io::Connection;
use crate::pool::{ConnectionGuard, OpenConnections, PoolFull};

/// Pause after an error that the next attempt would meet too, such as too many open files. File
/// descriptors are freed when connections end, and no event announces that.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Maximum wait for an evicted connection to end.
const EVICTION_WAIT_MAX: Duration = Duration::from_millis(50);

/// Number of such waits before a new connection is refused; in total no longer than its client
/// would wait.
const EVICTION_WAITS: u32 = 20;

/// Connections that are accepted, or begun on their core, one after the other before other tasks of
/// the thread have their turn: those that came earlier, for example. Otherwise a crowd that
/// connects and leaves would fill the pool before any of them is looked at, and a probe among them
/// would be closed for those that came after it.
const ACCEPTS_PER_YIELD: u32 = 8;

/// Maximum number of accepted connections that wait for their core. A core that has as many gets no
/// further one while another core has fewer. While all cores have as many, no connection is
/// accepted, so connections that were never read cannot fill a pool.
const QUEUED_MAX: usize = 16;

/// Maximum number of header fields of one request, on every port. Envoy sends a dozen, plus what
/// `initial_metadata` adds.
pub const FIELDS_MAX: usize = 64;

/// Maximum size in bytes of the headers of one HTTP/2 request, as HTTP/2 counts it: with 32 bytes
/// added for each field. A call from Envoy has a dozen fields, 1 KiB in all. A field that is only a
/// reference to the header table takes one byte on the wire and 90 bytes in memory. So this limit
/// bounds the decoded size before the fields can be counted.
pub const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// A silent HTTP/2 connection is pinged at this interval, and closed if it does not answer in time.
/// On gRPC connections the first ping comes after a silence of half to one and a half intervals.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// A source of connections.
pub trait Accept {
    /// A connection that no runtime has registered.
    type Socket: Send + 'static;

    /// The type of a connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;

    /// Returns the next connection, and its client's address if it has one.
    fn accept(&self) -> impl Future<Output = Result<(Self::Socket, Option<IpAddr>)>> + Send;

    /// Registers a connection in the runtime that this is called in, which is to serve it.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot watch the connection.
    fn register(socket: Self::Socket) -> Result<Self::Io>;
}

/// An accepted connection that no runtime serves yet.
#[derive(Debug)]
pub struct Accepted<L: Accept> {
    socket: L::Socket,
    max_age: Option<Duration>,
    guard: ConnectionGuard,
}

/// Returns every connection of `listener`; the stream never ends. When `open` is full, other
/// connections are closed to make room. Each connection is cut off after `max_age`, if given.
pub fn connections<L: Accept>(
    listener: L,
    max_age: Option<Duration>,
    open: OpenConnections,
) -> impl Stream<Item = Accepted<L>> {
    stream::unfold((listener, open, false), move |(listener, open, mut failing)| async move {
        loop {
            match listener.accept().await {
                Ok((_, address)) if open.has_all_of_peer(address) => open.note_refused(),
                Ok((socket, address)) => {
                    let Some(guard) = admit_or_evict(&open, address).await else {
                        if !failing {
                            let max = open.max();
                            error!(
                                "new connections are refused: {max} are open, the maximum, \
                                 and none can be closed"
                            );
                        }
                        failing = true;
                        continue;
                    };
                    if failing {
                        info!("accepting connections again");
                    }
                    let accepted = Accepted { socket, max_age, guard };
                    return Some((accepted, (listener, open, false)));
                }
                Err(error) if is_client_error(&error) => {}
                Err(error) => {
                    if !failing {
                        error!("cannot accept connections: {error}; raise the limit on open files");
                    }
                    failing = true;
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    })
}

/// Serves each of the `incoming` connections in a task of its own, on one of the `cores`, until
/// `stop` resolves; then waits for those tasks. When `stop` resolves, the receiver passed to
/// `serve` becomes true, so that the connection asks its client to go away. Dropping the future
/// ends every connection.
pub async fn serve_each<L, F>(
    incoming: impl Stream<Item = Accepted<L>>,
    cores: &Cores,
    stop: impl Future<Output = ()>,
    serve: impl Fn(Connection<L::Io>, watch::Receiver<bool>) -> F + Clone + Send + 'static,
) where
    L: Accept + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (end, ended) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let queue = |runtime| {
        let (queue, accepted) = mpsc::channel(QUEUED_MAX);
        tasks.spawn_on(serve_core(accepted, ended.clone(), serve.clone()), runtime);
        queue
    };
    let queues: Vec<mpsc::Sender<(Accepted<L>, Slot)>> = cores.runtimes().map(queue).collect();
    let accept = async {
        let mut incoming = Box::pin(incoming);
        let mut since_yield = 0;
        while let Some(accepted) = incoming.next().await {
            let has_room = |core: usize| queues.get(core).is_some_and(|it| it.capacity() > 0);
            let slot = cores.slot(has_room);
            if let Some(queue) = queues.get(slot.core()) {
                // An error means that the core's runtime has ended, and with it the process.
                let _ = queue.send((accepted, slot)).await;
            }
            yield_at_times(&mut since_yield).await;
        }
    };
    // The listener is closed here rather than when the last request has been answered: a new client
    // is refused at once and can go to another pod, instead of waiting in a queue that is never
    // served.
    tokio::select! {
        () = stop => {}
        () = accept => {}
    }
    drop(queues);
    end.send_replace(true);
    while tasks.join_next().await.is_some() {}
}

/// Serves the connections that are `accepted` for this core, until there will be no more and all
/// have ended. Dropping the future ends them.
async fn serve_core<L: Accept, F>(
    mut accepted: mpsc::Receiver<(Accepted<L>, Slot)>,
    ended: watch::Receiver<bool>,
    serve: impl Fn(Connection<L::Io>, watch::Receiver<bool>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    let mut since_yield = 0;
    loop {
        tokio::select! {
            next = accepted.recv() => {
                let Some((accepted, slot)) = next else { break };
                // An error concerns only that connection.
                if let Ok(io) = accepted.register() {
                    // An async block would hold the future that it awaits twice
                    // (rust-lang/rust#62958), and a crowd of connections would take that much more
                    // memory.
                    open.spawn(serve(io, ended.clone()).map(|()| drop(slot)));
                }
                yield_at_times(&mut since_yield).await;
            }
            Some(_) = open.join_next(), if !open.is_empty() => {}
        }
    }
    while open.join_next().await.is_some() {}
}

/// Lets other tasks of the thread have their turn at each [`ACCEPTS_PER_YIELD`]th call.
async fn yield_at_times(since_yield: &mut u32) {
    *since_yield += 1;
    if *since_yield == ACCEPTS_PER_YIELD {
        *since_yield = 0;
        yield_now().await;
    }
}

/// Admits a connection, which may require another connection to end first; `None` if none
/// ends.
async fn admit_or_evict(
    open: &OpenConnections,
    address: Option<IpAddr>,
) -> Option<ConnectionGuard> {
    for _ in 0..EVICTION_WAITS {
        let closed = open.next_close();
        match open.admit(address) {
            Ok(guard) => return Some(guard),
            Err(PoolFull::MakingRoom) => {
                let _ = timeout(EVICTION_WAIT_MAX, closed).await;
            }
            Err(PoolFull::AllInUse) => break, // the next one need not wait for that
        }
    }
    open.note_refused();
    None
}

/// Whether the client was gone before its connection was accepted; the next connection may be fine.
fn is_client_error(error: &Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

// === impl Accept ===

impl Accept for TcpListener {
    type Socket = std::net::TcpStream;
    type Io = TcpStream;

    async fn accept(&self) -> Result<(Self::Socket, Option<IpAddr>)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // Fails only if the connection is broken already; the next read reports that.
        let _ = stream.set_nodelay(true);
        Ok((stream.into_std()?, Some(address.ip())))
    }

    fn register(socket: Self::Socket) -> Result<TcpStream> {
        TcpStream::from_std(socket)
    }
}

impl Accept for UnixListener {
    type Socket = std::os::unix::net::UnixStream;
    type Io = UnixStream;

    async fn accept(&self) -> Result<(Self::Socket, Option<IpAddr>)> {
        let (stream, _) = UnixListener::accept(self).await?;
        Ok((stream.into_std()?, None))
    }

    fn register(socket: Self::Socket) -> Result<UnixStream> {
        UnixStream::from_std(socket)
    }
}

// === impl Accepted ===

impl<L: Accept> Accepted<L> {
    /// Registers the connection in the runtime that this is called in, which is to serve it.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot watch the connection.
    pub fn register(self) -> Result<Connection<L::Io>> {
        Ok(Connection::new(L::register(self.socket)?, self.max_age, self.guard))
    }
}

#[cfg(test)]
mod tests;
