//! The honest client: an Envoy's calls at a steady rate on a connection of its own, each with a
//! deadline. The client runs on a thread of its own, so that an
//! attacker in the same process does not delay it. The latency of an answer counts from when its
//! call was due, so that a delay by earlier answers shows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex as AsyncMutex;

use crate::messages::message;
use crate::support::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, GREETING, HEADERS, NO_ERROR, PING,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, field, frame, settings,
};
use crate::support::now;
use crate::support::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// Calls a second.
pub const RATE: u32 = 200;

/// A call that takes longer has failed. Far above the usual latency, so that a noisy machine
/// passes.
pub const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Maximum number of calls under way: an Envoy that is configured with `max_concurrent_streams: 256`
/// opens another connection then. A call that is held back counts as waiting.
const UNDER_WAY_MAX: usize = 250;

/// [`ANSWER_MAX`] as `grpc-timeout`. A request waits for Redis for as long as this allows, and for
/// at most `LEASE_WAIT_LIMIT` (15 ms), as it does under Envoy's default of 20 ms; the latter would
/// expire before the answer wherever other work keeps the machine busy.
const TIMEOUT: &str = "2S";

/// Number of values that its calls use in turn.
const VALUES: u32 = 16;

/// The values of the neighbour's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Values {
    /// A few, whose tokens the pod soon holds.
    #[default]
    Few,
    /// Each call's own: it waits for a lease.
    New,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Passed,
    /// An answer without a message, or one that denies the request.
    Refused,
    /// The stream was reset.
    Reset,
    /// The connection was lost.
    Lost,
    /// No answer came within [`ANSWER_MAX`].
    Late,
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub due: Instant,
    pub latency: Duration,
    pub end: End,
}

/// Samples recorded so far.
#[derive(Debug, Default)]
pub struct Seen {
    pub samples: Mutex<Vec<Sample>>,
    /// Number of calls that were begun. Each becomes a sample.
    begun: AtomicUsize,
}

/// Calls under way by their stream, with the time at which each was due.
type UnderWay = Arc<Mutex<BTreeMap<u32, Instant>>>;

/// One connection of the neighbour.
struct Session {
    write: Arc<AsyncMutex<OwnedWriteHalf>>,
    under_way: UnderWay,
    reader: tokio::task::JoinHandle<()>,
    next: u32,
}

