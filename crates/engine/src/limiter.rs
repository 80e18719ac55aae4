//! Decides requests: takes tokens from the buffers, waits for leases where it must, and makes the
//! verdict.
//!
//! This is the only module where buffers and the lease client meet.

mod ends;
mod failure_mode;
mod key;
mod lease_policy;
mod maintenance;
mod orders;
pub mod owners;
mod pod_counts;
mod resolve;
pub mod starts;
mod transaction;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::{Key, KeyHasher, OverflowScope};
use ratelease_rules::request::{Few, Request};
use ratelease_rules::{FailureMode, Limit, Rules, STORES_MAX, StoreId};
use tokio::sync::{Notify, watch};

use crate::buffer;
use crate::buffer::table::{Region, Table, TableFull};
use crate::counter::{Count, Counter};
use crate::lease::{LeaseClient, Reply, ShardCounters, ShardSnapshot};
use crate::limiter::failure_mode::FailureModes;
use crate::limiter::key::{
    Attempt, KeyState, ReplyReceiver, Visit, WAITER_BYTES, WAITING_IN_ALL_MAX, WATCH_EVERY,
};
use crate::limiter::lease_policy::LeasePolicy;
use crate::limiter::orders::Orders;
use crate::limiter::owners::{Owner, Owners};
use crate::limiter::pod_counts::PodCounts;
use crate::limiter::starts::Starts;
use crate::pod::PodRecord;
use crate::store::{Ask, Purpose, Store, StoreError};
use crate::time::{Clock, Time};
use crate::verdict::{AppliedLimit, Modes, Verdict};

pub use self::resolve::{Charge, HeldBy, Resolved, resolve};
use self::transaction::{PlaceInQueue, Transaction};

/// Decides requests. It is a handle: clones share all state.
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
}

/// Keys that hold more than their allowance, each with the time to check whether the key is idle,
/// soonest first. It never grows beyond its initial capacity.
type IdleQueue = Mutex<VecDeque<(Time, Key)>>;

/// State that all handles share.
struct Shared {
    table: Table<KeyState>,
    pods: PodCounts,
    round_trips: RoundTrips,
    /// Notified when the pods have to be counted before the next round.
    heartbeat_due: Notify,
    /// Number of rounds of heartbeats since a request last waited for the store.
    quiet_rounds: AtomicU32,
    /// Sent to each second, or less often while the pod is quiet.
    rounds: watch::Sender<()>,
    idle: IdleQueue,
    /// Notified when the idle queue has its first key.
    watched: Notify,
    /// Charges that went to an overflow key.
    overflows: AtomicU64,
    starts: Starts,
    owners: Owners,
    /// Whether the task that looks at starts runs; it sleeps while there are none.
    looks_at_starts: AtomicBool,
    /// Wakes it.
    held: Notify,
    /// The number of the next ask that states slots.
    slot_asks: AtomicU32,
    orders: Orders,
    /// The record of the pod, without its slots and the last order, which change often.
    record: Mutex<PodRecord>,
    lease_client: LeaseClient,
    failure_modes: FailureModes,
    clock: Clock,
    options: Options,
}

// === impl Limiter ===

impl Limiter {
    /// Makes a limiter that leases from `store`. Starts no task until a lease is needed; such a
    /// task runs in the runtime that this is called in, if there is one.
    pub fn new(store: Arc<dyn Store>, clock: Clock, options: Options) -> Self {
        let shared = Arc::new_cyclic(|weak: &Weak<Shared>| {
            let weak = Weak::clone(weak);
            let on_reply = move |reply| {
                if let Some(shared) = weak.upgrade() {
                    shared.on_reply(reply);
                }
            };
            let lease_client =
                LeaseClient::open(store, clock, options.wait_min, Box::new(on_reply));
            lease_client.set_pods(options.pods_expected.max(1));
            let idle = maintenance::idle_queue(options.buffer_bytes_max);
            let rest =
                options.buffer_bytes_max.saturating_sub(idle.capacity() * maintenance::IDLE_BYTES);
            Shared {
                table: Table::new(rest, WAITING_IN_ALL_MAX * WAITER_BYTES),
                pods: PodCounts::new(options.pods_expected),
                round_trips: RoundTrips::default(),
                heartbeat_due: Notify::new(),
                quiet_rounds: AtomicU32::new(0),
                rounds: watch::Sender::new(()),
                idle: Mutex::new(idle),
                watched: Notify::new(),
                overflows: AtomicU64::new(0),
                starts: Starts::default(),
                owners: Owners::new(options.start_grace),
                looks_at_starts: AtomicBool::new(false),
                held: Notify::new(),
                slot_asks: AtomicU32::new(0),
                orders: Orders::default(),
                record: Mutex::new(PodRecord::new(options.pod, &options.name, &options.hasher)),
                lease_client,
                failure_modes: FailureModes::new(clock, options.unix_start, options.pod),
                clock,
                options,
            }
        });
        Self { shared }
    }

