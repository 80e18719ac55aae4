//! What a slot gives back: tokens of another limit, of an idle key, and beyond what demand will
//! use.

use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit};

use super::{Slot, WATCH_EVERY};
use crate::buffer::table::Entry;
use crate::buffer::{Kind, Lot};
use crate::lease::Reply;
use crate::lease::size::Need;
use crate::limiter::Here;
use crate::limiter::lend::Manner;
use crate::limiter::outcome::Watch;
use crate::store::Ask;
use crate::time::Time;

impl Slot {
    /// Holds nothing but tokens of `limit` from now on; the others are returned. Where their shard
    /// cannot take them they stay: two limits of one key share its count, which they are part of.
    pub(in crate::limiter) fn turn_to(
        &mut self,
        limit: Limit,
        key: Key,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) {
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

    /// Returns what the key holds above its allowance: all of it if it lies idle, else what the
    /// demand of late will not use, since demand that has moved to another pod takes its time to
    /// end here. Nothing goes back to a shard that cannot take it.
    pub(in crate::limiter) fn inspect(
        &mut self,
        key: Key,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) -> Watch {
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
        let until_idle = here.now + idle_after.saturating_sub(silent).max(WATCH_EVERY);
        Watch::Until(self.looks_at_next(key, here).map_or(until_idle, |at| until_idle.max(at)))
    }

    /// The silence after which what is held goes back: in time for others to use it in a short
    /// window, and before leases end that end by themselves.
    pub(in crate::limiter) fn idle_after(&self, manner: &Manner) -> Duration {
        let latest = match manner.kind {
            Kind::Windowed => (manner.limit.window() / 5).max(WATCH_EVERY),
            Kind::Timed | Kind::Spaced { .. } => manner.ttl() / 4,
        };
        self.demand.idle_after().min(latest)
    }

    /// Takes out the unspent tokens; the asks return them to the store.
    pub(in crate::limiter) fn give_back(&mut self, key: Key, now: Time, asks: &mut Vec<Ask>) {
        self.drop_next(key, asks);
        let manner = self.manner_of_returns();
        let lots = self.buffer.drain(now).into_iter().flatten();
        asks.extend(lots.filter_map(|lot| manner.returning(key, lot)));
    }

    /// Tokens that were taken and are not spent after all.
    pub(in crate::limiter) fn put_back(
        &mut self,
        taken: Lot,
        key: Key,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let manner = self.manner(here);
        self.buffer.put_back(taken, manner.kind, here.now);
        if !manner.is_leased() && !self.has_waiting() {
            self.give_back(key, here.now, asks);
        }
    }

    /// Whether the shard of the key takes tokens back at present.
    pub(in crate::limiter) fn takes_returns(&self, key: Key, here: &Here<'_>) -> bool {
        let manner = self.manner_of_returns();
        here.desk.takes(&manner.ask(key))
    }

    /// Takes up again what `reply` says was not sent back.
    pub(in crate::limiter) fn keep_refused(&mut self, reply: &Reply, here: &Here<'_>) {
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

    /// Whether the slot holds so much that it has to be watched for idleness, which it is then.
    pub(in crate::limiter) fn watch(&mut self, here: &Here<'_>) -> bool {
        let starts = !self.flags.is_watched() && self.holds_above_allowance(here);
        if starts {
            self.flags.set_watched(true);
        }
        starts
    }

    /// The key has no place in the queue of those that are looked at.
    pub(in crate::limiter) fn unwatch(&mut self) {
        self.flags.set_watched(false);
    }
}
