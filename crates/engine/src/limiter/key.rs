//! The limiter's state of one key: its buffer, its demand, and the requests that wait.
//!
//! In this order: charges; requests that wait; the rare state of few keys; the next window; asks;
//! pools; replies and debts; unreported costs; tokens that go back; the limit.

mod slots;

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{Allowance, FailureMode, Limit, Rule, Unit};
use tokio::sync::oneshot;

use self::slots::SlotsAsked;
use crate::algorithm::{Token, counting};
use crate::buffer::table::{Entry, Link};
use crate::buffer::{Buffer, Cold, LeaseKind, LeasedTokens, Refill, Take};
use crate::lease::size::{Demand, LeaseSize};
use crate::lease::{LeaseClient, QUEUE_MAX, Reply};
use crate::limiter::lease_policy::{LeasePolicy, MISSES_MAX, Scarcity, unwanted};
use crate::limiter::pod_counts::PodCounts;
use crate::limiter::resolve::{Charge, failure_mode_of};
use crate::limiter::starts::Unspent;
use crate::limiter::{KeyView, RoundTrips};
use crate::rng::{fraction, mixed};
use crate::store::{Ask, Deposit, Grant, Purpose, Return, StoreError};
use crate::time::{CompactU64, Time};
use crate::verdict::{AppliedLimit, DecisionSource};

/// How often a key that holds more than its allowance is checked.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(200);

/// An ask is overdue once it has been out for this many round trips. The time is at least
/// [`OVERDUE_MIN`], and at least as long as every request may wait.
const OVERDUE_ROUND_TRIPS: u32 = 4;

/// The shortest time after which an ask is overdue: scheduling alone takes a few milliseconds on a
/// busy machine.
const OVERDUE_MIN: Duration = Duration::from_millis(100);

/// An ask that is out for this long was lost by an internal error, since the lease client answers
/// each ask within ten seconds.
const LOST_AFTER: Duration = Duration::from_secs(15);

/// After an ask was dropped because the budget was spent, no ask that could be dropped is made for
/// this long.
const SHED_PAUSE: Duration = Duration::from_millis(50);

/// How long after the store's last reply an ask for an empty key may be dropped because the budget
/// is spent: a flood of other keys must not keep the key denied for good.
const PROBES_SHED_FOR: Duration = Duration::from_secs(1);

/// State of one key: 88 bytes, since there are many keys. [`ColdState`] holds the rest, which only
/// few keys have.
pub(super) struct KeyState {
    buffer: Buffer<ColdState>,
    /// The rule of the key; `None` for an override.
    rule: Option<Arc<Rule>>,
    /// Requests in each window of an override; of a key of slots, those that are in use.
    number: u32,
    limit_source: LimitSource,
    flags: Flags,
    /// Number of asks on their way: one at a time, or several where the store is far away.
    asking: u8,
    /// The pool to ask for a split key, modulo the number of pools.
    pool: u8,
    demand: Demand,
    /// The round trip to the store, in microseconds: the last one if it took longer than the
    /// average, else a moving average.
    round_trip_us: CompactU64,
    chain_link: Link,
}

// === impl KeyState ===

impl KeyState {
    pub(super) fn new(charge: &Charge<'_>, pod: u64, round_trips: &RoundTrips) -> Self {
        let mut state = Self {
            buffer: Buffer::unknown(),
            rule: charge.applied.rule.cloned(),
            number: 0,
            limit_source: LimitSource::Rule,
            flags: Flags::default(),
            asking: 0,
            pool: first_pool(pod, charge.key()),
            demand: Demand::default(),
            round_trip_us: CompactU64::floor(round_trips.of(charge.applied.limit.store)),
            chain_link: Link::default(),
        };
        state.set_limit(charge.applied.limit);
        state
    }

    /// Binds the key to the rule and limit of `charge`. Tokens leased under another limit go back.
    pub(super) fn bind_rule(&mut self, charge: &Charge<'_>, visit: &mut Visit<'_>) {
        let AppliedLimit { limit, rule } = charge.applied;
        let same = self.rule.as_ref().map(Arc::as_ptr) == rule.map(Arc::as_ptr);
        // The limit of a charge with a rule is the limit of that rule.
        if same && rule.is_some() && matches!(self.limit_source, LimitSource::Rule) {
            return;
        }
        let pools = |rule: Option<&Arc<Rule>>| rule.map_or(0, |rule| rule.pools());
        if pools(self.rule.as_ref()) > pools(rule) && rule.is_some() {
            self.empty_pools(pools(rule), visit);
        }
        self.change_limit(limit, visit);
        if !same {
            self.rule = rule.cloned();
            self.set_limit(limit);
        }
    }

    fn note_demand(&mut self, charge: &Charge<'_>, now: Time) {
        self.demand.note(if charge.refund { 0 } else { charge.hits }, now);
    }

    /// Charges the tokens held, if they are enough; then the charge counts as demand. One that is
    /// short does not yet, since it comes again, to [`KeyState::enqueue`].
    pub(super) fn charge_and_note_demand(
        &mut self,
        charge: &Charge<'_>,
        visit: &Visit<'_>,
    ) -> Attempt {
        let attempt = self.try_charge(PendingCharge::of(charge), visit);
        if attempt.is_decided() {
            self.note_demand(charge, visit.now);
        }
        attempt
    }

    /// Charges the tokens held, if they have arrived meanwhile; or queues and, if no ask is out,
    /// makes one.
    ///
    /// # Errors
    ///
    /// The ask on its way is overdue, so that waiting for it would only delay the answer; the store
    /// refused the key recently; or too many requests wait.
    pub(super) fn enqueue(
        &mut self,
        charge: &Charge<'_>,
        visit: &mut Visit<'_>,
    ) -> Result<ReplyReceiver, StoreError> {
        let pending = PendingCharge::of(charge);
        self.note_demand(charge, visit.now);
        let attempt = self.try_charge(pending, visit);
        if attempt.is_decided() {
            return Ok(answered(Ok(attempt)));
        }
        self.forget_lost_ask(visit.now);
        if self.is_overdue(visit) {
            return Err(StoreError::Unavailable);
        }
        if self.asking == 0 && self.is_suspended(visit.now) {
            return Err(StoreError::ForeignValue);
        }
        let purpose = if self.is_probe(visit) { Purpose::Probe } else { Purpose::Request };
        let reply = self.buffer.make_cold().waiting.push(pending)?;
        if self.asking == 0 || self.is_uncovered(visit) {
            visit.asks.push(Ask { purpose, ..self.make_ask(visit) });
        }
        Ok(reply)
    }

    /// Whether a reply to an ask is still to come.
    pub(super) fn awaits_reply(&mut self, now: Time) -> bool {
        self.forget_lost_ask(now);
        self.asking > 0
    }

    /// Charges a cost of so many `hits` that has been incurred, without a wait. The tokens held pay
    /// for as much of it as they can. The store is asked to count the rest, which the key owes
    /// until then; a debt to a window ends with the window, at `until`. Returns the number of hits
    /// that the key owes more than before.
    pub(super) fn settle(
        &mut self,
        charge: &Charge<'_>,
        hits: u64,
        until: Time,
        visit: &mut Visit<'_>,
    ) -> u64 {
        self.demand.note(hits, visit.now);
        self.begin_next_window(visit.now);
        let LeasePolicy { limit, kind, .. } = self.policy(visit);
        let held = if limit == charge.applied.limit { self.buffer.tokens(visit.now) } else { 0 };
        let paid = held.min(hits);
        if paid > 0 {
            self.buffer.take(paid, false, kind, visit.now);
        }
        let rest = hits - paid;
        self.buffer.note_owed(rest, visit.now);
        if rest > 0 {
            self.owe(rest, until, visit.now);
            self.ask_for_owed(visit);
        }
        rest
    }

    /// The state of the key for a settlement, which changes it only when its request has its
    /// verdict.
    pub(super) fn preview_settlement(&self, visit: &Visit<'_>) -> Attempt {
        let taken = Take::Taken(LeasedTokens::default());
        Attempt::local(taken, self.quota(self.limit(), visit.now))
    }

    /// The effect of a refund on the key, if a lease is held here that can take the refund.
    pub(super) fn preview_refund(&self, charge: &Charge<'_>, visit: &Visit<'_>) -> Attempt {
        let Charge { applied: AppliedLimit { limit, .. }, hits, .. } = *charge;
        let LeasePolicy { limit: own, kind, .. } = self.policy(visit);
        let quota = self.quota(own, visit.now);
        if limit != own || !self.buffer.takes_refund(hits, kind, visit.now) {
            return Attempt::local(Take::Short, quota);
        }
        let remaining = quota.remaining.saturating_add(hits).min(limit.capacity());
        let quota = QuotaSnapshot { remaining, ..quota };
        Attempt::local(Take::Taken(LeasedTokens::default()), quota)
    }

