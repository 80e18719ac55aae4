//! The limiter's state of one key: its buffer, its demand, and the requests that wait.

mod asking;
mod entry;
mod flags;
mod next_window;
mod pools;
mod rare;
mod replies;
mod returns;
mod terms;

use pools::pools_of;
pub(super) use rare::{WAITER_BYTES, WAITING_IN_ALL_MAX};

use rare::Rare;

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::{Algorithm, Limit, Rule};

use super::Here;
use super::lend::{Manner, Scarcity};
use super::outcome::{Attempt, Settled, Standing};
use super::pods::domain_of;
use super::resolve::Charge;
use super::wait::{Entered, Wish};
use crate::buffer::table::Link;
use crate::buffer::{Buffer, Kind, Lot, Take};
use crate::lease::demand::Demand;
use crate::store::{Ask, Back, Purpose, StoreError};
use crate::time::{Coarse, Time};
use crate::verdict::{Applied, How};
use flags::Flags;
use terms::Held;

/// How often a key that holds more than its allowance is checked.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(200);

/// An ask that is out for longer than this is overdue: this many round trips, but at least the time
/// below, since scheduling alone takes a few milliseconds on a busy machine, and as long as
/// requests may wait.
const OVERDUE_TRIPS: u32 = 4;
const OVERDUE_MIN: Duration = Duration::from_millis(100);

/// An ask that is out for this long was lost by an internal error, since the desk answers each ask
/// within ten seconds.
const LOST_AFTER: Duration = Duration::from_secs(15);

/// After an ask was dropped because the budget was spent, no ask that could be dropped is made for
/// this long.
const SHED_PAUSE: Duration = Duration::from_millis(50);

/// How long after the store's last reply an ask for an empty key may be dropped because the budget
/// is spent: a flood of other keys must not keep the key denied for good.
const PROBES_SHED_FOR: Duration = Duration::from_secs(1);

/// The round trip that is assumed before the first measurement.
pub(super) const TRIP_FIRST_US: u64 = 1_000;

/// State of one key: 80 bytes, since there are many keys. What only few keys have is in [`Rare`].
pub(super) struct Slot {
    buffer: Buffer<Rare>,
    /// The rule of the key; `None` for an override.
    rule: Option<Arc<Rule>>,
    /// Requests in each window of an override.
    requests: u32,
    held: Held,
    flags: Flags,
    /// Number of asks on their way: one at a time, or several where the store is far away.
    asking: u8,
    /// The pool to ask for a split key, modulo the number of pools.
    pool: u8,
    demand: Demand,
    /// The round trip to the store, in microseconds: the last one if it took longer than the
    /// average, else a moving average.
    trip_us: Coarse,
    next: Link,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(charge: &Charge<'_>, here: &Here<'_>) -> Self {
        let mut slot = Self {
            buffer: Buffer::cold(),
            rule: charge.applied.rule.cloned(),
            requests: 0,
            held: Held::Rule,
            flags: Flags::default(),
            asking: 0,
            pool: here.first_pool(charge.key()),
            demand: Demand::default(),
            trip_us: Coarse::floor(here.trip_us),
            next: Link::default(),
        };
        slot.set_limit(charge.applied.limit);
        slot
    }

    /// Adopts the limit of `charge`. Tokens lent under another limit go back.
    pub(super) fn adopt(&mut self, charge: &Charge<'_>, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let Applied { limit, rule } = charge.applied;
        let same = self.rule.as_ref().map(Arc::as_ptr) == rule.map(Arc::as_ptr);
        // The limit of a charge with a rule is the limit of that rule.
        if same && rule.is_some() && matches!(self.held, Held::Rule) {
            return;
        }
        let pools = |rule: Option<&Arc<Rule>>| rule.map_or(0, |rule| pools_of(rule));
        if pools(self.rule.as_ref()) > pools(rule) && rule.is_some() {
            self.empty_pools(charge.key(), pools(rule), here, asks);
        }
        self.turn_to(limit, charge.key(), here, asks);
        if !same {
            self.rule = rule.cloned();
            self.set_limit(limit);
        }
    }

