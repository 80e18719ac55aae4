//! The lease client's state of one shard: its breaker, its budget of asks, its round trip and its
//! hot key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::Key;

use crate::latency::{Buckets, Latency};
use crate::lease::hot_shard_key::{HotKey, HotKeyDetector};
use crate::lease::{EXCHANGE_MAX, Reply, nanos};
use crate::rng::shortened;
use crate::store::{Ask, Grant, Purpose, StoreError};
use crate::time::Time;

/// A shard is stalled once it has been silent for this many round trips. The silence lasts at least
/// [`STALL_MIN`], and at least as long as every request waits (`wait_min`).
const STALL_TRIPS: u32 = 4;

/// The shortest silence of a stalled shard: scheduling alone takes a few milliseconds on a busy
/// machine.
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
    /// The address of its server, by [`crate::store::Store::server`].
    pub server: Option<String>,
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
    /// The number of the shard, by [`crate::store::Store::shard`].
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
    /// Keeps back asks of other shards whose counts have another name here. Apart from `breaker`: a
    /// server may serve its own keys and refuse to move any away.
    moves: Breaker,
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

    /// Whether an ask of another shard may visit a name here.
    pub(super) fn admits_visit(&self, now: Time) -> bool {
        let Admission { breaker, moves, .. } = &*self.admission.lock();
        breaker.would_admit(now) && moves.would_admit(now)
    }

    /// Notes that an ask of another shard, which this one admits, is sent.
    pub(super) fn begin_visit(&self, now: Time) {
        self.admission.lock().moves.admits(now);
    }

    /// Records the outcome of a visit; `None` if that is not known.
    pub(super) fn note_visit(&self, outcome: Option<Result<(), &StoreError>>, now: Time) {
        let rng = rng(self.shard as u64, now);
        let Admission { moves, last_failure, .. } = &mut *self.admission.lock();
        let before = moves.state();
        match outcome {
            None => moves.note_nothing(now, rng),
            Some(Ok(())) => moves.note_success(now),
            Some(Err(error)) if error.concerns_one_key() => moves.note_key_error(),
            Some(Err(error)) => {
                moves.note_failure(now, rng);
                *last_failure = Some((now, error.clone()));
            }
        }
        let (store, shard) = (&*self.store, self.shard);
        if let (BreakerState::Closed, BreakerState::Open, Some(Err(why))) =
            (before, moves.state(), outcome)
        {
            let held = "asks for counts that another secret names here are held back";
            tracing::warn!(store, shard, "the store fails; {held}: {why}");
        }
    }

    pub(super) fn has_breaker_closed(&self) -> bool {
        self.admission.lock().breaker.state() == BreakerState::Closed
    }

    pub(super) fn snapshot(&self, server: Option<String>, now: Time) -> ShardSnapshot {
        let (breaker, opened, last_failure) = {
            let Admission { breaker, moves, last_failure, .. } = &*self.admission.lock();
            let shown = last_failure.as_ref().filter(|(at, _)| now.since(*at) <= FAILURE_SHOWN);
            let opened = breaker.opened() + moves.opened();
            (breaker.state(), opened, shown.map(|(_, error)| error.to_string()))
        };
        ShardSnapshot {
            store: Arc::clone(&self.store),
            shard: self.shard,
            server,
            breaker,
            opened,
            round_trip: self.round_trip(),
            last_failure,
            hot_key: self.hot_keys.lock().hot_key(now),
        }
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
            Err(StoreError::Elsewhere { .. }) => {
                breaker.note_nothing(now, rng(ask.key.bits(), now));
            }
            Err(error) if error.concerns_one_key() => breaker.note_key_error(),
            // The reply was late, behind others that are being answered.
            Err(StoreError::TimedOut) if is_congested => {}
            Ok(_) => breaker.note_success(now),
            Err(error) => {
                breaker.note_failure(now, rng(ask.key.bits(), now));
                *last_failure = Some((now, error.clone()));
            }
        }
        let store = &*self.store;
        let shard = self.shard;
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
            let store = &*self.store;
            let shard = self.shard;
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

// A circuit breaker for each shard: it keeps asks from a shard that fails or stalls. Pure: time
// and random numbers are arguments.

/// Consecutive failures that open the breaker (`docs/design.md`, When Redis is away).
const IN_A_ROW_MAX: u32 = 5;

/// The time over which the breaker counts failures: it also opens when more than half of the asks
/// of this span failed.
const SPAN: Duration = Duration::from_secs(10);