    /// Decides `request` at `now` under `rules`.
    ///
    /// Every descriptor is checked before any is charged for good: if one denies, the tokens taken
    /// for the others go back. Local information comes first, so that a denial found here sends no
    /// ask; all missing leases are asked for together. Where the store does not answer in time, the
    /// rule's failure mode decides.
    ///
    /// A request that need not wait is decided when the future is polled first, without an
    /// allocation if it has at most two descriptors of four entries. Before any other waits,
    /// `admit` is called, and its result is kept until the wait is over; if it refuses, nothing is
    /// charged, but an ask for the missing tokens may be on its way. The store may take as long as
    /// the caller waits for the answer, `patience`, less a margin for the answer's way back, at
    /// least `wait_min` and at most `wait_max`. A leaky bucket may add its `max_delay`, until the
    /// request's slot begins. If the future is dropped, nothing is charged.
    ///
    /// # Errors
    ///
    /// `admit` refused; or the store could not answer, the failure mode is `error`, and the
    /// replies that did arrive deny nothing. Then nothing is charged.
    pub async fn decide<'r, P, E: From<StoreError>>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        now: Time,
        patience: Option<Duration>,
        owner: Owner,
        admit: impl FnOnce() -> Result<P, E>,
    ) -> Result<Verdict<'r>, E> {
        let resolved = self.resolve(rules, request);
        let mut transaction = Transaction::new(&self.shared, &resolved, owner, false);
        transaction.take_local(request, now);
        let asks = transaction.has_to_ask();
        if !asks && transaction.slot_after(now).is_none() {
            return Ok(transaction.conclude(request, now));
        }
        let _admitted = admit()?;
        // Read again: an ask that seemed to be sent before its thread was paused would seem late.
        let now = self.shared.clock.now();
        if asks {
            let deadline = now + self.shared.options.wait_for(patience);
            transaction.take_leased(now, deadline).await?;
        }
        if let Some(slot) = transaction.slot_after(now) {
            tokio::time::sleep_until(self.shared.clock.instant(slot)).await;
        }
        Ok(transaction.conclude(request, self.shared.clock.now()))
    }

    /// Decides `request` at `now` as [`Limiter::decide`] does, if that need not wait.
    ///
    /// Otherwise nothing is charged, given back or settled, and the request may be decided again;
    /// only an ask ahead for the missing tokens may be on its way. So a request with a settlement
    /// is left to `decide`: a settlement cannot be taken back.
    pub fn decide_at_once<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        now: Time,
        owner: Owner,
    ) -> Option<Verdict<'r>> {
        let resolved = self.resolve(rules, request);
        if self.settles_some(request, &resolved) {
            return None;
        }
        let mut transaction = Transaction::new(&self.shared, &resolved, owner, false);
        transaction.take_local(request, now);
        if transaction.has_to_ask() || transaction.slot_after(now).is_some() {
            return None; // to drop it puts back what was taken
        }
        Some(transaction.conclude(request, now))
    }

    /// Decides `request` at `now` by rules whose verdict no answer waits for, such as candidates.
    ///
    /// `None` if the store has to be asked first: then an ask for the missing tokens is on its way,
    /// for requests to come, and this request is not charged. A settlement is applied in any case.
    /// A slot of a leaky bucket is taken and not waited for. Needs no runtime, and returns at once.
    ///
    /// The holds of a request that does not run (`runs`) end at once: a denied request may have no
    /// end.
    pub fn decide_aside<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        now: Time,
        owner: Owner,
        runs: bool,
    ) -> Option<Verdict<'r>> {
        let resolved = self.resolve(rules, request);
        let mut transaction = Transaction::new(&self.shared, &resolved, owner, true);
        transaction.take_local(request, now);
        if transaction.has_to_ask() {
            for (_, charge) in transaction.short(|charge| !charge.refund) {
                self.shared.ask_aside(charge, now);
            }
            return None; // to drop it gives back what was taken
        }
        Some(self.conclude_aside(transaction, request, now, runs))
    }

    /// Decides `request` as [`Limiter::decide_aside`] does where that has left it out, and waits
    /// for the store. The start is entered when the future is polled first.
    ///
    /// `None` if the store does not answer, or if the request has a settlement, which was applied.
    pub async fn decide_aside_later<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        owner: Owner,
        runs: bool,
    ) -> Option<Verdict<'r>> {
        let now = self.shared.clock.now();
        let resolved = self.resolve(rules, request);
        if self.settles_some(request, &resolved) {
            return None;
        }
        let mut transaction = Transaction::new(&self.shared, &resolved, owner, true);
        transaction.take_local(request, now);
        if transaction.has_to_ask() {
            let deadline = now + self.shared.options.wait_for(None);
            transaction.take_leased(now, deadline).await.ok()?;
        }
        let now = self.shared.clock.now();
        Some(self.conclude_aside(transaction, request, now, runs))
    }

    fn conclude_aside<'r>(
        &self,
        mut transaction: Transaction<'_, 'r>,
        request: &Request<'_>,
        now: Time,
        runs: bool,
    ) -> Verdict<'r> {
        let mut verdict = transaction.conclude(request, now);
        if !runs {
            self.shared.end_aside(verdict.started.take(), now);
        }
        verdict
    }

    /// Whether a descriptor of `request` charges a cost that was incurred, or ends a hold, also one
    /// of a rule that is gone.
    pub fn settles(&self, rules: &Rules, request: &Request<'_>) -> bool {
        self.settles_some(request, &self.resolve(rules, request))
    }

    fn settles_some(&self, request: &Request<'_>, resolved: &[Resolved<'_>]) -> bool {
        let settles = |(at, it): (usize, &Resolved<'_>)| match it {
            Resolved::Charged(charge) => charge.settles(),
            Resolved::Free | Resolved::Unlimited => self.shared.id_of_end(request, at).is_some(),
        };
        resolved.iter().enumerate().any(settles)
    }

    /// Returns the charge of each descriptor of `request` under `rules`, in order.
    pub fn resolve<'r>(&self, rules: &'r Rules, request: &Request<'_>) -> Few<Resolved<'r>> {
        resolve(rules, request, &self.shared.options.hasher)
    }

    /// Number of pods of each domain that this pod has used, by the store's last reply.
    pub fn pods_by_domain(&self) -> Vec<(Box<str>, u32)> {
        self.shared.pods.all()
    }

    /// Assumes these numbers of pods for each domain until the store says how many there are.
    pub fn expect_pods(&self, pods: &[(Box<str>, u32)]) {
        self.shared.pods.expect(pods);
    }

    /// The clock that the limiter uses.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Number of keys held at present.
    pub fn keys(&self) -> usize {
        self.shared.table.len()
    }

    /// Event counters since the process began, and present levels.
    pub fn counts(&self) -> Vec<Count> {
        let Shared { table, idle, overflows, starts, lease_client, failure_modes, options, .. } =
            &*self.shared;
        let idle_bytes = idle.lock().capacity() * maintenance::IDLE_BYTES;
        let mut counts = vec![
            (Counter::Keys, self.keys() as u64),
            (Counter::BufferBytes, (table.bytes() + idle_bytes) as u64),
            (Counter::BufferBudgetBytes, options.buffer_bytes_max as u64),
            (Counter::BufferWaitingBytes, table.heap_bytes() as u64),
            (Counter::BufferEvictions, table.evictions()),
            (Counter::BufferOverflows, overflows.load(Ordering::Relaxed)),
            (Counter::TokensExpired, buffer::expired()),
        ];
        counts.extend(starts.counts());
        counts.extend(failure_modes.counts());
        counts.extend(lease_client.counts());
        counts
    }

    /// The states of the shards that have been asked, in order of their numbers.
    pub fn shards(&self) -> Vec<ShardSnapshot> {
        self.shared.lease_client.shards()
    }

    /// The counters of each shard's asks, in order of the shards' numbers.
    pub fn shard_counters(&self) -> Vec<ShardCounters> {
        self.shared.lease_client.shard_counters()
    }
}

