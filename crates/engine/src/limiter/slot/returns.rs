//! What a slot gives back: tokens of another limit, of an idle key, and beyond the expected demand.

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
    /// From now on the slot holds only tokens of `limit`; the others are returned. If their shard
    /// cannot take them they stay, since two limits of one key share the count that they belong to.
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

    /// Returns what the key holds above its allowance: all of it if the key is idle, else what the
    /// recent demand will not use, since the measured demand falls only slowly after it has moved
    /// to another pod. Nothing goes back to a shard that cannot take it.
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

    /// The silence after which the tokens held go back: in time for others to use them in a short
    /// window, and before leases that end without their window.
    pub(in crate::limiter) fn idle_after(&self, manner: &Manner) -> Duration {
        let latest = match manner.kind {
            Kind::Windowed => (manner.limit.window() / 5).max(WATCH_EVERY),
            Kind::Timed | Kind::Spaced { .. } => manner.ttl() / 4,
        };
        self.demand.idle_after().min(latest)
    }

    /// Removes the unspent tokens; the asks return them to the store.
    pub(in crate::limiter) fn give_back(&mut self, key: Key, now: Time, asks: &mut Vec<Ask>) {
        self.drop_next(key, asks);
        let manner = self.manner_of_returns();
        let lots = self.buffer.drain(now).into_iter().flatten();
        asks.extend(lots.filter_map(|lot| manner.returning(key, lot)));
    }

    /// Puts back tokens that were taken and are not spent after all.
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

    /// Whether the key's shard accepts returned tokens at present.
    pub(in crate::limiter) fn takes_returns(&self, key: Key, here: &Here<'_>) -> bool {
        let manner = self.manner_of_returns();
        here.desk.takes(&manner.ask(key))
    }

    /// Takes back the tokens of a return that, by `reply`, was not sent.
    pub(in crate::limiter) fn keep_refused(&mut self, reply: &Reply, here: &Here<'_>) {
        let Manner { limit, kind, .. } = self.manner(here);
        let of_return = reply.ask.back.and_then(|back| Some((back.tokens, back.epoch?)));
        let of_deposit = reply.ask.deposit.map(|deposit| (deposit.tokens, deposit.epoch));
        let sent = of_return.or(of_deposit).filter(|(_, epoch)| *epoch == self.buffer.epoch());
        let (Some((tokens, epoch)), true) = (sent, limit == reply.ask.limit) else { return };
        // Only a window's number says when the window ends.
        if let (Kind::Windowed, Some(rest)) = (kind, self.buffer.reset_after(here.now)) {
            let (starts, ends) = (Time::default(), here.now + rest);
            let lot = Lot { tokens, epoch, starts, ends };
            self.buffer.put_back(lot, kind, here.now);
        }
    }

    /// Starts to watch the slot for idleness if it holds enough. Returns whether the watch starts.
    pub(in crate::limiter) fn watch(&mut self, here: &Here<'_>) -> bool {
        let starts = !self.flags.is_watched() && self.holds_above_allowance(here);
        if starts {
            self.flags.set_watched(true);
        }
        starts
    }

    /// Notes that the key has no place in the queue of watched keys.
    pub(in crate::limiter) fn unwatch(&mut self) {
        self.flags.set_watched(false);
    }
}
