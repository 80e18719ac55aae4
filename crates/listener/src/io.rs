//! A connection that is closed when its client sends no request, does not read the answers to its
//! requests, or exceeds its limits.

use std::future::pending;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::has_budget_remaining;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;
use tracing::debug;

use super::http2_limits::{Http2Limits, LimitExceeded, StreamObserver, goaway};
use super::pool::{ConnectionGuard, ConnectionHandle, OpenConnections};
use super::turn::{Turn, TurnHandle};
use super::wire_meter::{Metered, Wire};

/// The first bytes that an HTTP/2 client has to send (RFC 9113 §3.4). No HTTP/1.1 request is
/// shorter.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client is cut off if it accepts fewer bytes than this within [`SEND_MAX`], while more are
/// waiting.
const SEND_BYTES_MIN: usize = 64 * 1024;

/// The time in which a client has to accept [`SEND_BYTES_MIN`], if as many are waiting.
const SEND_MAX: Duration = Duration::from_secs(10);

/// An accepted connection.
pub struct Connection<I> {
    io: I,
    protocol: Protocol,
    deadline: Deadline,
    /// Present while the client does not read.
    stall: Option<Stall>,
    /// The second in which the streams were last checked.
    last_sweep: u32,
    turn: Turn,
    /// Present on a connection with TLS.
    wire: Option<Wire>,
    observer: Option<Arc<dyn StreamObserver>>,
    guard: ConnectionGuard,
}

/// The client's protocol, judged by its first bytes.
enum Protocol {
    /// This many bytes have arrived, all of which match the preface of HTTP/2.
    Unknown(usize),
    Http2(Box<Http2Limits>),
    /// HTTP/1 or an unknown protocol; this many bytes have arrived.
    Other(usize),
}

/// Whether the client reads the bytes that are sent to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    Reads,
    Stalled,
}

struct Stall {
    deadline: Pin<Box<Sleep>>,
    written: usize,
    /// Whether the stream failed to send the bytes that it holds. If so, it takes small writes all
    /// the same.
    is_of_flush: bool,
}

// === impl Connection ===

impl<I> Connection<I> {
    /// Takes the connection `io`, which `guard` admitted and which is asked to end at `max_age`. It
    /// must be called in a runtime: the preface has a deadline.
    pub fn new(io: I, max_age: Option<Duration>, guard: ConnectionGuard) -> Self {
        Self {
            io,
            protocol: Protocol::Unknown(0),
            deadline: Deadline::of_preface(max_age),
            stall: None,
            last_sweep: 0,
            turn: Turn::default(),
            wire: None,
            observer: None,
            guard,
        }
    }

    /// Makes a connection of `io` that has a pool of its own, for tests and benches.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    #[expect(clippy::expect_used, reason = "an empty pool has room")]
    pub fn standalone(io: I) -> Self {
        let guard = OpenConnections::for_calls(1).admit(None);
        Self::new(io, None, guard.expect("room in an empty pool"))
    }

    /// The byte stream.
    pub(super) fn get_ref(&self) -> &I {
        &self.io
    }

    /// Replaces the byte stream by an equivalent one.
    pub fn map<J>(self, map: impl FnOnce(I) -> J) -> Connection<J> {
        let Self { io, protocol, deadline, stall, last_sweep, turn, wire, observer, guard } = self;
        let io = map(io);
        Connection { io, protocol, deadline, stall, last_sweep, turn, wire, observer, guard }
    }

