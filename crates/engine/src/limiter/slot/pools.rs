//! The pools of a split key (`shards`): tokens that the key's own count has lent, on slots of their
//! own, for pods to take smaller leases from.
//!
//! The own count always holds the whole limit, so that the number of pools changes no bound. A pod
//! takes from one pool; where that is empty it asks the own count, and now and then for so much
//! more that the other pods of its pool need not. Near the end of a limit, where a pod's part is
//! about a token, all ask the own count.

use ratelease_rules::Rule;
use ratelease_rules::key::Key;

use super::{Slot, is_windowed};
use crate::buffer::{Kind, Lot};
use crate::dice::{fraction, mixed};
use crate::lease::Reply;
use crate::lease::size::Need;
use crate::limiter::Here;
use crate::limiter::lend::{Manner, unwanted};
use crate::store::{Ask, Deposit, Grant, Purpose};
use crate::time::Time;

/// Of the pods that find their pool empty at once, so many fill it.
const FILLING: f64 = 2.0;

/// A lease is worth taking from a pool from this size on: below, the count itself is near its end.
const LEASE_MIN: u64 = 2;

impl Slot {
    /// The pool to ask for a lease of `need`, if the own count need not be asked.
    pub(super) fn pool(&self, manner: &Manner, need: &Need, now: Time) -> Option<u8> {
        let known = self.buffer.left(now).is_some() && !self.flags.is_pool_empty();
        (known && is_pooled(manner, need)).then(|| self.pool % manner.pools)
    }

    /// Tokens to ask the own count for on top of a lease, to be put into the pool.
    pub(super) fn fill(&self, manner: &Manner, need: &Need, key: Key, here: &Here<'_>) -> u64 {
        if !self.flags.is_pool_empty() || !is_pooled(manner, need) {
            return 0;
        }
        let others = need.pods / f64::from(manner.pools.get()) - 1.0;
        let drawn = fraction(mixed(key.bits() ^ mixed(here.pod ^ here.now.nanos())));
        if drawn * (others + 1.0) > FILLING {
            return 0;
        }
        need.for_pool(others, manner.pools)
    }

    /// Takes in what a pool lent. Notes whether it lent less than was asked for.
    pub(super) fn take_from_pool(
        &mut self,
        reply: &Reply,
        grant: &Grant,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) {
        self.flags.set_pool_empty(grant.tokens < reply.ask.want);
        if grant.tokens == 0 {
            return;
        }
        let Manner { kind, limit, .. } = self.manner(here);
        let windowed = is_windowed(limit);
        // A pool ends a little late, by the way of what was put in: never after its window.
        let ends = reply.asked_at + grant.ends_after;
        let ends = match self.buffer.reset_after(here.now) {
            Some(rest) if windowed => ends.min(here.now + rest),
            _ => ends,
        };
        let lot = Lot { tokens: grant.tokens, epoch: grant.epoch, starts: Time::default(), ends };
        let of_use = match kind {
            Kind::Spaced { .. } => false,
            Kind::Windowed | Kind::Timed => !windowed || grant.epoch == self.buffer.epoch(),
        };
        if of_use && limit == reply.ask.limit {
            self.buffer.put_back(lot, kind, here.now);
            self.serve(here);
        } else {
            asks.extend(unwanted(reply));
        }
    }

    /// After a grant of the own count: puts what is more than a lease into the pool.
    pub(super) fn fill_pool(&mut self, key: Key, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let manner = self.manner(here);
        if manner.pools.get() == 1 {
            return;
        }
        self.flags.set_pool_empty(false);
        let need = self.need(&manner, 0, here);
        let kept = need.size();
        let excess = self.buffer.tokens(here.now).saturating_sub(kept);
        if excess < kept || !is_pooled(&manner, &need) {
            return;
        }
        let (pool, purpose) = (Some(self.pool % manner.pools), Purpose::Return);
        let deposit = Ask { pool, purpose, ..manner.ask(key) };
        if !here.desk.takes(&deposit) {
            return; // what is too much goes back to the own count
        }
        let Some(lot) = self.buffer.take_out(kept, manner.kind, here.now) else { return };
        // Less the way there and back, which no clock of the pool's counts.
        let lasts = lot.ends.since(here.now).saturating_sub(2 * self.round_trip());
        let lot = Some(Deposit { tokens: lot.tokens, epoch: lot.epoch, lasts });
        asks.push(Ask { deposit: lot, ..deposit });
    }

    /// Before a rule with fewer pools: asks the pool of this pod for all that it holds, if the pod
    /// leases from it. What comes goes back with what the pod does not use itself; a pool that no
    /// pod asks so ends with its leases.
    pub(super) fn empty_pools(&mut self, key: Key, kept: u8, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let manner = self.manner(here);
        let pool = self.pool % manner.pools;
        let live = self.buffer.left(here.now).is_some();
        if pool < kept || !live || !is_pooled(&manner, &self.need(&manner, 0, here)) {
            return;
        }
        self.note_asked(here.now);
        let (pool, want, purpose) = (Some(pool), u64::from(u32::MAX), Purpose::Ahead);
        asks.push(Ask { pool, want, purpose, ..manner.ask(key) });
    }
}

/// The pools of each key of a rule: none where it is not split.
pub(super) fn pools_of(rule: &Rule) -> u8 {
    if rule.shards.get() > 1 { rule.shards.get() } else { 0 }
}

/// Whether leases of `need` come from pools: there are more pods than pools, and much is left.
fn is_pooled(manner: &Manner, need: &Need) -> bool {
    let pods = need.pods > f64::from(manner.pools.get());
    pods && manner.pools.get() > 1 && is_leased_by_number(manner) && need.size() >= LEASE_MIN
}

fn is_leased_by_number(manner: &Manner) -> bool {
    manner.is_leased() && !matches!(manner.kind, Kind::Spaced { .. })
}
