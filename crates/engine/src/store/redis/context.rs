//! State that all connections of one store share: settings, counters, clock and limiters.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::counter::{Count, Counter, RedisCounter};
use crate::store::redis::fault::{ConnectionFate, Fault, Kind};
use crate::store::redis::settings::{Address, RedisKind, RedisSettings};
use crate::store::redis::stream::{Threads, Tls};
use crate::time::{Clock, Time};

/// The shared state; one for each store.
#[derive(Debug)]
pub(super) struct StoreContext {
    pub(super) settings: RedisSettings,
    /// Secures connections over TCP; `None` for plaintext.
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) clock: Clock,
    /// For connections to the addresses of the settings.
    configured_limiters: ConnectLimiters,
    /// For connections to nodes that a server named.
    limiters: ConnectLimiters,
    connections: Arc<Semaphore>,
    /// Threads that look up the names of the settings.
    own_names: Threads,
    /// Threads that look up names that a server gave.
    names: Threads,
    /// Threads that read files of passwords and certificates.
    pub(super) files: Threads,
    /// The servers' time when `clock` was started, in microseconds since the Unix epoch, as the
    /// last reply says that had to; 0 before the first one.
    server_start_us: AtomicU64,
    pub(super) counters: Counters,
}

/// Event counters; each only grows.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Asks that were sent, or that failed before.
    pub(super) asks: AtomicU64,
    /// Asks that ended in an error.
    pub(super) errors: AtomicU64,
    /// Attempts to connect.
    pub(super) connects: AtomicU64,
    /// Attempts to connect that failed.
    pub(super) connect_errors: AtomicU64,
    /// Entries of the stream of orders that are no orders.
    pub(super) orders_skipped: AtomicU64,
    /// Failures by kind.
    faults: [FaultCounter; Kind::ALL.len()],
}

#[derive(Debug, Default)]
struct FaultCounter {
    times: AtomicU64,
    /// The last time, in nanoseconds of the context's clock; 0 means never.
    last: AtomicU64,
}

/// Threads of each kind. A name or file that does not respond blocks its thread for as long as that
/// takes, and the process has 512.
const THREADS_MAX: usize = 16;

/// Faults of one kind that follow each other within this time are one outage, which is logged once.
const OUTAGE_GAP: Duration = Duration::from_secs(30);

// === impl StoreContext ===

impl StoreContext {
    pub(super) fn new(settings: RedisSettings) -> Arc<Self> {
        let connections = Arc::new(Semaphore::new(settings.connections_max));
        let tls = settings.tls.clone().map(|files| Arc::new(Tls::new(files)));
        Arc::new(Self {
            settings,
            tls,
            connections,
            own_names: Threads::new(THREADS_MAX),
            names: Threads::new(THREADS_MAX),
            files: Threads::new(THREADS_MAX),
            clock: Clock::start(),
            configured_limiters: ConnectLimiters::new(),
            limiters: ConnectLimiters::new(),
            server_start_us: AtomicU64::new(0),
            counters: Counters::default(),
        })
    }

    /// About the servers' time, in microseconds since the Unix epoch. It chooses the windows of a
    /// calendar that a script's arguments name. It may be wrong by a day before an ask takes a
    /// second trip.
    pub(super) fn server_time_us(&self) -> u64 {
        self.server_start_us.load(Ordering::Relaxed).saturating_add(self.since_start_us())
    }

    /// Learns the servers' time.
    pub(super) fn note_server_time_us(&self, time_us: u64) {
        let start_us = time_us.saturating_sub(self.since_start_us());
        self.server_start_us.store(start_us, Ordering::Relaxed);
    }

    fn since_start_us(&self) -> u64 {
        self.clock.now().nanos() / 1_000
    }

    /// The timeouts to begin with when nothing was measured yet.
    pub(super) fn timeout(&self) -> Arc<AdaptiveTimeout> {
        Arc::new(AdaptiveTimeout::new(self.settings.timeout))
    }

    /// A permit for one more connection to `node`, valid until the returned value is dropped.
    /// Configured addresses have one or two of their own each, so that these nodes, which know the
    /// cluster, stay reachable however many nodes a server names.
    pub(super) fn permit(&self, node: &Address) -> Result<Option<OwnedSemaphorePermit>, Fault> {
        if self.is_configured(node) {
            return Ok(None);
        }
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        permit.map(Some).map_err(|_| {
            let most = self.settings.connections_max;
            let text = format!("{most} connections to Redis are open; allow more open files");
            Fault::new(Kind::Lost, text)
        })
    }

