//! A pool of a split key: tokens that a pod leased from the key's own count and deposited on
//! another slot, for other pods to take. A pool neither makes tokens nor denies: its tokens were
//! debited before, and an empty pool says nothing about the key.
//!
//! A pool holds tokens of one epoch, until the earliest end of the leases that they came from. The
//! pool ends with the expiry of its Redis key, which one server measures, so the clocks of two
//! masters are never compared.

use std::time::Duration;

use ratelease_rules::AMOUNT_MAX;

use super::{MICROS_PER_SECOND, Script, Steps, amount, counting};
use crate::ask::{Ask, Grant};

pub(super) static STEPS: Steps = Steps {
    step: step_of!(Pool),
    script: &SCRIPT,
    arguments: |ask, _| {
        let mut arguments =
            vec![amount(ask.want), amount(ask.need), u64::from(counting(ask.limit).is_windowed)];
        if let Some(Put { tokens, epoch, lasts_ms }) = put(ask) {
            arguments.extend([tokens, epoch, lasts_ms]);
        }
        arguments
    },
    reply,
};

pub(super) static SCRIPT: Script = Script::new(include_str!("pool.lua"));

/// The store's state of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// The epoch of the tokens' lease; the oldest one if epochs are times.
    pub epoch: u64,
    /// When it expires, in microseconds of the store's time.
    pub ends_us: u64,
    /// Tokens in it, at most [`AMOUNT_MAX`].
    pub tokens: u64,
}

/// The state of a pool after a step; a script replies with the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The epoch of the tokens held and of those leased by the step; 0 if there are none.
    pub epoch: u64,
    /// Tokens held.
    pub tokens: u64,
    /// Whole milliseconds until the tokens, held or leased, end; 0 if there are none.
    pub lasts_ms: u64,
}

/// A deposit as it is sent, within the range that a script counts exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// At least 1.
    pub tokens: u64,
    /// Below 2^53.
    pub epoch: u64,
    /// Whole milliseconds, at least 1; rounded down.
    pub lasts_ms: u64,
}

/// The largest epoch that is sent: times in microseconds until the year 2255.
pub const EPOCH_MAX: u64 = (1 << 53) - 1;
/// The longest time that is sent, some 143 000 years in milliseconds: Redis can still add the
/// present time to it.
pub const LASTS_MS_MAX: u64 = 1 << 52;

/// Applies `ask` at `now_us` of the store's time, as the contract of [`Store`](crate::store::Store)
/// says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_us: u64, ask: &Ask) -> (State, Grant) {
    let found = state.filter(|state| state.tokens > 0 && state.lasts_ms(now_us) > 0);
    let put = put(ask).map(|put| State {
        epoch: put.epoch,
        ends_us: now_us.saturating_add(put.lasts_ms.saturating_mul(1_000)),
        tokens: put.tokens,
    });
    let pool = match (found, put) {
        (Some(found), Some(put)) => found.with(put, counting(ask.limit).is_windowed),
        (found, put) => found.or(put).unwrap_or_default(),
    };
    let left = pool.tokens;
    let tokens = if ask.need <= left { ask.want.max(ask.need).min(left) } else { 0 };
    let state = State { tokens: left - tokens, ..pool };
    let lasts_ms = if left > 0 { pool.lasts_ms(now_us) } else { 0 };
    let held = Held { epoch: pool.epoch, tokens: state.tokens, lasts_ms };
    (state, grant(ask, tokens, held))
}

/// The reply to the pod for a step that leased `tokens` and left `held`.
pub fn grant(ask: &Ask, tokens: u64, held: Held) -> Grant {
    let lasts = Duration::from_millis(held.lasts_ms);
    Grant {
        tokens,
        left: held.tokens,
        overdrawn: false,
        epoch: held.epoch,
        starts_after: Duration::ZERO,
        ends_after: lasts.min(ask.ttl),
        reset_after: Duration::ZERO,
        retry_after: Duration::ZERO,
    }
}

/// Reads the script's reply.
fn reply(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, left, epoch, lasts_ms] = numbers else { return None };
    let held = Held { epoch, tokens: left, lasts_ms };
    let had = tokens.checked_add(left)?;
    let ends = (had == 0) == (lasts_ms == 0);
    (ends && had <= AMOUNT_MAX).then(|| grant(ask, tokens, held))
}

/// The deposit of `ask`, if it has one.
pub fn put(ask: &Ask) -> Option<Put> {
    let deposit = ask.deposit?;
    let tokens = deposit.tokens.min(AMOUNT_MAX);
    let lasts_ms = u64::try_from(deposit.lasts.as_millis()).unwrap_or(u64::MAX).min(LASTS_MS_MAX);
    let put = Put { tokens, epoch: deposit.epoch.min(EPOCH_MAX), lasts_ms };
    (tokens > 0 && lasts_ms > 0).then_some(put)
}

// === impl State ===

impl State {
    /// `self` with the deposit `put` added. Where epochs are the numbers of windows, a newer one
    /// makes older tokens worthless; where they are times, tokens of several are added up.
    fn with(self, put: Self, windowed: bool) -> Self {
        if windowed && put.epoch != self.epoch {
            return if put.epoch > self.epoch { put } else { self };
        }
        Self {
            epoch: self.epoch.min(put.epoch),
            ends_us: self.ends_us.min(put.ends_us),
            tokens: self.tokens.saturating_add(put.tokens).min(AMOUNT_MAX),
        }
    }

    /// Whole milliseconds until it expires.
    fn lasts_ms(self, now_us: u64) -> u64 {
        self.ends_us.saturating_sub(now_us) / 1_000
    }

    /// When the pool has expired, in seconds of the store's time; 0 if it is empty.
    pub(super) fn ends_at(self) -> u64 {
        if self.tokens == 0 { 0 } else { self.ends_us.div_ceil(MICROS_PER_SECOND) }
    }
}

#[cfg(test)]
mod tests;