    /// Replaces the byte stream by what `secure` makes of it, such as a TLS stream: from then on
    /// its bytes are those that count. The time that `secure` takes is part of that for the
    /// preface.
    ///
    /// # Errors
    /// Fails if `secure` does, takes too long, or the connection is to be closed.
    pub async fn secured<J, F>(
        self,
        secure: impl FnOnce(Metered<I>) -> F,
    ) -> io::Result<Connection<J>>
    where
        F: Future<Output = io::Result<J>>,
    {
        let Self { io, protocol, mut deadline, stall, last_sweep, turn, observer, guard, .. } =
            self;
        let wire = Wire::default();
        let io = tokio::select! {
            secured = secure(wire.over(io)) => secured?,
            () = deadline.passes() => return Err(io::ErrorKind::TimedOut.into()),
            () = guard.handle().close_requested() => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        };
        wire.reset();
        let wire = Some(wire);
        Ok(Connection { io, protocol, deadline, stall, last_sweep, turn, wire, observer, guard })
    }

    /// Returns the handle by which the server of the connection learns when to close it.
    pub fn handle(&self) -> ConnectionHandle {
        self.guard.handle().clone()
    }

    /// From now on the connection is read again only after the bytes read before have been handled.
    pub fn require_turns(&mut self) -> TurnHandle {
        self.turn.require_turns()
    }

    /// From now on resets and answers are reported to `observer`, if the client speaks HTTP/2.
    pub fn observe_streams(&mut self, observer: Arc<dyn StreamObserver>) {
        self.observer = Some(observer);
    }

