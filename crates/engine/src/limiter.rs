//! Decides requests: takes tokens from the buffers, waits for leases where it must, and makes the
//! verdict.
//!
//! This is the only module where buffers and the lease client meet.

mod attempt;
mod failure_mode;
mod key_state;
mod lease_policy;
mod maintenance;
mod options;
mod overflow;
mod pod_context;
mod pod_counts;
mod resolve;
mod round_trips;
mod single_descriptor;
mod transaction;
mod undo;
mod wait;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::request::Request;
use ratelease_rules::{Limit, Rules};

use crate::buffer::expired;
use crate::buffer::table::{Table, TableFull};
use crate::counter::{Count, Counter};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::lease::{LeaseClient, Reply, ShardCounters, ShardSnapshot};
use crate::store::{Ask, Store, StoreError};
use crate::time::{Clock, Time};
use crate::verdict::Verdict;

use attempt::Attempt;
use failure_mode::FailureModes;
use key_state::{KeyState, WAITER_BYTES, WAITING_IN_ALL_MAX, WATCH_EVERY};
pub use options::{Options, PODS_EXPECTED};
use pod_context::PodContext;
use pod_counts::PodCounts;
pub use resolve::{Charge, LimitedHits, Resolved, limits, resolve};
use round_trips::RoundTrips;
use transaction::Transaction;
use wait::ReplyReceiver;

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
                lease_client,
                failure_modes: FailureModes::new(clock, options.unix_start, options.pod),
                clock,
                options,
            }
        });
        Self { shared }
    }

    /// Decides `request` under `rules`. It waits `wait_min` at most, to which a leaky bucket may
    /// add its `max_delay`, until the request's slot begins.
    ///
    /// Every descriptor is checked before any is charged for good: if one denies, what was taken
    /// for the others goes back. Local information comes first, so that a denial found here sends
    /// no ask; all missing leases are asked for together. Where the store does not answer in time,
    /// the rule's failure mode decides.
    ///
    /// # Errors
    ///
    /// The store could not answer, the failure mode is `error`, and the replies that did arrive
    /// deny nothing. Then nothing is charged.
    pub async fn decide<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, StoreError> {
        self.decide_within(rules, request, None).await
    }

    /// As [`Limiter::decide`], for a caller that waits for the answer at most `caller`. The store
    /// may take that long, less a margin for the answer's way back, at least `wait_min` and at most
    /// `wait_max`.
    ///
    /// # Errors
    ///
    /// As [`Limiter::decide`].
    pub async fn decide_within<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        caller: Option<Duration>,
    ) -> Result<Verdict<'r>, StoreError> {
        let resolved = resolve(rules, request, &self.shared.options.hasher);
        let now = self.shared.clock.now();
        let mut transaction = Transaction::new(&self.shared, &resolved);
        transaction.take_local(now);
        if transaction.is_short() && !transaction.is_denied() {
            transaction.take_leased(now, now + self.shared.options.wait_for(caller)).await?;
        }
        if let Some(slot) = transaction.slot_after(now) {
            tokio::time::sleep_until(self.shared.clock.instant(slot)).await;
        }
        Ok(transaction.conclude(request, self.shared.clock.now()))
    }

    /// Number of pods of each domain that this pod has used, by the store's last reply.
    pub fn pods_by_domain(&self) -> Vec<(Box<str>, u32)> {
        self.shared.pods.all()
    }

    /// Assumes these numbers of pods for each domain until the store says how many there are.
    pub fn expect_pods(&self, pods: &[(Box<str>, u32)]) {
        self.shared.pods.expect(pods);
    }

    /// As [`Limiter::decide`] at `now`, if no wait is needed. `None` if one is: then nothing is
    /// charged, but an ask for the missing tokens may be on its way already, and the caller has to
    /// call `decide`. Allocates nothing for requests of two descriptors of four entries.
    pub fn decide_at_once<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        now: Time,
    ) -> Option<Verdict<'r>> {
        if let [descriptor] = &*request.descriptors {
            return self.shared.decide_one(rules, request, descriptor, now);
        }
        let resolved = resolve(rules, request, &self.shared.options.hasher);
        let mut transaction = Transaction::new(&self.shared, &resolved);
        transaction.take_local(now);
        let waits = (transaction.is_short() && !transaction.is_denied())
            || transaction.slot_after(now).is_some();
        (!waits).then(|| transaction.conclude(request, now))
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
        let Shared { table, idle, overflows, lease_client, failure_modes, options, .. } =
            &*self.shared;
        let idle_bytes = idle.lock().capacity() * maintenance::IDLE_BYTES;
        let mut counts = vec![
            (Counter::Keys, self.keys() as u64),
            (Counter::BufferBytes, (table.bytes() + idle_bytes) as u64),
            (Counter::BufferBudgetBytes, options.buffer_bytes_max as u64),
            (Counter::BufferWaitingBytes, table.heap_bytes() as u64),
            (Counter::BufferEvictions, table.evictions()),
            (Counter::BufferOverflows, overflows.load(Ordering::Relaxed)),
            (Counter::TokensExpired, expired()),
        ];
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
    /// not last. For a refund, previews its effect on the key.
    fn attempt(&self, charge: &Charge<'_>, now: Time) -> Result<Attempt, TableFull> {
        let attempt = || {
            self.with_state(charge, now, 0, |state, context, asks| {
                if charge.refund {
                    return state.preview_refund(charge, context);
                }
                let attempt = state.charge_and_note_demand(charge, context);
                if attempt.is_settled() {
                    state.request_next_window(charge, &attempt, context, asks);
                }
                // Also for a charge that is short: its request comes again at once, through
                // `enqueue`, and joins this ask. Where the store is far away it does not: the
                // request asks for itself, in time, and for as much as it lacks.
                if attempt.is_settled() || !state.is_distant(context) {
                    state.ask_ahead(charge, context, asks);
                }
                attempt
            })
        };
        match attempt() {
            Err(TableFull) if self.overflow(charge) => attempt(),
            attempted => attempted,
        }
    }

    /// Gives back what `charge` refunds: to a lease held here, else to the store.
    fn refund(&self, charge: &Charge<'_>, now: Time) {
        // Without room for the key the refund is lost, as when the store is unavailable.
        let _ = self
            .with_state(charge, now, 0, |state, context, asks| state.refund(charge, context, asks));
    }

    /// Charges the tokens held here, or queues for the next lease.
    fn enqueue(&self, charge: &Charge<'_>, now: Time) -> Result<ReplyReceiver, StoreError> {
        self.note_active(charge.domain(), now);
        self.with_state(charge, now, WAITER_BYTES, |state, context, asks| {
            state.enqueue(charge, context, asks)
        })
        .map_err(|TableFull| StoreError::NoRoom)?
    }

    /// Runs `visit` on the key of `charge`, then sends the asks that it adds, after the lock is
    /// released. `visit` may add up to `room` bytes to what waits at the key.
    fn with_state<R>(
        &self,
        charge: &Charge<'_>,
        now: Time,
        room: usize,
        visit: impl FnOnce(&mut KeyState, &PodContext<'_>, &mut Vec<Ask>) -> R,
    ) -> Result<R, TableFull> {
        let context = self.context(now);
        let mut asks = Vec::new();
        let (result, evicted) = self.table.with(
            charge.region(),
            now,
            room,
            || KeyState::new(charge, &context),
            |state| {
                state.bind_rule(charge, &context, &mut asks);
                visit(state, &context, &mut asks)
            },
        )?;
        if let Some((key, mut state)) = evicted {
            state.give_back(key, now, &mut asks);
        }
        self.queue_asks(asks);
        Ok(result)
    }

    /// Hands a reply of the store to its key, and asks again if requests still wait.
    fn on_reply(&self, reply: Reply) {
        let key = reply.ask.key;
        let context = self.context(self.clock.now());
        if reply.ask.is_return() {
            // No request waits for a return. Tokens that the store did not take are still held;
            // tokens lost on the way end with their lease.
            if reply.outcome.as_ref().is_err_and(StoreError::is_not_applied) {
                let starts = self.table.with_existing(key, |state| {
                    state.take_back_unsent(&reply, &context);
                    state.watch(&context)
                });
                if starts == Some(true) {
                    self.watch(key, context.now + WATCH_EVERY);
                }
            }
            return;
        }
        if let Ok(grant) = &reply.outcome {
            self.failure_modes.note_time(&reply, grant);
            self.round_trips.note(reply.ask.limit.store, context.now.since(reply.asked_at));
        }
        let mut asks = Vec::new();
        let visited = self.table.with_existing(key, |state| {
            let settled = state.reply(&reply, &context, &mut asks);
            let pods = if settled.returned > 0 { self.pods.of(state.domain()) } else { 1 };
            (state.watch(&context), settled, pods)
        });
        match visited {
            Some((starts, settled, pods)) => {
                if starts {
                    self.watch(key, context.now + WATCH_EVERY);
                }
                if settled.returned > 0 {
                    self.return_own(key, reply.ask.limit, settled.returned, pods);
                }
                self.failure_modes.note_unmetered(settled.unmetered);
            }
            // A key that was evicted meanwhile has no use for its lease.
            None => asks.extend(lease_policy::unwanted(&reply)),
        }
        self.queue_asks(asks);
    }

    /// Hands `asks` to the lease client. Refused asks are answered within this call, through
    /// [`Shared::on_reply`], so no lock of a key may be held.
    fn queue_asks(&self, asks: Vec<Ask>) {
        for ask in asks {
            self.lease_client.queue(ask);
        }
    }

    fn context(&self, now: Time) -> PodContext<'_> {
        let Options { pod, wait_min, .. } = self.options;
        PodContext {
            now,
            pods: &self.pods,
            pod,
            wait_min,
            round_trips: &self.round_trips,
            lease_client: &self.lease_client,
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

#[cfg(test)]
mod tests;