// === impl Shared ===

impl Shared {
    /// Charges the tokens held here, if they are enough, and asks ahead if those that remain will
    /// not last. For a refund, previews its effect on the key. A key that an operator has blocked
    /// is denied.
    fn attempt(&self, charge: &Charge<'_>, now: Time) -> Result<Attempt, TableFull> {
        if let Some(lasts) = self.orders.charge_blocked_for(charge, now)
            && !charge.refund
            && !charge.settles()
        {
            return Ok(Attempt::blocked(lasts));
        }
        let attempt = || {
            self.with_state(charge, now, 0, |state, visit| {
                if charge.refund {
                    return state.preview_refund(charge, visit);
                }
                if charge.settles() {
                    return state.preview_settlement(visit);
                }
                let attempt = state.charge_and_note_demand(charge, visit);
                if attempt.is_decided() {
                    state.request_next_window(charge, &attempt, visit);
                }
                // Also for a charge that is short: its request comes again at once, through
                // `enqueue`, and joins this ask. Where the store is far away it does not: the
                // request asks for itself, in time, and for as much as it lacks.
                if attempt.is_decided() || !state.is_distant(visit) {
                    state.ask_ahead(visit);
                }
                attempt
            })
        };
        match attempt() {
            Err(TableFull) if self.overflow(charge) => attempt(),
            attempted => attempted,
        }
    }