    /// Credits the refund of `charge` to a lease held here if there is one, else to the store. The
    /// lease may then exceed the size that the pod would ask for: the excess goes on to the store.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, visit: &mut Visit<'_>) {
        let policy = self.policy(visit);
        if !self.try_charge(PendingCharge::of(charge), visit).is_decided() {
            let back = Some(Return { tokens: charge.hits, epoch: None });
            self.note_asked(visit.now);
            visit.asks.push(Ask { back, ..policy.blank_ask(visit.key) });
            return;
        }
        if !self.takes_returns(visit) {
            return;
        }
        let kept = self.lease_size(&policy, 0, visit).tokens();
        let excess = self.buffer.take_excess(kept, policy.kind, visit.now);
        visit.asks.extend(excess.and_then(|lease| policy.returning(visit.key, lease)));
    }

    /// After a charge, asks for the next lease while tokens last, if they will not last until it
    /// arrives.
    pub(super) fn ask_ahead(&mut self, visit: &mut Visit<'_>) {
        // For nearly all charges this check alone decides: the tokens last.
        let tokens = self.buffer.tokens(visit.now);
        if self.asking > 0 || !self.demand.outruns(tokens, self.round_trip()) {
            return;
        }
        if self.flags.has(Flags::SHED) && self.buffer.ask_age(visit.now) < SHED_PAUSE {
            return;
        }
        let policy = self.policy(visit);
        let soon = self.demand.uses_soon(policy.limit.window());
        let ahead = soon && policy.is_leased_by_number();
        // An empty bucket has a token again once the reply about it is no longer fresh.
        let left = self.buffer.left(visit.now).is_some_and(|left| left > 0);
        let refills = policy.inflow() > 0.0 && !self.buffer.is_fresh(visit.now);
        let more = (left || refills) && !self.is_suspended(visit.now);
        if ahead && more && self.lease_size(&policy, 0, visit).may_hold_ahead() {
            let purpose = Purpose::Ahead;
            visit.asks.push(Ask { purpose, ..self.make_ask(visit) });
        }
    }

    /// The pods that draw on the key, and how scarce its tokens are, as far as is known.
    fn scarcity(&self, visit: &Visit<'_>) -> Scarcity {
        Scarcity {
            pods: self.pods(visit),
            pod: visit.pod,
            misses: self.flags.misses(),
            relief: self.flags.has(Flags::RELIEF),
        }
    }

    /// Number of pods that share the key: the pods that draw on it, once that has been observed.
    fn pods(&self, visit: &Visit<'_>) -> f64 {
        let all = visit.pods.of(self.domain()).next_power_of_two();
        let all = f64::from(all);
        self.demand.pods().map_or(all, |seen| seen.min(all))
    }

    /// The state of the key, if its window is known to have less left than the charge and the debt.
    pub(super) fn used_up(&self, charge: &Charge<'_>, now: Time) -> Option<QuotaSnapshot> {
        let limit = self.limit();
        let due = self.debt(now).saturating_add(charge.hits);
        let is_short = self.buffer.is_live(now) && due > self.buffer.remaining(now);
        // The remaining tokens of a sliding window grow continuously.
        let lasts = matches!(counting(limit).token, Token::OfWindow | Token::Permit);
        let lasts = lasts && self.buffer.is_sure();
        let known = lasts && is_short && limit == charge.applied.limit;
        known.then(|| self.quota(limit, now))
    }

    /// Returns the state of the key for people to read.
    pub(super) fn view(&self, now: Time) -> KeyView {
        KeyView {
            tokens: self.buffer.tokens(now),
            left: self.buffer.left(now),
            resets_after: self.buffer.reset_after(now),
            denies: self.buffer.is_known_empty(now),
        }
    }

    /// The limit of its tokens, and its rule; `None` for an override.
    pub(super) fn bound_to(&self) -> (Limit, Option<Arc<Rule>>) {
        (self.limit(), self.rule.clone())
    }

    /// The domain of the key's rule; `None` for an override.
    pub(super) fn domain(&self) -> Option<&str> {
        self.rule.as_deref().and_then(Rule::domain)
    }

    /// The rule that the key's tokens were leased under; `None` for an override.
    pub(super) fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Replaces the rule by the same rule of a newer version.
    pub(super) fn renew(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(Arc::clone(rule));
    }

    fn policy(&self, visit: &Visit<'_>) -> LeasePolicy {
        LeasePolicy::of(self.limit(), self.rule.as_deref(), visit.wait_min)
    }

    /// The policy of the key for returns. It assumes no wait, since only a leaky bucket's slots may
    /// be taken late, and slots are never returned.
    fn return_policy(&self) -> LeasePolicy {
        LeasePolicy::of(self.limit(), self.rule.as_deref(), Duration::ZERO)
    }

    /// Charges the tokens held, or credits a refund to them, if they are enough; makes no ask.
    fn try_charge(&mut self, pending: PendingCharge, visit: &Visit<'_>) -> Attempt {
        let now = visit.now;
        self.begin_next_window(now);
        let LeasePolicy { limit, kind, .. } = self.policy(visit);
        let take = if pending.limit != limit {
            Take::Short
        } else if pending.refund {
            let refunded = self.buffer.refund(pending.hits, limit.capacity(), kind, now);
            if refunded { Take::Taken(LeasedTokens::default()) } else { Take::Short }
        } else {
            self.buffer.take(pending.hits, pending.charge_denied, kind, now)
        };
        if let Take::Taken(LeasedTokens { tokens: slots @ 1.., .. }) = take
            && !limit.algorithm.has_window()
        {
            self.note_in_use(slots);
        }
        Attempt::local(take, self.quota(limit, now))
    }

    fn quota(&self, limit: Limit, now: Time) -> QuotaSnapshot {
        let capacity = limit.capacity();
        let reset_after = self.buffer.reset_after(now);
        let remaining = reset_after.map_or(capacity, |_| self.buffer.remaining(now).min(capacity));
        QuotaSnapshot { remaining, reset_after }
    }

    fn has_waiting(&self) -> bool {
        self.buffer.cold().is_some_and(|cold| !cold.waiting.is_empty())
    }
}

// === The result of an attempt to charge a key ===

/// The result of an attempt to charge a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// Whether the charge was taken or denied. The tokens taken are put back if another descriptor
    /// denies the request; there are none if the charge passes without tokens.
    pub(super) take: Take,
    /// For a denied charge that spends the remaining tokens: the number of its hits that they paid
    /// for, as far as is known.
    pub(super) fitted: u64,
    /// The state of the key after the charge. If only the store can decide: the state as known so
    /// far.
    pub(super) quota: QuotaSnapshot,
    /// The source of the decision.
    pub(super) how: DecisionSource,
}

/// The state of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuotaSnapshot {
    /// Tokens that remain for the fleet, as far as is known.
    pub(super) remaining: u64,
    /// Time until the limit is as if nothing had been charged, or has a token again, where that is
    /// known.
    pub(super) reset_after: Option<Duration>,
}

// === impl Attempt ===

impl Attempt {
    /// An attempt that this pod has decided, or that only the store can decide.
    fn local(take: Take, quota: QuotaSnapshot) -> Self {
        Self { take, fitted: 0, quota, how: DecisionSource::Local }
    }

    /// An attempt at a key about which nothing is known.
    pub(super) fn unknown(charge: &Charge<'_>) -> Self {
        Self::local(Take::Short, QuotaSnapshot::unknown(charge))
    }

    /// A settlement at a key about which nothing is known.
    pub(super) fn settled(charge: &Charge<'_>) -> Self {
        Self::local(Take::Taken(LeasedTokens::default()), QuotaSnapshot::unknown(charge))
    }

    /// A denial, since this pod has no room for the charge.
    pub(super) fn shed(charge: &Charge<'_>) -> Self {
        let take = if charge.refund { Take::Taken(LeasedTokens::default()) } else { Take::Denied };
        let quota = QuotaSnapshot { remaining: 0, reset_after: None };
        Self { take, fitted: 0, quota, how: DecisionSource::Shed }
    }

    /// A denial, since an operator has blocked the key for this long.
    pub(super) fn blocked(lasts: Duration) -> Self {
        Self::local(Take::Denied, QuotaSnapshot { remaining: 0, reset_after: Some(lasts) })
    }

    /// Whether a failure mode let the charge pass.
    pub(super) fn is_admitted_by_failure_mode(&self) -> bool {
        matches!((self.how, self.take), (DecisionSource::Failure(_), Take::Taken(_)))
    }

    /// Whether the charge was taken or denied.
    pub(super) fn is_decided(&self) -> bool {
        self.take != Take::Short
    }

    /// Whether the charge was denied.
    pub(super) fn is_over(&self) -> bool {
        self.take == Take::Denied
    }

    /// The tokens taken; an empty lease if there are none.
    pub(super) fn taken(&self) -> LeasedTokens {
        match self.take {
            Take::Taken(lease) => lease,
            Take::Denied | Take::Short => LeasedTokens::default(),
        }
    }

    /// When the slot of a leaky bucket begins that the charge took, if that is after `now`. A
    /// charge that was denied, but whose rule lets it pass, has no slot.
    pub(super) fn slot_after(&self, now: Time) -> Option<Time> {
        Some(self.taken().starts).filter(|starts| *starts > now)
    }
}

// === impl QuotaSnapshot ===

impl QuotaSnapshot {
    /// For a key about which nothing is known: as if nothing had been charged.
    fn unknown(charge: &Charge<'_>) -> Self {
        Self { remaining: charge.applied.limit.capacity(), reset_after: None }
    }
}

// === The requests that wait for a key's next lease ===

/// The largest number of requests that wait for the lease of one key: half of those that may wait
/// at all keys, so that one key cannot keep the others out. Further ones do not wait.
pub(super) const WAITING_MAX: usize = 16 * 1024;

/// The bytes that a waiting request takes. Its waiter is an item of a deque, which may be half
/// empty and is copied when it grows. The channel of its reply is allocated by tokio: the reply,
/// two wakers and three counters.
const QUEUED_BYTES: usize = 4 * size_of::<Waiter>()
    + size_of::<Option<Result<Attempt, StoreError>>>()
    + 7 * size_of::<usize>();

/// Waiting requests, first come, first served.
#[derive(Debug, Default)]
struct Waiters {
    waiters: VecDeque<Waiter>,
    /// Hits of the waiting charges under all limits, or more: of some that have been answered too.
    hits: u64,
}

/// Receives the outcome of a waiting charge.
pub(super) type ReplyReceiver = oneshot::Receiver<Result<Attempt, StoreError>>;

/// A receiver whose outcome has arrived already.
pub(super) fn answered(outcome: Result<Attempt, StoreError>) -> ReplyReceiver {
    let (sender, reply) = oneshot::channel();
    // The receiver still exists, so sending cannot fail.
    let _ = sender.send(outcome);
    reply
}

/// A waiting request.
#[derive(Debug)]
struct Waiter {
    pending: PendingCharge,
    sender: oneshot::Sender<Result<Attempt, StoreError>>,
}

