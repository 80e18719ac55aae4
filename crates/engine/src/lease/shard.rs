//! The lease client's state of one shard: its breaker, its budget of asks, its round trip and its
//! hot key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::Key;

use super::breaker::{Breaker, BreakerState};
use super::budget::Budget;
use super::hot_shard_key::{HotKey, HotKeyDetector};
use super::shard_counters::{AtomicShardCounters, ShardCounters};
use super::{EXCHANGE_MAX, Reply, nanos};
use crate::store::{Ask, Purpose, StoreError};
use crate::time::Time;

/// A shard is stalled once it has been silent for this many round trips, for at least `STALL_MIN`,
/// since scheduling alone takes a few milliseconds on a busy machine, and for as long as every
/// request waits (`wait_min`).
const STALL_TRIPS: u32 = 4;
const STALL_MIN: Duration = Duration::from_millis(50);

/// The round trip that is assumed before the first measurement.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(1);

/// How long a failure is shown: as long as one that repeats with each heartbeat stays in sight.
const FAILURE_SHOWN: Duration = Duration::from_secs(30);

/// The state of a shard at one time, for pages and metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSnapshot {
    /// The name of its store, by [`crate::store::Store::store_name`].
    pub store: Arc<str>,
    /// The shard's number, by [`crate::store::Store::shard`].
    pub shard: usize,
    /// The state of the shard's breaker.
    pub breaker: BreakerState,
    /// How often the breaker has opened.
    pub opened: u64,
    /// The present round trip.
    pub round_trip: Duration,
    /// Why an ask failed last, if that was within 30 s; failures of one key alone are not counted.
    pub last_failure: Option<String>,
    /// The key that makes up more than 5 % of its asks, if one does.
    pub hot_key: Option<HotKey>,
}

/// State that the lease client shares with the task that sends a shard's asks.
#[derive(Debug)]
pub(super) struct Shard {
    /// The name of its store.
    store: Arc<str>,
    /// Its number, by [`crate::store::Store::shard`].
    shard: usize,
    admission: Mutex<Admission>,
    /// In nanoseconds. The last round trip if it took longer than the average, else a moving
    /// average.
    round_trip: AtomicU64,
    hot_keys: Mutex<HotKeyDetector>,
    counters: AtomicShardCounters,
}

#[derive(Debug, Default)]
struct Admission {
    breaker: Breaker,
    budget: Budget,
    last_failure: Option<(Time, StoreError)>,
}

// === impl Shard ===

impl Shard {
    pub(super) fn new(shard: usize, store: String) -> Arc<Self> {
        let round_trip = AtomicU64::new(nanos(ROUND_TRIP_FIRST));
        let (admission, hot_keys, counters) = Default::default();
        let store = store.into();
        Arc::new(Self { store, shard, admission, round_trip, hot_keys, counters })
    }

    pub(super) fn number(&self) -> usize {
        self.shard
    }

    /// Spends from the budget for `ask`, which then has to be sent.
    ///
    /// # Errors
    ///
    /// The breaker is open, or the budget is spent.
    pub(super) fn admit(&self, ask: &Ask, pods: u32, now: Time) -> Result<(), StoreError> {
        let Admission { breaker, budget, .. } = &mut *self.admission.lock();
        // Checked before the breaker: an ask that the breaker admits may be its only probe.
        let is_probe = breaker.state() != BreakerState::Closed;
        if !is_probe && !budget.permits(purpose_for_shedding(ask), pods, now) {
            return Err(StoreError::Shed);
        }
        if !breaker.admits(now) {
            return Err(StoreError::Unavailable);
        }
        budget.spend(pods, now);
        Ok(())
    }

    pub(super) fn has_breaker_closed(&self) -> bool {
        self.admission.lock().breaker.state() == BreakerState::Closed
    }

    pub(super) fn snapshot(&self, now: Time) -> ShardSnapshot {
        let (breaker, opened, last_failure) = {
            let Admission { breaker, last_failure, .. } = &*self.admission.lock();
            let shown = last_failure.as_ref().filter(|(at, _)| now.since(*at) <= FAILURE_SHOWN);
            (breaker.state(), breaker.opened(), shown.map(|(_, error)| error.to_string()))
        };
        let (round_trip, hot_key) = (self.round_trip(), self.hot_keys.lock().hot_key(now));
        let (store, shard) = (Arc::clone(&self.store), self.shard);
        ShardSnapshot { store, shard, breaker, opened, round_trip, last_failure, hot_key }
    }

