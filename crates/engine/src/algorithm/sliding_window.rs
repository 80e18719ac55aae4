//! About so many tokens in any window's length: this window's count, and of the last one's the part
//! that a window's length up to now still covers, as if it had come evenly.

use std::time::Duration;

use ratelease_rules::Limit;

use super::{MICROS_PER_SECOND, until_end_us, window_of, window_seconds, window_us};
use crate::ask::{Ask, Grant};

/// What the store keeps of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to: `unix seconds / window seconds`.
    pub window: u64,
    /// Tokens lent in it and not given back, at most [`COUNT_MAX`].
    pub count: u32,
    /// The same of the window before.
    pub previous: u32,
}

/// Nine digits: a window's last digit, and two counts, make a number of 63 bits, which Redis keeps
/// inside its object of 16 bytes. Rules refuse a larger limit; one that gets here is cut to this.
pub const COUNT_MAX: u32 = 999_999_999;

/// Windows up to this are divided into microseconds, longer ones into seconds: either way a script
/// divides exactly.
const FINE_SECONDS_MAX: u64 = 86_400;

/// Takes `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let terms = ask.limit;
    let mut state = rolled(state, now_unix_us, terms);
    if let Some(back) = ask.back.filter(|back| back.epoch.is_none_or(|of| of == state.window)) {
        state.count = state.count.saturating_sub(u32::try_from(back.tokens).unwrap_or(u32::MAX));
    }
    let left = left(state, now_unix_us, terms);
    let (tokens, spent) = if ask.need <= left {
        let tokens = ask.want.max(ask.need).min(left);
        (tokens, tokens)
    } else {
        (0, if ask.charge_denied { left } else { 0 })
    };
    let count = u64::from(state.count).saturating_add(spent);
    state.count = u32::try_from(count).unwrap_or(u32::MAX).min(COUNT_MAX);
    (state, grant(ask, tokens, now_unix_us, state))
}

/// What it means to the pod that asked that `tokens` were lent and `state` is left.
pub fn grant(ask: &Ask, tokens: u64, now_unix_us: u64, state: State) -> Grant {
    let terms = ask.limit;
    let left = left(state, now_unix_us, terms);
    let until_end = until_end_us(state.window, now_unix_us, window_us(terms));
    let reset_after = Duration::from_micros(until_end);
    Grant {
        tokens,
        left,
        overdrawn: left == 0,
        epoch: state.window,
        starts_after: Duration::ZERO,
        ends_after: reset_after.min(ask.ttl),
        reset_after,
        retry_after: match left {
            0 => Duration::from_micros(until_token_us(state, until_end, terms)),
            _ => Duration::ZERO,
        },
    }
}

/// Tokens in a window's length, within what a state can count.
pub fn limit_of(terms: Limit) -> u32 {
    terms.requests_per_unit.min(COUNT_MAX)
}

/// Microseconds in a part of the window, which time is weighed by: 1, or a second's where the
/// window is longer than a day.
pub fn part_us(terms: Limit) -> u64 {
    if window_seconds(terms) <= FINE_SECONDS_MAX { 1 } else { MICROS_PER_SECOND }
}

/// The state as of the present window.
fn rolled(state: Option<State>, now_unix_us: u64, terms: Limit) -> State {
    let window = window_of(state.map(|state| state.window), now_unix_us, window_us(terms));
    match state {
        Some(state) if state.window == window => state,
        Some(state) if state.window.checked_add(1) == Some(window) => {
            State { window, count: 0, previous: state.count }
        }
        _ => State { window, count: 0, previous: 0 },
    }
}

fn left(state: State, now_unix_us: u64, terms: Limit) -> u64 {
    let part_us = part_us(terms);
    let parts = window_us(terms) / part_us;
    let until_end = until_end_us(state.window, now_unix_us, window_us(terms));
    // Of a window that lies ahead none has passed.
    let rest = until_end.div_ceil(part_us).min(parts);
    let weighed = (u128::from(state.previous) * u128::from(rest)).div_ceil(u128::from(parts));
    let estimate = u128::from(state.count) + weighed;
    u64::from(limit_of(terms)).saturating_sub(u64::try_from(estimate).unwrap_or(u64::MAX))
}

/// Microseconds until the estimate is below the limit again, if nothing else is lent.
fn until_token_us(state: State, until_end_us: u64, terms: Limit) -> u64 {
    let Some(most) = limit_of(terms).checked_sub(1) else {
        return until_end_us; // never
    };
    // The weight of `count` may fall to `most`: within this window if that is the one before's,
    // else within the next.
    let (weighs, room, until_end) = match most.checked_sub(state.count) {
        Some(room) => (state.previous, room, until_end_us),
        None => (state.count, most, until_end_us.saturating_add(window_us(terms))),
    };
    let part_us = part_us(terms);
    let parts = u128::from(window_us(terms) / part_us);
    let rest = u128::from(room) * parts / u128::from(weighs.max(1));
    let rest_us = u64::try_from(rest).unwrap_or(u64::MAX).saturating_mul(part_us);
    until_end.saturating_sub(rest_us).max(1)
}

#[cfg(test)]
mod tests;