/// The needs of a charge from its key.
#[derive(Debug, Clone, Copy)]
struct PendingCharge {
    /// The limit of the charge. Two limits of one window share a count: a rule's and an override's,
    /// or two overrides'.
    limit: Limit,
    hits: u64,
    refund: bool,
    charge_denied: bool,
}

// === impl Waiters ===

impl Waiters {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    fn len(&self) -> usize {
        self.waiters.len()
    }

    fn first(&self) -> Option<PendingCharge> {
        self.waiters.front().map(|waiter| waiter.pending)
    }

    /// The charges held to `limit`, in order.
    fn under(&self, limit: Limit) -> impl Iterator<Item = PendingCharge> {
        self.waiters
            .iter()
            .map(|waiter| waiter.pending)
            .filter(move |pending| pending.limit == limit)
    }

    /// Hits of the charges held to `limit` that take tokens.
    fn wanted(&self, limit: Limit) -> u64 {
        let spending = self.under(limit).filter(PendingCharge::spends);
        spending.fold(0, |sum, pending| sum.saturating_add(pending.hits))
    }

    /// Whether the charges held to `limit` want more than `tokens`. Nearly always the sum of all
    /// hits decides, so that the charges need not be looked at one by one.
    fn want_more_than(&self, tokens: u64, limit: Limit) -> bool {
        self.hits > tokens && self.wanted(limit) > tokens
    }

    /// Adds `pending` at the end.
    ///
    /// # Errors
    ///
    /// There is no room.
    fn push(&mut self, pending: PendingCharge) -> Result<ReplyReceiver, StoreError> {
        self.make_room();
        if self.len() >= WAITING_MAX {
            return Err(StoreError::NoRoom);
        }
        let (sender, reply) = oneshot::channel();
        self.push_back(Waiter { pending, sender });
        Ok(reply)
    }

    /// Where the queue is full or would grow, first drops the requests that gave up: so they take
    /// no more room than those that wait, and below the ceiling each is looked at a few times only.
    fn make_room(&mut self) {
        let capacity = self.waiters.capacity();
        if self.len() < capacity.min(WAITING_MAX) {
            return;
        }
        self.forget_answered();
        if self.len() > capacity / 4 * 3 && self.len() < WAITING_MAX {
            self.waiters.reserve(capacity);
        }
    }

    /// Takes the hits out of the refunds held to `limit`, to be sent to the store. The emptied
    /// refunds wait for the store's reply.
    fn take_refunds(&mut self, limit: Limit) -> u64 {
        let charges = self.waiters.iter_mut().map(|waiter| &mut waiter.pending);
        let refunds = charges.filter(|pending| pending.refund && pending.limit == limit);
        refunds.fold(0, |sum: u64, pending| sum.saturating_add(std::mem::take(&mut pending.hits)))
    }

    /// Drops the requests that have been answered otherwise, except refunds that are still to be
    /// sent.
    fn forget_answered(&mut self) {
        self.hits = 0;
        self.waiters.retain(|waiter| {
            let needed = waiter.is_needed();
            self.hits = self.hits.saturating_add(if needed { waiter.pending.hits } else { 0 });
            needed
        });
        if self.waiters.capacity() / 2 > self.waiters.len() {
            // The capacity must not exceed the bytes counted for these waiters.
            self.waiters.shrink_to_fit();
        }
    }

    /// Removes and returns all that still wait; those that go on waiting must be put back with
    /// `push_back`.
    fn take_all(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        let Self { waiters, .. } = std::mem::take(self);
        waiters.into_iter().filter(Waiter::is_needed)
    }

    fn push_back(&mut self, waiter: Waiter) {
        self.hits = self.hits.saturating_add(waiter.pending.hits);
        self.waiters.push_back(waiter);
    }
}

// === impl Waiter ===

impl Waiter {
    /// Whether it is still needed: its request waits, or its refund has yet to be sent.
    fn is_needed(&self) -> bool {
        !self.sender.is_closed() || (self.pending.refund && self.pending.hits > 0)
    }

    /// Sends the outcome to the request. If the request is gone, returns the outcome.
    fn answer(self, reply: Result<Attempt, StoreError>) -> Option<Attempt> {
        self.sender.send(reply).err()?.ok()
    }
}

// === impl PendingCharge ===

impl PendingCharge {
    fn of(charge: &Charge<'_>) -> Self {
        Self {
            limit: charge.applied.limit,
            hits: charge.hits,
            refund: charge.refund,
            charge_denied: charge.charge_denied(),
        }
    }

    fn spends(&self) -> bool {
        self.hits > 0 && !self.refund
    }
}

/// The pool of a split key that a pod asks: a different one for each pod, as far as there are
/// enough pools.
#[allow(clippy::cast_possible_truncation, reason = "the lowest byte is what is meant")]
fn first_pool(pod: u64, key: Key) -> u8 {
    pod.wrapping_add(key.bits()) as u8
}

// === A visit of a key ===

/// A visit of a key, under the lock of its state: the facts about its pod that the key needs, and
/// the effects of the visit, which follow once the lock is released.
pub(super) struct Visit<'a> {
    pub(super) key: Key,
    pub(super) now: Time,
    pub(super) pods: &'a PodCounts,
    /// This pod's number.
    pub(super) pod: u64,
    /// The number of the next ask that states slots.
    pub(super) slot_asks: &'a AtomicU32,
    /// The time that a request may wait for a lease, whatever its caller's deadline.
    pub(super) wait_min: Duration,
    pub(super) lease_client: &'a LeaseClient,
    /// Asks to send.
    pub(super) asks: Vec<Ask>,
    /// The key is watched from now on.
    pub(super) starts_watch: bool,
}

// === The interface of a key to the table ===

impl Entry for KeyState {
    fn idle_for(&self, now: Time) -> Duration {
        self.demand.idle_for(now)
    }

    fn is_busy(&self) -> bool {
        self.asking > 0 || self.has_waiting() || self.in_use() > 0
    }

    fn is_live(&self, now: Time) -> bool {
        let owes = self.debt(now) > 0 || self.owed(now) > 0;
        owes || self.buffer.is_live(now) || self.has_next_window(now)
    }

    fn heap(&self) -> usize {
        self.buffer.cold().map_or(0, ColdState::heap)
    }

    /// Drops rare state to free memory: a refused key may be asked for again, admitted hits are
    /// not paid for unless an ask is out, and of two leases one ends too soon. Waiting requests
    /// stay.
    fn shed(&mut self) {
        if self.asking == 0 {
            self.set_debt(0);
        }
        self.resume();
        if let Some(cold) = self.buffer.cold_mut() {
            cold.next_window = None; // its tokens end with their window
        }
        self.buffer.join_leases(self.return_policy().kind);
        self.buffer.trim();
    }

    fn chain_link(&self) -> Link {
        self.chain_link
    }

    fn set_chain_link(&mut self, link: Link) {
        self.chain_link = link;
    }
}

// === State of a key that fits into a few bits ===

/// A byte of flags and a small counter.
#[derive(Debug, Clone, Copy, Default)]
struct Flags(u8);

const _: () = assert!((MISSES_MAX + 1).is_power_of_two() && MISSES_MAX < Flags::NEXT_WINDOW_ASKED);

// === impl Flags ===

impl Flags {
    /// A check of the key is scheduled, since it holds more than its allowance.
    const WATCHED: u8 = 1 << 7;
    /// The key weighs on its shard, so that it is asked for less often.
    const RELIEF: u8 = 1 << 6;
    /// The pool of a split key had too little at the last ask.
    const POOL_EMPTY: u8 = 1 << 5;
    /// The last ask was dropped because the budget was spent.
    const SHED: u8 = 1 << 4;
    /// A lease of the next window has been asked for.
    const NEXT_WINDOW_ASKED: u8 = 1 << 3;

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u8, on: bool) {
        self.0 = if on { self.0 | flag } else { self.0 & !flag };
    }

    /// Number of asks in a row that found no tokens, up to [`MISSES_MAX`].
    fn misses(self) -> u8 {
        self.0 & MISSES_MAX
    }

    fn note_miss(&mut self, missed: bool) {
        let misses = if missed { (self.misses() + 1).min(MISSES_MAX) } else { 0 };
        self.0 = self.0 & !MISSES_MAX | misses;
    }
}

// === State that only few keys have at a time, in an optional box beside the key's buffer ===

/// Bytes counted for each waiting request: its item in the queue, and the box that contains the
/// queue.
pub(super) const WAITER_BYTES: usize = QUEUED_BYTES + ColdState::BYTES;

/// The largest number of requests that wait for leases, at all keys together: eight times the asks
/// in the lease client's queue for a shard, since a request that gave up stays until its lease
/// arrives. At most 16 MiB.
pub(super) const WAITING_IN_ALL_MAX: usize = 8 * QUEUE_MAX;

const _: () = assert!(WAITING_IN_ALL_MAX * WAITER_BYTES <= 16 << 20);
const _: () = assert!(2 * WAITING_MAX <= WAITING_IN_ALL_MAX);

/// Waiting requests, and other state that a key has only in rare cases.
#[derive(Debug, Default)]
struct ColdState {
    waiting: Waiters,
    /// Hits that a failure mode has admitted although the store can be asked: the leases that
    /// arrive pay for them.
    debt: u64,
    /// When the debt ends unpaid, since the limit is then as if the hits had not been.
    debt_until: Time,
    /// Tokens that the asks on their way may bring to waiting requests.
    expected: u64,
    slots_asked: SlotsAsked,
    owed: Option<Box<Owed>>,
    /// Until when the store is not asked, since it holds another program's value under the key.
    suspended_until: Time,
    /// A lease of the next window, which has not begun yet.
    next_window: Option<Box<Refill>>,
    /// The limit that the tokens were leased under, if it is neither the rule's nor an override's.
    limit: Option<Box<Limit>>,
}

// === impl ColdState ===

impl ColdState {
    /// Bytes of a box.
    const BYTES: usize = Buffer::<Self>::COLD_BYTES;

