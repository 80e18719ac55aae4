//! A connection that holds writes back until they are released, so that the answers to requests
//! that were read together are sent together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Above this many bytes, held writes are sent even while the cork holds.
const HELD_MAX: usize = 16 * 1024;

/// Holds writes back or releases them. A cheap handle: clones belong to the same connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Cork(Arc<AtomicBool>);

/// A connection under a [`Cork`].
#[derive(Debug)]
pub(super) struct CorkedIo<I> {
    io: I,
    cork: Cork,
    held: BytesMut,
    /// Bytes to return before the rest: they have been read from the connection already.
    read: &'static [u8],
}

// === impl Cork ===

impl Cork {
    /// Flushes do nothing until [`Cork::release`].
    pub(super) fn hold(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The next flush writes everything that is held.
    pub(super) fn release(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn holds(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl CorkedIo ===

impl<I: AsyncWrite + Unpin> CorkedIo<I> {
    /// `read` has been read from `io` already; the next reader gets it first.
    pub(super) fn new(io: I, cork: Cork, read: &'static [u8]) -> Self {
        Self { io, cork, held: BytesMut::new(), read }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.held))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.held.advance(written),
            }
        }
        // Keeps the capacity for the next batch.
        self.held.clear();
        Poll::Ready(Ok(()))
    }

    /// Makes room for more, by writing what is held if that is much.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.held.len() < HELD_MAX { Poll::Ready(Ok(())) } else { self.poll_drain(cx) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CorkedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read.is_empty() {
            let (read, later) = self.read.split_at(self.read.len().min(buf.remaining()));
            buf.put_slice(read);
            self.read = later;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for CorkedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_room(cx))?;
        self.held.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_room(cx))?;
        parts.iter().for_each(|part| self.held.extend_from_slice(part));
        Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cork.holds() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_is_held_goes_out_in_one_piece_and_in_order() {
        let (io, mut other) = duplex(1024);
        let cork = Cork::default();
        let mut corked = CorkedIo::new(io, cork.clone(), b"");
        cork.hold();
        for part in ["one ", "two ", "three"] {
            corked.write_all(part.as_bytes()).await.unwrap();
            corked.flush().await.unwrap();
        }
        let mut read = [0; 64];
        assert!(futures_util::poll!(std::pin::pin!(other.read(&mut read))).is_pending());
        cork.release();
        corked.flush().await.unwrap();
        let len = other.read(&mut read).await.unwrap();
        assert_eq!(&read[..len], b"one two three");
    }

    #[tokio::test]
    async fn a_reader_that_is_slow_holds_the_writer_up() {
        let (io, mut other) = duplex(HELD_MAX);
        let cork = Cork::default();
        let mut corked = CorkedIo::new(io, cork.clone(), b"");
        cork.hold();
        let block = vec![7_u8; HELD_MAX];
        corked.write_all(&block).await.unwrap();
        corked.write_all(&block).await.unwrap(); // the first one is in the pipe
        let mut third = Box::pin(corked.write_all(&block));
        assert!(futures_util::poll!(&mut third).is_pending());
        let mut read = vec![0; HELD_MAX];
        other.read_exact(&mut read).await.unwrap();
        third.await.unwrap();
    }

    #[tokio::test]
    async fn what_was_read_before_is_read_first() {
        let (io, mut other) = duplex(1024);
        let mut corked = CorkedIo::new(io, Cork::default(), b"once upon");
        other.write_all(b" a time").await.unwrap();
        drop(other);
        let mut read = [0; 4];
        corked.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"once");
        let mut rest = String::new();
        corked.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, " upon a time");
    }

    #[tokio::test]
    async fn nothing_is_lost_at_the_end() {
        let (io, mut other) = duplex(1024);
        let cork = Cork::default();
        let mut corked = CorkedIo::new(io, cork.clone(), b"");
        cork.hold();
        corked.write_all(b"goodbye").await.unwrap();
        corked.shutdown().await.unwrap();
        let mut read = String::new();
        other.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "goodbye");
    }
}