/// Sends calls until this future is dropped.
pub async fn run(server: SocketAddr, seen: Arc<Seen>, values: Values) {
    let (start, mut session) = (now(), None);
    let of = |n: u32| framed(&message("plenty", &format!("neighbour-{n}")));
    for nth in 0.. {
        let mut due = start + Duration::from_secs(1) * nth / RATE;
        if now() < due {
            tokio::time::sleep_until(due.into()).await;
            due = now(); // timers are a millisecond late, which is not the pod's fault
        }
        while let Some(session) = session.as_ref().filter(|it: &&Session| it.is_full()) {
            session.give_up(&seen);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let message = of(if values == Values::New { nth } else { nth % VALUES });
        let lost = || seen.note(due, End::Lost);
        seen.begun.fetch_add(1, Ordering::Relaxed);
        if session.as_ref().is_none_or(Session::is_gone) {
            session = Session::open(server, Arc::clone(&seen)).await;
        }
        match &mut session {
            Some(session) => session.call(due, &message).await.unwrap_or_else(|_| lost()),
            None => lost(),
        }
        if let Some(session) = &session {
            session.give_up(&seen);
        }
    }
}

// === impl Seen ===

impl Seen {
    fn note(&self, due: Instant, end: End) {
        let latency = now().saturating_duration_since(due);
        self.samples.lock().push(Sample { due, latency, end });
    }

    /// Resolves once all calls that have begun have ended. Calls that still wait at the end of an
    /// attack show its effect.
    pub async fn ended(&self) {
        let begun = self.begun.load(Ordering::Relaxed);
        let limit = now() + 2 * ANSWER_MAX;
        while self.samples.lock().len() < begun && now() < limit {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Calls that were due between two instants.
    pub fn between(&self, from: Instant, to: Instant) -> Vec<Sample> {
        let samples = self.samples.lock();
        samples.iter().filter(|it| (from..to).contains(&it.due)).copied().collect()
    }
}

/// The given percentile of the calls' latency, in microseconds.
pub fn percentile(samples: &[Sample], percent: usize) -> u64 {
    let mut all: Vec<_> = samples.iter().map(|it| it.latency.as_micros()).collect();
    all.sort_unstable();
    let at = (all.len() * percent).div_ceil(100).saturating_sub(1);
    all.get(at).map_or(0, |micros| u64::try_from(*micros).unwrap_or(u64::MAX))
}

// === impl Session ===

impl Session {
    async fn open(server: SocketAddr, seen: Arc<Seen>) -> Option<Self> {
        let stream =
            tokio::time::timeout(ANSWER_MAX, TcpStream::connect(server)).await.ok()?.ok()?;
        stream.set_nodelay(true).ok()?;
        let (read, mut write) = stream.into_split();
        // The largest window, so that answers never wait for room.
        let room = frame(WINDOW_UPDATE, 0, 0, &(u32::MAX / 2 - 65_535).to_be_bytes());
        let greeting = [GREETING, &settings(&[]), &frame(SETTINGS, ACK, 0, &[]), &room].concat();
        write.write_all(&greeting).await.ok()?;
        let (write, under_way) = (Arc::new(AsyncMutex::new(write)), UnderWay::default());
        let reader = {
            let (write, under_way) = (Arc::clone(&write), Arc::clone(&under_way));
            tokio::spawn(async move {
                read_answers(read, &write, &under_way, &seen).await;
                let lost = std::mem::take(&mut *under_way.lock());
                lost.into_values().for_each(|due| seen.note(due, End::Lost));
            })
        };
        Some(Self { write, under_way, reader, next: 1 })
    }

    fn is_gone(&self) -> bool {
        self.reader.is_finished()
    }

    fn is_full(&self) -> bool {
        !self.is_gone() && self.under_way.lock().len() >= UNDER_WAY_MAX
    }

    async fn call(&mut self, due: Instant, message: &[u8]) -> std::io::Result<()> {
        let stream = self.next;
        self.next += 2;
        let block = [block(SHOULD_RATE_LIMIT), field("grpc-timeout", TIMEOUT)].concat();
        let head = frame(HEADERS, END_HEADERS, stream, &block);
        let bytes = [head, frame(DATA, END_STREAM, stream, message)].concat();
        self.under_way.lock().insert(stream, due);
        let written = async { self.write.lock().await.write_all(&bytes).await };
        let written = tokio::time::timeout(ANSWER_MAX, written).await;
        if matches!(written, Ok(Ok(()))) {
            return Ok(());
        }
        // Unless the reader has recorded its end already.
        match self.under_way.lock().remove(&stream) {
            Some(_) => Err(std::io::ErrorKind::BrokenPipe.into()),
            None => Ok(()),
        }
    }

    /// Records the calls that have waited for too long.
    fn give_up(&self, seen: &Seen) {
        self.under_way.lock().retain(|_, due| {
            let waits = due.elapsed() < ANSWER_MAX;
            if !waits {
                seen.note(*due, End::Late);
            }
            waits
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Records the end of each call until the connection ends.
async fn read_answers(
    read: OwnedReadHalf,
    write: &AsyncMutex<OwnedWriteHalf>,
    under_way: &UnderWay,
    seen: &Seen,
) {
    let mut read = BufReader::new(read);
    let mut received = Frame::default();
    while received.read(&mut read).await {
        let Frame { kind, flags, stream, payload } = &received;
        let end = match *kind {
            // A frame's head, and then `overall_code: OK`.
            DATA if payload.get(5..7) == Some(&[0x08, 1]) => End::Passed,
            DATA if !payload.is_empty() => End::Refused,
            HEADERS if flags & END_STREAM != 0 => End::Refused,
            RST_STREAM if *payload != NO_ERROR.to_be_bytes() => End::Reset,
            PING if flags & ACK == 0 => {
                let pong = frame(PING, ACK, 0, payload);
                let _ = write.lock().await.write_all(&pong).await;
                continue;
            }
            GOAWAY => return,
            _ => continue,
        };
        // Trailers follow a message, whose arrival has removed the call already.
        if let Some(due) = under_way.lock().remove(stream) {
            seen.note(due, end);
        }
    }
}