    /// Bytes counted for the box and the requests that wait in it.
    fn heap(&self) -> usize {
        let next = if self.next_window.is_some() { size_of::<Refill>() } else { 0 };
        let next = next + if self.owed.is_some() { size_of::<Owed>() } else { 0 };
        match self.waiting.len() {
            0 => Self::BYTES + next,
            waiting => waiting * WAITER_BYTES + next,
        }
    }
}

/// Costs that have been incurred and that the store has not counted yet.
#[derive(Debug, Default)]
struct Owed {
    hits: u64,
    /// The number of `hits` that the asks on their way report.
    asked: u64,
    /// When they end uncounted, since their window does.
    until: Time,
    /// Whether the store may have counted some of them, since an ask's fate is not known: they are
    /// reported again, once, after the store has answered.
    held_back: bool,
}

impl Cold for ColdState {
    fn is_empty(&self) -> bool {
        let Self { waiting, debt, expected, owed, suspended_until, next_window, limit, .. } = self;
        let is_suspended = *suspended_until > Time::default();
        waiting.is_empty()
            && *debt == 0
            && *expected == 0
            && owed.is_none()
            && !is_suspended
            && limit.is_none()
            && next_window.is_none()
    }
}

// Leases of the next fixed window, asked for in the last tenth of the present one, so that a
// window does not begin with an ask from every pod for every key.
//
// Such a lease waits beside the buffer until its window has begun by the store's clock. Its start
// counts from the reply, so that no token is spent too early, and its end from before the ask, so
// that none is spent too late.

/// The next window is leased in this last part (1 / 10) of the present one.
const LAST_PART: u32 = 10;

/// A key that waits for its next window is not checked within this time before the window begins,
/// and is checked at most this long after the beginning. Keys are checked in the order in which
/// they came to be watched, so a key that waits for its window holds up the others.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// The fraction at the end of that part in which no pod asks, to leave time for a round trip.
const UNUSED: f64 = 0.2;

impl KeyState {
    /// After a charge near the end of its window, asks for a lease of the next window if the demand
    /// will use it at once. It asks once, at a time that differs from pod to pod.
    pub(super) fn request_next_window(
        &mut self,
        charge: &Charge<'_>,
        attempt: &Attempt,
        visit: &mut Visit<'_>,
    ) {
        let limit = charge.applied.limit;
        let Some(rest) = attempt.quota.reset_after else { return };
        if self.flags.has(Flags::NEXT_WINDOW_ASKED)
            || self.has_next_window(visit.now)
            || counting(limit).token != Token::OfWindow
            || rest > limit.window() / LAST_PART
            || self.asking > 0
        {
            return;
        }
        let at = UNUSED + (1.0 - UNUSED) * self.position(visit);
        if rest <= (limit.window() / LAST_PART).mul_f64(at) {
            self.ask_for_next_window(visit);
        }
    }

    fn ask_for_next_window(&mut self, visit: &mut Visit<'_>) {
        let policy = self.policy(visit);
        let limit = policy.limit.capacity();
        let lasts = Some(policy.limit.window());
        let size = LeaseSize { left: limit, lasts, ..self.lease_size(&policy, 0, visit) };
        let used = self.demand.uses_soon(policy.limit.window()) && size.may_hold_ahead();
        // A window to which a debt is carried over may have nothing to lend.
        let may_begin_in_debt = policy.carries_debt;
        let is_windowed = policy.kind == LeaseKind::Windowed;
        if !is_windowed || !policy.is_leased() || !used || may_begin_in_debt {
            return;
        }
        self.flags.set(Flags::NEXT_WINDOW_ASKED, true);
        self.note_asked(visit.now);
        visit.asks.push(Ask {
            want: size.tokens(),
            purpose: Purpose::Ahead,
            next_window: true,
            ..policy.blank_ask(visit.key)
        });
    }

    /// Stores the lease of the next window until that window begins.
    fn keep_next_window(&mut self, reply: &Reply, grant: &Grant, visit: &mut Visit<'_>) {
        let policy = self.policy(visit);
        if policy.limit != reply.ask.limit || policy.kind != LeaseKind::Windowed {
            visit.asks.extend(unwanted(reply)); // the limit has changed meanwhile
            return;
        }
        if grant.tokens == 0 {
            return;
        }
        self.give_back_next_window(visit);
        let refill = policy.refill(reply, grant, self.scarcity(visit), visit.now);
        let fresh_until = refill.lease.starts;
        self.buffer.make_cold().next_window = Some(Box::new(Refill { fresh_until, ..refill }));
    }

    /// Makes the waiting lease the present one, once its window has begun.
    fn begin_next_window(&mut self, now: Time) {
        let Some(cold) = self.buffer.cold_mut() else { return };
        let Some(refill) = cold.next_window.take_if(|refill| now >= refill.lease.starts) else {
            return;
        };
        self.flags.set(Flags::NEXT_WINDOW_ASKED, false);
        let known = self.buffer.is_live(now) && self.buffer.epoch() == refill.lease.epoch;
        if known {
            self.buffer.put_back(refill.lease, LeaseKind::Windowed, now);
        } else {
            self.buffer.refill(*refill, LeaseKind::Windowed, now);
        }
        self.buffer.trim();
    }

    /// When to check whether the waiting lease is used, if its window begins soon. The check comes
    /// some time after the beginning, different for each pod and key. So the tokens that idle keys
    /// give back do not reach the masters all at once with the window's first asks.
    fn checks_next_window_at(&self, visit: &Visit<'_>) -> Option<Time> {
        let begins = self.buffer.cold()?.next_window.as_ref()?.lease.starts;
        let spread = (self.limit().window() / LAST_PART).min(LOOK_WITHIN);
        let soon = begins.since(visit.now) <= LOOK_WITHIN;
        soon.then(|| begins + spread.mul_f64(self.position(visit)))
    }

    /// This pod's position among all pods that hold the key, from 0 to 1; different in each window.
    fn position(&self, visit: &Visit<'_>) -> f64 {
        fraction(mixed(visit.key.bits() ^ mixed(visit.pod ^ self.buffer.epoch())))
    }

    /// Whether a lease waits for its window, and that window is not over yet.
    fn has_next_window(&self, now: Time) -> bool {
        let next = self.buffer.cold().and_then(|cold| cold.next_window.as_ref());
        next.is_some_and(|refill| now < refill.lease.ends)
    }

    /// Removes the waiting lease, which is given back.
    fn give_back_next_window(&mut self, visit: &mut Visit<'_>) {
        let next = self.buffer.cold_mut().and_then(|cold| cold.next_window.take());
        if let Some(refill) = next {
            visit.asks.extend(self.return_policy().returning(visit.key, refill.lease));
            self.buffer.trim();
        }
    }
}

// === The asks of a key: their tokens, their time, and the tokens that they return ===

/// The largest number of asks for one key that are out at once, where the store is so far away that
/// a request cannot wait for one ask after the other.
const ASKS_MAX: u8 = 8;

impl KeyState {
    /// The next ask. Its `want` includes the tokens that all waiting charges lack, and the debt.
    /// The `need` is the number that one of the charges lacks: the first in the queue, or the last
    /// if other asks are out. That number is granted completely or not at all. Looks ask for no
    /// tokens, and requests held to another limit are left out. Refunds for which no lease was held
    /// here go to the store with the ask.
    fn make_ask(&mut self, visit: &Visit<'_>) -> Ask {
        let expected = self.expected();
        self.note_asked(visit.now);
        let policy = self.policy(visit);
        let refunds = self.buffer.cold_mut().map_or(0, |cold| {
            // A request that has been answered already needs no tokens and is not charged.
            cold.waiting.forget_answered();
            cold.waiting.take_refunds(policy.limit)
        });
        let waiting = self.buffer.cold().map(|cold| &cold.waiting);
        // Slots that are held pass while a charge waits for more, so a charge gets all its slots at
        // once.
        let held = if policy.kind.is_spaced() { 0 } else { self.buffer.tokens(visit.now) };
        let charges = || {
            waiting
                .into_iter()
                .flat_map(|queue| queue.under(policy.limit))
                .filter(PendingCharge::spends)
        };
        let wanted = waiting.map_or(0, |queue| queue.wanted(policy.limit));
        let wanted = wanted.saturating_add(self.debt(visit.now));
        let missing = wanted.saturating_sub(held).saturating_sub(expected);
        // With other asks out, the newest charge, for which this ask is made: the charges before it
        // are covered by those asks, or are asked for again after the replies.
        let needy = if expected > 0 { charges().last() } else { charges().next() };
        let need = needy.map_or(0, |pending| pending.hits.saturating_sub(held));
        let size = self.lease_size(&policy, missing, visit);
        let owed = self.report_owed(visit.now);
        // A pool does not know whether the key is overdrawn, which is all that looks ask.
        let looks = needy.is_none() && self.has_waiting();
        let is_for_count = looks || refunds > 0 || owed > 0;
        let pool = self.pool(&policy, &size, visit.now).filter(|_| !is_for_count);
        let want = match needy {
            None if looks => 0,
            // The slots of one lease follow each other faster than one pod's part of the demand.
            _ if policy.is_leased_by_number() => {
                let fill = if pool.is_none() { self.fill(&policy, &size, visit) } else { 0 };
                size.tokens().max(need).saturating_add(fill)
            }
            _ => missing,
        };
        // A pool grants the tokens that it has, and never denies.
        let own = pool.is_none();
        let slots = self.stated(visit);
        // Slots that an ask may bring are expected even if no request waits for them.
        if needy.is_some() || (slots.is_some() && want > 0) {
            self.buffer.make_cold().expected = expected.saturating_add(want.max(need));
        }
        if let Some(slots) = slots.filter(|_| expected == 0 && want.max(need) > 0) {
            self.note_asked_for(slots);
        }
        Ask {
            want,
            need: if own { need } else { 0 },
            charge_denied: own && needy.is_some_and(|pending| pending.charge_denied),
            owed,
            slots,
            back: (refunds > 0).then_some(Return { tokens: refunds, epoch: None }),
            pool,
            ..policy.blank_ask(visit.key)
        }
    }

