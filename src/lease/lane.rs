//! The lane of one shard: its queue, its breaker, and the task that carries one batch at a time.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::breaker::{Breaker, Position};
use super::heat::{Heat, HotKey};
use super::tally::{ShardTally, Tally};
use super::{BATCH_MAX, EXCHANGE_MAX, Reply, Shared, nanos};
use crate::store::{Ask, Grant, StoreError};
use crate::time::Time;

/// A batch that is out for longer is a stall: so many round trips, at least this long, since
/// scheduling alone takes a few milliseconds on a busy machine, and as long as requests may wait.
const STALL_TRIPS: u32 = 4;
const STALL_MIN: Duration = Duration::from_millis(50);

/// A timer that is late by more tells that this process was held up, by a throttle or a stop; what
/// came meanwhile is read within the grace.
const HELD_UP: Duration = Duration::from_millis(10);
const GRACE: Duration = Duration::from_millis(20);

/// What a round trip is taken for before the first was measured.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(1);

/// How a shard does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardState {
    /// [`crate::store::Store::shard`].
    pub shard: usize,
    /// Of its breaker.
    pub breaker: Position,
    /// How often that has opened.
    pub opened: u64,
    /// What a round trip takes at present.
    pub round_trip: Duration,
    /// The key that makes up more than 5 % of its asks, if one does.
    pub hot_key: Option<HotKey>,
}

/// What the desk and the task of a lane share.
#[derive(Debug)]
pub(super) struct Lane {
    shard: usize,
    breaker: Mutex<Breaker>,
    /// In nanoseconds. The last one if that took longer than before, else a moving average.
    round_trip: AtomicU64,
    heat: Mutex<Heat>,
    tally: Tally,
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(shard: usize) -> Arc<Self> {
        let round_trip = AtomicU64::new(nanos(ROUND_TRIP_FIRST));
        let (breaker, heat, tally) = Default::default();
        Arc::new(Self { shard, breaker, round_trip, heat, tally })
    }

    /// Whether an ask may go out.
    pub(super) fn admits(&self, now: Time) -> bool {
        self.breaker.lock().admits(now)
    }

    pub(super) fn state(&self, now: Time) -> ShardState {
        let breaker = self.breaker.lock();
        ShardState {
            shard: self.shard,
            breaker: breaker.position(),
            opened: breaker.opened(),
            round_trip: self.round_trip(),
            hot_key: self.heat.lock().hot_key(now),
        }
    }