    /// Credits the refund of `charge` to a lease held here, else to the store.
    fn refund(&self, charge: &Charge<'_>, now: Time) {
        // Without room for the key the refund is lost, as when the store is unavailable.
        let _ = self.with_state(charge, now, 0, |state, visit| state.refund(charge, visit));
    }

    /// Charges a cost of so many `hits` that has been incurred. Without room for the key, or if the
    /// key is evicted, the store is asked to count the cost, but not again if that fails.
    fn settle(&self, charge: &Charge<'_>, hits: u64, now: Time) {
        self.note_active(charge.domain(), now);
        let AppliedLimit { limit, rule } = charge.applied;
        let policy = LeasePolicy::of(limit, rule.map(AsRef::as_ref), self.options.wait_min);
        let blank = policy.blank_ask(charge.key());
        let lasts = || self.failure_modes.debt_lasts(limit, self.lease_client.shard(&blank));
        let until = policy.owed_until(now + lasts());
        let settle = |state: &mut KeyState, visit: &mut Visit<'_>| {
            let owed = state.settle(charge, hits, until, visit);
            state.watch(visit);
            owed
        };
        let settled = if self.has_room_for_debts() {
            self.with_state(charge, now, WAITER_BYTES, settle)
        } else {
            Err(TableFull)
        };
        let owed = settled.unwrap_or_else(|TableFull| {
            let previous = charge.previous_key();
            let report = Ask { owed: hits, purpose: Purpose::Return, previous, ..blank };
            self.lease_client.queue(report);
            hits
        });
        if owed > 0
            && charge.failure_mode() == FailureMode::Local
            && !self.lease_client.takes(&blank)
        {
            let pods = self.pods_of(charge);
            self.failure_modes.count_owed(charge, owed, pods, self.lease_client.shard(&blank));
        }
    }

    /// Whether further keys may owe costs: the state of owed costs takes at most half of the room
    /// that waiting requests and rare state have together.
    fn has_room_for_debts(&self) -> bool {
        self.table.heap_bytes() < WAITING_IN_ALL_MAX * WAITER_BYTES / 2
    }

    /// Charges the tokens held here, or queues for the next lease.
    fn enqueue(&self, charge: &Charge<'_>, now: Time) -> Result<ReplyReceiver, StoreError> {
        self.note_active(charge.domain(), now);
        self.with_state(charge, now, WAITER_BYTES, |state, visit| state.enqueue(charge, visit))
            .map_err(|TableFull| StoreError::NoRoom)?
    }

    /// Asks for the tokens that `charge` lacks, for later charges of its key. Sends one ask at a
    /// time for a key, so that the queue of its shard does not fill, and none where nothing is
    /// leased, since the tokens could serve no later charge.
    fn ask_aside(&self, charge: &Charge<'_>, now: Time) {
        let AppliedLimit { limit, rule } = charge.applied;
        let policy = LeasePolicy::of(limit, rule.map(AsRef::as_ref), self.options.wait_min);
        if !policy.is_leased() {
            return;
        }
        let is_asked = |state: &mut KeyState| state.awaits_reply(now);
        if self.table.with_existing(charge.key(), is_asked) == Some(true) {
            return;
        }
        self.note_active(charge.domain(), now);
        let place = self.with_state(charge, now, WAITER_BYTES, |state, visit| {
            let reply = state.enqueue(charge, visit);
            // No request waits for the ask, so a shard under load sheds it before the asks of
            // requests.
            let asks = visit.asks.iter_mut().filter(|ask| ask.purpose == Purpose::Request);
            asks.for_each(|ask| ask.purpose = Purpose::Ahead);
            reply
        });
        // Dropped at once, the place gives back tokens that have just arrived.
        let reply = place.unwrap_or(Err(StoreError::NoRoom));
        drop(PlaceInQueue::new(self, charge, reply, now));
    }

    /// Runs `act` on the key of `charge`, then carries out its effects. `act` may add up to `room`
    /// bytes to the requests that wait at the key.
    fn with_state<R>(
        &self,
        charge: &Charge<'_>,
        now: Time,
        room: usize,
        act: impl FnOnce(&mut KeyState, &mut Visit<'_>) -> R,
    ) -> Result<R, TableFull> {
        let mut visit = self.visit(charge.key(), now);
        let (result, evicted) = self.table.with(
            charge.region(),
            now,
            room,
            || KeyState::new(charge, self.options.pod, &self.round_trips),
            |state| {
                state.bind_rule(charge, &mut visit);
                act(state, &mut visit)
            },
        )?;
        self.finish(visit, charge.previous_key());
        if let Some((key, mut state)) = evicted {
            let mut visit = self.visit(key, now);
            state.give_back_evicted(&mut visit);
            self.finish(visit, None);
        }
        Ok(result)
    }

    /// Runs `act` on the state of `key`, if it has one, then carries out its effects. `previous` is
    /// the key of the same count under the secret before.
    fn with_existing<R>(
        &self,
        key: Key,
        previous: Option<Key>,
        now: Time,
        act: impl FnOnce(&mut KeyState, &mut Visit<'_>) -> R,
    ) -> Option<R> {
        let mut visit = self.visit(key, now);
        let result = self.table.with_existing(key, |state| act(state, &mut visit));
        self.finish(visit, previous);
        result
    }

    /// Hands a reply of the store to its key, and asks again if requests still wait.
    fn on_reply(&self, reply: Reply) {
        let Ask { key, previous, .. } = reply.ask;
        let now = self.clock.now();
        if reply.ask.is_return() {
            return self.on_reply_to_return(&reply, now);
        }
        if let Ok(grant) = &reply.outcome {
            self.failure_modes.note_time(&reply, grant);
            self.round_trips.note(reply.ask.limit.store, now.since(reply.asked_at));
        }
        let visited = self.with_existing(key, previous, now, |state, visit| {
            let debt = state.reply(&reply, visit);
            let pods = if debt.returned > 0 { self.pods.of(state.domain()) } else { 1 };
            if self.orders.was_reset_since(key, reply.asked_at) {
                // The reply may be about the count that was deleted.
                state.forget_count();
            }
            state.watch(visit);
            (debt, pods)
        });
        let Some((debt, pods)) = visited else {
            // A key that was evicted meanwhile has no use for its lease.
            let unwanted = lease_policy::unwanted(&reply);
            unwanted.into_iter().for_each(|ask| self.lease_client.queue(Ask { previous, ..ask }));
            return;
        };
        if debt.returned > 0 {
            self.return_own(key, reply.ask.limit, debt.returned, pods);
        }
        self.failure_modes.note_unmetered(debt.unmetered);
    }

    /// No request waits for a return. Tokens that the store did not take are still held; tokens
    /// lost on the way end with their lease. Costs that were owed are still owed unless the store
    /// has answered.
    fn on_reply_to_return(&self, reply: &Reply, now: Time) {
        let Ask { key, owed, .. } = reply.ask;
        let is_owed = |error: &StoreError| error.is_not_applied() || owed > 0;
        if !reply.outcome.as_ref().is_err_and(is_owed) {
            return;
        }
        let take_back = |state: &mut KeyState, visit: &mut Visit<'_>| {
            if owed > 0 || !self.orders.was_reset_since(key, reply.asked_at) {
                state.take_back_unsent(reply, visit);
            }
            state.watch(visit);
        };
        let may_owe = owed == 0 || self.has_room_for_debts();
        let noted = may_owe.then(|| self.with_existing(key, None, now, take_back)).flatten();
        if noted.is_none() {
            self.failure_modes.note_unmetered(owed);
        }
    }

    fn visit(&self, key: Key, now: Time) -> Visit<'_> {
        let Options { pod, wait_min, .. } = self.options;
        Visit {
            key,
            now,
            pods: &self.pods,
            pod,
            slot_asks: &self.slot_asks,
            wait_min,
            lease_client: &self.lease_client,
            asks: Vec::new(),
            starts_watch: false,
        }
    }

    /// Carries out the effects of a visit. The asks for the visited key also name the key that its
    /// count has under the secret before, if there is one. Refused asks are answered within this
    /// call, through [`Shared::on_reply`], so no lock of a key may be held.
    fn finish(&self, visit: Visit<'_>, previous: Option<Key>) {
        let Visit { key, now, asks, starts_watch, .. } = visit;
        if starts_watch {
            self.watch(key, now + WATCH_EVERY);
        }
        for ask in asks {
            self.lease_client.queue(Ask { previous, ..ask });
        }
    }

    /// The shard that owns the count of `key`. The shards of its pools may be others.
    fn shard_of(&self, key: Key, limit: Limit) -> usize {
        self.lease_client.shard(&Ask::look(key, limit))
    }

    /// Number of pods that share the limit of `charge`.
    fn pods_of(&self, charge: &Charge<'_>) -> u32 {
        self.pods.of(charge.domain())
    }
}