    /// Notes that an ask is sent.
    fn note_asked(&mut self, now: Time) {
        self.flags.set(Flags::SHED, false);
        if self.asking == 0 {
            self.buffer.note_ask(now);
        }
        self.asking = self.asking.saturating_add(1);
    }

    /// Notes that `ask` has been answered. If others are still out, the time to the next reply
    /// counts from now. None may be out: after the machine was suspended, an ask that counted as
    /// lost is answered after all.
    fn note_answered(&mut self, ask: &Ask, now: Time) {
        self.asking = self.asking.saturating_sub(1);
        self.buffer.note_ask(now);
        let out = self.asking > 0;
        if let Some(cold) = self.buffer.cold_mut() {
            let expected = cold.expected.saturating_sub(ask.want.max(ask.need));
            cold.expected = if out { expected } else { 0 };
        }
    }

    /// Tokens that the asks on their way may bring to waiting requests.
    fn expected(&self) -> u64 {
        self.buffer.cold().map_or(0, |cold| cold.expected)
    }

    /// Whether an ask made now would only find out whether an empty key is still empty. This is not
    /// so for a bucket that had a token at the last ask, since it has another one soon.
    fn is_probe(&self, visit: &Visit<'_>) -> bool {
        let refills = self.policy(visit).inflow() > 0.0 && self.flags.misses() == 0;
        let recent = visit.now.since(self.buffer.replied_at()) < PROBES_SHED_FOR;
        self.buffer.is_known_empty(visit.now) && recent && !refills
    }

    /// Whether a request has no time to wait for three asks in sequence: the one that is out, one
    /// that brings less than is wanted, and one that is denied.
    pub(super) fn is_distant(&self, visit: &Visit<'_>) -> bool {
        3 * self.round_trip() > visit.wait_min
    }

    /// Whether the waiting requests want more than the asks on their way may bring, and there is no
    /// time to ask again after the replies.
    fn is_uncovered(&self, visit: &Visit<'_>) -> bool {
        let empty = self.buffer.is_known_empty(visit.now); // one probe is enough
        let is_distant = self.is_distant(visit) || self.is_unmeasured();
        if empty || !is_distant || self.asking >= ASKS_MAX {
            return false;
        }
        let Some(cold) = self.buffer.cold() else { return false };
        let covered = self.expected().saturating_add(self.buffer.tokens(visit.now));
        cold.waiting.want_more_than(covered, self.limit())
    }

    fn lease_size(&self, policy: &LeasePolicy, waiting: u64, visit: &Visit<'_>) -> LeaseSize {
        let limit = policy.limit.capacity();
        let lasts = match policy.kind {
            LeaseKind::Windowed => self.buffer.known_for(visit.now),
            // A sliding window's leases also end with their aligned window.
            LeaseKind::Timed if slides(policy.limit) => {
                Some(self.rest_of_window(visit.now).min(policy.ttl()))
            }
            LeaseKind::Timed | LeaseKind::Spaced { .. } => Some(policy.ttl()),
        };
        LeaseSize {
            demand: self.demand.steady_rate(),
            burst: self.demand.burst_rate(),
            run: self.demand.run_length(),
            waiting,
            limit,
            left: self.buffer.left(visit.now).unwrap_or(limit),
            inflow: policy.inflow(),
            lasts,
            round_trip: self.round_trip(),
            pods: self.pods(visit),
            relief: self.flags.has(Flags::RELIEF),
            terms: policy.terms(),
        }
    }

    /// Time until the aligned window of a sliding one ends, at most. This pod's clock counts from
    /// before the ask, so by it the window ends up to a round trip too soon. A lease that the store
    /// grants within that time ends at once, and counts against the next window.
    fn rest_of_window(&self, now: Time) -> Duration {
        // A reply that comes after the end says nothing of the key, so its time counts as the end.
        let ended = self.buffer.known_until().max(self.buffer.replied_at());
        match self.buffer.known_for(now) {
            Some(rest) => rest,
            None if now.since(ended) < self.round_trip() => Duration::ZERO,
            None => Duration::MAX,
        }
    }

    fn holds_above_allowance(&self, visit: &Visit<'_>) -> bool {
        let policy = self.policy(visit);
        let tokens = self.buffer.tokens(visit.now);
        let spaced = policy.kind.is_spaced();
        let allowance = || self.lease_size(&policy, 0, visit).unspent_allowance();
        self.has_next_window(visit.now) || (tokens > 0 && !spaced && tokens as f64 > allowance())
    }

    /// Whether the reply to the ask on its way is overdue.
    fn is_overdue(&self, visit: &Visit<'_>) -> bool {
        let trips = self.round_trip() * OVERDUE_ROUND_TRIPS;
        let asked_for = self.buffer.ask_age(visit.now);
        self.asking > 0 && asked_for > trips.max(OVERDUE_MIN).max(visit.wait_min)
    }

    fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.get())
    }

    fn note_round_trip(&mut self, measured: Duration) {
        let measured = u64::try_from(measured.as_micros()).unwrap_or(u64::MAX);
        let before = self.round_trip_us.get();
        let smooth = before - before / 8 + measured / 8;
        self.round_trip_us = CompactU64::floor(smooth.max(measured));
    }
}

/// Whether the remaining tokens of a window grow while it passes.
fn slides(limit: Limit) -> bool {
    let counting = counting(limit);
    counting.is_windowed && counting.token == Token::Steady
}

// The pools of a split key (`shards`): tokens that the key's own count has leased, on slots of
// their own, from which pods take smaller leases.
//
// The own count always holds the whole limit, so the number of pools does not change the bound. A
// pod takes from one pool; if that is empty, the pod asks the own count, and occasionally for so
// much more that the other pods of its pool need not ask. Near the end of a limit, where a pod's
// part is about one token, all pods ask the own count.

/// The number of pods that fill their pool, on average, among those that find it empty at once.
const FILLING: f64 = 2.0;

/// The smallest lease that is worth taking from a pool: below it, the count itself is near its end.
const LEASE_MIN: u64 = 2;

impl KeyState {
    /// The pool to ask for a lease of this `size`; `None` if the own count has to be asked.
    fn pool(&self, policy: &LeasePolicy, size: &LeaseSize, now: Time) -> Option<u8> {
        // While the own count has nothing left, costs may be owed to it, and looks wait until they
        // are paid, whatever a pool still holds.
        let lends = |left| left > 0 || !policy.settles;
        let known = self.buffer.left(now).is_some_and(lends) && !self.flags.has(Flags::POOL_EMPTY);
        (known && is_pooled(policy, size)).then(|| self.pool % policy.pools)
    }

    /// The number of tokens to ask the own count for in addition to a lease, to be put into the
    /// pool.
    fn fill(&self, policy: &LeasePolicy, size: &LeaseSize, visit: &Visit<'_>) -> u64 {
        if !self.flags.has(Flags::POOL_EMPTY) || !is_pooled(policy, size) {
            return 0;
        }
        let others = size.pods / f64::from(policy.pools.get()) - 1.0;
        let drawn = fraction(mixed(visit.key.bits() ^ mixed(visit.pod ^ visit.now.nanos())));
        if drawn * (others + 1.0) > FILLING {
            return 0;
        }
        size.for_pool(others, policy.pools)
    }

    /// Applies a pool's grant. Notes whether the pool leased less than was asked for.
    fn take_from_pool(&mut self, reply: &Reply, grant: &Grant, visit: &mut Visit<'_>) {
        self.flags.set(Flags::POOL_EMPTY, grant.tokens < reply.ask.want);
        if grant.tokens == 0 {
            return;
        }
        let LeasePolicy { kind, limit, .. } = self.policy(visit);
        let windowed = counting(limit).is_windowed;
        // A pool may end late, by the time that the deposit took to arrive: cut to the window's
        // end.
        let ends = reply.asked_at + grant.ends_after;
        let ends = match self.buffer.known_for(visit.now) {
            Some(rest) if windowed => ends.min(visit.now + rest),
            _ => ends,
        };
        let lease = LeasedTokens {
            tokens: grant.tokens,
            epoch: grant.epoch,
            starts: Time::default(),
            ends,
        };
        let is_useful = !kind.is_spaced() && (!windowed || grant.epoch == self.buffer.epoch());
        if is_useful && limit == reply.ask.limit {
            self.buffer.put_back(lease, kind, visit.now);
            self.pay_owed(kind, visit.now);
            self.serve(visit);
        } else {
            visit.asks.extend(unwanted(reply));
        }
    }

    /// After a grant of the own count, puts the tokens above a lease into the pool.
    fn fill_pool(&mut self, visit: &mut Visit<'_>) {
        let policy = self.policy(visit);
        if policy.pools.get() == 1 {
            return;
        }
        self.flags.set(Flags::POOL_EMPTY, false);
        let size = self.lease_size(&policy, 0, visit);
        let kept = size.tokens();
        let excess = self.buffer.tokens(visit.now).saturating_sub(kept);
        if excess < kept || !is_pooled(&policy, &size) {
            return;
        }
        let pool = Some(self.pool % policy.pools);
        let deposit = Ask { pool, purpose: Purpose::Return, ..policy.blank_ask(visit.key) };
        if !visit.lease_client.takes(&deposit) {
            return; // the excess goes back to the own count
        }
        let Some(lease) = self.buffer.take_out(kept, policy.kind, visit.now) else { return };
        // Less the time to the store and back, which the pool's clock does not count.
        let lasts = lease.ends.since(visit.now).saturating_sub(2 * self.round_trip());
        let lease = Some(Deposit { tokens: lease.tokens, epoch: lease.epoch, lasts });
        visit.asks.push(Ask { deposit: lease, ..deposit });
    }