    fn note_read(&mut self, mut bytes: &[u8]) -> Result<(), LimitExceeded> {
        let tls_cost = self.wire.as_mut().map(|wire| wire.note_content(bytes.len()));
        let cost = tls_cost.unwrap_or(bytes.len());
        self.turn.note_read(cost, 0);
        match &mut self.protocol {
            Protocol::Http2(_) => {}
            Protocol::Other(read) if *read >= PREFACE.len() => return Ok(()),
            Protocol::Other(read) => {
                *read += bytes.len();
                if *read >= PREFACE.len() {
                    self.deadline.note_preface();
                }
                return Ok(());
            }
            Protocol::Unknown(read) => {
                let wanted = PREFACE.get(*read..).unwrap_or_default();
                let (first, rest) = bytes.split_at(bytes.len().min(wanted.len()));
                let all = *read + bytes.len();
                *read += first.len();
                bytes = rest;
                let is_over = all >= PREFACE.len();
                if !wanted.starts_with(first) {
                    self.protocol = Protocol::Other(all);
                } else if is_over {
                    let now = self.guard.handle().clock().now();
                    self.protocol = Protocol::Http2(Box::new(Http2Limits::new(now)));
                }
                if is_over {
                    self.deadline.note_preface();
                }
            }
        }
        match &mut self.protocol {
            Protocol::Http2(http2) => {
                let handle = self.guard.handle();
                let observer = watching(self.observer.as_ref());
                http2.note_read(bytes, handle.age_seconds(), handle.clock(), observer)?;
                if http2.take_resets() {
                    self.turn.note_reset();
                }
                self.turn.note_read(0, http2.take_header_bytes());
                self.turn.note_parts(http2.take_parts());
                self.turn.note_stream(http2.last_stream());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn note_written(&mut self, bytes: &[u8]) {
        let handle = self.guard.handle();
        let has_answers = match &mut self.protocol {
            Protocol::Http2(http2) => {
                let observer = watching(self.observer.as_ref());
                http2.note_written(bytes, handle.age_seconds(), observer)
            }
            Protocol::Unknown(_) | Protocol::Other(_) => true,
        };
        if has_answers {
            handle.note_answer();
        }
    }

    /// Checks the streams, once a second.
    fn sweep(&mut self) -> Result<(), LimitExceeded> {
        let handle = self.guard.handle();
        let second = handle.age_seconds();
        match &self.protocol {
            Protocol::Http2(http2) if second != self.last_sweep => {
                self.last_sweep = second;
                http2.sweep(second, handle.long_lived_streams(), handle.streams())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the bytes that the client sends below TLS have content.
    fn check_wire(&self) -> Result<(), LimitExceeded> {
        let age = self.guard.handle().age_seconds();
        match self.wire.as_ref().is_some_and(|wire| wire.is_exceeded(age)) {
            true => Err(LimitExceeded("TLS records without content")),
            false => Ok(()),
        }
    }

    /// Counts the streams that wait for the client. While the client is stalled, every open
    /// stream counts as unread, except the long-lived ones, which have a limit of their own.
    /// Incomplete requests count for less while there is more to be read, since the rest of them
    /// may have been sent already.
    fn count_pending(&mut self, client: Client) -> Result<(), LimitExceeded> {
        let Protocol::Http2(http2) = &self.protocol else { return Ok(()) };
        let long_lived = self.guard.handle().long_lived_streams();
        let mut waiting = http2.waiting(long_lived);
        waiting.unfinished = waiting.unfinished.saturating_sub(self.guard.handle().streams());
        if client == Client::Stalled {
            waiting.unread = http2.open().saturating_sub(long_lived);
        }
        if !self.turn.is_idle() {
            waiting.arriving = std::mem::take(&mut waiting.unfinished);
        }
        let is_within_limits = self.guard.note_pending(waiting);
        if is_within_limits { Ok(()) } else { Err(LimitExceeded("answers that wait")) }
    }
}

impl<I: AsyncWrite + Unpin> Connection<I> {
    /// Sends the client a GOAWAY if it can be written now, and returns the reason why the
    /// connection is cut off.
    fn close(&mut self, LimitExceeded(what): LimitExceeded, cx: &mut Context<'_>) -> io::Error {
        debug!("a connection is closed: too many {what}");
        self.guard.handle().note_cut();
        self.guard.handle().note_violation();
        if let Protocol::Http2(http2) = &self.protocol
            && http2.is_between_frames()
        {
            // A failure is ignored: the connection ends anyway.
            let _ = Pin::new(&mut self.io).poll_write(cx, &goaway(http2.last_stream()));
        }
        io::Error::new(io::ErrorKind::ConnectionAborted, what)
    }

    /// Handles an attempt to send that has to wait. Ready with the reason why the connection is cut
    /// off, if it is.
    fn note_stalled(&mut self, cx: &mut Context<'_>, is_of_flush: bool) -> Poll<io::Error> {
        // Without budget tokio did not try to write: nothing is known about the client.
        if !has_budget_remaining() {
            return Poll::Pending;
        }
        if let Err(exceeded) = self.count_pending(Client::Stalled) {
            return Poll::Ready(self.close(exceeded, cx));
        }
        let stall = self.stall.get_or_insert_with(|| Stall::begin(is_of_flush));
        ready!(stall.deadline.as_mut().poll(cx));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }

    /// Handles the result of an attempt to write `bytes`.
    fn after_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(Ok(count)) = written else {
            return match written.is_pending() {
                true => self.note_stalled(cx, false).map(Err),
                false => written,
            };
        };
        if let Some(stall) = &mut self.stall {
            stall.written += count;
            let is_taken = count == wanted && !stall.is_of_flush;
            if is_taken || stall.written >= SEND_BYTES_MIN {
                self.stall = None;
            }
        }
        written
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Connection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let second = self.guard.handle().age_seconds();
        if self.deadline.has_passed(second, cx) {
            self.guard.handle().note_cut();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.sweep().map_err(|exceeded| self.close(exceeded, cx))?;
        if self.turn.is_over() {
            // The first poll has this task woken after the thread has looked for bytes that arrived
            // on other connections; a task that wakes itself would run before that.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf)?;
        self.check_wire().map_err(|exceeded| self.close(exceeded, cx))?;
        if read.is_pending() {
            let is_paused = self.wire.as_ref().is_some_and(Wire::is_paused);
            // Without budget tokio did not try to read: more may have arrived.
            if has_budget_remaining() && !is_paused {
                self.turn.note_idle();
            }
            return Poll::Pending;
        }
        let read = buf.filled().get(before..).unwrap_or_default();
        self.note_read(read).map_err(|exceeded| self.close(exceeded, cx))?;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Connection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sweep().map_err(|exceeded| self.close(exceeded, cx))?;
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.note_written(bytes.get(..count).unwrap_or_default());
        }
        self.after_write(cx, written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.sweep().map_err(|exceeded| self.close(exceeded, cx))?;
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        if let Poll::Ready(Ok(mut count)) = written {
            for part in parts {
                let part = part.get(..count.min(part.len())).unwrap_or_default();
                self.note_written(part);
                count -= part.len();
            }
        }
        self.after_write(cx, written, parts.iter().map(|part| part.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only a stream that has a buffer of its own, such as TLS, does not flush at once.
        if Pin::new(&mut self.io).poll_flush(cx)?.is_pending() {
            return self.note_stalled(cx, true).map(Err);
        }
        self.stall = None;
        self.count_pending(Client::Reads).map_err(|exceeded| self.close(exceeded, cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A stream with a buffer of its own sends it first.
        if Pin::new(&mut self.io).poll_shutdown(cx)?.is_pending() {
            return self.note_stalled(cx, true).map(Err);
        }
        Poll::Ready(Ok(()))
    }
}

/// The observer, if it observes at present.
fn watching(observer: Option<&Arc<dyn StreamObserver>>) -> Option<&dyn StreamObserver> {
    observer.map(AsRef::as_ref).filter(|observer| observer.is_watching())
}

impl<I: Connected> Connected for Connection<I> {
    type ConnectInfo = I::ConnectInfo;

    fn connect_info(&self) -> I::ConnectInfo {
        self.io.connect_info()
    }
}

// === impl Stall ===

impl Stall {
    fn begin(is_of_flush: bool) -> Self {
        Self { deadline: Box::pin(sleep(SEND_MAX)), written: 0, is_of_flush }
    }
}

/// Maximum time for a client to send as many bytes as the preface of HTTP/2 has.
const PREFACE_MAX: Duration = Duration::from_secs(10);

/// The deadline of the preface, and then of the connection's age.
#[derive(Debug)]
struct Deadline {
    /// `None` if there is no deadline any more.
    sleep: Option<Pin<Box<Sleep>>>,
    max_age: Option<Duration>,
    /// The second of the connection in which the timer was last polled.
    polled: Option<u32>,
}

// === impl Deadline ===

impl Deadline {
    /// The deadline of the preface of a connection that has just been accepted, and which is cut
    /// off at `max_age`. It must be called in a runtime.
    fn of_preface(max_age: Option<Duration>) -> Self {
        Self { sleep: Some(Box::pin(sleep(PREFACE_MAX))), max_age, polled: None }
    }

    /// Makes it the deadline of the connection's age, once the preface has arrived.
    fn note_preface(&mut self) {
        let of_age = |(mut sleep, max_age): (Pin<Box<Sleep>>, _)| {
            let accepted: Instant = sleep.deadline() - PREFACE_MAX;
            sleep.as_mut().reset(accepted.checked_add(max_age)?);
            Some(sleep)
        };
        self.sleep = self.sleep.take().zip(self.max_age).and_then(of_age);
        self.polled = None;
    }

    /// Whether it has passed in this `second` of the connection. If not, the task of `cx` is woken
    /// when it does. A connection is read from several times for each call: the timer, which a
    /// poll locks, is polled once a second only.
    fn has_passed(&mut self, second: u32, cx: &mut Context<'_>) -> bool {
        let Some(sleep) = &mut self.sleep else { return false };
        if self.polled.replace(second) == Some(second) {
            return sleep.is_elapsed();
        }
        sleep.as_mut().poll(cx).is_ready()
    }

    /// Returns once it has passed.
    async fn passes(&mut self) {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().await,
            None => pending().await,
        }
    }

    #[cfg(test)]
    fn is_none(&self) -> bool {
        self.sleep.is_none()
    }
}

#[cfg(test)]
mod tests;