    /// The threads for looking up the name of `node`.
    pub(super) fn threads(&self, node: &Address) -> &Threads {
        if self.is_configured(node) { &self.own_names } else { &self.names }
    }

    /// The limiters for connections to the servers of the settings.
    pub(super) fn configured_limiters(&self) -> &ConnectLimiters {
        &self.configured_limiters
    }

    /// The limiters for connections to `node`: those to configured addresses wait for no others.
    pub(super) fn limiters(&self, node: &Address) -> &ConnectLimiters {
        if self.is_configured(node) { &self.configured_limiters } else { &self.limiters }
    }

    fn is_configured(&self, node: &Address) -> bool {
        self.settings.addresses.contains(node)
    }

    /// Whether the password may be sent to `node`, whose name resolves to `ip`: always if the node
    /// is configured, and otherwise if it lies within the configured networks.
    pub(super) fn allows(&self, node: &Address, ip: IpAddr) -> bool {
        let is_within = |networks: &Vec<IpNet>| {
            networks.iter().any(|network| network.contains(&ip.to_canonical()))
        };
        self.settings.redirect_networks.as_ref().is_none_or(is_within) || self.is_configured(node)
    }

    /// Counts a server's error. It is logged here if the connection stays open; otherwise the task
    /// that maintains the connection logs why it ended.
    pub(super) fn note(&self, fault: &Fault, from: &Address) {
        let is_first = self.note_fault(fault.kind);
        if let Some(hint) = fault.hint(self.settings.kind == RedisKind::Cluster)
            && is_first
            && fault.kind.meaning().connection == ConnectionFate::Keeps
        {
            tracing::error!(redis = %from, "Redis refuses asks: {}; {hint}", fault.text);
        }
    }

    /// Counts a fault. Returns whether it begins an outage.
    pub(super) fn note_fault(&self, kind: Kind) -> bool {
        self.counters.note_fault(kind, self.clock.now())
    }
}

// === impl Counters ===

impl Counters {
    fn note_fault(&self, kind: Kind, now: Time) -> bool {
        let Some(fault) = self.faults.get(kind as usize) else { return false };
        count(&fault.times);
        let last = fault.last.swap(now.nanos().max(1), Ordering::Relaxed);
        last == 0 || now.since(Time::from_nanos(last)) > OUTAGE_GAP
    }

    /// All counters.
    pub(super) fn counts(&self) -> Vec<Count> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counts = vec![
            (RedisCounter::Asks, read(&self.asks)),
            (RedisCounter::Errors, read(&self.errors)),
            (RedisCounter::Connects, read(&self.connects)),
            (RedisCounter::ConnectErrors, read(&self.connect_errors)),
            (RedisCounter::OrdersSkipped, read(&self.orders_skipped)),
        ];
        let kinds = Kind::ALL.iter().zip(&self.faults);
        counts
            .extend(kinds.map(|(kind, fault)| (RedisCounter::Failure(*kind), read(&fault.times))));
        counts.into_iter().map(|(counter, count)| (Counter::Redis(counter), count)).collect()
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

// Limits how often one pod connects, however many connections were lost and however many nodes a
// server names.

/// The rate limits for connections to one kind of address.
#[derive(Debug)]
pub(super) struct ConnectLimiters {
    /// For connections that are opened again.
    pub(super) again: ConnectLimiter,
    /// For the first connection to a node.
    pub(super) first: ConnectLimiter,
}

/// Lets a number of callers through at once and then one in each gap, in the order of their
/// arrival.
///
/// A waiting caller has reserved nothing: if it gives up, it leaves the queue, and the callers
/// behind it move up.
#[derive(Debug)]
pub(super) struct ConnectLimiter {
    /// Held by the first in the queue until it is through. Tokio's lock is fair and may be held
    /// across a wait.
    turn: Mutex<Turn>,
}

#[derive(Debug)]
struct Turn {
    at_once: u32,
    gap: Duration,
    /// When the limiter is in its initial state again.
    idle_at: Time,
}

/// For connections that are opened again: at most ten within a second. A pod that lost a hundred
/// masters at once retries each of them every twenty seconds.
const AGAIN: (u32, Duration) = (5, Duration::from_millis(200));
const _: () = assert!(AGAIN.0 as u128 + 1_000 / AGAIN.1.as_millis() <= 10);

/// For the first connections to nodes that a server named: a cluster of 64 masters is connected at
/// once, and one of 500, the largest that is offered as a service, within five seconds.
const FIRST: (u32, Duration) = (64, Duration::from_millis(10));

// === impl ConnectLimiters ===

impl ConnectLimiters {
    fn new() -> Self {
        Self { again: ConnectLimiter::new(AGAIN), first: ConnectLimiter::new(FIRST) }
    }
}

// === impl ConnectLimiter ===

impl ConnectLimiter {
    fn new((at_once, gap): (u32, Duration)) -> Self {
        Self { turn: Mutex::new(Turn { at_once, gap, idle_at: Time::default() }) }
    }

