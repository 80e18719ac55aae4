//! A byte stream to a server, with a limit on the replies that are read from it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{self, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::reply_limit::{ReplyCounter, ReplyLimit};
use super::threads::Threads;

/// A stream whose reader fails on a reply that exceeds `limit`.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    limit: Arc<ReplyLimit>,
    counter: ReplyCounter,
}

/// The bytes of a connection, over TCP, TLS or a Unix socket: one copy of the client's code serves
/// all of them.
pub(super) type BoxedStream = Box<dyn ReadWrite>;

pub(super) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for S {}

/// Connects over TCP to the first of the host's addresses that answers, among those that `allows`
/// accepts. Names are looked up on `threads`. Small commands are sent at once (TCP_NODELAY).
pub(super) async fn tcp(
    host: &str,
    port: u16,
    threads: &Threads,
    allows: impl Fn(IpAddr) -> bool,
) -> io::Result<TcpStream> {
    let mut addresses = look_up(host, port, threads).await?;
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    addresses.retain(|address| allows(address.ip()));
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, NOT_ALLOWED));
    }
    let stream = first_of(addresses, TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn look_up(host: &str, port: u16, threads: &Threads) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = (host.to_owned(), port);
    let found = threads.run(move || (name.0.as_str(), name.1).to_socket_addrs()).await??;
    Ok(found.collect())
}

/// Connects to the first of the addresses that can be reached.
async fn first_of<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let attempts = stream::iter(addresses).map(connect).buffer_unordered(ATTEMPTS_MAX);
    let mut attempts = pin!(attempts);
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The largest number of a name's addresses that are tried at the same time. Each takes a socket,
/// and the name's DNS server decides how many addresses it has.
const ATTEMPTS_MAX: usize = 4;

const NOT_ALLOWED: &str = "its address lies in none of the networks of REDIS_REDIRECT_NETWORKS";

/// Connects to a Unix socket.
pub(super) async fn unix(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

// === impl Bounded ===

impl<S> Bounded<S> {
    pub(super) fn new(stream: S, limit: Arc<ReplyLimit>) -> Self {
        Self { stream, limit, counter: ReplyCounter::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, limit, counter } = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(limit.check(counter, read).map_err(|excess| {
            // After an error nothing counts as read.
            buffer.set_filled(before);
            io::Error::new(io::ErrorKind::InvalidData, excess)
        }))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried_and_four_at_a_time() {
        let address = |last| SocketAddr::from(([127, 0, 0, last], 1));
        let last = address(99);
        let (open, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let connect = async |address: SocketAddr| {
            most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            open.fetch_sub(1, Ordering::Relaxed);
            let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
            if address == last { Ok(address) } else { Err(refused) }
        };
        let addresses: Vec<_> = (0..=99).map(address).collect();
        assert_eq!(first_of(addresses, connect).await.unwrap(), last);
        assert_eq!(most.load(Ordering::Relaxed), 4);
        let refused = first_of(vec![address(1)], connect).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