    pub(super) fn counters(&self) -> ShardCounters {
        self.counters.of(&self.store, self.shard)
    }

    fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// The length of silence that counts as a stall, for requests that wait `wait_min` at least.
    pub(super) fn stall_after(&self, wait_min: Duration) -> Duration {
        STALL_MIN.max(STALL_TRIPS * self.round_trip()).max(wait_min).min(EXCHANGE_MAX)
    }

    /// Opens the breaker because the shard is silent.
    pub(super) fn stall(&self, now: Time) {
        let Admission { breaker, last_failure, .. } = &mut *self.admission.lock();
        *last_failure = Some((now, StoreError::TimedOut));
        if breaker.state() == BreakerState::Closed {
            tracing::warn!(
                store = &*self.store,
                shard = self.shard,
                "the store does not answer in time: opened its circuit breaker"
            );
        }
        breaker.stall(now, rng(self.shard as u64, now));
    }

    /// Whether `key` is the shard's hot key.
    pub(super) fn is_hot(&self, key: Key, now: Time) -> bool {
        self.hot_keys.lock().is_hot(key, now)
    }

    /// Records a reply that arrived at `now`. `is_congested` says that other replies of the shard
    /// have just arrived.
    pub(super) fn note(&self, reply: &Reply, is_congested: bool, now: Time) {
        let Reply { ask, outcome, .. } = reply;
        let took = now.since(reply.asked_at);
        self.counters.note(ask, outcome);
        self.counters.note_took(took);
        if outcome.is_ok() {
            self.note_round_trip(took);
        }
        let Admission { breaker, last_failure, .. } = &mut *self.admission.lock();
        let before = breaker.state();
        match outcome {
            Err(error) if error.concerns_one_key() => breaker.note_key_error(),
            // The reply was late, behind others that are being answered.
            Err(StoreError::TimedOut) if is_congested => {}
            Ok(_) => breaker.note_success(now),
            Err(error) => {
                breaker.note_failure(now, rng(ask.key.bits(), now));
                *last_failure = Some((now, error.clone()));
            }
        }
        let (store, shard) = (&*self.store, self.shard);
        match (before, breaker.state()) {
            (BreakerState::Closed, BreakerState::Open) => {
                let why = last_failure.as_ref().map(|(_, error)| error.to_string());
                let why = why.unwrap_or_default();
                tracing::warn!(store, shard, "the store fails; its breaker opens: {why}");
            }
            (BreakerState::Open | BreakerState::Probing, BreakerState::Closed) => {
                tracing::info!(store, shard, "the store answers; its breaker closes");
            }
            _ => {}
        }
    }

    /// Notes that an ask is sent, and returns whether its key is hot. Logs when a key becomes
    /// hot.
    pub(super) fn note_sent(&self, ask: &Ask, now: Time) -> bool {
        let (is_hot, becomes_hot) = self.hot_keys.lock().note(ask.key, now);
        if let Some(HotKey { key, share, .. }) = becomes_hot {
            let (store, shard) = (&*self.store, self.shard);
            let percent = format_args!("{:.0}", share * 100.0);
            tracing::warn!(store, shard, %key, %percent, "one key makes up much of a shard's asks");
        }
        is_hot
    }

    /// A longer trip counts at once; a shorter one lowers the average by an eighth of the
    /// difference, as TCP smooths its round trip (RFC 6298). So a shard that has become slow does
    /// not stall each time.
    fn note_round_trip(&self, measured: Duration) {
        let average = self.round_trip.load(Ordering::Relaxed);
        let smooth = average - average / 8 + nanos(measured) / 8;
        self.round_trip.store(smooth.max(nanos(measured)), Ordering::Relaxed);
    }
}

/// The purpose by which `ask` may be dropped; an ask that gives tokens back never is.
fn purpose_for_shedding(ask: &Ask) -> Purpose {
    let gives = ask.back.is_some() || ask.deposit.is_some();
    if gives { Purpose::Return } else { ask.purpose }
}

/// Keys are hashes; mixed with the time, they spread the probes of pods and shards.
fn rng(seed: u64, now: Time) -> u64 {
    // 2^64 / golden ratio (Knuth 6.4).
    (seed ^ now.nanos()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