/// The number of parts of the span: one for each second.
const SECONDS: usize = 10;

/// The length of one part of the span.
const SECOND: Duration = Duration::from_secs(SPAN.as_secs() / SECONDS as u64);

/// With fewer asks in the span than this, the share of failures is ignored.
const SPAN_ASKS_MIN: u32 = 20;

/// The wait before the first probe; it doubles with each probe that fails. Leases should resume
/// within a second of the shard's return.
const WAIT_FIRST: Duration = Duration::from_millis(100);

/// The longest wait before a probe: half of that second. The first probe may only find that the
/// shard has moved, so time is left to read the slot map and for another probe.
const WAIT_LAST: Duration = Duration::from_millis(500);

/// A probe without an outcome after this time was never sent. This is longer than an exchange may
/// take.
const PROBE_MAX: Duration = Duration::from_secs(15);

/// Keeps asks from a shard that does not answer them.
///
/// ```text
///          5 failures in a row, more than half of 10 s, a stall
///  closed ─────────────────────────────────────────────────────▶ open ◀───────┐
///    ▲                                                            │ wait over │ fails:
///    │                    succeeds                                ▼           │ wait doubles
///    └───────────────────────────────────────────────────────── probing ──────┘
/// ```
#[derive(Debug, Clone, Default)]
struct Breaker {
    phase: Phase,
    /// The wait before the probe after the next failure.
    wait: Duration,
    in_a_row: u32,
    recent: [Second; SECONDS],
    opened: u64,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Asks pass.
    Closed,
    /// No ask passes.
    Open,
    /// One ask is out as a probe.
    Probing,
}

#[derive(Debug, Clone, Copy, Default)]
enum Phase {
    #[default]
    Closed,
    Open {
        until: Time,
    },
    Probing {
        since: Time,
    },
}

/// The outcomes of the asks of one second.
#[derive(Debug, Clone, Copy, Default)]
struct Second {
    /// The number of the second, counted from the clock's start.
    number: u64,
    asks: u32,
    failures: u32,
}

// === impl Breaker ===

impl Breaker {
    /// Whether an ask may be sent. If the breaker is open and its wait is over, one ask may, as the
    /// probe.
    fn admits(&mut self, now: Time) -> bool {
        let admits = self.would_admit(now);
        if admits && self.state() != BreakerState::Closed {
            self.phase = Phase::Probing { since: now };
        }
        admits
    }

    /// As [`Breaker::admits`], for an ask that is not sent yet.
    fn would_admit(&self, now: Time) -> bool {
        match self.phase {
            Phase::Closed => true,
            Phase::Open { until } => until <= now,
            Phase::Probing { since } => since + PROBE_MAX <= now,
        }
    }

    /// Records an ask that was answered. It closes the breaker: the shard answers.
    fn note_success(&mut self, now: Time) {
        let second = self.second(now);
        second.asks = second.asks.saturating_add(1);
        self.in_a_row = 0;
        if self.state() != BreakerState::Closed {
            self.close();
        }
    }

    /// Records an ask that was not answered, or answered with an error.
    fn note_failure(&mut self, now: Time, rng: u64) {
        let second = self.second(now);
        second.asks = second.asks.saturating_add(1);
        second.failures = second.failures.saturating_add(1);
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.phase {
            Phase::Closed if self.in_a_row >= IN_A_ROW_MAX || self.mostly_fails(now) => {
                self.open(now, rng);
            }
            Phase::Probing { .. } => self.open(now, rng),
            Phase::Closed | Phase::Open { .. } => {}
        }
    }

    /// Records a reply that refuses one key, independently of the others. The shard answers, which
    /// ends an outage; the reply says nothing else about the shard.
    fn note_key_error(&mut self) {
        if self.state() != BreakerState::Closed {
            self.close();
        }
    }

    /// Records an outcome that says nothing about the shard: a probe has to be sent again.
    fn note_nothing(&mut self, now: Time, rng: u64) {
        if self.state() == BreakerState::Probing {
            self.open(now, rng);
        }
    }

    /// Opens the breaker because the asks that are out are overdue, so that no further ask joins
    /// them.
    fn stall(&mut self, now: Time, rng: u64) {
        if self.state() != BreakerState::Open {
            self.open(now, rng);
        }
    }

    fn state(&self) -> BreakerState {
        match self.phase {
            Phase::Closed => BreakerState::Closed,
            Phase::Open { .. } => BreakerState::Open,
            Phase::Probing { .. } => BreakerState::Probing,
        }
    }