    fn note_demand(&mut self, charge: &Charge<'_>, now: Time) {
        self.demand.note(if charge.refund { 0 } else { charge.hits }, now);
    }

    /// Charges the tokens held, if they are enough. A charge that is short does not count as demand
    /// yet, since it comes again, to [`Slot::enter`].
    pub(super) fn attempt(&mut self, charge: &Charge<'_>, here: &Here<'_>) -> Attempt {
        match self.settle(Wish::of(charge), here) {
            Some(settled) => {
                self.note_demand(charge, here.now);
                Attempt::Settled(settled)
            }
            None => Attempt::Short(self.standing(self.limit(), here.now)),
        }
    }

    /// Charges the tokens held, or queues and, if no ask is out, makes one.
    pub(super) fn enter(
        &mut self,
        charge: &Charge<'_>,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) -> Entered {
        let wish = Wish::of(charge);
        self.note_demand(charge, here.now);
        if let Some(settled) = self.settle(wish, here) {
            return Entered::Settled(settled);
        }
        if self.is_lost(here.now) {
            self.asking = 0;
            self.set_owed(0);
        }
        if self.is_overdue(here) {
            return Entered::Refused(StoreError::Away);
        }
        if self.asking == 0 && self.is_barred(here.now) {
            return Entered::Refused(StoreError::Foreign);
        }
        let purpose = if self.is_probe(here) { Purpose::Probe } else { Purpose::Request };
        let (promise, queued) = self.buffer.make_aside().waiting.push(wish);
        if queued && (self.asking == 0 || self.is_uncovered(here)) {
            asks.push(Ask { purpose, ..self.ask(charge.key(), here) });
        }
        Entered::Queued(promise)
    }

    /// The effect of a refund on the key, if a lease is held here that can take the refund.
    pub(super) fn preview_refund(&self, charge: &Charge<'_>, here: &Here<'_>) -> Attempt {
        let Charge { applied: Applied { limit, .. }, hits, .. } = *charge;
        let Manner { limit: own, kind, .. } = self.manner(here);
        let standing = self.standing(own, here.now);
        if limit != own || !self.buffer.takes_refund(hits, kind, here.now) {
            return Attempt::Short(standing);
        }
        let remaining = standing.remaining.saturating_add(hits).min(limit.capacity());
        let standing = Standing { remaining, ..standing };
        let (over, fitted, taken, how) = (false, 0, Lot::default(), How::Local);
        Attempt::Settled(Settled { over, fitted, taken, standing, how })
    }

