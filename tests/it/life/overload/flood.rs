//! A very cheap HTTP/2 client: it writes the frames of a call as prepared bytes, and looks only at
//! the frame headers of the answers. So it can send far more than the process under test can serve,
//! on the same machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, Raw, WINDOW_UPDATE, block,
    frame,
};
use crate::support::now;
use crate::support::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// Maximum calls under way on one connection: below the server's limit of streams.
const UNDER_WAY_MAX: u64 = 250;

/// Interval at which an open loop sends the calls that are due.
const TICK: Duration = Duration::from_millis(5);

/// A set of connections.
pub(super) struct Flood {
    pipes: Vec<Pipe>,
}

/// The timing of calls.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// This number of calls under way on each connection.
    Closed(u64),
    /// This number of calls a second on each connection.
    Open(f64),
}

/// The outcomes of calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) sent: u64,
    /// Due, but not sent because too many were under way.
    pub(super) held_back: u64,
    /// Answered with a message.
    pub(super) decided: u64,
    /// Answered without a message: an error.
    pub(super) refused: u64,
    /// Reset by the server.
    pub(super) reset: u64,
}

struct Pipe {
    write: OwnedWriteHalf,
    next: u32,
    /// A call's header block and the frame of its message.
    block: Vec<u8>,
    message: Vec<u8>,
    tally: Arc<Tally>,
}

#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    held_back: AtomicU64,
    messages: AtomicU64,
    ended: AtomicU64,
    reset: AtomicU64,
    is_gone: AtomicBool,
    bell: Notify,
}

// === impl Flood ===

impl Flood {
    pub(super) async fn open(server: SocketAddr, connections: usize, message: &[u8]) -> Self {
        let mut pipes = Vec::new();
        for _ in 0..connections {
            pipes.push(Pipe::open(server, message).await);
        }
        Self { pipes }
    }

    /// Sends for `span`, and returns the outcomes during that time.
    pub(super) async fn run(&mut self, pace: Pace, span: Duration) -> Seen {
        let before = self.seen();
        join_all(self.pipes.iter_mut().map(|pipe| pipe.run(pace, span))).await;
        let after = self.seen();
        Seen {
            sent: after.sent - before.sent,
            held_back: after.held_back - before.held_back,
            decided: after.decided - before.decided,
            refused: after.refused - before.refused,
            reset: after.reset - before.reset,
        }
    }

    /// Number of connections that have ended.
    pub(super) fn gone(&self) -> usize {
        self.pipes.iter().filter(|pipe| pipe.tally.is_gone.load(Ordering::Relaxed)).count()
    }

    fn seen(&self) -> Seen {
        let sum = |of: fn(&Tally) -> &AtomicU64| -> u64 {
            self.pipes.iter().map(|pipe| of(&pipe.tally).load(Ordering::Relaxed)).sum()
        };
        let (decided, ended) = (sum(|it| &it.messages), sum(|it| &it.ended));
        let (reset, held_back) = (sum(|it| &it.reset), sum(|it| &it.held_back));
        // A message arrives before the end of its stream.
        let refused = ended.saturating_sub(decided);
        Seen { sent: sum(|it| &it.sent), held_back, decided, refused, reset }
    }
}

// === impl Pipe ===

impl Pipe {
    async fn open(server: SocketAddr, message: &[u8]) -> Self {
        let mut raw = Raw::open(server, &[]).await;
        // The largest window, so that answers never wait for room.
        let room = (u32::MAX / 2 - 65_535).to_be_bytes();
        raw.send(&frame(WINDOW_UPDATE, 0, 0, &room)).await;
        let (read, write) = raw.stream.into_split();
        let tally = Arc::new(Tally::default());
        tokio::spawn(count(read, Arc::clone(&tally)));
        Self { write, next: 1, block: block(SHOULD_RATE_LIMIT), message: framed(message), tally }
    }

    async fn run(&mut self, pace: Pace, span: Duration) {
        let (start, mut due) = (now(), 0.0);
        while start.elapsed() < span && !self.tally.is_gone.load(Ordering::Relaxed) {
            let calls = match pace {
                Pace::Closed(under_way) => under_way.saturating_sub(self.under_way()),
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                Pace::Open(rate) => {
                    let calls = (start.elapsed().as_secs_f64() * rate - due) as u64;
                    due += calls as f64;
                    calls
                }
            };
            let room = UNDER_WAY_MAX.saturating_sub(self.under_way()).min(calls);
            self.tally.held_back.fetch_add(calls - room, Ordering::Relaxed);
            self.send(room).await;
            match pace {
                Pace::Open(_) => tokio::time::sleep(TICK).await,
                Pace::Closed(_) => {
                    let _ = tokio::time::timeout(TICK, self.tally.bell.notified()).await;
                }
            }
        }
    }

    fn under_way(&self) -> u64 {
        let Tally { sent, ended, reset, .. } = &*self.tally;
        let over = ended.load(Ordering::Relaxed) + reset.load(Ordering::Relaxed);
        sent.load(Ordering::Relaxed).saturating_sub(over)
    }

    async fn send(&mut self, calls: u64) {
        let mut bytes = Vec::new();
        for _ in 0..calls {
            bytes.extend(frame(HEADERS, END_HEADERS, self.next, &self.block));
            bytes.extend(frame(DATA, END_STREAM, self.next, &self.message));
            self.next += 2;
        }
        self.tally.sent.fetch_add(calls, Ordering::Relaxed);
        // The reader notices a connection that has ended.
        let _ = self.write.write_all(&bytes).await;
    }
}

/// Counts the answers until the connection ends.
async fn count(read: OwnedReadHalf, tally: Arc<Tally>) {
    let mut read = BufReader::with_capacity(64 * 1024, read);
    let mut frame = Frame::default();
    while frame.read(&mut read).await {
        match frame.kind {
            DATA => tally.messages.fetch_add(1, Ordering::Relaxed),
            HEADERS if frame.flags & END_STREAM != 0 => tally.ended.fetch_add(1, Ordering::Relaxed),
            // A reset without an error only means that the rest of an answered call is not needed.
            RST_STREAM if frame.payload != [0; 4] => tally.reset.fetch_add(1, Ordering::Relaxed),
            GOAWAY => break,
            _ => continue,
        };
        tally.bell.notify_one();
    }
    tally.is_gone.store(true, Ordering::Relaxed);
}
