//! A byte stream to a server, which bounds the replies that are read from it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::select_ok;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::reply_limit::{ReplyCounter, ReplyLimit};

/// A stream whose reader fails at a reply that is larger than `limit` allows.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    limit: Arc<ReplyLimit>,
    counter: ReplyCounter,
}

/// Connects over TCP to the first of the host's addresses that answers, of those that `allows` lets
/// through. Small commands are sent at once.
pub(super) async fn tcp(
    host: &str,
    port: u16,
    allows: impl Fn(IpAddr) -> bool,
) -> io::Result<TcpStream> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let allowed: Vec<_> = found.iter().filter(|address| allows(address.ip())).collect();
    if allowed.is_empty() {
        let kind = if found.is_empty() {
            io::Error::new(io::ErrorKind::NotFound, "the name has no address")
        } else {
            io::Error::new(io::ErrorKind::PermissionDenied, NOT_ALLOWED)
        };
        return Err(kind);
    }
    let attempts = allowed.into_iter().map(|address| Box::pin(TcpStream::connect(address)));
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

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
            // With an error nothing was read.
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
