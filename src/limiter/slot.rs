//! What the limiter keeps for one key: its buffer, its demand, and the requests that wait.

mod asking;

use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;

use super::Here;
use super::lend::Manner;
use super::outcome::{Attempt, Entered, Settled, Standing, Watch};
use super::resolve::Charge;
use super::shares::Shares;
use super::wait::{Queue, Wish};
use crate::buffer::table::Entry;
use crate::buffer::{Buffer, Kind, Lot, Take};
use crate::invariant;
use crate::key::Key;
use crate::lease::Reply;
use crate::lease::size::{Demand, Need};
use crate::rules::{Algorithm, Limit, Rule};
use crate::store::{Ask, StoreError};
use crate::time::Time;

/// A key that has lain so long is idle: what it holds above its allowance goes back.
pub(super) const IDLE_AFTER: Duration = Duration::from_millis(200);

/// An ask that is out for longer is overdue: so many round trips, and at least this long, since
/// scheduling alone takes a few milliseconds on a busy machine.
const OVERDUE_TRIPS: u32 = 4;
const OVERDUE_MIN: Duration = Duration::from_millis(50);

/// What a round trip is taken for before the first was measured.
const TRIP_FIRST_US: u32 = 1_000;

/// State of one key.
pub(super) struct Slot {
    buffer: Buffer,
    demand: Demand,
    /// The limit that the tokens were lent under.
    limit: Limit,
    /// The rule that it is of; `None` for an override.
    rule: Option<Arc<Rule>>,
    shares: Shares,
    /// Asks on their way: one at a time, or one a share when requests wait.
    asking: u8,
    /// When the last of them was made.
    asked: Time,
    /// It is due to be looked at once it has lain idle.
    watched: bool,
    touched: Time,
    /// A round trip to the store, in microseconds: the last one if it took longer than before,
    /// else a moving average.
    trip_us: u32,
    /// Hits that this pod has admitted by itself since the ask that is out: if its lease comes, it
    /// pays for them.
    owed: u32,
    /// What a request waits for a lease at most, in microseconds: half as large as a `Duration`.
    patience_us: u32,
    waiting: Queue,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(charge: &Charge<'_>, here: &Here) -> Self {
        Self {
            buffer: Buffer::default(),
            demand: Demand::default(),
            limit: charge.applied.limit,
            rule: charge.applied.rule.cloned(),
            shares: Shares::from(here.first_share(charge.key())),
            asking: 0,
            asked: here.now,
            watched: false,
            touched: here.now,
            trip_us: TRIP_FIRST_US,
            owed: 0,
            patience_us: u32::try_from(here.patience.as_micros()).unwrap_or(u32::MAX),
            waiting: Queue::default(),
        }
    }

    /// Takes the limit that `charge` comes with for its own. Tokens lent under another go back.
    pub(super) fn adopt(&mut self, charge: &Charge<'_>, here: &Here, asks: &mut Vec<Ask>) {
        self.touched = here.now;
        if self.limit != charge.applied.limit {
            self.turn_to(charge.applied.limit, charge.key(), here, asks);
        }
        if self.rule.as_ref().map(Arc::as_ptr) != charge.applied.rule.map(Arc::as_ptr) {
            self.rule = charge.applied.rule.cloned();
        }
    }

    /// Holds nothing but tokens of `limit` from now on; the others are returned.
    fn turn_to(&mut self, limit: Limit, key: Key, here: &Here, asks: &mut Vec<Ask>) {
        if self.limit == limit {
            return;
        }
        self.give_back(key, here.now, asks);
        self.buffer = Buffer::default();
        self.shares = Shares::from(self.shares.next(NonZeroU8::MAX));
        self.limit = limit;
        self.owed = 0;
    }

    fn note_demand(&mut self, charge: &Charge<'_>, now: Time) {
        if !charge.refund {
            self.demand.note(charge.hits, now);
        }
    }

    /// Charges what is held, if that is enough. A charge that is short is no demand yet: it comes
    /// again, to [`Slot::enter`].
    pub(super) fn attempt(&mut self, charge: &Charge<'_>, now: Time) -> Attempt {
        match self.settle(Wish::of(charge), now) {
            Some(settled) => {
                self.note_demand(charge, now);
                Attempt::Settled(settled)
            }
            None => Attempt::Short(self.standing(now)),
        }
    }

