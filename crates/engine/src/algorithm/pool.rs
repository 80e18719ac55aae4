//! A pool of a split key: tokens that some pod leased from the key's own count and put there, on
//! another slot, for other pods to take. A pool neither makes tokens nor denies: what it lends was
//! debited before, and one that is empty says nothing about the key.
//!
//! A pool holds tokens of one epoch, until the earliest end of the leases that they came from. It
//! ends by the expiry of its Redis key, which one server measures, so that the clocks of two
//! masters are never compared.

use std::time::Duration;

use ratelease_rules::Algorithm;

use super::MICROS_PER_SECOND;
use crate::ask::{Ask, Grant};

/// What the store keeps of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// Of the lease that the tokens are of; the oldest of them, where epochs are times.
    pub epoch: u64,
    /// When it expires, in microseconds of the store's time.
    pub ends_us: u64,
    /// Tokens in it.
    pub tokens: u32,
}

/// What a pool holds after a step; a script replies with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Of the tokens held and of those lent by the step; 0 without any.
    pub epoch: u64,
    /// Tokens.
    pub tokens: u32,
    /// Whole milliseconds until the tokens end, held or lent; 0 without any.
    pub lasts_ms: u64,
}

/// A deposit as it is sent, within what a script counts exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// From 1.
    pub tokens: u32,
    /// Below 2^53.
    pub epoch: u64,
    /// Whole milliseconds, from 1: the rest of one is cut off.
    pub lasts_ms: u64,
}

/// Epochs are cut to this: times in microseconds until the year 2255.
pub const EPOCH_MAX: u64 = (1 << 53) - 1;
/// Spans are cut to this, some 143 000 years of milliseconds: with the present added to it Redis
/// still counts it.
pub const LASTS_MS_MAX: u64 = 1 << 52;

/// Takes `ask` at `now_us` of the store's time, as the contract of [`Store`](crate::store::Store)
/// says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_us: u64, ask: &Ask) -> (State, Grant) {
    let found = state.filter(|state| state.tokens > 0 && state.lasts_ms(now_us) > 0);
    let put = put(ask).map(|put| State {
        epoch: put.epoch,
        ends_us: now_us.saturating_add(put.lasts_ms.saturating_mul(1_000)),
        tokens: put.tokens,
    });
    let pool = match (found, put) {
        (Some(found), Some(put)) => found.with(put, is_windowed(ask)),
        (found, put) => found.or(put).unwrap_or_default(),
    };
    let left = u64::from(pool.tokens);
    let tokens = if ask.need <= left { ask.want.max(ask.need).min(left) } else { 0 };
    let state = State { tokens: u32::try_from(left - tokens).unwrap_or(0), ..pool };
    let lasts_ms = if left > 0 { pool.lasts_ms(now_us) } else { 0 };
    let held = Held { epoch: pool.epoch, tokens: state.tokens, lasts_ms };
    (state, grant(ask, tokens, held))
}

/// What it means to the pod that asked that `tokens` were lent and `held` is left.
pub fn grant(ask: &Ask, tokens: u64, held: Held) -> Grant {
    let lasts = Duration::from_millis(held.lasts_ms);
    Grant {
        tokens,
        left: held.tokens.into(),
        overdrawn: false,
        epoch: held.epoch,
        starts_after: Duration::ZERO,
        ends_after: lasts.min(ask.ttl),
        reset_after: Duration::ZERO,
        retry_after: Duration::ZERO,
    }
}

/// Whether epochs are the numbers of windows: a newer one then makes older tokens worthless. Where
/// they are times, tokens of several epochs go together.
pub fn is_windowed(ask: &Ask) -> bool {
    matches!(ask.limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}

/// What `ask` deposits, if anything.
pub fn put(ask: &Ask) -> Option<Put> {
    let deposit = ask.deposit?;
    let tokens = u32::try_from(deposit.tokens).unwrap_or(u32::MAX);
    let lasts_ms = u64::try_from(deposit.lasts.as_millis()).unwrap_or(u64::MAX).min(LASTS_MS_MAX);
    let put = Put { tokens, epoch: deposit.epoch.min(EPOCH_MAX), lasts_ms };
    (tokens > 0 && lasts_ms > 0).then_some(put)
}

// === impl State ===

impl State {
    /// `self` with what is put in.
    fn with(self, put: Self, windowed: bool) -> Self {
        if windowed && put.epoch != self.epoch {
            return if put.epoch > self.epoch { put } else { self };
        }
        Self {
            epoch: self.epoch.min(put.epoch),
            ends_us: self.ends_us.min(put.ends_us),
            tokens: self.tokens.saturating_add(put.tokens),
        }
    }

    /// Whole milliseconds until it expires.
    fn lasts_ms(self, now_us: u64) -> u64 {
        self.ends_us.saturating_sub(now_us) / 1_000
    }

    /// When it says no more than its absence, in seconds of the store's time.
    pub(super) fn ends_at(self) -> u64 {
        if self.tokens == 0 { 0 } else { self.ends_us.div_ceil(MICROS_PER_SECOND) }
    }
}

#[cfg(test)]
mod tests;