    /// Waits for its turn.
    pub(super) async fn pass(&self, clock: &Clock) {
        let mut turn = self.turn.lock().await;
        let wait = turn.wait(clock.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        turn.take(clock.now());
    }
}

// === impl Turn ===

impl Turn {
    /// How long the first in the queue has to wait at `now`.
    fn wait(&self, now: Time) -> Duration {
        self.idle_at.since(now).saturating_sub(self.gap * (self.at_once - 1))
    }

    /// Notes that one is through at `now`.
    fn take(&mut self, now: Time) {
        self.idle_at = now + self.idle_at.since(now) + self.gap;
    }
}

// === How long a server may be silent, based on measured round trips ===

/// The timeouts for one server, kept from one connection to the next.
///
/// The timeout of a command is the smoothed round trip plus four times its deviation, as in TCP's
/// retransmission timer (RFC 6298), but at least `REDIS_TIMEOUT`. It doubles with each timeout
/// until an answer comes (Karn's rule), so that it adapts to a server that became slow within a few
/// connections.
#[derive(Debug)]
pub(super) struct AdaptiveTimeout {
    least: Duration,
    state: parking_lot::Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The round trip of the present connection; `None` before the first one.
    measured: Option<RoundTrip>,
    /// Connections given up since the last reply to a command.
    silences: u32,
    /// Attempts to connect without an answer since the last one that was answered.
    dials: u32,
}

#[derive(Debug, Clone, Copy)]
struct RoundTrip {
    smoothed: Duration,
    deviation: Duration,
}

/// Upper bound, whatever was measured: with a second of latency each way, TCP's handshake and the
/// login take four seconds together.
const PATIENCE_MAX: Duration = Duration::from_secs(4);
/// Upper bound of `REDIS_TIMEOUT`. It is below the time allowed for an ask, which must not end
/// before the silence of its connection is noticed.
pub(super) const LEAST_MAX: Duration = Duration::from_secs(8);

// === impl AdaptiveTimeout ===

impl AdaptiveTimeout {
    /// The timeout is never less than `least`, which is at most [`LEAST_MAX`].
    pub(super) fn new(least: Duration) -> Self {
        Self { least: least.min(LEAST_MAX), state: parking_lot::Mutex::default() }
    }

    /// The time for a command, counted from when data last arrived.
    pub(super) fn for_command(&self) -> Duration {
        let state = self.state.lock();
        self.doubled(&state, state.silences)
    }

    /// The time for connecting and logging in, together.
    pub(super) fn for_connect(&self) -> Duration {
        let state = self.state.lock();
        self.doubled(&state, state.silences.saturating_add(state.dials))
    }

    /// Records that a connection was opened in this time: earlier measurements may no longer hold.
    pub(super) fn connected(&self, took: Duration) {
        let mut state = self.state.lock();
        state.dials = 0;
        state.measured = Some(RoundTrip { smoothed: took, deviation: took / 2 });
    }

    /// Records that a command was answered in this time.
    pub(super) fn answered(&self, took: Duration) {
        let mut state = self.state.lock();
        state.silences = 0;
        let first = RoundTrip { smoothed: took, deviation: took / 2 };
        state.measured = Some(state.measured.map_or(first, |before| before.smooth(took)));
    }

    /// Records that a connection fell silent and was given up.
    pub(super) fn given_up(&self) {
        let mut state = self.state.lock();
        state.silences = state.silences.saturating_add(1);
    }

    /// Records that an attempt to connect got no answer.
    pub(super) fn note_failed_connect(&self) {
        let mut state = self.state.lock();
        state.dials = state.dials.saturating_add(1);
    }

    fn doubled(&self, state: &State, times: u32) -> Duration {
        let measured = state.measured.map_or(Duration::ZERO, |it| it.smoothed + it.deviation * 4);
        let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
        let most = PATIENCE_MAX.max(self.least);
        measured.max(self.least).saturating_mul(factor).min(most)
    }
}

// === impl RoundTrip ===

impl RoundTrip {
    /// Weights the new value by an eighth and a quarter, as in RFC 6298.
    fn smooth(self, took: Duration) -> Self {
        let off = self.smoothed.abs_diff(took);
        Self { smoothed: (self.smoothed * 7 + took) / 8, deviation: (self.deviation * 3 + off) / 4 }
    }
}

#[cfg(test)]
mod tests;