    /// Charges what is held, or queues and, if nobody has, asks.
    pub(super) fn enter(
        &mut self,
        charge: &Charge<'_>,
        here: &Here,
        asks: &mut Vec<Ask>,
    ) -> Entered {
        let wish = Wish::of(charge);
        self.note_demand(charge, here.now);
        if let Some(settled) = self.settle(wish, here.now) {
            return Entered::Settled(settled);
        }
        if self.is_overdue(here.now) {
            return Entered::Overdue;
        }
        let (promise, queued) = self.waiting.push(wish);
        if queued && self.asking == 0 {
            asks.push(self.ask(charge.key(), here));
        }
        Entered::Queued(promise)
    }

    /// After a charge: asks for the next lease while tokens last, if they will not last until it
    /// comes, and sends on what a refund left here above what the pod would ask for.
    pub(super) fn look_ahead(&mut self, charge: &Charge<'_>, here: &Here, asks: &mut Vec<Ask>) {
        let manner = self.manner();
        if charge.refund {
            let kept = self.need(&manner, 0, here).size();
            let excess = self.buffer.skim(kept, manner.kind, here.now);
            asks.extend(excess.and_then(|lot| self.returning(&manner, charge.key(), lot)));
        }
        let more = self.buffer.left(here.now).is_some_and(|left| left > 0);
        let ahead = manner.is_leased() && !matches!(manner.kind, Kind::Spaced { .. });
        if more && self.asking == 0 && ahead {
            let tokens = self.buffer.tokens(here.now);
            if self.demand.outruns(tokens, self.round_trip())
                && self.need(&manner, 0, here).may_hold_ahead()
            {
                asks.push(self.ask(charge.key(), here));
            }
        }
    }

    /// Takes in a reply, serves whom it can, and asks on for the others. Returns go before asks.
    ///
    /// The limit may have changed while the ask was out. Whoever waited for its lease is served
    /// under the limit that it was asked for, and only then the turn is the next one's.
    ///
    /// Returns the hits owed that the lease has paid for.
    pub(super) fn reply(&mut self, reply: &Reply, here: &Here, asks: &mut Vec<Ask>) -> u64 {
        let key = reply.ask.key;
        let mut paid = 0;
        invariant::check(self.asking > 0, "a reply answers an ask that is out");
        self.asking = self.asking.saturating_sub(1);
        match &reply.outcome {
            Err(_) if self.shares.failed(reply) => {}
            Err(error) => self.fail(error),
            Ok(grant) => {
                self.turn_to(reply.ask.limit, key, here, asks);
                let manner = self.manner();
                let windowed = matches!(
                    self.limit.algorithm,
                    Algorithm::FixedWindow | Algorithm::SlidingWindow
                );
                let anew = windowed && grant.epoch > self.buffer.epoch();
                let whole = self.shares.heard(&reply.ask, grant, anew);
                let refill = manner.refill(reply, grant, whole, here);
                self.buffer.refill(refill, manner.kind, here.now);
                self.note_trip(here.now.since(reply.asked_at));
                paid = self.pay(manner.kind, here.now);
                self.serve(here.now);
            }
        }
        self.owed = 0;
        match self.waiting.first() {
            _ if self.asking > 0 => {}
            Some(first) => {
                self.turn_to(first.limit, key, here, asks);
                self.ask_on(key, here, asks);
            }
            // Nobody may spend what was not asked for.
            None if !self.manner().is_leased() => self.give_back(key, here.now, asks),
            None => {}
        }
        paid
    }

    /// Notes hits that this pod has admitted by itself.
    pub(super) fn owe(&mut self, charge: &Charge<'_>) {
        let spaced = matches!(self.limit.algorithm, Algorithm::LeakyBucket { .. });
        if self.asking > 0 && self.limit == charge.applied.limit && !spaced {
            let hits = u32::try_from(charge.hits).unwrap_or(u32::MAX);
            self.owed = self.owed.saturating_add(hits);
        }
    }

    /// Spends tokens on what is owed, as far as they go.
    fn pay(&mut self, kind: Kind, now: Time) -> u64 {
        let due = u64::from(self.owed).min(self.buffer.tokens(now));
        let take = if due > 0 { self.buffer.take(due, false, kind, now) } else { Take::Short };
        if let Take::Taken(lot) = take { lot.tokens } else { 0 }
    }