    /// Gives back what `charge` refunds: to a lease held here if there is one, else to the store.
    /// What the lease then holds above the size that the pod would ask for goes on to the store.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let manner = self.manner(here);
        if self.settle(Wish::of(charge), here).is_none() {
            let back = Some(Back { tokens: charge.hits, epoch: None });
            self.note_asked(here.now);
            asks.push(Ask { back, ..manner.ask(charge.key()) });
            return;
        }
        if !self.takes_returns(charge.key(), here) {
            return;
        }
        let kept = self.need(&manner, 0, here).size();
        let excess = self.buffer.skim(kept, manner.kind, here.now);
        asks.extend(excess.and_then(|lot| manner.returning(charge.key(), lot)));
    }

    /// After a charge, asks for the next lease while tokens last, if they will not last until it
    /// arrives.
    pub(super) fn look_ahead(&mut self, charge: &Charge<'_>, here: &Here<'_>, asks: &mut Vec<Ask>) {
        // For nearly all charges this check alone decides: the tokens last.
        let tokens = self.buffer.tokens(here.now);
        if self.asking > 0 || !self.demand.outruns(tokens, self.round_trip()) {
            return;
        }
        if self.flags.is_shed() && self.buffer.asked_for(here.now) < SHED_PAUSE {
            return;
        }
        let manner = self.manner(here);
        let soon = self.demand.uses_soon(manner.limit.window());
        let ahead = soon && manner.is_leased() && !matches!(manner.kind, Kind::Spaced { .. });
        // An empty bucket has a token again once the reply about it is no longer fresh.
        let left = self.buffer.left(here.now).is_some_and(|left| left > 0);
        let refills = manner.inflow() > 0.0 && !self.buffer.is_fresh(here.now);
        let more = (left || refills) && !self.is_barred(here.now);
        if ahead && more && self.need(&manner, 0, here).may_hold_ahead() {
            let purpose = Purpose::Ahead;
            asks.push(Ask { purpose, ..self.ask(charge.key(), here) });
        }
    }

    /// What is known about the pods that draw on the key.
    fn scarcity(&self, here: &Here<'_>) -> Scarcity {
        let (misses, relief) = (self.flags.misses(), self.flags.relief());
        Scarcity { pods: self.pods(here), pod: here.pod, misses, relief }
    }

    /// Number of pods that share the key: the pods that draw on it, once that has been observed.
    fn pods(&self, here: &Here<'_>) -> f64 {
        let all = here.pods.of(self.domain()).next_power_of_two();
        let all = f64::from(all);
        self.demand.pods().map_or(all, |seen| seen.min(all))
    }

    /// The state of the key, if its window is known to have nothing left.
    pub(super) fn used_up(&self, charge: &Charge<'_>, now: Time) -> Option<Standing> {
        let limit = self.limit();
        let none_left = self.buffer.left(now) == Some(0) && self.buffer.is_sure();
        // What is left of a sliding window grows continuously.
        let lasts = limit.algorithm == Algorithm::FixedWindow;
        let known = lasts && none_left && limit == charge.applied.limit;
        known.then(|| self.standing(limit, now))
    }

    /// The domain of the key's rule; `None` for an override.
    pub(super) fn domain(&self) -> Option<&str> {
        self.rule.as_deref().and_then(domain_of)
    }

    /// The rule that the key's tokens were lent under; `None` for an override.
    pub(super) fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Replaces the rule by the same rule of a newer version.
    pub(super) fn renew(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(Arc::clone(rule));
    }

    fn manner(&self, here: &Here<'_>) -> Manner {
        Manner::of(self.limit(), self.rule.as_deref(), here.patience)
    }

    /// The manner of the key for returns. It assumes no wait, since only a leaky bucket's slots may
    /// be taken late, and slots are never returned.
    fn manner_of_returns(&self) -> Manner {
        Manner::of(self.limit(), self.rule.as_deref(), Duration::ZERO)
    }

    fn settle(&mut self, wish: Wish, here: &Here<'_>) -> Option<Settled> {
        let now = here.now;
        self.begin_next(now);
        let Manner { limit, kind, .. } = self.manner(here);
        if wish.limit != limit {
            return None;
        }
        let (over, taken) = if wish.refund {
            let refunded = self.buffer.refund(wish.hits, limit.capacity(), kind, now);
            refunded.then_some((false, Lot::default()))?
        } else {
            match self.buffer.take(wish.hits, wish.charge_denied, kind, now) {
                Take::Taken(lot) => (false, lot),
                Take::Denied => (true, Lot::default()),
                Take::Short => return None,
            }
        };
        let standing = self.standing(limit, now);
        Some(Settled { over, fitted: 0, taken, standing, how: How::Local })
    }

    fn standing(&self, limit: Limit, now: Time) -> Standing {
        let capacity = limit.capacity();
        let reset_after = self.buffer.reset_after(now);
        let remaining = reset_after.map_or(capacity, |_| self.buffer.remaining(now).min(capacity));
        Standing { remaining, reset_after }
    }

    fn has_waiting(&self) -> bool {
        self.buffer.aside().is_some_and(|rare| !rare.waiting.is_empty())
    }
}

fn is_windowed(limit: Limit) -> bool {
    matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}
