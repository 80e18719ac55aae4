//! A fixed number of tokens in each window. Windows are aligned to the Unix epoch, or are those of
//! a calendar, and independent of each other, unless a rule carries debts over. Tokens of the next
//! window may be leased before it begins: they are counted separately, and the next window's count
//! starts at their number.

use std::time::Duration;

use ratelease_rules::{Limit, WINDOW_SECONDS_MAX};

use super::{
    ALL, Counting, MICROS_PER_SECOND, Script, Steps, Token, arguments, is_present, limit_of,
    until_end_us, window_of, window_seconds,
};
use crate::ask::{Ask, Grant, Return};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: step_of!(FixedWindow),
        script: &SCRIPT,
        arguments: |ask, store_us| {
            let limit = limit_of(ask.limit);
            let flags = [u64::from(ask.next_window), u64::from(ask.carry_debt)];
            let Some(windows) = windows(ask.limit, store_us) else {
                return arguments(ask, &[limit, window_seconds(ask.limit), flags[0], flags[1]]);
            };
            arguments(ask, &[&[limit, 0, flags[0], flags[1]], &windows[..]].concat())
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
    windows_kept: |_| Some(1),
};

/// A count beyond this is cut to it, so that the largest amount that comes back is all of it.
const COUNT_MAX: u64 = ALL;

/// A count is carried over for a hundred years at most.
const CARRIED_SECONDS_MAX: u64 = 100 * 365 * 86_400;

static SCRIPT: Script = Script::new(include_str!("fixed_window.lua"));

/// What the store keeps for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to, as [`Limit::window_at`] counts them.
    pub window: u64,
    /// Tokens leased in it and not given back, and costs that were owed; at least one above the
    /// limit if the key is overdrawn.
    pub count: u64,
    /// Tokens of the window after it that were leased ahead and not given back. Never more than a
    /// limit, and never marked as overdrawn.
    pub next: u64,
    /// If the count is one above the limit, that one is a cost, and not the mark of a denial.
    pub is_cost: bool,
}

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let terms = ask.limit;
    let limit = limit_of(terms);
    let before = rolled(state, now_unix_us, ask);
    let mut state = State { is_cost: !before.is_marked(limit), ..before };
    if let Some(back) = ask.back {
        state.credit(back, limit);
    }
    let mut counted = state.next.saturating_add(carried(state.unmarked(limit), 1, ask));
    if !ask.next_window {
        // A mark stays counted with them: where a limit was lowered, it may be a lease.
        state.count = state.count.saturating_add(ask.owed).min(COUNT_MAX);
        counted = state.count;
    }
    let left = limit.saturating_sub(counted);
    let mut tokens = 0;
    if ask.need <= left {
        tokens = ask.want.max(ask.need).min(left);
    } else if ask.charge_denied && !ask.next_window && state.count <= limit {
        (state.count, state.is_cost) = (limit + 1, false);
    }
    if ask.next_window {
        state.next = state.next.saturating_add(tokens); // at most the limit, if any were leased
    } else {
        state.count = state.count.saturating_add(tokens);
    }
    let state = state.stored(before, limit);
    (state, grant(ask, tokens, now_unix_us, state))
}