    /// How the key stands, if its window is known to have nothing left.
    pub(super) fn used_up(&self, charge: &Charge<'_>, now: Time) -> Option<Standing> {
        let windowed =
            matches!(self.limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
        let none_left = self.buffer.left(now) == Some(0) && self.buffer.is_sure();
        let known = windowed && none_left && self.limit == charge.applied.limit;
        known.then(|| self.standing(now))
    }

    /// Whether the slot holds so much that it has to be watched for idleness, which it is then.
    pub(super) fn watch(&mut self, here: &Here) -> bool {
        let starts = !self.watched && self.holds_above_allowance(here);
        self.watched |= starts;
        starts
    }

    /// Returns what the key holds above its allowance: all of it if it lies idle, else what the
    /// demand of late will not use, since demand that has moved to another pod takes its time to
    /// end here.
    pub(super) fn inspect(&mut self, key: Key, here: &Here, asks: &mut Vec<Ask>) -> Watch {
        self.watched = self.holds_above_allowance(here);
        if !self.watched {
            return Watch::Over;
        }
        if self.touched + IDLE_AFTER <= here.now && !self.is_busy() {
            self.give_back(key, here.now, asks);
            self.watched = false;
            return Watch::Over;
        }
        let manner = self.manner();
        let demand = self.demand.of_late(here.now);
        let need = Need { demand, ..self.need(&manner, 0, here) };
        if self.buffer.tokens(here.now) > 2 * need.in_use() {
            let excess = self.buffer.skim(need.in_use(), manner.kind, here.now);
            asks.extend(excess.and_then(|lot| self.returning(&manner, key, lot)));
        }
        Watch::Until(here.now + IDLE_AFTER)
    }

    /// Takes out the unspent tokens; the asks return them to the store.
    pub(super) fn give_back(&mut self, key: Key, now: Time, asks: &mut Vec<Ask>) {
        let manner = self.manner();
        let lots = self.buffer.drain(now).into_iter().flatten();
        asks.extend(lots.filter_map(|lot| self.returning(&manner, key, lot)));
    }

    /// Tokens that were taken and are not spent after all.
    pub(super) fn put_back(&mut self, taken: Lot, key: Key, now: Time, asks: &mut Vec<Ask>) {
        let manner = self.manner();
        self.buffer.put_back(taken, manner.kind, now);
        if !manner.is_leased() && self.waiting.is_empty() {
            self.give_back(key, now, asks);
        }
    }

    /// The rule that the key's tokens were lent under; `None` for an override.
    pub(super) fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Takes the same rule of a newer version in place of the old.
    pub(super) fn renew(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(Arc::clone(rule));
    }

    fn manner(&self) -> Manner {
        let patience = Duration::from_micros(u64::from(self.patience_us));
        Manner::of(self.limit, self.rule.as_deref(), patience)
    }

    fn settle(&mut self, wish: Wish, now: Time) -> Option<Settled> {
        if wish.limit != self.limit {
            return None;
        }
        let kind = self.manner().kind;
        let (over, taken) = if wish.refund {
            let refunded = self.buffer.refund(wish.hits, self.limit.capacity(), kind, now);
            refunded.then_some((false, Lot::default()))?
        } else {
            match self.buffer.take(wish.hits, wish.charge_denied, kind, now) {
                Take::Taken(lot) => (false, lot),
                Take::Denied => (true, Lot::default()),
                Take::Short => return None,
            }
        };
        Some(Settled { over, taken, standing: self.standing(now), mode: None })
    }

    fn standing(&self, now: Time) -> Standing {
        let capacity = self.limit.capacity();
        let reset_after = self.buffer.reset_after(now);
        let remaining = reset_after.map_or(capacity, |_| self.buffer.remaining(now).min(capacity));
        Standing { remaining, reset_after }
    }

    /// Settles whatever wait the tokens and the store's word allow, first come first served.
    fn serve(&mut self, now: Time) {
        let kind = self.manner().kind;
        for waiter in self.waiting.take() {
            match self.settle(waiter.wish, now) {
                None => self.waiting.keep(waiter),
                Some(settled) => {
                    if let Some(settled) = waiter.tell(Ok(settled)) {
                        self.buffer.put_back(settled.taken, kind, now);
                    }
                }
            }
        }
    }

    fn fail(&mut self, error: &StoreError) {
        for waiter in self.waiting.take() {
            waiter.tell(Err(error.clone()));
        }
    }
}

impl Entry for Slot {
    fn touched(&self) -> Time {
        self.touched
    }

    fn is_busy(&self) -> bool {
        self.asking > 0 || !self.waiting.is_empty()
    }

    fn is_live(&self, now: Time) -> bool {
        self.buffer.is_live(now)
    }

    fn heap(&self) -> usize {
        self.waiting.heap()
    }
}
