//! The pools of a split key (`shards`): tokens that the key's own count has lent, on slots of their
//! own, from which pods take smaller leases.
//!
//! The own count always holds the whole limit, so the number of pools does not change the bound. A
//! pod takes from one pool; if that is empty, the pod asks the own count, and occasionally for so
//! much more that the other pods of its pool need not ask. Near the end of a limit, where a pod's
//! part is about one token, all pods ask the own count.

use ratelease_rules::key::Key;

use super::{KeyState, is_windowed};
use crate::buffer::{LeaseKind, LeasedTokens};
use crate::lease::Reply;
use crate::lease::size::LeaseSize;
use crate::limiter::PodContext;
use crate::limiter::lease_policy::{LeasePolicy, unwanted};
use crate::rng::{fraction, mixed};
use crate::store::{Ask, Deposit, Grant, Purpose};
use crate::time::Time;

/// The number of pods that fill their pool, on average, among those that find it empty at once.
const FILLING: f64 = 2.0;

/// The smallest lease that is worth taking from a pool: below it, the count itself is near its end.
const LEASE_MIN: u64 = 2;

impl KeyState {
    /// The pool to ask for a lease of this `size`; `None` if the own count has to be asked.
    pub(super) fn pool(&self, policy: &LeasePolicy, size: &LeaseSize, now: Time) -> Option<u8> {
        let known = self.buffer.left(now).is_some() && !self.flags.is_pool_empty();
        (known && is_pooled(policy, size)).then(|| self.pool % policy.pools)
    }

    /// The number of tokens to ask the own count for in addition to a lease, to be put into the
    /// pool.
    pub(super) fn fill(
        &self,
        policy: &LeasePolicy,
        size: &LeaseSize,
        key: Key,
        context: &PodContext<'_>,
    ) -> u64 {
        if !self.flags.is_pool_empty() || !is_pooled(policy, size) {
            return 0;
        }
        let others = size.pods / f64::from(policy.pools.get()) - 1.0;
        let drawn = fraction(mixed(key.bits() ^ mixed(context.pod ^ context.now.nanos())));
        if drawn * (others + 1.0) > FILLING {
            return 0;
        }
        size.for_pool(others, policy.pools)
    }

    /// Applies a pool's grant. Notes whether the pool lent less than was asked for.
    pub(super) fn take_from_pool(
        &mut self,
        reply: &Reply,
        grant: &Grant,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        self.flags.set_pool_empty(grant.tokens < reply.ask.want);
        if grant.tokens == 0 {
            return;
        }
        let LeasePolicy { kind, limit, .. } = self.policy(context);
        let windowed = is_windowed(limit);
        // A pool may end late, by the time that the deposit took to arrive: cut to the window's
        // end.
        let ends = reply.asked_at + grant.ends_after;
        let ends = match self.buffer.reset_after(context.now) {
            Some(rest) if windowed => ends.min(context.now + rest),
            _ => ends,
        };
        let lease = LeasedTokens {
            tokens: grant.tokens,
            epoch: grant.epoch,
            starts: Time::default(),
            ends,
        };
        let is_useful = match kind {
            LeaseKind::Spaced { .. } => false,
            LeaseKind::Windowed | LeaseKind::Timed => {
                !windowed || grant.epoch == self.buffer.epoch()
            }
        };
        if is_useful && limit == reply.ask.limit {
            self.buffer.put_back(lease, kind, context.now);
            self.serve(context);
        } else {
            asks.extend(unwanted(reply));
        }
    }

    /// After a grant of the own count, puts the tokens above a lease into the pool.
    pub(super) fn fill_pool(&mut self, key: Key, context: &PodContext<'_>, asks: &mut Vec<Ask>) {
        let policy = self.policy(context);
        if policy.pools.get() == 1 {
            return;
        }
        self.flags.set_pool_empty(false);
        let size = self.lease_size(&policy, 0, context);
        let kept = size.tokens();
        let excess = self.buffer.tokens(context.now).saturating_sub(kept);
        if excess < kept || !is_pooled(&policy, &size) {
            return;
        }
        let (pool, purpose) = (Some(self.pool % policy.pools), Purpose::Return);
        let deposit = Ask { pool, purpose, ..policy.blank_ask(key) };
        if !context.lease_client.takes(&deposit) {
            return; // the excess goes back to the own count
        }
        let Some(lease) = self.buffer.take_out(kept, policy.kind, context.now) else { return };
        // Less the time to the store and back, which the pool's clock does not count.
        let lasts = lease.ends.since(context.now).saturating_sub(2 * self.round_trip());
        let lease = Some(Deposit { tokens: lease.tokens, epoch: lease.epoch, lasts });
        asks.push(Ask { deposit: lease, ..deposit });
    }

    /// Before a change to a rule with fewer pools, asks the pool of this pod for all that it holds,
    /// if the pod leases from it. The pod gives back what it does not use itself. A pool that no
    /// pod asks in this way ends with its leases.
    pub(super) fn empty_pools(
        &mut self,
        key: Key,
        kept: u8,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let policy = self.policy(context);
        let pool = self.pool % policy.pools;
        let live = self.buffer.left(context.now).is_some();
        if pool < kept || !live || !is_pooled(&policy, &self.lease_size(&policy, 0, context)) {
            return;
        }
        self.note_asked(context.now);
        let (pool, want, purpose) = (Some(pool), u64::from(u32::MAX), Purpose::Ahead);
        asks.push(Ask { pool, want, purpose, ..policy.blank_ask(key) });
    }
}

/// Whether leases of this `size` come from pools: there are more pods than pools, and much is left.
fn is_pooled(policy: &LeasePolicy, size: &LeaseSize) -> bool {
    let pods = size.pods > f64::from(policy.pools.get());
    pods && policy.pools.get() > 1 && is_leased_by_number(policy) && size.tokens() >= LEASE_MIN
}

fn is_leased_by_number(policy: &LeasePolicy) -> bool {
    policy.is_leased() && !matches!(policy.kind, LeaseKind::Spaced { .. })
}