    /// Before a change to a rule with fewer pools: if this pod leases from a pool, asks that pool
    /// for all its tokens. The pod gives back the tokens that it does not use itself. A pool that
    /// no pod asks in this way ends with its leases.
    fn empty_pools(&mut self, kept: u8, visit: &mut Visit<'_>) {
        let policy = self.policy(visit);
        let pool = self.pool % policy.pools;
        let live = self.buffer.left(visit.now).is_some();
        if pool < kept || !live || !is_pooled(&policy, &self.lease_size(&policy, 0, visit)) {
            return;
        }
        self.note_asked(visit.now);
        visit.asks.push(Ask {
            pool: Some(pool),
            want: u64::MAX,
            purpose: Purpose::Ahead,
            ..policy.blank_ask(visit.key)
        });
    }
}

/// Whether leases of this `size` come from pools: there are more pods than pools, and much is left.
fn is_pooled(policy: &LeasePolicy, size: &LeaseSize) -> bool {
    let pods = size.pods > f64::from(policy.pools.get());
    pods && policy.pools.get() > 1 && policy.is_leased_by_number() && size.tokens() >= LEASE_MIN
}

// How a key handles the store's replies: tokens for waiting requests, and the state of its key.

/// The outcome for hits that a failure mode had admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DebtOutcome {
    /// Hits that `local` admitted and that a lease has paid for.
    pub(super) returned: u64,
    /// Hits that `allow` admitted and that no lease pays for.
    pub(super) unmetered: u64,
}

impl KeyState {
    /// Applies a reply, serves the waiting requests that it can, and asks again for the others.
    /// Returns are sent before asks.
    ///
    /// The limit may have changed while the ask was out. A request that waited for this lease is
    /// served under the limit that the lease was asked for; only then is the next limit's turn.
    ///
    /// Returns the outcome for the key's debt.
    pub(super) fn reply(&mut self, reply: &Reply, visit: &mut Visit<'_>) -> DebtOutcome {
        let mut paid = 0;
        self.note_answered(&reply.ask, visit.now);
        self.note_reported(reply);
        match &reply.outcome {
            Ok(grant) if reply.ask.next_window => {
                self.keep_next_window(reply, grant, visit);
            }
            Err(_) if reply.ask.next_window => {}
            Err(StoreError::Shed) => self.note_shed(&reply.ask, visit),
            // The own count is asked instead.
            Err(_) if reply.ask.pool.is_some() => self.flags.set(Flags::POOL_EMPTY, true),
            Err(error) => self.fail(error, visit.now),
            Ok(grant) if reply.ask.pool.is_some() => {
                self.take_from_pool(reply, grant, visit);
                paid = self.pay_debt(self.policy(visit).kind, visit.now);
            }
            Ok(grant) => paid = self.apply_grant(reply, grant, visit),
        }
        let debt = self.update_debt(paid);
        if self.asking == 0 {
            self.ask_for_waiting(reply, visit);
        }
        self.buffer.trim();
        debt
    }

    /// Returns the outcome for the debt after a reply that `paid` for a part of it. Hits that
    /// `local` admitted are owed until their window ends. Hits that `allow` admitted have no bound,
    /// so once no ask is out the rest of them is not owed.
    fn update_debt(&mut self, paid: u64) -> DebtOutcome {
        match failure_mode_of(self.rule().map(AsRef::as_ref)) {
            FailureMode::Allow if self.asking == 0 => {
                // Also the debt that ended before the reply: nothing pays for it any more.
                let unmetered = self.noted_debt();
                self.set_debt(0);
                DebtOutcome { unmetered, ..DebtOutcome::default() }
            }
            FailureMode::Allow => DebtOutcome::default(),
            _ => DebtOutcome { returned: paid, ..DebtOutcome::default() },
        }
    }

    /// Applies a grant. Returns the number of admitted hits that it has paid for.
    fn apply_grant(&mut self, reply: &Reply, grant: &Grant, visit: &mut Visit<'_>) -> u64 {
        self.resume();
        self.change_limit(reply.ask.limit, visit);
        let policy = self.policy(visit);
        self.flags.set(Flags::RELIEF, reply.hot);
        self.flags.note_miss(reply.ask.need > 0 && grant.tokens == 0);
        if !self.is_of_slots() {
            self.note_draw(&policy, reply, grant, visit.now);
        }
        if grant.epoch != self.buffer.epoch() {
            let waits = self.has_next_window(visit.now);
            self.flags.set(Flags::NEXT_WINDOW_ASKED, waits);
        }
        let refill = policy.refill(reply, grant, self.scarcity(visit), visit.now);
        let refill = self.with_idle(refill, visit.now);
        self.buffer.refill(refill, policy.kind, visit.now);
        self.note_round_trip(visit.now.since(reply.asked_at));
        let paid = self.pay_debt(policy.kind, visit.now);
        self.pay_owed(policy.kind, visit.now);
        let owed = self.owed(visit.now);
        if owed > 0 {
            self.buffer.note_owed(owed, visit.now); // the store does not know the rest yet
        }
        self.serve(visit);
        self.give_back_after(&reply.ask, grant.tokens, visit);
        self.fill_pool(visit);
        paid
    }

    /// Notes how many tokens the fleet drew since the store's last reply, and this pod's part of
    /// them.
    fn note_draw(&mut self, policy: &LeasePolicy, reply: &Reply, grant: &Grant, now: Time) {
        let same = !counting(policy.limit).is_windowed || grant.epoch == self.buffer.epoch();
        let Some(before) = self.buffer.left(now).filter(|_| same) else {
            return;
        };
        let back = reply.ask.back.map_or(0, |back| back.tokens);
        let span = now.since(self.buffer.replied_at());
        let inflow = policy.inflow() * span.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let before = before.saturating_add(back).saturating_add(inflow as u64);
        let before = before.min(policy.limit.capacity());
        let others = before.saturating_sub(grant.left).saturating_sub(grant.tokens);
        self.demand.note_draw(others, span);
    }

    /// Once no ask is out, asks for the requests that still wait, and for the rest of the debt as
    /// long as the store lends.
    fn ask_for_waiting(&mut self, reply: &Reply, visit: &mut Visit<'_>) {
        let lends = || reply.outcome.as_ref().is_ok_and(|grant| grant.tokens > 0);
        let first = self.buffer.cold().and_then(|cold| cold.waiting.first());
        if let Some(first) = first {
            self.change_limit(first.limit, visit);
            visit.asks.push(self.make_ask(visit));
        } else if self.debt(visit.now) > 0 && lends() {
            visit.asks.push(Ask { purpose: Purpose::Ahead, ..self.make_ask(visit) });
        } else if self.owed(visit.now) > 0 && reply.outcome.is_ok() {
            self.ask_for_owed(visit);
        } else if !self.policy(visit).is_leased() {
            // Tokens that no request asked for must not be spent.
            self.give_back_tokens(visit);
        } else if let (LimitSource::ColdState, Some(limit)) =
            (self.limit_source, self.limit_of_rule())
        {
            // The other limit is kept only as long as the box is needed for waiting requests.
            self.change_limit(limit, visit);
        }
    }

    /// Handles an ask that was dropped because its shard has more urgent ones to answer: requests
    /// that probe an empty key are denied by the store's last reply, and nothing is asked ahead for
    /// a while.
    fn note_shed(&mut self, ask: &Ask, visit: &Visit<'_>) {
        self.flags.set(Flags::SHED, true);
        if self.asking == 0 {
            self.buffer.note_ask(visit.now);
        }
        // Requests that joined an ask that was made ahead are asked for now.
        if ask.purpose == Purpose::Probe && self.asking == 0 {
            self.buffer.extend_freshness(visit.now + SHED_PAUSE);
            self.serve(visit);
            self.fail(&StoreError::Shed, visit.now);
        }
    }

    /// Answers the waiting requests that the tokens and the store's reply allow, first come, first
    /// served.
    fn serve(&mut self, visit: &Visit<'_>) {
        let kind = self.policy(visit).kind;
        let Some(cold) = self.buffer.cold_mut() else { return };
        for waiter in cold.waiting.take_all() {
            let attempt = self.try_charge(waiter.pending, visit);
            if !attempt.is_decided() {
                self.buffer.make_cold().waiting.push_back(waiter);
                continue;
            }
            let attempt = Attempt { how: DecisionSource::Leased, ..attempt };
            if let Some(unread) = waiter.answer(Ok(attempt)) {
                self.end_use(unread.taken().tokens);
                self.buffer.put_back(unread.taken(), kind, visit.now);
            }
        }
    }

    /// Answers the waiting requests that the store gave no grant, because of `error`.
    fn fail(&mut self, error: &StoreError, now: Time) {
        if *error == StoreError::ForeignValue {
            self.buffer.make_cold().suspended_until = now + SUSPENDED_FOR;
        }
        let Some(cold) = self.buffer.cold_mut() else { return };
        for waiter in cold.waiting.take_all() {
            waiter.answer(Err(error.clone()));
        }
    }

    /// Spends tokens on the debt, as far as the tokens suffice.
    /// Returns how many.
    fn pay_debt(&mut self, kind: LeaseKind, now: Time) -> u64 {
        let debt = self.debt(now);
        let due = debt.min(self.buffer.tokens(now));
        let take = if due > 0 { self.buffer.take(due, false, kind, now) } else { Take::Short };
        let Take::Taken(lease) = take else { return 0 };
        self.set_debt(debt.saturating_sub(lease.tokens));
        lease.tokens
    }

    /// Notes `hits` that a failure mode has admitted. The tokens held pay for them, and so do the
    /// leases that arrive before `until`. They are owed only if an ask is out, or if a lease
    /// `can_pay`: an ask was out until just now, or was refused for lack of room. Otherwise the
    /// store is away, and hits that it cannot count are the failure mode's own. The slots of a
    /// leaky bucket pass, so they pay for nothing.
    pub(super) fn note_debt(
        &mut self,
        hits: u64,
        until: Time,
        can_pay: bool,
        visit: &Visit<'_>,
    ) -> Noted {
        let is_owable = counting(self.limit()).token.can_be_owed();
        if !is_owable || (self.asking == 0 && !can_pay) {
            return Noted { is_owed: false, unpaid: hits, paid: 0 };
        }
        let owed = self.debt(visit.now);
        let ended = self.noted_debt() - owed;
        self.buffer.make_cold().debt_until = until;
        self.set_debt(owed.saturating_add(hits));
        let paid = self.pay_debt(self.policy(visit).kind, visit.now);
        Noted { is_owed: true, unpaid: ended, paid }
    }