// Overflow keys: the requests of keys that the table has no room for share one buffer with the
// other such keys of their rule.
//
// The table has no room when every entry that it could evict has waiting requests or asks on their
// way. Then one *overflow* key of the rule, or of an override's limit in its domain, stands in for
// all further keys. The overflow key counts as any key does, on every pod and in the store, under
// the same limit: the keys that share it are denied too soon rather than too late, and all of them
// together get as many tokens as one of them would have got. The hits that such a key was charged
// on its own, earlier in the window or on another pod, come on top: at most the limit once more.
//
// A key that has its own entry, as a constantly used key has, never comes here. Overflow keys are
// kept apart from the full table, so that the keys that fill it cannot evict them.

impl Shared {
    /// Redirects `charge` to its overflow key. Returns false if it has been redirected already.
    fn overflow(&self, charge: &Charge<'_>) -> bool {
        let hasher = &self.options.hasher;
        let previous = hasher.previous().map(|previous| charge.overflow_key(previous));
        let turned = charge.overflow.set((charge.overflow_key(hasher), previous)).is_ok();
        self.overflows.fetch_add(u64::from(turned), Ordering::Relaxed);
        turned
    }
}

// === impl Charge ===

impl Charge<'_> {
    /// The region of the table and the key that the charge is charged to.
    fn region(&self) -> (Region, Key) {
        let region =
            if self.overflow.get().is_some() { Region::Reserved } else { Region::Evictable };
        (region, self.key())
    }

    fn overflow_key(&self, hasher: &KeyHasher) -> Key {
        let limit = self.applied.limit;
        let owner = match self.applied.rule {
            Some(rule) => OverflowScope::Rule(&rule.path),
            None => {
                // An override has 32 bits on the wire.
                let requests = u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX);
                OverflowScope::Override(&self.domain, requests)
            }
        };
        hasher.overflow_key(owner, limit.identity())
    }
}

