//! What the limiter keeps for one key: its buffer, its demand, and the requests that wait.

mod asking;
mod entry;
mod flags;
mod next_window;
mod pools;
mod rare;
mod terms;

pub(super) use pools::pools_of;
pub(super) use rare::Rare;

use std::sync::Arc;
use std::time::Duration;

use super::Here;
use super::lend::{Manner, Scarcity};
use super::outcome::{Attempt, Entered, Settled, Standing, Watch};
use super::pods::domain_of;
use super::resolve::Charge;
use super::wait::Wish;
use crate::buffer::table::{Entry, Link};
use crate::buffer::{Buffer, Kind, Lot, Take};
use crate::invariant;
use crate::key::Key;
use crate::lease::Reply;
use crate::lease::size::{Demand, Need};
use crate::rules::{Algorithm, Limit, Rule};
use crate::store::{Ask, Back, Grant, Purpose, StoreError};
use crate::time::{Coarse, Time};
use crate::verdict::{Applied, How};
use flags::Flags;
use terms::Held;

/// How often a key that holds more than its allowance is looked at.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(200);

/// An ask that is out for longer is overdue: so many round trips, at least this long, since
/// scheduling alone takes a few milliseconds on a busy machine, and as long as requests may wait.
const OVERDUE_TRIPS: u32 = 4;
const OVERDUE_MIN: Duration = Duration::from_millis(100);

/// An ask that is out for so long was lost here, by a fault of the program's own: the desk answers
/// each within ten seconds.
const LOST_AFTER: Duration = Duration::from_secs(15);

/// After an ask was dropped for want of budget, none is made that could be dropped for so long.
const SHED_PAUSE: Duration = Duration::from_millis(50);

/// What a round trip is taken for before the first was measured.
pub(super) const TRIP_FIRST_US: u64 = 1_000;

/// State of one key: 80 bytes, since there are many. Whatever only few keys have is in [`Rare`].
pub(super) struct Slot {
    buffer: Buffer<Rare>,
    /// The rule that it is of; `None` for an override.
    rule: Option<Arc<Rule>>,
    /// Requests in the window of an override.
    requests: u32,
    held: Held,
    flags: Flags,
    /// Asks on their way: one at a time, or several where the store is far away.
    asking: u8,
    /// The pool to ask, of a split key, once the number of pools has divided it.
    pool: u8,
    demand: Demand,
    /// A round trip to the store, in microseconds: the last one if it took longer than before,
    /// else a moving average.
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

    /// Takes the limit that `charge` comes with for its own. Tokens lent under another go back.
    pub(super) fn adopt(&mut self, charge: &Charge<'_>, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let Applied { limit, rule } = charge.applied;
        let same = self.rule.as_ref().map(Arc::as_ptr) == rule.map(Arc::as_ptr);
        // The limit of a charge with a rule is its rule's.
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

    /// Holds nothing but tokens of `limit` from now on; the others are returned. Where their shard
    /// cannot take them they stay: two limits of one key share its count, which they are part of.
    fn turn_to(&mut self, limit: Limit, key: Key, here: &Here<'_>, asks: &mut Vec<Ask>) {
        if self.limit() == limit {
            return;
        }
        let spaced = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
        if spaced || self.buffer.tokens(here.now) == 0 || self.takes_returns(key, here) {
            self.give_back(key, here.now, asks);
            self.buffer.forget();
        } else {
            self.buffer.doubt();
        }
        self.set_owed(0);
        self.set_limit(limit);
    }

    fn note_demand(&mut self, charge: &Charge<'_>, now: Time) {
        self.demand.note(if charge.refund { 0 } else { charge.hits }, now);
    }

    /// Charges what is held, if that is enough. A charge that is short is no demand yet: it comes
    /// again, to [`Slot::enter`].
    pub(super) fn attempt(&mut self, charge: &Charge<'_>, here: &Here<'_>) -> Attempt {
        match self.settle(Wish::of(charge), here) {
            Some(settled) => {
                self.note_demand(charge, here.now);
                Attempt::Settled(settled)
            }
            None => Attempt::Short(self.standing(self.limit(), here.now)),
        }
    }

    /// Charges what is held, or queues and, if nobody has, asks.
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
        let is_probe = self.buffer.is_known_empty(here.now);
        let purpose = if is_probe { Purpose::Probe } else { Purpose::Request };
        let (promise, queued) = self.buffer.make_aside().waiting.push(wish);
        if queued && (self.asking == 0 || self.is_uncovered(here)) {
            asks.push(Ask { purpose, ..self.ask(charge.key(), here) });
        }
        Entered::Queued(promise)
    }

    /// What a refund would make of the key, if a lease is held here that can take it.
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