    pub(super) fn tally(&self) -> ShardTally {
        self.tally.of(self.shard)
    }

    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Carries batches until the desk drops the queue.
    pub(super) async fn run(self: Arc<Self>, shared: Arc<Shared>, mut asks: mpsc::Receiver<Ask>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while asks.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let asked_at = shared.clock.now();
            self.note_heat(&batch, asked_at);
            let outcomes = self.carry(&shared, &batch, asked_at, &mut asks).await;
            self.tally.note_took(shared.clock.now().since(asked_at), batch.len());
            let mut outcomes = outcomes.into_iter();
            for ask in batch.drain(..) {
                let outcome = outcomes.next().unwrap_or(Err(StoreError::TimedOut));
                self.note(&ask, &outcome, shared.clock.now());
                shared.reply(self.reply_to(ask, asked_at, outcome));
            }
        }
    }

    /// One exchange. If it stalls, whoever queued meanwhile is told at once: waiting would only
    /// make their answers late.
    async fn carry(
        &self,
        shared: &Shared,
        batch: &[Ask],
        asked_at: Time,
        queued: &mut mpsc::Receiver<Ask>,
    ) -> Vec<Result<Grant, StoreError>> {
        let exchange = async { shared.store.exchange(batch).await };
        let mut exchange = pin!(AssertUnwindSafe(exchange).catch_unwind());
        let stall = STALL_MIN.max(STALL_TRIPS * self.round_trip());
        let stall = stall.max(shared.patience).min(EXCHANGE_MAX);
        let outcomes = tokio::select! {
            biased;
            outcomes = &mut exchange => Ok(outcomes),
            () = overdue(shared, asked_at, stall) => {
                let now = shared.clock.now();
                self.breaker.lock().stall(now, dice(batch.first(), now));
                tracing::warn!(shard = self.shard, "the store stalls; its breaker opens");
                while let Ok(ask) = queued.try_recv() {
                    shared.reply(self.reply_to(ask, now, Err(StoreError::Away)));
                }
                timeout(EXCHANGE_MAX.saturating_sub(now.since(asked_at)), exchange).await
            }
        };
        match outcomes {
            Ok(Ok(outcomes)) => {
                if outcomes.iter().any(Result::is_ok) {
                    self.note_round_trip(shared.clock.now().since(asked_at));
                }
                outcomes
            }
            Ok(Err(_)) => {
                shared.panics.fetch_add(1, Ordering::Relaxed);
                vec![Err(StoreError::Garbled("the store panicked".into())); batch.len()]
            }
            Err(_) => Vec::new(),
        }
    }

    fn reply_to(&self, ask: Ask, asked_at: Time, outcome: Result<Grant, StoreError>) -> Reply {
        Reply { ask, asked_at, shard: self.shard, hot: false, outcome }
    }

    fn note(&self, ask: &Ask, outcome: &Result<Grant, StoreError>, now: Time) {
        self.tally.note(ask, outcome);
        let mut breaker = self.breaker.lock();
        let before = breaker.position();
        match outcome {
            Err(error) if error.is_of_key() => breaker.note_of_key(),
            _ => breaker.note(outcome.is_ok(), now, dice(Some(ask), now)),
        }
        match (before, breaker.position()) {
            (Position::Closed, Position::Open) => {
                tracing::warn!(shard = self.shard, "the store fails; its breaker opens");
            }
            (Position::Open | Position::Probing, Position::Closed) => {
                tracing::info!(shard = self.shard, "the store answers; its breaker closes");
            }
            _ => {}
        }
    }

    /// Says which key has become hot, once.
    fn note_heat(&self, batch: &[Ask], now: Time) {
        for ask in batch {
            let become_hot = self.heat.lock().note(ask.key, now);
            if let Some(HotKey { key, share }) = become_hot {
                let (shard, percent) = (self.shard, format_args!("{:.0}", share * 100.0));
                tracing::warn!(shard, %key, %percent, "one key makes up much of a shard's asks");
            }
        }
    }

    /// Up at once, down by an eighth of the news at a time, as TCP smooths its round trip
    /// (RFC 6298): a shard that has become slow does not stall each time.
    fn note_round_trip(&self, measured: Duration) {
        let average = self.round_trip.load(Ordering::Relaxed);
        let smooth = average - average / 8 + nanos(measured) / 8;
        self.round_trip.store(smooth.max(nanos(measured)), Ordering::Relaxed);
    }
}

/// Returns once a batch that was sent at `asked_at` is out for longer than `stall`, and not merely
/// because this process was held up: then the reply may lie in the socket.
async fn overdue(shared: &Shared, asked_at: Time, stall: Duration) {
    let mut due = asked_at + stall;
    loop {
        tokio::time::sleep_until(shared.clock.instant(due)).await;
        let now = shared.clock.now();
        let was_held_up = now.since(due) > HELD_UP;
        if !was_held_up || now.since(asked_at) >= EXCHANGE_MAX {
            return;
        }
        due = now + GRACE;
    }
}

/// Keys are hashes: mixed with the time, they spread the probes of pods and shards.
fn dice(ask: Option<&Ask>, now: Time) -> u64 {
    let key = ask.map_or(0, |ask| ask.key.bits());
    // 2^64 / golden ratio (Knuth 6.4).
    (key ^ now.nanos()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
