//! The limiter's state of one key: its buffer, its demand, and the requests that wait.

mod asking;
mod cold_state;
mod entry;
mod flags;
mod next_window;
mod pools;
mod replies;
mod returns;
mod terms;

pub(super) use cold_state::{WAITER_BYTES, WAITING_IN_ALL_MAX};

use cold_state::ColdState;

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::{Algorithm, Limit, Rule};

use super::PodContext;
use super::attempt::{Attempt, QuotaSnapshot};
use super::lease_policy::{LeasePolicy, Scarcity};
use super::resolve::Charge;
use super::wait::{PendingCharge, ReplyReceiver, answered};
use crate::buffer::table::Link;
use crate::buffer::{Buffer, LeaseKind, LeasedTokens, Take};
use crate::lease::demand::Demand;
use crate::store::{Ask, Purpose, Return, StoreError};
use crate::time::{CompactU64, Time};
use crate::verdict::AppliedLimit;
use flags::Flags;
use terms::LimitSource;

/// How often a key that holds more than its allowance is checked.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(200);

/// An ask that is out for longer than this is overdue: this many round trips, but at least the time
/// below, since scheduling alone takes a few milliseconds on a busy machine, and as long as
/// every request may wait.
const OVERDUE_ROUND_TRIPS: u32 = 4;
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

/// State of one key: 80 bytes, since there are many keys. What only few keys have is in
/// [`ColdState`].
pub(super) struct KeyState {
    buffer: Buffer<ColdState>,
    /// The rule of the key; `None` for an override.
    rule: Option<Arc<Rule>>,
    /// Requests in each window of an override.
    requests: u32,
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
    pub(super) fn new(charge: &Charge<'_>, context: &PodContext<'_>) -> Self {
        let mut state = Self {
            buffer: Buffer::unknown(),
            rule: charge.applied.rule.cloned(),
            requests: 0,
            limit_source: LimitSource::Rule,
            flags: Flags::default(),
            asking: 0,
            pool: context.first_pool(charge.key()),
            demand: Demand::default(),
            round_trip_us: CompactU64::floor(context.round_trips.of(charge.applied.limit.store)),
            chain_link: Link::default(),
        };
        state.set_limit(charge.applied.limit);
        state
    }