    /// Takes `hits` off the debt. Hits that are not owed any more have been paid, or forgotten to
    /// free memory; which of the two is not known, so they stay counted. Returns how many were not
    /// paid.
    pub(super) fn cancel_debt(&mut self, hits: u64, now: Time) -> u64 {
        let debt = self.debt(now);
        let unpaid = debt.min(hits);
        self.set_debt(debt - unpaid);
        self.buffer.trim();
        unpaid
    }
}

/// The outcome of [`KeyState::note_debt`] for hits that a failure mode has admitted.
pub(super) struct Noted {
    /// A lease has paid for them, or will.
    pub(super) is_owed: bool,
    /// Hits of an earlier debt that has ended, or these hits if they are not owed: no lease will
    /// pay for them.
    pub(super) unpaid: u64,
    /// Hits that the tokens held have paid for at once.
    pub(super) paid: u64,
}

// The costs that a key owes: they have been incurred, and the store counts them whole. They are
// reported with the next ask, and again with later ones until the store has counted them.

impl KeyState {
    /// Notes that `hits` more are owed, to be counted by the store before `until`.
    fn owe(&mut self, hits: u64, until: Time, now: Time) {
        let owed = self.buffer.make_cold().owed.get_or_insert_default();
        if now >= owed.until {
            owed.hits = owed.asked; // the window that the others were owed to is over
        }
        owed.hits = owed.hits.saturating_add(hits);
        owed.until = owed.until.max(until);
    }

    /// Hits that the store has not counted yet, as far as is known.
    fn owed(&self, now: Time) -> u64 {
        let owed = self.buffer.cold().and_then(|cold| cold.owed.as_deref());
        owed.filter(|owed| now < owed.until).map_or(0, |owed| owed.hits)
    }

    /// Asks the store to count the owed costs, unless an ask is out: another one follows that ask.
    fn ask_for_owed(&mut self, visit: &mut Visit<'_>) {
        if self.asking == 0 && !self.is_suspended(visit.now) {
            visit.asks.push(self.make_ask(visit));
        }
    }

    /// The hits that an ask made now reports.
    fn report_owed(&mut self, now: Time) -> u64 {
        let all = self.owed(now);
        let Some(Owed { asked, held_back, .. }) = self.owed_mut() else { return 0 };
        let reported = if *held_back { 0 } else { all.saturating_sub(*asked) };
        *asked = asked.saturating_add(reported);
        reported
    }

    /// Notes the costs that the store has counted by `reply`. If the store may or may not have
    /// counted them, the next ask only finds out whether the store answers: an outage must not
    /// report one cost many times.
    fn note_reported(&mut self, reply: &Reply) {
        let Some(owed) = self.owed_mut() else { return };
        let reported = reply.ask.owed;
        owed.asked = owed.asked.saturating_sub(reported);
        match &reply.outcome {
            Ok(_) => {
                owed.hits = owed.hits.saturating_sub(reported);
                // A pool, which may be on another shard, says nothing about the count.
                owed.held_back &= reply.ask.pool.is_some();
            }
            Err(error) if reported > 0 && !error.is_not_applied() => owed.held_back = true,
            Err(_) => {}
        }
        self.trim_owed();
    }

    /// Spends tokens on the owed costs that no ask on its way reports.
    fn pay_owed(&mut self, kind: LeaseKind, now: Time) {
        let tokens = self.buffer.tokens(now);
        let Some(owed) = self.owed_mut().filter(|owed| now < owed.until) else { return };
        let due = owed.hits.saturating_sub(owed.asked).min(tokens);
        if due > 0 {
            owed.hits -= due;
            self.buffer.take(due, false, kind, now);
            self.trim_owed();
        }
    }

    /// Forgets an ask that was lost by an internal error, or whose reply a suspended machine has
    /// not read yet.
    fn forget_lost_ask(&mut self, now: Time) {
        if self.asking == 0 || self.buffer.ask_age(now) <= LOST_AFTER {
            return;
        }
        self.asking = 0;
        if let Some(cold) = self.buffer.cold_mut() {
            cold.expected = 0;
        }
        if let Some(owed) = self.owed_mut() {
            owed.held_back |= owed.asked > 0;
            owed.asked = 0;
        }
    }

    /// Removes the owed costs that no ask on its way reports. Returns their number of hits.
    fn take_unreported(&mut self, now: Time) -> u64 {
        let Some(owed) = self.owed_mut().filter(|owed| now < owed.until) else { return 0 };
        let unreported = owed.hits.saturating_sub(owed.asked);
        owed.hits -= unreported;
        self.trim_owed();
        unreported
    }

    fn owed_mut(&mut self) -> Option<&mut Owed> {
        self.buffer.cold_mut()?.owed.as_deref_mut()
    }

    /// Frees the room for owed costs if nothing is owed.
    fn trim_owed(&mut self) {
        if let Some(cold) = self.buffer.cold_mut() {
            cold.owed.take_if(|owed| owed.hits == 0);
            self.buffer.trim();
        }
    }

    /// Reports owed costs, or states slots, for a key that is not watched because too many keys
    /// are. The store has to learn of both in time.
    pub(super) fn ask_unwatched(&mut self, visit: &mut Visit<'_>) {
        if self.flags.has(Flags::WATCHED) {
            return;
        }
        if self.owed(visit.now) > 0 {
            self.forget_lost_ask(visit.now);
            self.ask_for_owed(visit);
        } else if self.has_slots(visit.now) {
            self.inspect_slots(visit);
            self.flags.set(Flags::WATCHED, false);
        }
    }

    fn is_worth_watching(&self, visit: &Visit<'_>) -> bool {
        self.has_slots(visit.now) || self.owed(visit.now) > 0 || self.holds_above_allowance(visit)
    }
}

// The tokens that a key gives back: of another limit, of an idle key, and beyond the expected
// demand.

impl KeyState {
    /// From now on the key holds only tokens of `limit`; the others are returned. If their shard
    /// cannot take them they stay, since two limits of one key share the count that they belong to.
    /// Tokens of another store never stay: this store has not counted them.
    fn change_limit(&mut self, limit: Limit, visit: &mut Visit<'_>) {
        if self.limit() == limit {
            return;
        }
        let spaced = counting(limit).token == Token::Slot;
        let moves = self.limit().store != limit.store;
        let none_held = || self.buffer.tokens(visit.now) == 0;
        let mut are_dropped = false;
        if moves {
            self.give_back(visit);
            self.buffer.forget();
        } else if self.is_of_slots() && limit.capacity() >= self.limit().capacity() {
            self.buffer.mark_estimated();
        } else if self.is_of_slots() {
            are_dropped = self.drain_idle(visit.now);
            self.buffer.forget();
        } else if spaced || none_held() || self.takes_returns(visit) {
            self.give_back_tokens(visit);
            self.buffer.forget();
        } else {
            self.buffer.mark_estimated();
        }
        // A debt stays: both limits share the count that it belongs to.
        self.set_limit(limit);
        if are_dropped {
            visit.asks.push(self.statement(visit));
        }
    }

    /// Reports the costs that the key owes, and returns the tokens that it holds above its
    /// allowance. An idle key returns all of them. Another key returns the tokens that the recent
    /// demand will not use, since the measured demand falls only slowly after it has moved to
    /// another pod. Nothing goes back to a shard that cannot take it. Returns when to check the key
    /// again; `None` stops watching it.
    pub(super) fn inspect(&mut self, visit: &mut Visit<'_>) -> Option<Time> {
        if self.is_of_slots() {
            return self.inspect_slots(visit);
        }
        self.begin_next_window(visit.now);
        self.flags.set(Flags::WATCHED, self.is_worth_watching(visit));
        if !self.flags.has(Flags::WATCHED) {
            return None;
        }
        if self.owed(visit.now) > 0 {
            self.forget_lost_ask(visit.now);
            self.ask_for_owed(visit);
            return Some(visit.now + WATCH_EVERY);
        }
        let policy = self.policy(visit);
        if !self.takes_returns(visit) {
            return Some(visit.now + WATCH_EVERY); // they would be lost on the way
        }
        let idle_after = self.idle_after(&policy);
        if self.demand.idle_for(visit.now) >= idle_after && !self.is_busy() {
            self.give_back_tokens(visit);
            self.flags.set(Flags::WATCHED, false);
            return None;
        }
        let demand = self.demand.recent_rate(visit.now);
        let size =
            LeaseSize { demand, burst: demand, run: None, ..self.lease_size(&policy, 0, visit) };
        if self.buffer.tokens(visit.now) > 2 * size.in_use() {
            let excess = self.buffer.take_excess(size.in_use(), policy.kind, visit.now);
            visit.asks.extend(excess.and_then(|lease| policy.returning(visit.key, lease)));
        }
        let silent = self.demand.idle_for(visit.now);
        let until_idle = visit.now + idle_after.saturating_sub(silent).max(WATCH_EVERY);
        Some(self.checks_next_window_at(visit).map_or(until_idle, |at| until_idle.max(at)))
    }

    /// The silence after which the tokens held go back: in time for others to use them in a short
    /// window, and before leases that end without their window.
    fn idle_after(&self, policy: &LeasePolicy) -> Duration {
        let latest = match policy.kind {
            LeaseKind::Windowed => (policy.limit.window() / 5).max(WATCH_EVERY),
            LeaseKind::Timed | LeaseKind::Spaced { .. } => policy.ttl() / 4,
        };
        self.demand.idle_after().min(latest)
    }

