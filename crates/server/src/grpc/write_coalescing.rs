//! A connection that holds writes back until they are released, so that the answers to requests
//! that were read together are sent together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Above this many bytes, buffered writes are sent even while they are held back.
const BUFFER_MAX: usize = 16 * 1024;

/// While it is closed, writes are held back. A cheap handle: clones belong to the same connection.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteGate(Arc<AtomicBool>);

/// A connection whose writes pass a [`WriteGate`].
#[derive(Debug)]
pub(super) struct CoalescingIo<I> {
    io: I,
    gate: WriteGate,
    buffered: BytesMut,
    /// Bytes to return before the rest: they have been read from the connection already.
    read: &'static [u8],
}

// === impl WriteGate ===

impl WriteGate {
    /// While it is closed, flushes do nothing. The next one that does writes everything that is
    /// buffered.
    pub(super) fn set_closed(&self, is_closed: bool) {
        self.0.store(is_closed, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl CoalescingIo ===

impl<I: AsyncWrite + Unpin> CoalescingIo<I> {
    /// `read` has been read from `io` already; the next reader gets it first.
    pub(super) fn new(io: I, gate: WriteGate, read: &'static [u8]) -> Self {
        Self { io, gate, buffered: BytesMut::new(), read }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.buffered.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.buffered))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.buffered.advance(written),
            }
        }
        // Keeps the capacity for the next batch.
        self.buffered.clear();
        Poll::Ready(Ok(()))
    }

    /// Makes room for more, by writing what is buffered if that is much.
    fn poll_make_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffered.len() < BUFFER_MAX { Poll::Ready(Ok(())) } else { self.poll_drain(cx) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CoalescingIo<I> {
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

impl<I: AsyncWrite + Unpin> AsyncWrite for CoalescingIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_make_room(cx))?;
        self.buffered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_make_room(cx))?;
        parts.iter().for_each(|part| self.buffered.extend_from_slice(part));
        Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.gate.is_closed() {
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
    async fn held_writes_are_sent_in_one_piece_and_in_order() {
        let (io, mut other) = duplex(1024);
        let gate = WriteGate::default();
        let mut io = CoalescingIo::new(io, gate.clone(), b"");
        gate.set_closed(true);
        for part in ["one ", "two ", "three"] {
            io.write_all(part.as_bytes()).await.unwrap();
            io.flush().await.unwrap();
        }
        let mut read = [0; 64];
        assert!(futures_util::poll!(std::pin::pin!(other.read(&mut read))).is_pending());
        gate.set_closed(false);
        io.flush().await.unwrap();
        let len = other.read(&mut read).await.unwrap();
        assert_eq!(&read[..len], b"one two three");
    }

    #[tokio::test]
    async fn a_slow_reader_delays_the_writer() {
        let (io, mut other) = duplex(BUFFER_MAX);
        let gate = WriteGate::default();
        let mut io = CoalescingIo::new(io, gate.clone(), b"");
        gate.set_closed(true);
        let block = vec![7_u8; BUFFER_MAX];
        io.write_all(&block).await.unwrap();
        io.write_all(&block).await.unwrap(); // the first one is in the pipe
        let mut third = Box::pin(io.write_all(&block));
        assert!(futures_util::poll!(&mut third).is_pending());
        let mut read = vec![0; BUFFER_MAX];
        other.read_exact(&mut read).await.unwrap();
        third.await.unwrap();
    }

    #[tokio::test]
    async fn bytes_read_before_are_returned_first() {
        let (io, mut other) = duplex(1024);
        let mut io = CoalescingIo::new(io, WriteGate::default(), b"once upon");
        other.write_all(b" a time").await.unwrap();
        drop(other);
        let mut read = [0; 4];
        io.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"once");
        let mut rest = String::new();
        io.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, " upon a time");
    }

    #[tokio::test]
    async fn shutdown_sends_held_writes() {
        let (io, mut other) = duplex(1024);
        let gate = WriteGate::default();
        let mut io = CoalescingIo::new(io, gate.clone(), b"");
        gate.set_closed(true);
        io.write_all(b"goodbye").await.unwrap();
        io.shutdown().await.unwrap();
        let mut read = String::new();
        other.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "goodbye");
    }
}