// === The options of a limiter ===

/// The time that an answer takes to reach its caller once it is made, including delays of a busy
/// machine: a quarter of Envoy's default timeout of 20 ms.
const ANSWER_MARGIN: Duration = Duration::from_millis(5);

/// How long an Envoy that has closed all its connections is waited for, before the holds of its
/// requests are released: a connection that broke is made again within a second.
pub const START_GRACE: Duration = Duration::from_secs(3);

/// Number of pods that are assumed to share a domain until the store has said how many do. Too
/// small a number strands tokens, too large a number costs round trips.
pub const PODS_EXPECTED: u32 = 16;

/// The options of a limiter.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time that a request may wait for a lease, whatever its caller's deadline; without a
    /// deadline, the longest time.
    pub wait_min: Duration,
    /// The longest time that a request may wait if its caller names a deadline; values below
    /// `wait_min` count as `wait_min`.
    pub wait_max: Duration,
    /// Bytes that the buffers of all keys may take; [`Table`] says which bytes are counted. A 32nd
    /// of it, at most 1.5 MiB, is for the queue of keys that may be idle. Requests that wait for a
    /// lease, and state that only few keys have, take up to 16 MiB in addition, and the lease
    /// client's queues 4352 asks for each shard.
    ///
    /// [`Table`]: crate::buffer::table::Table
    pub buffer_bytes_max: usize,
    /// The number of this pod among those that share the store; the pod draws it itself.
    pub pod: u64,
    /// The time from when an Envoy closed its last connection until the requests that it started
    /// are released.
    pub start_grace: Duration,
    /// A name of this pod that operators recognise, such as the name of its host.
    pub name: Box<str>,
    /// Number of pods in each domain until the store says how many there are; values below 1 count
    /// as 1.
    pub pods_expected: u32,
    /// Hashes descriptors to keys; the same on every pod that shares counts.
    pub hasher: KeyHasher,
    /// Modes that change how answers are made.
    pub modes: Modes,
    /// The time of day when the clock was started, since the Unix epoch. It identifies windows
    /// until the store's own time is known.
    pub unix_start: Duration,
}