    /// How often the breaker has gone from closed to open.
    fn opened(&self) -> u64 {
        self.opened
    }

    fn close(&mut self) {
        *self = Self { opened: self.opened, ..Self::default() };
    }

    fn open(&mut self, now: Time, rng: u64) {
        self.opened += u64::from(self.state() == BreakerState::Closed);
        let wait = self.wait.clamp(WAIT_FIRST, WAIT_LAST);
        self.phase = Phase::Open { until: now + shortened(wait, rng) };
        self.wait = wait * 2;
    }

    fn mostly_fails(&self, now: Time) -> bool {
        let oldest = number(now).saturating_sub(SECONDS as u64 - 1);
        let recent = self.recent.iter().filter(|second| second.number >= oldest);
        let (asks, failures) = recent.fold((0_u32, 0_u32), |(asks, failures), second| {
            (asks.saturating_add(second.asks), failures.saturating_add(second.failures))
        });
        asks >= SPAN_ASKS_MIN && failures > asks / 2
    }

    fn second(&mut self, now: Time) -> &mut Second {
        let number = number(now);
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of SECONDS fits")]
        let second = &mut self.recent[(number % SECONDS as u64) as usize];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second
    }
}

/// Seconds since the clock's start.
fn number(now: Time) -> u64 {
    now.since(Time::default()).as_secs() / SECOND.as_secs()
}

// === impl BreakerState ===

impl BreakerState {
    /// The name in status reports.
    pub fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::Probing => "probing",
        }
    }
}

// === The budget of asks a second of one shard queue. Pure: time is an argument ===

/// Asks a second that all pods together send to one shard. A Redis master can serve more on one
/// core, so it stays responsive however many pods there are.
const FLEET_RATE: u32 = 50_000;

/// Asks a second that each pod may send to a shard, however many pods there are.
const POD_RATE_MIN: u32 = 100;

/// A full budget holds a second's asks divided by this.
const BURST_DIVISOR: f64 = 10.0;

/// Asks ahead are dropped once less than this fraction of the budget is left.
const AHEAD_PART: f64 = 0.5;

/// A token bucket of asks. It decides only about asks that may be dropped; the others spend from it
/// too, and may put it into debt by up to its capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Budget {
    left: f64,
    at: Time,
}

// === impl Budget ===

impl Budget {
    /// Whether an ask for `purpose` may be sent by one pod of `pods`. Spends nothing.
    fn permits(&mut self, purpose: Purpose, pods: u32, now: Time) -> bool {
        let burst = self.refill(pods, now);
        match purpose {
            Purpose::Request | Purpose::Return => true,
            Purpose::Probe => self.left >= 1.0,
            Purpose::Ahead => self.left >= (burst * AHEAD_PART).max(1.0),
        }
    }

    /// Spends one ask.
    fn spend(&mut self, pods: u32, now: Time) {
        let burst = self.refill(pods, now);
        self.left = (self.left - 1.0).max(-burst);
    }

    /// Adds the asks earned since the last refill. Returns the budget's capacity.
    fn refill(&mut self, pods: u32, now: Time) -> f64 {
        let rate = f64::from(rate(pods));
        let burst = rate / BURST_DIVISOR;
        self.left = (self.left + rate * now.since(self.at).as_secs_f64()).min(burst);
        self.at = self.at.max(now);
        burst
    }
}

impl Default for Budget {
    /// A full budget: the next refill cuts it to its capacity.
    fn default() -> Self {
        Self { left: f64::MAX, at: Time::default() }
    }
}

/// Asks a second that one pod of `pods` may send to a shard.
fn rate(pods: u32) -> u32 {
    (FLEET_RATE / pods.max(1)).max(POD_RATE_MIN)
}

// === Counters of the asks of one shard ===

/// Counters of the asks of one shard since the process began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardCounters {
    /// The name of the shard's store, by [`crate::store::Store::store_name`].
    pub store: Arc<str>,
    /// The shard's number, by [`crate::store::Store::shard`].
    pub shard: usize,
    /// Asks for tokens that were sent.
    pub asks: u64,
    /// The number of these asks that were answered, even with no token.
    pub grants: u64,
    /// Asks that were sent only to give unspent tokens back.
    pub returns: u64,
    /// Asks of both kinds that the store did not answer, or answered with an error.
    pub failures: u64,
    /// Tokens leased.
    pub tokens_granted: u64,
    /// Unspent tokens that the store has taken back, or would have taken back if their lease had
    /// not ended.
    pub tokens_returned: u64,
    /// How long each ask was out, whatever its outcome.
    pub took: Buckets,
}

