//! What a key gives back: tokens of another limit, of an idle key, and beyond the expected demand.

use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit};

use super::{KeyState, WATCH_EVERY};
use crate::buffer::table::Entry;
use crate::buffer::{LeaseKind, LeasedTokens};
use crate::lease::Reply;
use crate::lease::size::LeaseSize;
use crate::limiter::PodContext;
use crate::limiter::lease_policy::LeasePolicy;
use crate::store::Ask;
use crate::time::Time;

impl KeyState {
    /// From now on the key holds only tokens of `limit`; the others are returned. If their shard
    /// cannot take them they stay, since two limits of one key share the count that they belong to.
    /// Tokens of another store never stay: this store has not counted them.
    pub(in crate::limiter) fn change_limit(
        &mut self,
        limit: Limit,
        key: Key,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        if self.limit() == limit {
            return;
        }
        let spaced = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
        let moves = self.limit().store != limit.store;
        let none_held = || self.buffer.tokens(context.now) == 0;
        if spaced || moves || none_held() || self.takes_returns(key, context) {
            self.give_back(key, context.now, asks);
            self.buffer.forget();
        } else {
            self.buffer.mark_estimated();
        }
        // A debt stays: both limits share the count that it belongs to.
        self.set_limit(limit);
    }

    /// Returns what the key holds above its allowance: all of it if the key is idle, else what the
    /// recent demand will not use, since the measured demand falls only slowly after it has moved
    /// to another pod. Nothing goes back to a shard that cannot take it. Returns when to check the
    /// key again; `None` stops watching it.
    pub(in crate::limiter) fn inspect(
        &mut self,
        key: Key,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) -> Option<Time> {
        self.begin_next_window(context.now);
        self.flags.set_watched(self.holds_above_allowance(context));
        if !self.flags.is_watched() {
            return None;
        }
        let policy = self.policy(context);
        if !self.takes_returns(key, context) {
            return Some(context.now + WATCH_EVERY); // they would be lost on the way
        }
        let idle_after = self.idle_after(&policy);
        if self.demand.idle_for(context.now) >= idle_after && !self.is_busy() {
            self.give_back(key, context.now, asks);
            self.flags.set_watched(false);
            return None;
        }
        let demand = self.demand.recent_rate(context.now);
        let size =
            LeaseSize { demand, burst: demand, run: None, ..self.lease_size(&policy, 0, context) };
        if self.buffer.tokens(context.now) > 2 * size.in_use() {
            let excess = self.buffer.take_excess(size.in_use(), policy.kind, context.now);
            asks.extend(excess.and_then(|lease| policy.returning(key, lease)));
        }
        let silent = self.demand.idle_for(context.now);
        let until_idle = context.now + idle_after.saturating_sub(silent).max(WATCH_EVERY);
        Some(self.checks_next_window_at(key, context).map_or(until_idle, |at| until_idle.max(at)))
    }

    /// The silence after which the tokens held go back: in time for others to use them in a short
    /// window, and before leases that end without their window.
    pub(in crate::limiter) fn idle_after(&self, policy: &LeasePolicy) -> Duration {
        let latest = match policy.kind {
            LeaseKind::Windowed => (policy.limit.window() / 5).max(WATCH_EVERY),
            LeaseKind::Timed | LeaseKind::Spaced { .. } => policy.ttl() / 4,
        };
        self.demand.idle_after().min(latest)
    }

    /// Removes the unspent tokens; the asks return them to the store.
    pub(in crate::limiter) fn give_back(&mut self, key: Key, now: Time, asks: &mut Vec<Ask>) {
        self.give_back_next_window(key, asks);
        let policy = self.return_policy();
        let leases = self.buffer.drain(now).into_iter().flatten();
        asks.extend(leases.filter_map(|lease| policy.returning(key, lease)));
    }

    /// Puts back tokens that were taken and are not spent after all.
    pub(in crate::limiter) fn put_back(
        &mut self,
        taken: LeasedTokens,
        key: Key,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let policy = self.policy(context);
        self.buffer.put_back(taken, policy.kind, context.now);
        if !policy.is_leased() && !self.has_waiting() {
            self.give_back(key, context.now, asks);
        }
    }

    /// Whether the key's shard accepts returned tokens at present.
    pub(in crate::limiter) fn takes_returns(&self, key: Key, context: &PodContext<'_>) -> bool {
        let policy = self.return_policy();
        context.lease_client.takes(&policy.blank_ask(key))
    }

    /// Takes back the tokens of a return that, by `reply`, was not sent.
    pub(in crate::limiter) fn take_back_unsent(&mut self, reply: &Reply, context: &PodContext<'_>) {
        let LeasePolicy { limit, kind, .. } = self.policy(context);
        let of_return = reply.ask.back.and_then(|back| Some((back.tokens, back.epoch?)));
        let of_deposit = reply.ask.deposit.map(|deposit| (deposit.tokens, deposit.epoch));
        let sent = of_return.or(of_deposit).filter(|(_, epoch)| *epoch == self.buffer.epoch());
        let (Some((tokens, epoch)), true) = (sent, limit == reply.ask.limit) else { return };
        // Only a window's number says when the window ends.
        if let (LeaseKind::Windowed, Some(rest)) = (kind, self.buffer.reset_after(context.now)) {
            let (starts, ends) = (Time::default(), context.now + rest);
            let lease = LeasedTokens { tokens, epoch, starts, ends };
            self.buffer.put_back(lease, kind, context.now);
        }
    }

    /// Starts to watch the key for idleness if it holds enough. Returns whether the watch starts.
    pub(in crate::limiter) fn watch(&mut self, context: &PodContext<'_>) -> bool {
        let starts = !self.flags.is_watched() && self.holds_above_allowance(context);
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