// === impl Options ===

impl Options {
    /// How long a request may wait if its caller waits for `patience`.
    fn wait_for(&self, patience: Option<Duration>) -> Duration {
        let until =
            patience.map(|patience| patience.saturating_sub(ANSWER_MARGIN).min(self.wait_max));
        until.unwrap_or_default().max(self.wait_min)
    }
}

impl Default for Options {
    /// The defaults of the settings, for a pod that is alone with its store and its clock.
    fn default() -> Self {
        Self {
            wait_min: Duration::from_millis(5),
            wait_max: Duration::from_millis(15),
            buffer_bytes_max: 64 << 20,
            pod: 0,
            start_grace: START_GRACE,
            name: Box::default(),
            pods_expected: PODS_EXPECTED,
            hasher: KeyHasher::new(""),
            modes: Modes::default(),
            unix_start: Duration::ZERO,
        }
    }
}

// === The round trips to the stores, for keys of which nothing has been measured yet ===

/// The round trip that is assumed before the first measurement.
const ROUND_TRIP_FIRST_US: u64 = 1_000;

/// The round trip that was last measured for any key of each store, in microseconds. Each store has
/// its own, so that one that is slow does not make keys of another wait.
#[derive(Debug)]
struct RoundTrips([AtomicU64; STORES_MAX + 1]);

// === impl RoundTrips ===

impl RoundTrips {
    /// The round trip of the store, in microseconds.
    fn of(&self, store: StoreId) -> u64 {
        let measured = self.0.get(store.number());
        measured.map_or(ROUND_TRIP_FIRST_US, |measured| measured.load(Ordering::Relaxed))
    }

    fn note(&self, store: StoreId, measured: Duration) {
        if let Some(last) = self.0.get(store.number()) {
            let micros = u64::try_from(measured.as_micros()).unwrap_or(u64::MAX);
            last.store(micros, Ordering::Relaxed);
        }
    }
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(ROUND_TRIP_FIRST_US)))
    }
}

// === A pod's view of one key, for people who ask why a request was denied ===

/// A pod's view of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyView {
    /// Tokens that it holds.
    pub tokens: u64,
    /// Tokens left at the store by its last reply; `None` if the reply is out of date.
    pub left: Option<u64>,
    /// Time until the limit is as if nothing had been charged, or has a token again if none is
    /// left; `None` if that is not known.
    pub resets_after: Option<Duration>,
    /// Whether the pod denies a charge without asking the store.
    pub denies: bool,
}

impl Limiter {
    /// Returns this pod's view of the key of `charge`, and does not change the key; `None` if the
    /// pod has no state of it.
    pub fn view(&self, charge: &Charge<'_>) -> Option<KeyView> {
        let now = self.shared.clock.now();
        self.shared.table.with_existing(charge.own, |state| state.view(now))
    }

    /// How much longer the key of `charge` is blocked by order; `None` if it is not.
    pub fn blocked_for(&self, charge: &Charge<'_>) -> Option<Duration> {
        self.shared.orders.charge_blocked_for(charge, self.shared.clock.now())
    }
}

#[cfg(test)]
mod tests;
