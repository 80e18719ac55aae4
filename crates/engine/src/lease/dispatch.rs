//! The task of one shard: it sends the asks that queue, and delivers each reply as it arrives.
//!
//! Asks are sent in batches of those that queued while the last batch was out. The next batch
//! leaves once the first reply to the last one has arrived, or [`GAP_MAX`] after the last one left,
//! so that no slow reply holds it back.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Future;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep_until, timeout};

use super::shard::Shard;
use super::silence::Silence;
use super::{BATCH_MAX, EXCHANGE_MAX, Reply, Shared};
use crate::store::{Ask, Grant, StoreError};
use crate::time::Time;

/// The largest number of a shard's asks that are out at once; more wait in the queue.
const OUT_MAX: usize = 4 * BATCH_MAX;

/// A batch leaves at most this long after the one before, even if no reply has come: asks of a
/// distant shard do not wait for a round trip.
const GAP_MAX: Duration = Duration::from_millis(1);

/// How long to wait for the end of a queue whose shard is stalled or has its breaker open.
const DRAIN_AWAY_MAX: Duration = Duration::from_millis(250);

/// Each task holds one until its queue is drained, or the wait for the queue's end is over.
pub(super) type DrainGuard = mpsc::Sender<Infallible>;

/// An ask that is sent.
struct Sent {
    ask: Ask,
    /// The number of its batch.
    batch: u64,
    sent_at: Time,
    is_hot: bool,
}

/// When the next batch may leave.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    batch: u64,
    /// A reply to the last batch has arrived, or no batch was sent yet.
    is_open: bool,
    /// From this time on the next batch may leave in any case.
    opens: Time,
}

/// Sends a shard's asks.
struct Dispatch<'a, S, F> {
    shard: &'a Shard,
    shared: &'a Shared,
    asks: mpsc::Receiver<Ask>,
    send: S,
    out: FuturesUnordered<F>,
    /// Asks received and not sent yet; at most a batch.
    batch_to_send: Vec<Ask>,
    pace: Pace,
    silence: Silence,
    drain: Drain,
}

/// State of the end of a queue.
struct Drain {
    /// `None` once the end of the queue is no longer waited for.
    guard: Option<DrainGuard>,
    /// When the lease client dropped the queue; it may still hold asks from before that.
    since: Option<Time>,
}

/// A timer that is reset only to fire sooner.
struct Alarm<'a> {
    sleep: Pin<&'a mut Sleep>,
    at: Option<Time>,
}

/// Sends the asks that queue in `asks` until the lease client drops the queue and all of them have
/// been answered.
pub(super) async fn run(
    shard: Arc<Shard>,
    shared: Arc<Shared>,
    asks: mpsc::Receiver<Ask>,
    guard: DrainGuard,
) {
    let send = |sent| lend(&shared, shard.number(), sent);
    let sleep = pin!(sleep_until(shared.clock.instant(Time::default())));
    let dispatch = Dispatch {
        shard: &shard,
        shared: &shared,
        asks,
        send,
        out: FuturesUnordered::new(),
        batch_to_send: Vec::with_capacity(BATCH_MAX),
        pace: Pace { is_open: true, ..Pace::default() },
        silence: Silence::default(),
        drain: Drain { guard: Some(guard), since: None },
    };
    dispatch.run(Alarm { sleep, at: None }).await;
}

/// Sends one ask to `shard`. A timeout of the ask or a panic of the store fails this ask alone.
/// Returns the number of its batch with the reply.
async fn lend(shared: &Shared, shard: usize, sent: Sent) -> (u64, Reply) {
    let Sent { ask, batch, sent_at, is_hot } = sent;
    let lent = AssertUnwindSafe(async { shared.store.lend(&ask).await }).catch_unwind();
    let outcome = match timeout(EXCHANGE_MAX, lent).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => {
            shared.panics.fetch_add(1, Ordering::Relaxed);
            Err(StoreError::MalformedReply("the store panicked".into()))
        }
        Err(_) => Err(StoreError::TimedOut),
    };
    (batch, Reply { ask, asked_at: sent_at, shard, hot: is_hot, outcome })
}

// === impl Dispatch ===

