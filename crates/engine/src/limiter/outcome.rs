//! The outcome of a charge at its key.

use std::time::Duration;

use super::resolve::Charge;
use crate::buffer::Lot;
use crate::time::Time;
use crate::verdict::DecisionSource;

/// The result of an attempt to charge a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attempt {
    /// It was taken or denied.
    Settled(Settled),
    /// Only the store can decide. The standing is what is known meanwhile.
    Short(QuotaSnapshot),
}

/// A charge that was taken or denied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    /// The limit was exceeded.
    pub(super) over: bool,
    /// For a denied charge that spends what was left: the number of those hits, as far as is known.
    pub(super) fitted: u32,
    /// Tokens taken, which are put back if another descriptor denies the request.
    pub(super) taken: Lot,
    /// The state of the key after it.
    pub(super) standing: QuotaSnapshot,
    /// What decided.
    pub(super) how: DecisionSource,
}

/// The state of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuotaSnapshot {
    /// Tokens that remain for the fleet, as far as is known.
    pub(super) remaining: u64,
    /// Time until the limit is as if nothing had been charged, or has a token again, where that is
    /// known.
    pub(super) reset_after: Option<Duration>,
}

// === impl QuotaSnapshot ===

impl QuotaSnapshot {
    /// For a key about which nothing is known: as if nothing had been charged.
    pub(super) fn unknown(charge: &Charge<'_>) -> Self {
        Self { remaining: charge.applied.limit.capacity(), reset_after: None }
    }
}

/// What to do next about a key that may be idle.
pub(super) enum Watch {
    /// Check again at this time.
    Until(Time),
    /// Stop watching the key.
    Over,
}
