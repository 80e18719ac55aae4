//! What becomes of a charge at its key.

use std::time::Duration;

use super::resolve::Charge;
use crate::buffer::Lot;
use crate::time::Time;
use crate::verdict::How;

/// What became of a charge, or did not yet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attempt {
    /// It was taken or denied.
    Settled(Settled),
    /// Only the store can tell. Meanwhile, this much is known.
    Short(Standing),
}

/// A charge that was taken or denied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    /// The limit was exceeded.
    pub(super) over: bool,
    /// Of a denied charge that spends what was left, how many hits that was, as far as is known.
    pub(super) fitted: u32,
    /// Tokens taken, to be put back if the request is denied elsewhere.
    pub(super) taken: Lot,
    /// How the key stands after it.
    pub(super) standing: Standing,
    /// Who decided.
    pub(super) how: How,
}

/// How a key stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Tokens that remain for the fleet, as far as is known.
    pub(super) remaining: u64,
    /// Until the limit stands as new, or has a token again, where that is known.
    pub(super) reset_after: Option<Duration>,
}

// === impl Standing ===

impl Standing {
    /// Of a key that nothing is known of: as if nothing had been charged.
    pub(super) fn unknown(charge: &Charge<'_>) -> Self {
        Self { remaining: charge.applied.limit.capacity(), reset_after: None }
    }
}

/// What is to be done about a key that may lie idle.
pub(super) enum Watch {
    /// Look again then.
    Until(Time),
    /// Nothing more.
    Over,
}
