//! Counts the bytes of a connection below TLS, where records without content would pass by every
//! other limit: a client can send keys to be replaced, or records of nothing, without end.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

/// Maximum number of bytes that TLS reads before other connections have their turn. Replacing keys
/// costs most, a few microseconds for each 27 bytes, so that a turn is some milliseconds.
const TURN_BYTES: u64 = 32 * 1024;

/// Bytes that a client may send for each byte that has content. A record takes 22 bytes besides its
/// content, and the smallest frames of HTTP/2 have 13.
const BYTES_PER_CONTENT: u64 = 4;

/// Bytes that a client may send in addition, whatever their content.
const BYTES_FREE: u64 = 64 * 1024;

/// Bytes that a client may send in addition for each second of the connection's age.
const BYTES_PER_SECOND: u64 = 16 * 1024;

/// Cost of a byte of content, of the turn of its connection: it was decrypted, and TLS holds others
/// besides those that a turn leaves to be handled. With a cost of one, unfinished messages on 60
/// connections made a pod grow by up to 18 MiB (row V1c), and by up to 15 with this.
const CONTENT_COST: usize = 2;

/// The bytes that a client sends below TLS, and how many of them have content.
#[derive(Debug, Default)]
pub(super) struct Wire {
    counts: Arc<Counts>,
    content: u64,
}

#[derive(Debug, Default)]
struct Counts {
    total: AtomicU64,
    /// Since the last pause.
    turn: AtomicU64,
    is_paused: AtomicBool,
}

/// A byte stream whose reads are counted, and which pauses after many.
#[derive(Debug)]
pub struct Metered<I> {
    io: I,
    counts: Arc<Counts>,
}

// === impl Wire ===

impl Wire {
    /// Counts the bytes that are read from `io`.
    pub(super) fn over<I>(&self, io: I) -> Metered<I> {
        Metered { io, counts: Arc::clone(&self.counts) }
    }

    /// Starts over, after the handshake.
    pub(super) fn reset(&self) {
        self.counts.total.store(0, Ordering::Relaxed);
    }

    /// Records bytes of content, and returns their cost to the turn.
    pub(super) fn note_content(&mut self, bytes: usize) -> usize {
        self.content = self.content.saturating_add(bytes as u64);
        bytes * CONTENT_COST
    }

    /// Whether more was read than a connection of this age may send for its content.
    pub(super) fn is_exceeded(&self, seconds: u32) -> bool {
        let free = BYTES_FREE + BYTES_PER_SECOND * u64::from(seconds);
        let allowed = self.content.saturating_mul(BYTES_PER_CONTENT).saturating_add(free);
        self.counts.total.load(Ordering::Relaxed) > allowed
    }

    /// Whether the last read has paused although there may be more.
    pub(super) fn is_paused(&self) -> bool {
        self.counts.is_paused.load(Ordering::Relaxed)
    }
}

// === impl Metered ===

impl<I: AsyncRead + Unpin> AsyncRead for Metered<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_over = self.counts.turn.load(Ordering::Relaxed) >= TURN_BYTES;
        self.counts.is_paused.store(is_over, Ordering::Relaxed);
        if is_over {
            self.counts.turn.store(0, Ordering::Relaxed);
            // The first poll has this task woken after the others of the thread.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let read = (buf.filled().len() - before) as u64;
        self.counts.total.fetch_add(read, Ordering::Relaxed);
        self.counts.turn.fetch_add(read, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Metered<I> {
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

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn much_that_is_read_at_once_gives_way_to_others() {
        let (mut client, server) = duplex(1 << 20);
        let bytes = usize::try_from(TURN_BYTES).unwrap();
        client.write_all(&vec![0; bytes + 1]).await.unwrap();
        let wire = Wire::default();
        let mut metered = wire.over(server);
        metered.read_exact(&mut vec![0; bytes]).await.unwrap();
        assert!(!wire.is_paused());
        assert!(poll!(pin!(metered.read_u8())).is_pending());
        assert!(wire.is_paused(), "there is more");
        yield_now().await;
        assert!(poll!(pin!(metered.read_u8())).is_ready());
        assert!(poll!(pin!(metered.read_u8())).is_pending());
        assert!(!wire.is_paused(), "there is no more");
    }

    #[tokio::test]
    async fn bytes_without_content_are_allowed_in_proportion_and_by_time() {
        let (mut client, server) = duplex(1 << 20);
        let mut wire = Wire::default();
        let mut metered = wire.over(server);
        let mut read = async |bytes: u64| {
            let bytes = vec![0; usize::try_from(bytes).unwrap()];
            client.write_all(&bytes).await.unwrap();
            metered.read_exact(&mut bytes.clone()).await.unwrap();
        };
        read(BYTES_FREE).await;
        assert!(!wire.is_exceeded(0));
        read(BYTES_PER_CONTENT * 100).await;
        assert!(wire.is_exceeded(0) && !wire.is_exceeded(1));
        assert_eq!(wire.note_content(99), 99 * CONTENT_COST);
        assert!(wire.is_exceeded(0));
        wire.note_content(1);
        assert!(!wire.is_exceeded(0));
        wire.reset();
        assert!(!wire.is_exceeded(0));
    }
}
