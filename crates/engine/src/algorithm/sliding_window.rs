//! About a fixed number of tokens in any period of a window's length. The estimate is this window's
//! count plus the part of the last window's count that such a period up to now still covers, as if
//! the last count had come evenly.

use std::time::Duration;

use ratelease_rules::Limit;

use super::{
    ALL, Counting, MICROS_PER_SECOND, Script, Steps, Token, arguments, is_present, limit_of,
    until_end_us, window_of, window_seconds, window_us,
};
use crate::ask::{Ask, Grant};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: step_of!(SlidingWindow),
        script: &SCRIPT,
        arguments: |ask, _| {
            let limit = limit_of(ask.limit);
            arguments(ask, &[limit, window_seconds(ask.limit), part_us(ask.limit)])
        },
        reply,
    },
    token: Token::Steady,
    is_windowed: true,
    store_time_us: |_, _| None, // the end of its window may be corrected
    windows_kept: |_| Some(2),
};

static SCRIPT: Script = Script::new(include_str!("sliding_window.lua"));

/// The store's state of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to: `unix seconds / window seconds`.
    pub window: u64,
    /// Tokens leased in it and not given back, at most `COUNT_MAX`.
    pub count: u64,
    /// Tokens leased in the window before and not given back, at most `COUNT_MAX`.
    pub previous: u64,
}

/// A count beyond this is cut to it.
const COUNT_MAX: u64 = ALL;

/// Windows up to this length are divided into microseconds, longer ones into seconds, so that a
/// script's division is exact in both cases.
const FINE_SECONDS_MAX: u64 = 86_400;

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let terms = ask.limit;
    let mut state = rolled(state, now_unix_us, terms);
    if let Some(back) = ask.back.filter(|back| back.epoch.is_none_or(|of| of == state.window)) {
        state.count = state.count.saturating_sub(back.tokens);
    }
    state.count = state.count.saturating_add(ask.owed).min(COUNT_MAX);
    let left = left(state, now_unix_us, terms);
    let (tokens, spent) = if ask.need <= left {
        let tokens = ask.want.max(ask.need).min(left);
        (tokens, tokens)
    } else {
        (0, if ask.charge_denied { left } else { 0 })
    };
    state.count = state.count.saturating_add(spent).min(COUNT_MAX);
    (state, grant(ask, tokens, now_unix_us, state))
}

/// The reply to the pod for a step that leased `tokens` and left `state`.
pub fn grant(ask: &Ask, tokens: u64, now_unix_us: u64, state: State) -> Grant {
    let terms = ask.limit;
    let left = left(state, now_unix_us, terms);
    let until_end = until_end_us(state.window, now_unix_us, terms);
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

/// Reads the script's reply.
fn reply(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, window, count, previous] = numbers else { return None };
    let debited = tokens == 0 || (tokens <= count && count <= limit_of(ask.limit));
    let debited = debited && count >= ask.owed.min(COUNT_MAX);
    let is_counted = count.max(previous) <= COUNT_MAX;
    let state = State { window, count, previous };
    let is_present = is_present(window, now_unix_us, ask.limit);
    (debited && is_counted && is_present).then(|| grant(ask, tokens, now_unix_us, state))
}

/// Microseconds in the unit that a window is divided into: one microsecond, or a second if the
/// window is longer than a day.
fn part_us(terms: Limit) -> u64 {
    if window_seconds(terms) <= FINE_SECONDS_MAX { 1 } else { MICROS_PER_SECOND }
}

// === impl State ===

impl State {
    /// As [`super::State::ends_at`].
    pub(super) fn ends_at(&self, window_seconds: u64) -> u64 {
        let windows = match self {
            Self { count: 1.., .. } => 2,
            Self { previous: 1.., .. } => 1,
            _ => return 0,
        };
        self.window.saturating_add(windows).saturating_mul(window_seconds)
    }
}

/// The state as of the present window.
fn rolled(state: Option<State>, now_unix_us: u64, terms: Limit) -> State {
    let window = window_of(state.map(|state| state.window), now_unix_us, terms);
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
    let until_end = until_end_us(state.window, now_unix_us, terms);
    // If the window lies in the future, none of it has passed.
    let rest = until_end.div_ceil(part_us).min(parts);
    let weighed = (u128::from(state.previous) * u128::from(rest)).div_ceil(u128::from(parts));
    let estimate = u128::from(state.count) + weighed;
    limit_of(terms).saturating_sub(u64::try_from(estimate).unwrap_or(u64::MAX))
}

/// Microseconds until the estimate is below the limit again, if nothing else is leased.
fn until_token_us(state: State, until_end_us: u64, terms: Limit) -> u64 {
    let Some(most) = limit_of(terms).checked_sub(1) else {
        return until_end_us; // never
    };
    // The estimate must fall to `most`: in this window, as the previous count loses weight, or, if
    // `count` alone is above `most`, in the next window, as `count` loses weight.
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
