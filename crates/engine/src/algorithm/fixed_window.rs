//! A fixed number of tokens in each window. Windows are aligned to the Unix epoch, or are those of a
//! calendar, and independent of each other. Tokens of the next window may be leased before it begins: they are counted
//! separately, and the next window's count starts at their number.

use std::time::Duration;

use ratelease_rules::Limit;

use super::{
    Counting, MICROS_PER_SECOND, Script, Steps, Token, arguments, is_present, until_end_us,
    window_of, window_seconds,
};
use crate::ask::{Ask, Grant, Return};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: |state, now_unix_us, ask| {
            let state =
                if let Some(super::State::FixedWindow(state)) = state { Some(state) } else { None };
            let (state, grant) = step(state, now_unix_us, ask);
            (super::State::FixedWindow(state), grant)
        },
        script: &SCRIPT,
        arguments: |ask, store_us| {
            let limit = u64::from(ask.limit.requests_per_unit);
            let (seconds, calendar) = windows(ask.limit, store_us);
            let mut own = vec![limit, u64::from(ask.next_window), seconds];
            own.extend(calendar.into_iter().flatten());
            arguments(ask, &own)
        },
        reply,
    },
    token: Token::OfWindow,
    is_windowed: true,
    store_time_us: |ask, grant| {
        let reset_us = u64::try_from(grant.reset_after.as_micros()).unwrap_or(u64::MAX);
        let ends_us = ask.limit.window_starts(grant.epoch.saturating_add(1));
        Some(ends_us.saturating_sub(reset_us))
    },
};

static SCRIPT: Script = Script::new(include_str!("fixed_window.lua"));

/// What the store keeps for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to, as [`Limit::window_at`] counts them.
    pub window: u64,
    /// Tokens leased in it and not given back; one above the limit if the key is overdrawn.
    pub count: u64,
    /// Tokens of the window after it that were leased ahead and not given back. Never more than a
    /// limit, and never marked as overdrawn.
    pub next: u32,
}

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let terms = ask.limit;
    let limit = u64::from(terms.requests_per_unit);
    let mut state = rolled(state, now_unix_us, terms);
    if let Some(back) = ask.back {
        state.credit(back, limit);
    }
    let counted = if ask.next_window { u64::from(state.next) } else { state.count };
    let left = limit.saturating_sub(counted);
    let mut tokens = 0;
    if ask.need <= left {
        tokens = ask.want.max(ask.need).min(left);
    } else if ask.charge_denied && !ask.next_window {
        state.count = state.count.max(limit + 1); // a limit is 32 bits wide
    }
    if ask.next_window {
        // At most the limit, unless nothing was leased.
        let next = u64::from(state.next).saturating_add(tokens);
        state.next = u32::try_from(next).unwrap_or(u32::MAX);
    } else {
        state.count = state.count.saturating_add(tokens);
    }
    (state, grant(ask, tokens, now_unix_us, state))
}

/// The reply to the pod for a step that leased `tokens` and left `state`.
pub fn grant(ask: &Ask, tokens: u64, now_unix_us: u64, state: State) -> Grant {
    let terms = ask.limit;
    let limit = u64::from(terms.requests_per_unit);
    let until_end_us = |window| until_end_us(window, now_unix_us, terms);
    let until_end = Duration::from_micros(until_end_us(state.window));
    let (counted, starts_after, reset_after) = if ask.next_window {
        let until_next_ends = until_end_us(state.window.saturating_add(1));
        (u64::from(state.next), until_end, Duration::from_micros(until_next_ends))
    } else {
        (state.count, Duration::ZERO, until_end)
    };
    let left = limit.saturating_sub(counted);
    let epoch = state.window.saturating_add(u64::from(ask.next_window));
    Grant {
        tokens,
        left,
        overdrawn: !ask.next_window && counted > limit,
        epoch,
        starts_after,
        ends_after: reset_after.min(starts_after.saturating_add(ask.ttl)),
        reset_after,
        retry_after: if left == 0 { reset_after } else { Duration::ZERO },
    }
}

/// The windows before and after the one of the estimated time that the script is told of: it counts
/// in that one and in its neighbours, each of which may be continued by the window after it, whose
/// count and that of the next one have an end.
const BEFORE: u64 = 1;
const BOUNDARIES: usize = 6;

/// The windows of `terms` for the script: their length in seconds, or 0 and those of the calendar
/// around the store's time: the number of the first one, and when it and those after it begin, in
/// seconds since the Unix epoch.
fn windows(terms: Limit, store_us: u64) -> (u64, Option<[u64; 1 + BOUNDARIES]>) {
    if terms.calendar.is_none() {
        return (window_seconds(terms), None);
    }
    let first = terms.window_at(store_us.min(STORE_TIME_MAX)).saturating_sub(BEFORE);
    let mut own = [first; 1 + BOUNDARIES];
    for (boundary, window) in own.iter_mut().skip(1).zip(first..) {
        *boundary = terms.window_starts(window) / MICROS_PER_SECOND;
    }
    (0, Some(own))
}

/// The latest time that scripts count exactly, in the year 2255.
const STORE_TIME_MAX: u64 = 1 << 53;

/// Reads the script's reply.
fn reply(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, window, count] = numbers else { return None };
    let limit = u64::from(ask.limit.requests_per_unit);
    let debited = tokens == 0 || (tokens <= count && count <= limit);
    let state = if ask.next_window {
        State { window: window.checked_sub(1)?, count: 0, next: u32::try_from(count).ok()? }
    } else {
        State { window, count, next: 0 }
    };
    let is_present = is_present(state.window, now_unix_us, ask.limit);
    (debited && is_present).then(|| grant(ask, tokens, now_unix_us, state))
}

/// The state as of the present window. A new window starts with the tokens that were leased ahead of
/// it.
fn rolled(state: Option<State>, now_unix_us: u64, terms: Limit) -> State {
    let window = window_of(state.map(|state| state.window), now_unix_us, terms);
    match state {
        Some(state) if state.window == window => state,
        Some(state) if state.window.checked_add(1) == Some(window) => {
            State { window, count: u64::from(state.next), next: 0 }
        }
        _ => State { window, count: 0, next: 0 },
    }
}

// === impl State ===

impl State {
    /// As [`super::State::ends_at`].
    pub(super) fn ends_at(&self, terms: Limit) -> u64 {
        let windows = match self {
            Self { next: 1.., .. } => 2,
            Self { count: 1.., .. } => 1,
            _ => return 0,
        };
        terms.window_starts(self.window.saturating_add(windows)).div_ceil(MICROS_PER_SECOND)
    }

    /// Credits a lease to the window that it belongs to, and a refund to the present window.
    fn credit(&mut self, back: Return, limit: u64) {
        if back.epoch.is_none_or(|epoch| epoch == self.window) {
            // Removes only the overdrawn mark: tokens counted under a larger limit stay counted.
            let marked = u64::from(self.count == limit + 1);
            self.count = (self.count - marked).saturating_sub(back.tokens);
        } else if back.epoch == self.window.checked_add(1) {
            let tokens = u32::try_from(back.tokens).unwrap_or(u32::MAX);
            self.next = self.next.saturating_sub(tokens);
        }
    }
}

#[cfg(test)]
mod tests;
