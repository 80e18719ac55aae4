//! The result of an attempt to charge a key.

use std::time::Duration;

use super::resolve::Charge;
use crate::buffer::{LeasedTokens, Take};
use crate::time::Time;
use crate::verdict::DecisionSource;

/// The result of an attempt to charge a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// Whether the charge was taken or denied. The tokens taken are put back if another descriptor
    /// denies the request; there are none if the charge passes without tokens.
    pub(super) take: Take,
    /// For a denied charge that spends what was left: the number of those hits, as far as is known.
    pub(super) fitted: u32,
    /// The state of the key after it; what is known meanwhile if only the store can decide.
    pub(super) quota: QuotaSnapshot,
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

// === impl Attempt ===

impl Attempt {
    /// An attempt that this pod has decided, or that only the store can decide.
    pub(super) fn local(take: Take, quota: QuotaSnapshot) -> Self {
        Self { take, fitted: 0, quota, how: DecisionSource::Local }
    }

    /// An attempt at a key about which nothing is known.
    pub(super) fn unknown(charge: &Charge<'_>) -> Self {
        Self::local(Take::Short, QuotaSnapshot::unknown(charge))
    }

    /// A denial, since this pod has no room for the charge.
    pub(super) fn shed(charge: &Charge<'_>) -> Self {
        let take = if charge.refund { Take::Taken(LeasedTokens::default()) } else { Take::Denied };
        let quota = QuotaSnapshot { remaining: 0, reset_after: None };
        Self { take, fitted: 0, quota, how: DecisionSource::Shed }
    }

    /// Whether a failure mode let the charge pass.
    pub(super) fn is_admitted_by_failure_mode(&self) -> bool {
        matches!((self.how, self.take), (DecisionSource::Failure(_), Take::Taken(_)))
    }

    /// Whether the charge was taken or denied.
    pub(super) fn is_settled(&self) -> bool {
        self.take != Take::Short
    }

    /// Whether the charge was denied.
    pub(super) fn is_over(&self) -> bool {
        self.take == Take::Denied
    }

    /// The tokens taken; an empty lease if there are none.
    pub(super) fn taken(&self) -> LeasedTokens {
        match self.take {
            Take::Taken(lease) => lease,
            Take::Denied | Take::Short => LeasedTokens::default(),
        }
    }

    /// When the slot of a leaky bucket begins that the charge took, if that is after `now`. A
    /// charge that was denied, but whose rule lets it pass, has no slot.
    pub(super) fn slot_after(&self, now: Time) -> Option<Time> {
        Some(self.taken().starts).filter(|starts| *starts > now)
    }
}

// === impl QuotaSnapshot ===

impl QuotaSnapshot {
    /// For a key about which nothing is known: as if nothing had been charged.
    pub(super) fn unknown(charge: &Charge<'_>) -> Self {
        Self { remaining: charge.applied.limit.capacity(), reset_after: None }
    }
}