/// Counts the asks of one shard.
#[derive(Debug, Default)]
struct AtomicShardCounters {
    asks: AtomicU64,
    grants: AtomicU64,
    returns: AtomicU64,
    failures: AtomicU64,
    tokens_granted: AtomicU64,
    tokens_returned: AtomicU64,
    took: Latency,
}

// === impl AtomicShardCounters ===

impl AtomicShardCounters {
    /// Records the outcome of `ask`.
    fn note(&self, ask: &Ask, outcome: &Result<Grant, StoreError>) {
        let add = |counter: &AtomicU64, more: u64| counter.fetch_add(more, Ordering::Relaxed);
        let is_return = ask.is_return();
        add(if is_return { &self.returns } else { &self.asks }, 1);
        match outcome {
            Err(_) => add(&self.failures, 1),
            Ok(_) if is_return => {
                add(&self.tokens_returned, ask.back.map_or(0, |back| back.tokens))
            }
            Ok(grant) => {
                add(&self.tokens_granted, grant.tokens);
                add(&self.grants, 1)
            }
        };
    }

    /// Records that an ask was out for this long.
    fn note_took(&self, took: Duration) {
        self.took.note(took);
    }

    fn of(&self, store: &Arc<str>, shard: usize) -> ShardCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShardCounters {
            store: Arc::clone(store),
            shard,
            asks: read(&self.asks),
            grants: read(&self.grants),
            returns: read(&self.returns),
            failures: read(&self.failures),
            tokens_granted: read(&self.tokens_granted),
            tokens_returned: read(&self.tokens_returned),
            took: self.took.shown(),
        }
    }
}

// === How long a shard has been silent while asks are out. Pure: time is an argument ===

/// A timer that is later than this shows that this process was held up, by CPU throttling or a
/// stop.
const HELD_UP: Duration = Duration::from_millis(10);

/// Replies that came while this process was held up are read within this time.
const GRACE: Duration = Duration::from_millis(20);

/// A silence of this length counts as a stall even if this process was held up.
const LONGEST: Duration = EXCHANGE_MAX;

/// Distinguishes a stall from congestion: a shard is stalled only while no reply at all arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Silence {
    /// Time of the last reply, or of the first ask sent while no other was out.
    since: Time,
    /// The silence is not checked before this time.
    not_before: Time,
    /// This silence has been found to be a stall.
    is_stall: bool,
    last_reply: Option<Time>,
}

// === impl Silence ===

impl Silence {
    /// Notes that asks were sent; `first` if no other was out. The first ask after a stall is a
    /// probe, which gets the full time to answer.
    pub(super) fn sent(&mut self, first: bool, now: Time) {
        if first || self.is_stall {
            *self = Self { since: now, last_reply: self.last_reply, ..Self::default() };
        }
    }

    /// The shard replied.
    pub(super) fn heard(&mut self, now: Time) {
        *self = Self { since: now, last_reply: Some(now), ..Self::default() };
    }

    /// Whether the shard has replied to any ask since `sent_at`, and less than `span` before `now`.
    pub(super) fn ended_since(&self, sent_at: Time, span: Duration, now: Time) -> bool {
        self.last_reply.is_some_and(|reply| reply > sent_at && now.since(reply) < span)
    }

    /// When to check whether the shard has stalled, which it has after a silence of `stall_after`;
    /// `None` if it is already known to be stalled.
    pub(super) fn due(&self, stall_after: Duration) -> Option<Time> {
        (!self.is_stall).then(|| (self.since + stall_after).max(self.not_before))
    }

    /// Whether a stall begins at `now`. `at_server` returns how long the server itself has owed a
    /// reply, where that is known.
    pub(super) fn stalls(
        &mut self,
        stall_after: Duration,
        now: Time,
        at_server: impl FnOnce() -> Option<Duration>,
    ) -> bool {
        let Some(due) = self.due(stall_after).filter(|due| *due <= now) else { return false };
        if now.since(due) > HELD_UP && now.since(self.since) < LONGEST {
            self.not_before = now + GRACE;
            return false;
        }
        let at_server = at_server().unwrap_or(Duration::MAX);
        if at_server < stall_after {
            self.not_before = now + (stall_after - at_server);
            return false;
        }
        self.is_stall = true;
        true
    }
}

#[cfg(test)]
mod tests;
