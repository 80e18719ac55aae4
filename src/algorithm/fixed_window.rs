//! So many tokens in each window; windows are aligned to the Unix epoch and know nothing of each
//! other.

use std::time::Duration;

use super::{until_end_us, window_of, window_us};
use crate::store::{Ask, Grant};

/// What the store keeps of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to: `unix seconds / window seconds`.
    pub window: u64,
    /// Tokens lent in it and not given back; one above the limit where the key is overdrawn.
    pub count: u64,
}

/// Takes `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let terms = ask.terms();
    let window_us = window_us(terms);
    let window = window_of(state.map(|state| state.window), now_unix_us, window_us);
    let limit = u64::from(terms.requests_per_unit);

    let mut count = state.filter(|state| state.window == window).map_or(0, |state| state.count);
    if let Some(back) = ask.back.filter(|back| back.epoch.is_none_or(|of| of == window)) {
        // Only the mark goes: what was counted under a larger limit stays counted.
        let marked = u64::from(count == limit + 1);
        count = (count - marked).saturating_sub(back.tokens);
    }
    let left = limit.saturating_sub(count);
    let mut tokens = 0;
    if ask.need <= left {
        tokens = ask.want.max(ask.need).min(left);
        count = count.saturating_add(tokens);
    } else if ask.charge_denied {
        count = count.max(limit + 1); // a limit is 32 bits wide
    }

    let state = State { window, count };
    (state, grant(ask, tokens, now_unix_us, state))
}

/// What it means to the pod that asked that `tokens` were lent and `state` is left.
pub fn grant(ask: &Ask, tokens: u64, now_unix_us: u64, state: State) -> Grant {
    let terms = ask.terms();
    let limit = u64::from(terms.requests_per_unit);
    let left = limit.saturating_sub(state.count);
    let until_end = until_end_us(state.window, now_unix_us, window_us(terms));
    let reset_after = Duration::from_micros(until_end);
    Grant {
        tokens,
        left,
        overdrawn: state.count > limit,
        epoch: state.window,
        starts_after: Duration::ZERO,
        ends_after: reset_after.min(ask.ttl),
        reset_after,
        retry_after: if left == 0 { reset_after } else { Duration::ZERO },
    }
}

#[cfg(test)]
mod tests;
