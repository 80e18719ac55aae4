//! The terms on which a rule's tokens are leased to pods.

use std::time::Duration;

/// Whether and how a rule's tokens are leased (`lease`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Leasing {
    /// No leases: every decision asks the store.
    Off,
    /// Tokens are leased in batches, sized by demand.
    On(LeaseTerms),
}

/// The terms of a lease.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeaseTerms {
    /// φ: the part of the remaining tokens that one pod may hold when all pods ask at once; above
    /// 0, at most 1.
    pub fraction: f32,
    /// Maximum number of tokens in one lease, from 1. A single charge above it is still granted
    /// whole.
    pub max: u32,
    /// τ: maximum duration of a lease. With `None`, leases of a fixed window last until its end,
    /// and others [`LeaseTerms::TTL`].
    pub ttl: Option<Duration>,
}

// === impl LeaseTerms ===

impl LeaseTerms {
    /// Default φ. At ½, a demand that moves between pods strands several per cent of the tokens; at
    /// ¼ it does not (`docs/design.md`).
    pub const FRACTION: f32 = 0.25;

    /// Default τ of the algorithms without a window of their own (`docs/design.md`).
    pub const TTL: Duration = Duration::from_secs(2);

    /// Minimum τ: a lease has to last longer than a few asks.
    pub const TTL_MIN: Duration = Duration::from_millis(100);

    /// Maximum τ: tokens of a dead pod are missing for at most this long.
    pub const TTL_MAX: Duration = Duration::from_secs(60);
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { fraction: Self::FRACTION, max: u32::MAX, ttl: None }
    }
}

impl Default for Leasing {
    fn default() -> Self {
        Self::On(LeaseTerms::default())
    }
}
