//! Taking connections, before any protocol sees them. No error of accepting ends a listener, and no
//! client holds a connection without ever saying what it wants.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;
use tracing::{error, info};

/// A pause after an error that the next attempt would meet too, such as no files left. They come
/// back when connections end, which nothing tells us.
const PAUSE: Duration = Duration::from_millis(250);

/// Bytes that a client has to say first: HTTP/2's greeting (RFC 9113 §3.4). No request of HTTP/1.1
/// is shorter.
const GREETING_BYTES: usize = 24;

/// How long it may take over them.
const GREETING_MAX: Duration = Duration::from_secs(30);

/// Connections of one listener at most. An Envoy opens one or a few for each of its workers, so
/// that this many serve hundreds of them. One more is closed at once, not left to wait: its client
/// would take itself for connected, and each of its calls would last until its own timeout.
pub const CONNECTIONS_MAX: usize = 4096;

/// Something to accept connections from.
pub trait Accept {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;

    /// The next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

/// Counts the connections of a listener. A handle: clones share the count.
#[derive(Debug, Clone, Default)]
pub struct OpenConnections(Arc<Tally>);

#[derive(Debug, Default)]
struct Tally {
    open: AtomicUsize,
    refused: AtomicU64,
}

/// Counts one connection for as long as it lives.
#[derive(Debug)]
struct Counted(OpenConnections);

/// A connection that ends: after 30 s if its client has not said what it wants, and after its life
/// where that is bounded.
pub struct Connection<I> {
    io: I,
    read: usize,
    life: Option<Duration>,
    end: Option<Pin<Box<Sleep>>>,
    _counted: Counted,
}

/// Every connection of `listener`, for ever; those above [`CONNECTIONS_MAX`] are closed at once.
/// Each is cut off after `life`, if given.
pub fn connections<L: Accept>(
    listener: L,
    life: Option<Duration>,
    open: OpenConnections,
) -> impl Stream<Item = io::Result<Connection<L::Io>>> {
    stream::unfold((listener, open, false), move |(listener, open, mut failing)| async move {
        loop {
            match listener.accept().await {
                Ok(io) => {
                    let Some(counted) = open.count_one() else {
                        if !failing {
                            error!(
                                "{CONNECTIONS_MAX} connections are open: more are closed at once"
                            );
                        }
                        failing = true;
                        continue;
                    };
                    if failing {
                        info!("accepting connections again");
                    }
                    let connection = Connection::new(io, life, counted);
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

/// The client was gone before it was accepted: the next one may be well.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

// === impl OpenConnections ===

impl OpenConnections {
    /// Connections open at present.
    pub fn count(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Connections that were closed at once since the process began.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// `None` if there are as many as may be. Only the listener's one task adds any.
    fn count_one(&self) -> Option<Counted> {
        if self.count() >= CONNECTIONS_MAX {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Some(Counted(self.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Accept ===

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Fails only on a connection that is broken already, which reading it tells.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Io = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

// === impl Connection ===

impl<I> Connection<I> {
    fn new(io: I, life: Option<Duration>, counted: Counted) -> Self {
        let end = Some(Box::pin(sleep(GREETING_MAX)));
        Self { io, read: 0, life, end, _counted: counted }
    }

    /// Takes in that so many bytes were read: with the greeting complete, the life counts.
    fn note(&mut self, bytes: usize) {
        let was_greeted = self.read >= GREETING_BYTES;
        self.read = self.read.saturating_add(bytes);
        if was_greeted || self.read < GREETING_BYTES {
            return;
        }
        let end = self.end.take().zip(self.life).and_then(|(mut end, life)| {
            let accepted: Instant = end.deadline() - GREETING_MAX;
            end.as_mut().reset(accepted.checked_add(life)?);
            Some(end)
        });
        self.end = end;
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Connection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.note(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Connection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl<I: Connected> Connected for Connection<I> {
    type ConnectInfo = I::ConnectInfo;

    fn connect_info(&self) -> I::ConnectInfo {
        self.io.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A connection, and its client that sends `bytes` and no more.
    async fn greeted(bytes: usize, life: Option<Duration>) -> (Connection<DuplexStream>, Duration) {
        let (mut client, server) = duplex(1024);
        let mut connection =
            Connection::new(server, life, OpenConnections::default().count_one().unwrap());
        client.write_all(&vec![b'x'; bytes]).await.unwrap();
        #[allow(clippy::disallowed_methods)] // paused
        let start = Instant::now();
        let read = timeout(HOUR, async { while connection.read_u8().await.is_ok() {} }).await;
        let lived = start.elapsed();
        assert_eq!(read.is_err(), lived >= HOUR);
        (connection, lived)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_say_what_it_wants_is_cut_off() {
        for bytes in [0, 1, GREETING_BYTES - 1] {
            for life in [None, Some(HOUR)] {
                let (_, lived) = greeted(bytes, life).await;
                assert!((GREETING_MAX..GREETING_MAX * 2).contains(&lived), "{bytes}: {lived:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_lives_as_long_as_it_may() {
        for bytes in [GREETING_BYTES, 100] {
            let (connection, lived) = greeted(bytes, None).await;
            assert!(lived >= HOUR && connection.end.is_none(), "{lived:?}");
            for life in [Duration::from_secs(5), Duration::from_secs(300)] {
                let (_, lived) = greeted(bytes, Some(life)).await;
                assert!((life..life + PAUSE).contains(&lived), "{lived:?}");
            }
            // Longer than the clock can count.
            let (_, lived) = greeted(bytes, Some(Duration::MAX)).await;
            assert!(lived >= HOUR, "{lived:?}");
        }
    }

    /// Fails in every way before it gives a connection.
    struct Failing(AtomicUsize);

    impl Accept for Failing {
        type Io = DuplexStream;

        async fn accept(&self) -> io::Result<DuplexStream> {
            match self.0.fetch_add(1, Ordering::Relaxed) % 4 {
                0 => Err(io::ErrorKind::ConnectionAborted.into()),
                1 | 2 => Err(io::Error::from_raw_os_error(24)), // EMFILE
                _ => Ok(duplex(1).0),
            }
        }
    }

    #[tokio::test]
    async fn connections_count_while_they_live() {
        let open = OpenConnections::default();
        let failing = Failing(AtomicUsize::new(3));
        let mut connections = Box::pin(connections(failing, None, open.clone()));
        let connection = connections.next().await;
        assert_eq!(open.count(), 1);
        drop(connection);
        assert_eq!(open.count(), 0);
    }

    /// Gives connections whose clients wait for nothing.
    struct Endless;

    impl Accept for Endless {
        type Io = DuplexStream;

        async fn accept(&self) -> io::Result<DuplexStream> {
            tokio::task::yield_now().await;
            Ok(duplex(1).0)
        }
    }

    #[tokio::test]
    async fn connections_above_the_ceiling_are_closed_until_others_end() {
        let open = OpenConnections::default();
        let mut connections = Box::pin(connections(Endless, None, open.clone()));
        let mut crowd = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            crowd.push(connections.next().await.unwrap().unwrap());
        }
        assert_eq!((open.count(), open.refused()), (CONNECTIONS_MAX, 0));
        let mut next = connections.next();
        while open.refused() < 10 {
            assert!(futures_util::poll!(&mut next).is_pending());
        }
        assert_eq!(open.count(), CONNECTIONS_MAX);
        drop(crowd.pop());
        let accepted = next.await;
        assert!(matches!(accepted, Some(Ok(_))));
        assert_eq!(open.count(), CONNECTIONS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_waited_out() {
        let failing = Failing(AtomicUsize::new(0));
        let mut connections = Box::pin(connections(failing, None, OpenConnections::default()));
        for _ in 0..3 {
            #[allow(clippy::disallowed_methods)] // paused
            let start = Instant::now();
            assert!(connections.next().await.is_some_and(|accepted| accepted.is_ok()));
            let waited = start.elapsed();
            assert!((PAUSE * 2..PAUSE * 3).contains(&waited), "{waited:?}");
        }
    }
}
