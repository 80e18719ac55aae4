//! How a rule's tokens are lent to the pods.

use std::time::Duration;

/// How a rule's tokens are lent (`lease`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Leasing {
    /// Every decision asks the store.
    Off,
    /// In batches, sized by demand.
    On(Terms),
}

/// The terms of a lease.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// φ: of what remains, the part that one pod may hold when all ask at once; above 0, at most 1.
    pub fraction: f32,
    /// Tokens of one lease at most, from 1. A single charge above it is still granted whole.
    pub max: u32,
    /// τ: how long a lease lasts at most; `None` leaves a fixed window's leases its whole window
    /// and others [`Terms::TTL`].
    pub ttl: Option<Duration>,
}

// === impl Terms ===

impl Terms {
    /// φ where the rule names none. At ½, a demand that moves between pods strands several per cent
    /// of the tokens; at ¼ it does not (`docs/architecture.md`).
    pub const FRACTION: f32 = 0.25;

    /// τ of the algorithms without a window of their own (`docs/architecture.md`).
    pub const TTL: Duration = Duration::from_secs(2);

    /// The shortest τ: a lease has to outlast a few asks.
    pub const TTL_MIN: Duration = Duration::from_millis(100);

    /// The longest τ: so long are tokens of a dead pod missing at most.
    pub const TTL_MAX: Duration = Duration::from_secs(60);
}

impl Default for Terms {
    fn default() -> Self {
        Self { fraction: Self::FRACTION, max: u32::MAX, ttl: None }
    }
}

impl Default for Leasing {
    fn default() -> Self {
        Self::On(Terms::default())
    }
}
