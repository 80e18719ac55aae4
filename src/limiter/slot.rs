//! What the limiter keeps for one key: its buffer, its demand, and the requests that wait.

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
use crate::key::Key;
use crate::lease::Reply;
use crate::lease::size::{Demand, Need};
use crate::rules::{Algorithm, Limit, Rule, Share};
use crate::store::{Ask, Back, StoreError};
use crate::time::Time;

/// A key that has lain so long is idle: what it holds above its allowance goes back.
pub(super) const IDLE_AFTER: Duration = Duration::from_millis(200);

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
    /// It is due to be looked at once it has lain idle.
    watched: bool,
    touched: Time,
    /// What a request waits for a lease at most, in microseconds: half as large as a `Duration`.
    patience_us: u32,
    waiting: Queue,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(charge: &Charge, here: &Here) -> Self {
        Self {
            buffer: Buffer::default(),
            demand: Demand::default(),
            limit: charge.applied.limit,
            rule: charge.applied.rule.clone(),
            shares: Shares::from(here.first_share(charge.key())),
            asking: 0,
            watched: false,
            touched: here.now,
            patience_us: u32::try_from(here.patience.as_micros()).unwrap_or(u32::MAX),
            waiting: Queue::default(),
        }
    }

    /// Takes the limit that `charge` comes with for its own. Tokens lent under another go back.
    pub(super) fn adopt(&mut self, charge: &Charge, here: &Here, asks: &mut Vec<Ask>) {
        self.touched = here.now;
        if self.limit != charge.applied.limit {
            self.turn_to(charge.applied.limit, charge.key(), here, asks);
        }
        if self.rule.as_ref().map(Arc::as_ptr) != charge.applied.rule.as_ref().map(Arc::as_ptr) {
            self.rule.clone_from(&charge.applied.rule);
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
    }

    /// Charges what is held, if that is enough.
    pub(super) fn attempt(&mut self, charge: &Charge, now: Time) -> Attempt {
        if !charge.refund {
            self.demand.note(charge.hits, now);
        }
        match self.settle(Wish::of(charge), now) {
            Some(settled) => Attempt::Settled(settled),
            None => Attempt::Short(self.standing(now)),
        }
    }

    /// Charges what is held, or queues and, if nobody has, asks.
    pub(super) fn enter(&mut self, charge: &Charge, here: &Here, asks: &mut Vec<Ask>) -> Entered {
        let wish = Wish::of(charge);
        if let Some(settled) = self.settle(wish, here.now) {
            return Entered::Settled(settled);
        }
        let (promise, queued) = self.waiting.push(wish);
        if queued && self.asking == 0 {
            asks.push(self.ask(charge.key(), here));
        }
        Entered::Queued(promise)
    }

    /// After a charge: asks for the next lease while tokens last, if they will not last until it
    /// comes, and sends on what a refund left here above what the pod would ask for.
    pub(super) fn look_ahead(&mut self, charge: &Charge, here: &Here, asks: &mut Vec<Ask>) {
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
            if self.demand.outruns(tokens, here.round_trip)
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
    pub(super) fn reply(&mut self, reply: &Reply, here: &Here, asks: &mut Vec<Ask>) {
        let key = reply.ask.key;
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
                self.serve(here.now);
            }
        }
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
    }

    /// Asks for those who go on waiting: of a split key, every share that may have tokens.
    fn ask_on(&mut self, key: Key, here: &Here, asks: &mut Vec<Ask>) {
        let first = self.ask(key, here);
        let others = self.shares.others(first.share.of);
        let (parts, mut back) = (others.len() as u64, first.back);
        for at in others {
            let share = Share { at, ..first.share };
            asks.push(Ask { share, want: first.want.div_ceil(parts), back, ..first });
            back = None; // once
            self.asking += 1;
        }
        self.asking -= 1; // counted by the first
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

    fn returning(&self, manner: &Manner, key: Key, lot: Lot) -> Option<Ask> {
        manner.returning(key, self.shares.next(manner.shares), lot)
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
        Some(Settled { over, taken, standing: self.standing(now) })
    }

    fn standing(&self, now: Time) -> Standing {
        let capacity = self.limit.capacity();
        let reset_after = self.buffer.reset_after(now);
        let remaining = reset_after.map_or(capacity, |_| self.buffer.remaining(now).min(capacity));
        Standing { remaining, reset_after }
    }

    /// The next ask. `need` is what the first request in the queue lacks: it is granted whole or
    /// not at all. Looks ask for nothing, and neither do those held to another limit. Refunds that
    /// found no lease here go to the store with it.
    fn ask(&mut self, key: Key, here: &Here) -> Ask {
        self.asking += 1;
        // Nothing is asked, and nothing charged, for a request that has been answered.
        self.waiting.forget_answered();
        let refunds = self.waiting.take_refunds(self.limit);
        let manner = self.manner();
        // Slots that are held go by while one waits for more: a charge gets its own in one piece.
        let spaced = matches!(manner.kind, Kind::Spaced { .. });
        let held = if spaced { 0 } else { self.buffer.tokens(here.now) };
        let charges = || self.waiting.under(self.limit).filter(Wish::spends);
        let wanted = charges().fold(0_u64, |sum, wish| sum.saturating_add(wish.hits));
        let missing = wanted.saturating_sub(held);
        let first = charges().next();
        let need = first.map_or(0, |wish| wish.hits.saturating_sub(held));
        let size = || self.need(&manner, missing, here).size();
        let want = match first {
            None if !self.waiting.is_empty() => 0,
            // The slots of one lease follow each other faster than one pod's part of the demand.
            _ if manner.is_leased() && !spaced => size().max(need),
            _ => missing,
        };
        // One share may have less than a charge needs: it gives what it has, the next one more.
        let whole = manner.shares.get() == 1;
        Ask {
            want,
            need: if whole { need } else { 0 },
            charge_denied: whole && first.is_some_and(|wish| wish.charge_denied),
            back: (refunds > 0).then_some(Back { tokens: refunds, epoch: None }),
            ..manner.ask(key, self.shares.next(manner.shares))
        }
    }

    fn need(&self, manner: &Manner, waiting: u64, here: &Here) -> Need {
        let limit = self.limit.capacity();
        let lasts = match manner.kind {
            Kind::Windowed => self.buffer.reset_after(here.now),
            Kind::Timed | Kind::Spaced { .. } => Some(manner.ttl()),
        };
        Need {
            demand: self.demand.rate(),
            waiting,
            limit,
            left: self.buffer.left(here.now).unwrap_or(limit),
            inflow: manner.inflow(),
            lasts,
            // Each share is asked by its part of the pods, by one at least.
            pods: here.pods.max(u32::from(manner.shares.get())),
            terms: manner.terms(),
        }
    }

    fn holds_above_allowance(&self, here: &Here) -> bool {
        let manner = self.manner();
        let tokens = self.buffer.tokens(here.now);
        let spaced = matches!(manner.kind, Kind::Spaced { .. });
        let allowance = || self.need(&manner, 0, here).unspent_allowance();
        tokens > 1 && !spaced && tokens as f64 > allowance()
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
