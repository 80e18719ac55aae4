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

    let left = limit.saturating_sub(count);
    let reset_after = Duration::from_micros(until_end_us(window, now_unix_us, window_us));
    let grant = Grant {
        tokens,
        left,
        overdrawn: count > limit,
        epoch: window,
        starts_after: Duration::ZERO,
        ends_after: reset_after.min(ask.ttl),
        reset_after,
        retry_after: if left == 0 { reset_after } else { Duration::ZERO },
    };
    (State { window, count }, grant)
}

#[cfg(test)]
mod tests;