impl<S, F> Dispatch<'_, S, F>
where
    S: Fn(Sent) -> F,
    F: Future<Output = (u64, Reply)>,
{
    async fn run(mut self, mut alarm: Alarm<'_>) {
        while !self.is_done() {
            let now = self.shared.clock.now();
            if self.may_send(now) {
                self.send_batch(now);
            }
            self.drain.note(self.shard, now);
            let receives = self.receives();
            let room = self.room();
            alarm.set(self.due(now), self.shared);
            tokio::select! {
                biased;
                Some((batch, reply)) = self.out.next(), if !self.out.is_empty() => {
                    self.deliver(batch, reply);
                }
                received = self.asks.recv_many(&mut self.batch_to_send, room), if receives => {
                    if received == 0 {
                        self.drain.since = Some(self.shared.clock.now());
                    }
                }
                () = &mut alarm.sleep, if alarm.at.is_some() => {
                    alarm.at = None;
                    self.check_for_stall().await;
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.drain.since.is_some() && self.batch_to_send.is_empty() && self.out.is_empty()
    }

    /// The number of asks that may be sent with the next batch.
    fn room(&self) -> usize {
        BATCH_MAX.min(OUT_MAX.saturating_sub(self.out.len()))
    }

    /// Whether to receive from the queue. A queued ask wakes this task only if the ask can be sent
    /// or a timer must be set for it.
    fn receives(&self) -> bool {
        self.batch_to_send.is_empty() && self.room() > 0 && self.drain.since.is_none()
    }

    fn may_send(&self, now: Time) -> bool {
        !self.batch_to_send.is_empty()
            && self.room() > 0
            && (self.pace.is_open || self.pace.opens <= now)
    }

    /// When the task next has to act, even if nothing arrives.
    fn due(&self, now: Time) -> Option<Time> {
        let leaves = (!self.batch_to_send.is_empty() && self.room() > 0).then_some(self.pace.opens);
        let stalls = || self.silence.due(self.shard.stall_after(self.shared.wait_min));
        let stalls = (!self.out.is_empty()).then(stalls).flatten();
        let drained = self.drain.due().filter(|due| *due > now);
        [leaves, stalls, drained].into_iter().flatten().min()
    }

    fn send_batch(&mut self, now: Time) {
        while self.batch_to_send.len() < self.room() {
            let Ok(ask) = self.asks.try_recv() else { break };
            self.batch_to_send.push(ask);
        }
        self.silence.sent(self.out.is_empty(), now);
        let batch = self.pace.begin(now);
        for ask in self.batch_to_send.drain(..) {
            let is_hot = self.shard.note_sent(&ask, now);
            self.out.push((self.send)(Sent { ask, batch, sent_at: now, is_hot }));
        }
    }

    fn deliver(&mut self, batch: u64, reply: Reply) {
        let now = self.shared.clock.now();
        self.pace.replied(batch);
        let stall_after = self.shard.stall_after(self.shared.wait_min);
        let is_congested = self.silence.ended_since(reply.asked_at, stall_after, now);
        if is_reply(&reply.outcome) {
            self.silence.heard(now);
        }
        self.shard.note(&reply, is_congested, now);
        self.shared.reply(reply);
    }

    /// On a stall, answers the queued asks at once, since waiting would only delay the same answer.
    async fn check_for_stall(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        let (shard, span) = (self.shard.number(), self.shard.stall_after(self.shared.wait_min));
        if !self.silence.stalls(span, now, || self.shared.store.silence(shard)) {
            return;
        }
        self.shard.stall(now);
        let mut queued = std::mem::take(&mut self.batch_to_send);
        for ask in queued.drain(..) {
            self.shared.refuse(ask, self.shard, StoreError::Unavailable);
        }
        self.batch_to_send = queued;
        // Asks that queued before the stall: a later one may be the breaker's probe.
        for refused in 1..=self.asks.len() {
            let Ok(ask) = self.asks.try_recv() else { break };
            self.shared.refuse(ask, self.shard, StoreError::Unavailable);
            // Each may wake a request in another thread: other shards have their turn.
            if refused % BATCH_MAX == 0 {
                yield_now().await;
            }
        }
    }
}

/// Whether the shard's server replied, so that it is not silent.
fn is_reply(outcome: &Result<Grant, StoreError>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(StoreError::Unreachable(_) | StoreError::TimedOut) => false,
        Err(_) => true,
    }
}

// === impl Pace ===

impl Pace {
    /// Starts a batch and returns its number.
    fn begin(&mut self, now: Time) -> u64 {
        *self = Self { batch: self.batch + 1, is_open: false, opens: now + GAP_MAX };
        self.batch
    }

    /// Notes that an ask of `batch` has its outcome.
    fn replied(&mut self, batch: u64) {
        self.is_open |= batch == self.batch;
    }
}

// === impl Drain ===

impl Drain {
    /// When to stop waiting for the queue's end, if its shard stays unavailable.
    fn due(&self) -> Option<Time> {
        let since = self.since.filter(|_| self.guard.is_some())?;
        Some(since + DRAIN_AWAY_MAX)
    }

    fn note(&mut self, shard: &Shard, now: Time) {
        if self.due().is_some_and(|due| due <= now) && !shard.has_breaker_closed() {
            self.guard = None;
        }
    }
}

// === impl Alarm ===

impl Alarm<'_> {
    /// Makes the alarm fire at `due` or before.
    fn set(&mut self, due: Option<Time>, shared: &Shared) {
        let Some(due) = due.filter(|due| self.at.is_none_or(|at| *due < at)) else { return };
        self.sleep.as_mut().reset(shared.clock.instant(due));
        self.at = Some(due);
    }
}