    /// Binds the key to the rule and limit of `charge`. Tokens lent under another limit go back.
    pub(super) fn bind_rule(
        &mut self,
        charge: &Charge<'_>,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let AppliedLimit { limit, rule } = charge.applied;
        let same = self.rule.as_ref().map(Arc::as_ptr) == rule.map(Arc::as_ptr);
        // The limit of a charge with a rule is the limit of that rule.
        if same && rule.is_some() && matches!(self.limit_source, LimitSource::Rule) {
            return;
        }
        let pools = |rule: Option<&Arc<Rule>>| rule.map_or(0, |rule| rule.pools());
        if pools(self.rule.as_ref()) > pools(rule) && rule.is_some() {
            self.empty_pools(charge.key(), pools(rule), context, asks);
        }
        self.change_limit(limit, charge.key(), context, asks);
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
        context: &PodContext<'_>,
    ) -> Attempt {
        let attempt = self.try_charge(PendingCharge::of(charge), context);
        if attempt.is_settled() {
            self.note_demand(charge, context.now);
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
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) -> Result<ReplyReceiver, StoreError> {
        let pending = PendingCharge::of(charge);
        self.note_demand(charge, context.now);
        let attempt = self.try_charge(pending, context);
        if attempt.is_settled() {
            return Ok(answered(Ok(attempt)));
        }
        if self.is_lost(context.now) {
            self.asking = 0;
        }
        if self.is_overdue(context) {
            return Err(StoreError::Unavailable);
        }
        if self.asking == 0 && self.is_suspended(context.now) {
            return Err(StoreError::ForeignValue);
        }
        let purpose = if self.is_probe(context) { Purpose::Probe } else { Purpose::Request };
        let reply = self.buffer.make_cold().waiting.push(pending)?;
        if self.asking == 0 || self.is_uncovered(context) {
            asks.push(Ask { purpose, ..self.make_ask(charge.key(), context) });
        }
        Ok(reply)
    }

    /// The effect of a refund on the key, if a lease is held here that can take the refund.
    pub(super) fn preview_refund(&self, charge: &Charge<'_>, context: &PodContext<'_>) -> Attempt {
        let Charge { applied: AppliedLimit { limit, .. }, hits, .. } = *charge;
        let LeasePolicy { limit: own, kind, .. } = self.policy(context);
        let quota = self.quota(own, context.now);
        if limit != own || !self.buffer.takes_refund(hits, kind, context.now) {
            return Attempt::local(Take::Short, quota);
        }
        let remaining = quota.remaining.saturating_add(hits).min(limit.capacity());
        let quota = QuotaSnapshot { remaining, ..quota };
        Attempt::local(Take::Taken(LeasedTokens::default()), quota)
    }

    /// Gives back what `charge` refunds: to a lease held here if there is one, else to the store.
    /// What the lease then holds above the size that the pod would ask for goes on to the store.
    pub(super) fn refund(
        &mut self,
        charge: &Charge<'_>,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let policy = self.policy(context);
        if !self.try_charge(PendingCharge::of(charge), context).is_settled() {
            let back = Some(Return { tokens: charge.hits, epoch: None });
            self.note_asked(context.now);
            asks.push(Ask { back, ..policy.blank_ask(charge.key()) });
            return;
        }
        if !self.takes_returns(charge.key(), context) {
            return;
        }
        let kept = self.lease_size(&policy, 0, context).tokens();
        let excess = self.buffer.take_excess(kept, policy.kind, context.now);
        asks.extend(excess.and_then(|lease| policy.returning(charge.key(), lease)));
    }

    /// After a charge, asks for the next lease while tokens last, if they will not last until it
    /// arrives.
    pub(super) fn ask_ahead(
        &mut self,
        charge: &Charge<'_>,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        // For nearly all charges this check alone decides: the tokens last.
        let tokens = self.buffer.tokens(context.now);
        if self.asking > 0 || !self.demand.outruns(tokens, self.round_trip()) {
            return;
        }
        if self.flags.is_shed() && self.buffer.ask_age(context.now) < SHED_PAUSE {
            return;
        }
        let policy = self.policy(context);
        let soon = self.demand.uses_soon(policy.limit.window());
        let ahead = soon && policy.is_leased() && !matches!(policy.kind, LeaseKind::Spaced { .. });
        // An empty bucket has a token again once the reply about it is no longer fresh.
        let left = self.buffer.left(context.now).is_some_and(|left| left > 0);
        let refills = policy.inflow() > 0.0 && !self.buffer.is_fresh(context.now);
        let more = (left || refills) && !self.is_suspended(context.now);
        if ahead && more && self.lease_size(&policy, 0, context).may_hold_ahead() {
            let purpose = Purpose::Ahead;
            asks.push(Ask { purpose, ..self.make_ask(charge.key(), context) });
        }
    }

    /// What is known about the pods that draw on the key.
    fn scarcity(&self, context: &PodContext<'_>) -> Scarcity {
        let (misses, relief) = (self.flags.misses(), self.flags.relief());
        Scarcity { pods: self.pods(context), pod: context.pod, misses, relief }
    }

    /// Number of pods that share the key: the pods that draw on it, once that has been observed.
    fn pods(&self, context: &PodContext<'_>) -> f64 {
        let all = context.pods.of(self.domain()).next_power_of_two();
        let all = f64::from(all);
        self.demand.pods().map_or(all, |seen| seen.min(all))
    }

    /// The state of the key, if its window is known to have less left than the charge and the debt.
    pub(super) fn used_up(&self, charge: &Charge<'_>, now: Time) -> Option<QuotaSnapshot> {
        let limit = self.limit();
        let due = self.debt(now).saturating_add(charge.hits);
        let is_short = self.buffer.is_live(now) && due > self.buffer.remaining(now);
        // What is left of a sliding window grows continuously.
        let lasts = limit.algorithm == Algorithm::FixedWindow && self.buffer.is_sure();
        let known = lasts && is_short && limit == charge.applied.limit;
        known.then(|| self.quota(limit, now))
    }

    /// The domain of the key's rule; `None` for an override.
    pub(super) fn domain(&self) -> Option<&str> {
        self.rule.as_deref().and_then(Rule::domain)
    }

    /// The rule that the key's tokens were lent under; `None` for an override.
    pub(super) fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Replaces the rule by the same rule of a newer version.
    pub(super) fn renew(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(Arc::clone(rule));
    }

    fn policy(&self, context: &PodContext<'_>) -> LeasePolicy {
        LeasePolicy::of(self.limit(), self.rule.as_deref(), context.wait_min)
    }

    /// The policy of the key for returns. It assumes no wait, since only a leaky bucket's slots may
    /// be taken late, and slots are never returned.
    fn return_policy(&self) -> LeasePolicy {
        LeasePolicy::of(self.limit(), self.rule.as_deref(), Duration::ZERO)
    }

    /// Charges the tokens held, or credits a refund to them, if they are enough; makes no ask.
    fn try_charge(&mut self, pending: PendingCharge, context: &PodContext<'_>) -> Attempt {
        let now = context.now;
        self.begin_next_window(now);
        let LeasePolicy { limit, kind, .. } = self.policy(context);
        let take = if pending.limit != limit {
            Take::Short
        } else if pending.refund {
            let refunded = self.buffer.refund(pending.hits, limit.capacity(), kind, now);
            if refunded { Take::Taken(LeasedTokens::default()) } else { Take::Short }
        } else {
            self.buffer.take(pending.hits, pending.charge_denied, kind, now)
        };
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

fn is_windowed(limit: Limit) -> bool {
    matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}
