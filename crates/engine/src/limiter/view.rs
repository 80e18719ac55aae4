//! What a pod knows of one key, for people who ask why a request was denied.

use std::time::Duration;

use super::Limiter;
use crate::limiter::resolve::Charge;

/// What a pod knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyView {
    /// Tokens that it holds.
    pub tokens: u64,
    /// Tokens left at the store by its last reply; `None` if that is out of date.
    pub left: Option<u64>,
    /// Time until the limit is as if nothing had been charged, or has a token again if none is left;
    /// `None` if that is not known.
    pub resets_after: Option<Duration>,
    /// Whether the pod denies a charge without asking the store.
    pub denies: bool,
}

// === impl Limiter ===

impl Limiter {
    /// What is known here of the key of `charge`, which is not changed; `None` if nothing is.
    pub fn view(&self, charge: &Charge<'_>) -> Option<KeyView> {
        let now = self.shared.clock.now();
        self.shared.table.with_existing(charge.own, |state| state.view(now))
    }

    /// How much longer the key of `charge` is blocked by order; `None` if it is not.
    pub fn blocked_for(&self, charge: &Charge<'_>) -> Option<Duration> {
        self.shared.orders.charge_blocked_for(charge, self.shared.clock.now())
    }
}
