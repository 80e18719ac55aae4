//! Charges that the store does not settle, and effects of requests that do not stand.

use ratelease_rules::key::Key;
use ratelease_rules::{FailureMode, Limit};

use super::Shared;
use super::away::Away;
use super::lend::Manner;
use super::outcome::Settled;
use super::resolve::Charge;
use super::slot::Slot;
use crate::buffer::Lot;
use crate::store::StoreError;
use crate::time::Time;
use crate::verdict::{Applied, How};

impl Shared {
    /// The answer to `charge` where the store gives none, because of `why`.
    pub(super) fn without_store(
        &self,
        charge: &Charge<'_>,
        now: Time,
        why: StoreError,
    ) -> Result<Settled, StoreError> {
        let local = charge.failure_mode() == FailureMode::Local && charge.spends();
        if local {
            let used_up = self.table.with_existing(charge.key(), |slot| slot.used_up(charge, now));
            if let Some(standing) = used_up.flatten() {
                return Ok(self.away.deny(standing));
            }
        }
        self.answer_alone(charge, now, why)
    }

    /// The answer to a refund where the store gives none, because of `why`. One that is `queued`
    /// may be on its way there, and is not credited here as well. It `fails` only where no other
    /// part of its request would fail with it.
    pub(super) fn refund_without_store(
        &self,
        charge: &Charge<'_>,
        now: Time,
        why: StoreError,
        queued: bool,
        fails: bool,
    ) -> Result<Settled, StoreError> {
        match charge.failure_mode() {
            FailureMode::Error if fails => Err(why),
            FailureMode::Local if !queued => self.answer_alone(charge, now, why),
            mode => Ok(Away::pass(mode, charge)),
        }
    }

    fn answer_alone(
        &self,
        charge: &Charge<'_>,
        now: Time,
        why: StoreError,
    ) -> Result<Settled, StoreError> {
        let shard = self.shard_of(charge.key(), charge.applied.limit);
        self.away.answer(charge, self.pods_of(charge), shard, now, why)
    }

    /// This pod admitted `charge` by itself while an ask for it is out: its lease will pay.
    pub(super) fn owe(&self, charge: &Charge<'_>) {
        if charge.spends() && charge.failure_mode() == FailureMode::Local {
            self.table.with_existing(charge.key(), |slot| slot.owe(charge));
        }
    }

    /// What was charged is not spent after all.
    pub(super) fn undo(&self, charge: &Charge<'_>, settled: &mut Settled) {
        if settled.taken.tokens > 0 {
            self.put_back(charge, settled.taken);
            settled.standing.remaining += std::mem::take(&mut settled.taken).tokens;
        } else if settled.how == How::Failure(FailureMode::Local) && !settled.over {
            settled.how = How::Local; // once
            self.return_charge(charge);
        }
    }

    /// What this pod admitted by itself for `charge` is not spent after all, or has been paid for.
    pub(super) fn return_charge(&self, charge: &Charge<'_>) {
        let pods = self.pods_of(charge);
        self.return_own(charge.key(), charge.applied.limit, charge.hits, pods);
    }

    /// So many hits that this pod admitted by itself, as one of `pods`, are not spent after all, or
    /// have been paid for.
    pub(super) fn return_own(&self, key: Key, limit: Limit, hits: u64, pods: u32) {
        self.away.return_hits(key, limit, hits, pods, self.shard_of(key, limit));
    }

    /// Tokens that were taken and are not spent after all.
    pub(super) fn put_back(&self, charge: &Charge<'_>, taken: Lot) {
        if taken.tokens == 0 {
            return;
        }
        let here = self.here(self.clock.now());
        let key = charge.key();
        let mut asks = Vec::new();
        let put_back = |slot: &mut Slot| slot.put_back(taken, key, &here, &mut asks);
        let kept = self.table.with_existing(key, put_back);
        if kept.is_none() {
            // The key was evicted meanwhile.
            let Applied { limit, rule } = &charge.applied;
            let manner = Manner::of(*limit, rule.map(AsRef::as_ref), self.options.max_wait);
            asks.extend(manner.returning(key, taken));
        }
        self.send(asks);
    }
}