    /// Gives back what `charge` refunds: to a lease held here, of which what is more than the pod
    /// would ask for is sent on, else to the store.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let manner = self.manner(here);
        if self.settle(Wish::of(charge), here).is_none() {
            let back = Some(Back { tokens: charge.hits, epoch: None });
            self.note_asked(here.now);
            asks.push(Ask { back, ..manner.ask(charge.key()) });
            return;
        }
        let kept = self.need(&manner, 0, here).size();
        let excess = self.buffer.skim(kept, manner.kind, here.now);
        asks.extend(excess.and_then(|lot| manner.returning(charge.key(), lot)));
    }

    /// After a charge: asks for the next lease while tokens last, if they will not last until it
    /// comes.
    pub(super) fn look_ahead(&mut self, charge: &Charge<'_>, here: &Here<'_>, asks: &mut Vec<Ask>) {
        // Of nearly all charges there is no more to say than that tokens last.
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
        // An empty bucket has a token again once word of it is no longer fresh.
        let left = self.buffer.left(here.now).is_some_and(|left| left > 0);
        let refills = manner.inflow() > 0.0 && !self.buffer.is_fresh(here.now);
        let more = (left || refills) && !self.is_barred(here.now);
        if ahead && more && self.need(&manner, 0, here).may_hold_ahead() {
            let purpose = Purpose::Ahead;
            asks.push(Ask { purpose, ..self.ask(charge.key(), here) });
        }
    }

    /// Takes in a reply, serves whom it can, and asks on for the others. Returns go before asks.
    ///
    /// The limit may have changed while the ask was out. Whoever waited for its lease is served
    /// under the limit that it was asked for, and only then the turn is the next one's.
    ///
    /// Returns the hits owed that the lease has paid for.
    pub(super) fn reply(&mut self, reply: &Reply, here: &Here<'_>, asks: &mut Vec<Ask>) -> u64 {
        let mut paid = 0;
        invariant::check(self.asking > 0, "a reply answers an ask that is out");
        self.note_answered(&reply.ask, here.now);
        match &reply.outcome {
            _ if reply.ask.ahead => self.note_next(reply, here),
            Err(StoreError::Shed) => self.note_shed(here),
            // The own count is asked instead.
            Err(_) if reply.ask.pool.is_some() => self.flags.set_pool_empty(true),
            Err(error) => self.fail(error, here.now),
            Ok(grant) if reply.ask.pool.is_some() => {
                self.take_from_pool(reply, grant, here, asks);
                paid = self.pay(self.manner(here).kind, here.now);
            }
            Ok(grant) => paid = self.take_in(reply, grant, here, asks),
        }
        if self.asking == 0 {
            self.set_owed(0); // no lease is out that could still pay
            self.ask_for_the_rest(reply.ask.key, here, asks);
        }
        self.buffer.trim();
        paid
    }

    /// Takes in a grant. Returns the hits owed that it has paid for.
    fn take_in(
        &mut self,
        reply: &Reply,
        grant: &Grant,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) -> u64 {
        self.unbar();
        self.turn_to(reply.ask.limit, reply.ask.key, here, asks);
        let manner = self.manner(here);
        self.flags.set_relief(reply.hot);
        self.flags.note_miss(reply.ask.need > 0 && grant.tokens == 0);
        self.note_draw(&manner, reply, grant, here.now);
        if grant.epoch != self.buffer.epoch() {
            let waits = self.next_begins().is_some();
            self.flags.set_next_asked(waits);
        }
        let refill = manner.refill(reply, grant, self.scarcity(here), here);
        self.buffer.refill(refill, manner.kind, here.now);
        self.note_trip(here.now.since(reply.asked_at));
        let paid = self.pay(manner.kind, here.now);
        self.serve(here);
        self.fill_pool(reply.ask.key, here, asks);
        paid
    }

    /// Notes what the fleet drew since the store's last word, and this pod's part of it.
    fn note_draw(&mut self, manner: &Manner, reply: &Reply, grant: &Grant, now: Time) {
        let same = !is_windowed(manner.limit) || grant.epoch == self.buffer.epoch();
        let Some(before) = self.buffer.left(now).filter(|_| same) else {
            return;
        };
        let back = reply.ask.back.map_or(0, |back| back.tokens);
        let inflow = manner.inflow() * now.since(self.buffer.heard()).as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let before = before.saturating_add(back).saturating_add(inflow as u64);
        let before = before.min(manner.limit.capacity());
        self.demand.note_draw(grant.tokens, before.saturating_sub(grant.left));
    }

    /// What is known of the pods that draw on the key.
    fn scarcity(&self, here: &Here<'_>) -> Scarcity {
        let (misses, relief) = (self.flags.misses(), self.flags.relief());
        Scarcity { pods: self.pods(here), pod: here.pod, misses, relief }
    }

    /// Pods that the key has to be shared with: those that draw on it, once that has been seen.
    fn pods(&self, here: &Here<'_>) -> f64 {
        let all = here.pods.of(self.domain()).next_power_of_two();
        let all = f64::from(all);
        self.demand.pods().map_or(all, |seen| seen.min(all))
    }

    /// Once no ask is out: asks for those who wait still.
    fn ask_for_the_rest(&mut self, key: Key, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let first = self.buffer.aside().and_then(|rare| rare.waiting.first());
        if let Some(first) = first {
            self.turn_to(first.limit, key, here, asks);
            asks.push(self.ask(key, here));
        } else if !self.manner(here).is_leased() {
            // Nobody may spend what was not asked for.
            self.give_back(key, here.now, asks);
        } else if let (Held::Apart, Some(limit)) = (self.held, self.limit_of_rule()) {
            // Kept no longer than the box is there for those who wait.
            self.turn_to(limit, key, here, asks);
        }
    }

    /// Notes hits that this pod has admitted by itself.
    pub(super) fn owe(&mut self, charge: &Charge<'_>) {
        let limit = self.limit();
        let spaced = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
        if self.asking > 0 && limit == charge.applied.limit && !spaced {
            let hits = u32::try_from(charge.hits).unwrap_or(u32::MAX);
            self.set_owed(self.owed().saturating_add(hits));
        }
    }

    /// Spends tokens on what is owed, as far as they go.
    fn pay(&mut self, kind: Kind, now: Time) -> u64 {
        let due = u64::from(self.owed()).min(self.buffer.tokens(now));
        let take = if due > 0 { self.buffer.take(due, false, kind, now) } else { Take::Short };
        let Take::Taken(lot) = take else { return 0 };
        self.set_owed(self.owed().saturating_sub(u32::try_from(lot.tokens).unwrap_or(u32::MAX)));
        lot.tokens
    }

    /// How the key stands, if its window is known to have nothing left.
    pub(super) fn used_up(&self, charge: &Charge<'_>, now: Time) -> Option<Standing> {
        let limit = self.limit();
        let none_left = self.buffer.left(now) == Some(0) && self.buffer.is_sure();
        // What a sliding window has left grows from one moment to the next.
        let lasts = limit.algorithm == Algorithm::FixedWindow;
        let known = lasts && none_left && limit == charge.applied.limit;
        known.then(|| self.standing(limit, now))
    }

    /// Whether the slot holds so much that it has to be watched for idleness, which it is then.
    pub(super) fn watch(&mut self, here: &Here<'_>) -> bool {
        let starts = !self.flags.is_watched() && self.holds_above_allowance(here);
        if starts {
            self.flags.set_watched(true);
        }
        starts
    }

    /// Returns what the key holds above its allowance: all of it if it lies idle, else what the
    /// demand of late will not use, since demand that has moved to another pod takes its time to
    /// end here. Nothing goes back to a shard that cannot take it.
    pub(super) fn inspect(&mut self, key: Key, here: &Here<'_>, asks: &mut Vec<Ask>) -> Watch {
        self.begin_next(here.now);
        self.flags.set_watched(self.holds_above_allowance(here));
        if !self.flags.is_watched() {
            return Watch::Over;
        }
        let manner = self.manner(here);
        if !self.takes_returns(key, here) {
            return Watch::Until(here.now + WATCH_EVERY); // they would be lost on the way
        }
        let idle_after = self.idle_after(&manner);
        if self.demand.idle_for(here.now) >= idle_after && !self.is_busy() {
            self.give_back(key, here.now, asks);
            self.flags.set_watched(false);
            return Watch::Over;
        }
        let demand = self.demand.of_late(here.now);
        let need = Need { demand, burst: demand, run: None, ..self.need(&manner, 0, here) };
        if self.buffer.tokens(here.now) > 2 * need.in_use() {
            let excess = self.buffer.skim(need.in_use(), manner.kind, here.now);
            asks.extend(excess.and_then(|lot| manner.returning(key, lot)));
        }
        let silent = self.demand.idle_for(here.now);
        let until_idle = idle_after.saturating_sub(silent);
        let until_idle = here.now + until_idle.max(WATCH_EVERY);
        Watch::Until(self.next_begins().map_or(until_idle, |begins| until_idle.max(begins)))
    }

    /// The silence after which what is held goes back: in time for others to use it in a short
    /// window, and before leases end that end by themselves.
    fn idle_after(&self, manner: &Manner) -> Duration {
        let latest = match manner.kind {
            Kind::Windowed => (manner.limit.window() / 5).max(WATCH_EVERY),
            Kind::Timed | Kind::Spaced { .. } => manner.ttl() / 4,
        };
        self.demand.idle_after().min(latest)
    }

    /// Takes out the unspent tokens; the asks return them to the store.
    pub(super) fn give_back(&mut self, key: Key, now: Time, asks: &mut Vec<Ask>) {
        self.drop_next(key, asks);
        let manner = self.manner_of_returns();
        let lots = self.buffer.drain(now).into_iter().flatten();
        asks.extend(lots.filter_map(|lot| manner.returning(key, lot)));
    }

    /// Whether the shard of the key takes tokens back at present.
    pub(super) fn takes_returns(&self, key: Key, here: &Here<'_>) -> bool {
        let manner = self.manner_of_returns();
        here.desk.takes(&manner.ask(key))
    }

    /// Takes up again what `reply` says was not sent back.
    pub(super) fn keep_refused(&mut self, reply: &Reply, here: &Here<'_>) {
        let Manner { limit, kind, .. } = self.manner(here);
        let of_return = reply.ask.back.and_then(|back| Some((back.tokens, back.epoch?)));
        let of_deposit = reply.ask.deposit.map(|deposit| (deposit.tokens, deposit.epoch));
        let sent = of_return.or(of_deposit).filter(|(_, epoch)| *epoch == self.buffer.epoch());
        let (Some((tokens, epoch)), true) = (sent, limit == reply.ask.limit) else { return };
        // Only a window says by its number when it ends.
        if let (Kind::Windowed, Some(rest)) = (kind, self.buffer.reset_after(here.now)) {
            let (starts, ends) = (Time::default(), here.now + rest);
            let lot = Lot { tokens, epoch, starts, ends };
            self.buffer.put_back(lot, kind, here.now);
        }
    }

    /// The key has no place in the queue of those that are looked at.
    pub(super) fn unwatch(&mut self) {
        self.flags.set_watched(false);
    }

    /// Tokens that were taken and are not spent after all.
    pub(super) fn put_back(&mut self, taken: Lot, key: Key, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let manner = self.manner(here);
        self.buffer.put_back(taken, manner.kind, here.now);
        if !manner.is_leased() && !self.has_waiting() {
            self.give_back(key, here.now, asks);
        }
    }

    /// The domain of its rule; `None` for an override.
    pub(super) fn domain(&self) -> Option<&str> {
        self.rule.as_deref().and_then(domain_of)
    }

    /// The rule that the key's tokens were lent under; `None` for an override.
    pub(super) fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Takes the same rule of a newer version in place of the old.
    pub(super) fn renew(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(Arc::clone(rule));
    }

    fn manner(&self, here: &Here<'_>) -> Manner {
        Manner::of(self.limit(), self.rule.as_deref(), here.patience)
    }

    /// Slots of a leaky bucket, which alone are taken late, are never returned.
    fn manner_of_returns(&self) -> Manner {
        Manner::of(self.limit(), self.rule.as_deref(), Duration::ZERO)
    }

    fn settle(&mut self, wish: Wish, here: &Here<'_>) -> Option<Settled> {
        let now = here.now;
        if !self.buffer.is_live(now) {
            self.begin_next(now);
        }
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

    /// Settles whatever wait the tokens and the store's word allow, first come first served.
    fn serve(&mut self, here: &Here<'_>) {
        let kind = self.manner(here).kind;
        let Some(rare) = self.buffer.aside_mut() else { return };
        for waiter in rare.waiting.take() {
            match self.settle(waiter.wish, here) {
                None => self.buffer.make_aside().waiting.keep(waiter),
                Some(settled) => {
                    if let Some(settled) = waiter.tell(Ok(settled)) {
                        self.buffer.put_back(settled.taken, kind, here.now);
                    }
                }
            }
        }
    }

    fn note_next(&mut self, reply: &Reply, here: &Here<'_>) {
        if let Ok(grant) = &reply.outcome {
            self.take_next(reply, grant, here);
        }
    }

    /// The ask was dropped, since its shard has more urgent ones to answer: requests that probe an
    /// empty key are denied by the store's last word, and nothing is asked ahead for a while.
    fn note_shed(&mut self, here: &Here<'_>) {
        self.flags.set_shed(true);
        if self.asking == 0 {
            self.buffer.note_ask(here.now);
        }
        self.buffer.stay_fresh(here.now + SHED_PAUSE);
        self.serve(here);
        self.fail(&StoreError::Shed, here.now);
    }

    fn fail(&mut self, error: &StoreError, now: Time) {
        self.bar(error, now);
        let Some(rare) = self.buffer.aside_mut() else { return };
        for waiter in rare.waiting.take() {
            waiter.tell(Err(error.clone()));
        }
    }

    fn has_waiting(&self) -> bool {
        self.buffer.aside().is_some_and(|rare| !rare.waiting.is_empty())
    }
}

fn is_windowed(limit: Limit) -> bool {
    matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}