/// The reply to the pod for a step that leased `tokens` and left `state`.
pub fn grant(ask: &Ask, tokens: u64, now_unix_us: u64, state: State) -> Grant {
    let terms = ask.limit;
    let limit = limit_of(terms);
    let until_end = |window| Duration::from_micros(until_end_us(window, now_unix_us, terms));
    let (counted, starts_after, reset_after) = if ask.next_window {
        let counted = state.next.saturating_add(carried(state.count, 1, ask));
        let until_next_ends = until_end(state.window.saturating_add(1));
        (counted, until_end(state.window), until_next_ends)
    } else {
        (state.count, Duration::ZERO, until_end(state.window))
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

/// The windows of a calendar that the script is told of, which counts in those of its time that are
/// among the first three: the pod's estimate may be wrong by one. Each may be continued by the
/// window after it, and the count of that one, and of the next, has an end.
const BOUNDARIES: usize = 6;

/// The windows of a calendar for the script, in seconds: the longest, the number of the one before
/// the pod's estimate of the store's time, and when it and those after it begin.
fn windows(terms: Limit, store_us: u64) -> Option<[u64; 2 + BOUNDARIES]> {
    terms.calendar?;
    let first = terms.window_at(store_us.min(STORE_TIME_MAX)).saturating_sub(1);
    let mut windows = [terms.window_max().as_secs(); 2 + BOUNDARIES];
    windows[1] = first;
    for (boundary, window) in windows.iter_mut().skip(2).zip(first..) {
        *boundary = terms.window_starts(window) / MICROS_PER_SECOND;
    }
    Some(windows)
}

/// The latest time that scripts count exactly, in the year 2255.
const STORE_TIME_MAX: u64 = 1 << 53;

/// Reads the script's reply.
fn reply(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, window, count, next] = numbers else { return None };
    let limit = limit_of(ask.limit);
    let state = State { window, count, next, is_cost: false };
    let counted = if ask.next_window { next } else { count };
    let debited = next <= COUNT_MAX && (tokens == 0 || (tokens <= counted && counted <= limit));
    let debited = debited && (ask.next_window || count >= ask.owed.min(COUNT_MAX));
    let is_present = is_present(window, now_unix_us, ask.limit);
    (debited && is_present).then(|| grant(ask, tokens, now_unix_us, state))
}

/// The state as of the present window. A new window starts with the tokens that were leased ahead
/// of it, and with what is carried over.
fn rolled(state: Option<State>, now_unix_us: u64, ask: &Ask) -> State {
    let window = window_of(state.map(|state| state.window), now_unix_us, ask.limit);
    let Some(state) = state.filter(|state| state.window <= window) else {
        return State { window, count: 0, next: 0, is_cost: true };
    };
    let carried_on = carried(state.unmarked(limit_of(ask.limit)), 1, ask);
    let next = state.next.saturating_add(carried_on).min(COUNT_MAX);
    let count = match window - state.window {
        0 => return state,
        1 => next,
        elapsed if elapsed < windows_carried(ask) => carried(next, elapsed - 1, ask),
        _ => 0,
    };
    State { window, count, next: 0, is_cost: true }
}

/// What a `count` that is above the limit leaves to be counted after some windows: each pays for
/// one limit of it.
fn carried(count: u64, windows: u64, ask: &Ask) -> u64 {
    let paid = limit_of(ask.limit).saturating_mul(windows);
    if windows < windows_carried(ask) { count.saturating_sub(paid) } else { 0 }
}

/// The number of windows after which nothing is carried over any more: a hundred years, and one for
/// a limit of 0, which never pays and denies anyway.
fn windows_carried(ask: &Ask) -> u64 {
    let longest = ask.limit.window_max().as_secs().clamp(1, WINDOW_SECONDS_MAX);
    let is_paid = ask.carry_debt && ask.limit.requests_per_unit > 0;
    if is_paid { CARRIED_SECONDS_MAX.div_ceil(longest) } else { 1 }
}

// === impl State ===

impl State {
    /// As [`super::State::ends_at`]. What is above the limit may be carried over, for as many
    /// windows as pay for it.
    pub(super) fn ends_at(&self, ask: &Ask) -> u64 {
        let counted = self.count.saturating_add(self.next);
        let paid = counted.div_ceil(limit_of(ask.limit).max(1));
        let paid = paid.clamp(1, windows_carried(ask));
        let windows = match self {
            Self { next: 1.., .. } => paid.max(2),
            Self { count: 1.., .. } => paid,
            _ => return 0,
        };
        let ends_us = ask.limit.window_starts(self.window.saturating_add(windows));
        ends_us.div_ceil(MICROS_PER_SECOND)
    }

    /// Credits a lease to the window that it belongs to, and a refund to the present window.
    fn credit(&mut self, back: Return, limit: u64) {
        if back.epoch.is_none_or(|epoch| epoch == self.window) {
            // Removes only the overdrawn mark: tokens counted under a larger limit stay counted.
            self.count = self.unmarked(limit).saturating_sub(back.tokens);
            self.is_cost = true;
        } else if back.epoch == self.window.checked_add(1) {
            self.next = self.next.saturating_sub(back.tokens);
        }
    }

    /// Whether one of the count is only the mark of a denial.
    fn is_marked(&self, limit: u64) -> bool {
        self.count == limit + 1 && !self.is_cost
    }

    /// The count without the mark of a denial.
    fn unmarked(&self, limit: u64) -> u64 {
        self.count - u64::from(self.is_marked(limit))
    }

    /// The state as it is stored after a step, which began at `before`. As the script, a step that
    /// changes nothing stores nothing, and a count that is not one above the limit has no flag.
    fn stored(self, before: Self, limit: u64) -> Self {
        if self.count == limit + 1 {
            return self;
        }
        let is_same = (self.count, self.next) == (before.count, before.next);
        Self { is_cost: is_same && before.is_cost, ..self }
    }
}

#[cfg(test)]
mod tests;
