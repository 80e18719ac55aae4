//! What is done for a key that the table has no room for: its requests share one buffer with those
//! of the other such keys of its rule.
//!
//! The table has no room when everybody waits: each entry that it could give up has requests or
//! asks on their way. Then one *overflow* key of the rule, or of an override's limit in its domain,
//! stands in for all further keys. It counts as any key does, on every pod and in the store, under
//! the same limit: the keys that share it are denied too soon rather than too late, and all of
//! them together get what one would have got. What such a key was charged by itself, earlier in a
//! window or on another pod, it has had on top: the limit once more at most.
//!
//! A key that has its own entry, as one that is used all the time has, never comes here. Overflow
//! keys are kept aside from the table that is full, so that what fills it cannot push them out.

use ratelease_rules::key::{Key, KeyHasher, Owner};

use super::resolve::Charge;
use super::{Ordering, Shared};
use crate::buffer::table::Seat;

impl Shared {
    /// Turns `charge` to its overflow key. False if it has been already.
    pub(super) fn overflow(&self, charge: &Charge<'_>) -> bool {
        let turned = charge.overflow.set(charge.overflow_key(&self.options.hasher)).is_ok();
        self.overflows.fetch_add(u64::from(turned), Ordering::Relaxed);
        turned
    }
}

// === impl Charge ===

impl Charge<'_> {
    /// Where the slot is that it is charged to.
    pub(super) fn seat(&self) -> (Seat, Key) {
        let seat = if self.overflow.get().is_some() { Seat::Aside } else { Seat::Common };
        (seat, self.key())
    }

    fn overflow_key(&self, hasher: &KeyHasher) -> Key {
        let limit = self.applied.limit;
        let owner = match self.applied.rule {
            Some(rule) => Owner::Rule(&rule.path),
            None => Owner::Override(&self.domain, limit.requests_per_unit),
        };
        hasher.overflow_key(owner, limit.identity())
    }
}