    /// Removes the unspent tokens and the unreported costs. The asks, the last ones to this store,
    /// return the tokens and report the costs.
    pub(super) fn give_back(&mut self, visit: &mut Visit<'_>) {
        let owed = self.take_unreported(visit.now);
        if owed > 0 {
            let blank = self.return_policy().blank_ask(visit.key);
            visit.asks.push(Ask { owed, purpose: Purpose::Return, ..blank });
        }
        if self.is_of_slots() {
            return self.give_back_last(visit);
        }
        self.give_back_tokens(visit);
    }

    /// Gives back the tokens of a key that has left the table, and reports its costs, as
    /// [`KeyState::give_back`] does. Slots do not go back: the key may be in the table again and
    /// have asked before, and of two statements the store believes the later one. The store forgets
    /// the slots once this pod has not asked for a time.
    pub(super) fn give_back_evicted(&mut self, visit: &mut Visit<'_>) {
        if self.is_of_slots() {
            self.buffer.drain(visit.now); // counts what has ended
        } else {
            self.give_back(visit);
        }
    }

    /// Removes the unspent tokens; the asks return them to the store. Costs that the key owes stay.
    pub(super) fn give_back_tokens(&mut self, visit: &mut Visit<'_>) {
        if self.is_of_slots() {
            return self.give_back_idle(visit);
        }
        self.give_back_next_window(visit);
        let policy = self.return_policy();
        let leases = self.buffer.drain(visit.now).into_iter().flatten();
        visit.asks.extend(leases.filter_map(|lease| policy.returning(visit.key, lease)));
    }

    /// Puts back tokens that were taken and are not spent after all.
    pub(super) fn put_back(&mut self, taken: LeasedTokens, visit: &mut Visit<'_>) {
        if self.is_of_slots() {
            return self.release(taken, visit);
        }
        self.put_back_under(&self.policy(visit), taken, visit);
    }

    fn put_back_under(&mut self, policy: &LeasePolicy, taken: LeasedTokens, visit: &mut Visit<'_>) {
        self.buffer.put_back(taken, policy.kind, visit.now);
        if !policy.is_leased() && !self.has_waiting() {
            self.give_back_tokens(visit);
        }
    }

    /// Takes in the tokens that a request held and did not use, if the key still has their lease.
    /// Otherwise they go back to the store, which knows whether they still count. Tokens of a
    /// window that is over go nowhere.
    pub(super) fn take_in(&mut self, unspent: &Unspent, visit: &mut Visit<'_>) {
        let tokens = unspent.tokens;
        if self.is_of_slots() {
            return self.release(tokens, visit);
        }
        self.begin_next_window(visit.now);
        let policy = self.policy(visit);
        let is_windowed = policy.kind == LeaseKind::Windowed;
        let is_of_this_store = policy.limit.store == unspent.limit.store;
        let lasts = visit.now < tokens.ends;
        // A count beyond its limit is owed these tokens, and other pods may need them.
        let has_lease = self.buffer.is_live(visit.now)
            && !self.buffer.is_known_empty(visit.now)
            && (!is_windowed || tokens.epoch == self.buffer.epoch());
        if is_of_this_store && lasts && has_lease {
            self.put_back_under(&policy, tokens, visit);
        } else if is_of_this_store && lasts && is_windowed && !self.takes_returns(visit) {
            self.keep(tokens, visit.now); // they would be lost on the way
        } else if lasts || !is_of_this_store || !is_windowed {
            visit.asks.push(unspent.returned());
        }
    }

    /// Keeps tokens of a window, even if nothing else is known of the key: the window may have more
    /// than no tokens left.
    fn keep(&mut self, lease: LeasedTokens, now: Time) {
        if self.buffer.is_live(now) {
            return self.buffer.put_back(lease, LeaseKind::Windowed, now);
        }
        let LeasedTokens { ends, .. } = lease;
        let (known_until, resets, fresh_until) = (ends, ends, now);
        let unknown = Refill {
            lease,
            left: 0,
            overdrawn: false,
            is_sure: false,
            known_until,
            resets,
            fresh_until,
        };
        self.buffer.refill(unknown, LeaseKind::Windowed, now);
    }

    /// Whether the key's shard accepts returned tokens at present.
    pub(super) fn takes_returns(&self, visit: &Visit<'_>) -> bool {
        let policy = self.return_policy();
        visit.lease_client.takes(&policy.blank_ask(visit.key))
    }

    /// Takes back the tokens of a return that, by `reply`, were not sent. If the return reports
    /// costs, they are owed again instead, since the store may not have counted them.
    pub(super) fn take_back_unsent(&mut self, reply: &Reply, visit: &Visit<'_>) {
        if reply.ask.owed > 0 {
            let policy = self.return_policy();
            let rest = self.buffer.known_for(visit.now).unwrap_or(policy.limit.window());
            let until = policy.owed_until(visit.now + rest);
            self.owe(reply.ask.owed, until, visit.now);
            let is_counted_maybe = !reply.outcome.as_ref().is_err_and(StoreError::is_not_applied);
            if let Some(owed) = self.owed_mut() {
                owed.held_back |= is_counted_maybe;
            }
            return;
        }
        let LeasePolicy { limit, kind, .. } = self.policy(visit);
        let of_return = reply.ask.back.and_then(|back| Some((back.tokens, back.epoch?)));
        let of_deposit = reply.ask.deposit.map(|deposit| (deposit.tokens, deposit.epoch));
        let sent = of_return.or(of_deposit).filter(|(_, epoch)| *epoch == self.buffer.epoch());
        // Only a window's number says when the window ends.
        if let Some((tokens, epoch)) = sent.filter(|_| limit == reply.ask.limit)
            && kind == LeaseKind::Windowed
            && let Some(rest) = self.buffer.known_for(visit.now)
        {
            let ends = visit.now + rest;
            let lease = LeasedTokens { tokens, epoch, starts: Time::default(), ends };
            self.buffer.put_back(lease, kind, visit.now);
        }
    }

    /// Starts to watch the key for idleness if it holds enough.
    pub(super) fn watch(&mut self, visit: &mut Visit<'_>) {
        if !self.flags.has(Flags::WATCHED) && self.is_worth_watching(visit) {
            self.flags.set(Flags::WATCHED, true);
            visit.starts_watch = true;
        }
    }

    /// Notes that the key is not in the queue of watched keys.
    pub(super) fn unwatch(&mut self) {
        self.flags.set(Flags::WATCHED, false);
    }
}

// The limit of a key's tokens, its debt, and its suspension: stored in place where every key has
// them, else in the cold state.

/// A key under which the store holds another program's value is not asked for again for this long:
/// it is probed twice a second, as an unavailable shard is.
const SUSPENDED_FOR: Duration = Duration::from_millis(500);

/// Where to find the limit that a key's tokens were leased under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitSource {
    /// In the key's rule.
    Rule,
    /// In `number`: an override's limit that the default store counts, as a number of requests in a
    /// fixed window of one unit.
    Override(Unit),
    /// In the cold state: the limit of a rule that has changed while waiting requests asked under
    /// it, or of an override that another store counts.
    ColdState,
}

impl KeyState {
    /// The limit that the tokens were leased under.
    fn limit(&self) -> Limit {
        let of_number = |unit| Limit::fixed_window(self.number.into(), unit);
        let limit = match self.limit_source {
            LimitSource::Rule => self.limit_of_rule(),
            LimitSource::Override(unit) => Some(of_number(unit)),
            LimitSource::ColdState => {
                self.buffer.cold().and_then(|cold| cold.limit.as_deref().copied())
            }
        };
        limit.unwrap_or_else(|| of_number(Unit::Second))
    }

    fn set_limit(&mut self, limit: Limit) {
        if counting(limit).token != Token::Permit {
            self.number = 0;
        }
        if self.limit_of_rule() == Some(limit) {
            self.limit_source = LimitSource::Rule;
        } else if let Ok(number) = u32::try_from(limit.requests_per_unit)
            && limit == Limit::fixed_window(limit.requests_per_unit, limit.unit)
        {
            self.limit_source = LimitSource::Override(limit.unit);
            self.number = number;
        } else {
            self.limit_source = LimitSource::ColdState;
            self.buffer.make_cold().limit = Some(Box::new(limit));
            return;
        }
        if let Some(cold) = self.buffer.cold_mut() {
            cold.limit = None;
            self.buffer.trim();
        }
    }

    fn limit_of_rule(&self) -> Option<Limit> {
        match self.rule.as_ref()?.allowance {
            Allowance::Limited(limit) => Some(limit),
            Allowance::Unlimited => None,
        }
    }

    /// Whether the store replied recently that it can have no count under this key.
    fn is_suspended(&self, now: Time) -> bool {
        self.buffer.cold().is_some_and(|cold| now < cold.suspended_until)
    }

    /// Notes that the store has a count under this key.
    fn resume(&mut self) {
        if let Some(cold) = self.buffer.cold_mut() {
            cold.suspended_until = Time::default();
        }
    }

    /// Forgets the state of the count, and the tokens that were leased from it, since an operator
    /// has reset the count. Slots that are still in use are stated again; costs that are owed stay
    /// too.
    pub(super) fn forget_count(&mut self) {
        self.buffer.forget();
        self.flags.note_miss(false);
        self.flags.set(Flags::POOL_EMPTY, false);
        self.flags.set(Flags::NEXT_WINDOW_ASKED, false);
        if self.asking == 0 {
            self.set_debt(0);
        }
        self.resume();
        if let Some(cold) = self.buffer.cold_mut() {
            cold.next_window = None;
        }
        self.buffer.trim();
    }

    /// Hits that a failure mode has admitted and no lease has paid for yet.
    fn debt(&self, now: Time) -> u64 {
        let due = self.buffer.cold().filter(|cold| now < cold.debt_until);
        due.map_or(0, |cold| cold.debt)
    }

    /// The debt, also if it has ended.
    fn noted_debt(&self) -> u64 {
        self.buffer.cold().map_or(0, |cold| cold.debt)
    }

    fn set_debt(&mut self, hits: u64) {
        if let Some(cold) = self.buffer.cold_mut() {
            cold.debt = hits;
            self.buffer.trim();
        }
    }
}
