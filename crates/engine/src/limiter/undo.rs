//! Undoes the effects of requests that do not pass.

use ratelease_rules::key::Key;
use ratelease_rules::{FailureMode, Limit};

use super::Shared;
use super::attempt::Attempt;
use super::key_state::KeyState;
use super::lease_policy::LeasePolicy;
use super::resolve::Charge;
use crate::buffer::{LeasedTokens, Take};
use crate::verdict::{AppliedLimit, DecisionSource};

impl Shared {
    /// Undoes a charge that is not spent after all.
    pub(super) fn undo(&self, charge: &Charge<'_>, attempt: &mut Attempt) {
        let taken = attempt.taken();
        if taken.tokens > 0 {
            self.put_back(charge, taken);
            attempt.quota.remaining += taken.tokens;
            attempt.take = Take::Taken(LeasedTokens::default());
        } else if attempt.how == DecisionSource::Failure(FailureMode::Local) && !attempt.is_over() {
            attempt.how = DecisionSource::Local; // only once
            self.return_charge(charge);
        }
    }

    /// Takes back a charge that this pod admitted by itself and that is not spent after all, or
    /// that a lease has paid for.
    pub(super) fn return_charge(&self, charge: &Charge<'_>) {
        let pods = self.pods_of(charge);
        self.return_own(charge.key(), charge.applied.limit, charge.hits, pods);
    }

    /// Takes back hits that this pod admitted by itself, as one of `pods`, and that are not spent
    /// after all, or that a lease has paid for.
    pub(super) fn return_own(&self, key: Key, limit: Limit, hits: u64, pods: u32) {
        self.failure_modes.return_hits(key, limit, hits, pods, self.shard_of(key, limit));
    }

    /// Puts back tokens that were taken and are not spent after all.
    pub(super) fn put_back(&self, charge: &Charge<'_>, taken: LeasedTokens) {
        if taken.tokens == 0 {
            return;
        }
        let context = self.context(self.clock.now());
        let key = charge.key();
        let mut asks = Vec::new();
        let put_back = |state: &mut KeyState| state.put_back(taken, key, &context, &mut asks);
        let kept = self.table.with_existing(key, put_back);
        if kept.is_none() {
            // The key was evicted meanwhile.
            let AppliedLimit { limit, rule } = &charge.applied;
            let policy = LeasePolicy::of(*limit, rule.map(AsRef::as_ref), self.options.wait_min);
            asks.extend(policy.returning(key, taken));
        }
        self.queue_asks(asks);
    }
}
