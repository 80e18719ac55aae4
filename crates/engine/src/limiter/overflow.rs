//! Overflow keys: the requests of keys that the table has no room for share one buffer with the
//! other such keys of their rule.
//!
//! The table has no room when every entry that it could evict has waiting requests or asks on their
//! way. Then one *overflow* key of the rule, or of an override's limit in its domain, stands in for
//! all further keys. The overflow key counts as any key does, on every pod and in the store, under
//! the same limit: the keys that share it are denied too soon rather than too late, and all of them
//! together get what one of them would have got. What such a key was charged on its own, earlier in
//! the window or on another pod, comes on top: at most the limit once more.
//!
//! A key that has its own entry, as a constantly used key has, never comes here. Overflow keys are
//! kept apart from the full table, so that the keys that fill it cannot evict them.

use ratelease_rules::key::{Key, KeyHasher, OverflowScope};

use super::resolve::Charge;
use super::{Ordering, Shared};
use crate::buffer::table::Region;

impl Shared {
    /// Redirects `charge` to its overflow key. Returns false if it has been redirected already.
    pub(super) fn overflow(&self, charge: &Charge<'_>) -> bool {
        let turned = charge.overflow.set(charge.overflow_key(&self.options.hasher)).is_ok();
        self.overflows.fetch_add(u64::from(turned), Ordering::Relaxed);
        turned
    }
}

// === impl Charge ===

impl Charge<'_> {
    /// The region of the table and the key that the charge is charged to.
    pub(super) fn region(&self) -> (Region, Key) {
        let region =
            if self.overflow.get().is_some() { Region::Reserved } else { Region::Evictable };
        (region, self.key())
    }

    fn overflow_key(&self, hasher: &KeyHasher) -> Key {
        let limit = self.applied.limit;
        let owner = match self.applied.rule {
            Some(rule) => OverflowScope::Rule(&rule.path),
            None => OverflowScope::Override(&self.domain, limit.requests_per_unit),
        };
        hasher.overflow_key(owner, limit.identity())
    }
}
