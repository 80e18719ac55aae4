//! A fixed number of tokens in each window. Windows are aligned to the Unix epoch, or follow a
//! calendar. They are independent of each other, unless a rule carries debts over. Tokens of the
//! next window may be leased before it begins: they are counted separately, and the next window's
//! count starts at their number.

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

/// The store's state of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to, as [`Limit::window_at`] counts them.
    pub window: u64,
    /// Tokens leased in it and not given back, and costs that were owed. It may exceed the limit.
    pub count: u64,
    /// Tokens of the window after it that were leased ahead and not given back. Never more than a
    /// limit.
    pub next: u64,
    /// A charge was denied, so that the key is overdrawn as long as `count` is the limit.
    pub is_marked: bool,
    /// Tokens that each window pays off: the next window begins with the rest of the count. 0 if
    /// the next window begins without it.
    pub pays: u64,
}

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let limit = limit_of(ask.limit);
    let rolled = rolled(state, now_unix_us, ask.limit);
    let before = State { is_marked: rolled.is_overdrawn_by_mark(limit), ..rolled };
    let mut state = State { pays: payer(before, ask), ..before };
    if let Some(back) = ask.back {
        state.credit(back);
    }
    let mut counted = state.next.saturating_add(state.carried(ask.limit));
    if !ask.next_window {
        state.owe(ask.owed);
        counted = state.count;
    }
    let left = limit.saturating_sub(counted);
    let mut tokens = 0;
    if ask.need <= left {
        tokens = ask.want.max(ask.need).min(left);
    } else if ask.charge_denied && !ask.next_window && state.count <= limit {
        (state.count, state.is_marked) = (limit, true);
    }
    if ask.next_window {
        state.next = state.next.saturating_add(tokens); // at most the limit, if any were leased
    } else {
        state.count = state.count.saturating_add(tokens);
    }
    state.forget_payer_of_nothing();
    // As the script, a step that changes nothing stores nothing.
    let state = if state == before { rolled } else { state };
    (state, grant(ask, tokens, now_unix_us, state))
}

/// The reply to the pod for a step that leased `tokens` and left `state`.
pub fn grant(ask: &Ask, tokens: u64, now_unix_us: u64, state: State) -> Grant {
    let terms = ask.limit;
    let limit = limit_of(terms);
    let until_start = |windows| {
        let last = state.window.saturating_add(windows).saturating_sub(1);
        Duration::from_micros(until_end_us(last, now_unix_us, terms))
    };
    let (counted, starts_after, reset_after) = if ask.next_window {
        (state.next.saturating_add(state.carried(terms)), until_start(1), until_start(2))
    } else {
        (state.count, Duration::ZERO, until_start(1))
    };
    let left = limit.saturating_sub(counted);
    let epoch = state.window.saturating_add(u64::from(ask.next_window));
    let is_overdrawn = counted > limit || state.is_overdrawn_by_mark(limit);
    Grant {
        tokens,
        left,
        overdrawn: !ask.next_window && is_overdrawn,
        epoch,
        starts_after,
        ends_after: reset_after.min(starts_after.saturating_add(ask.ttl)),
        reset_after,
        retry_after: match left {
            0 => until_start(state.windows_until_token(ask)).max(reset_after),
            _ => Duration::ZERO,
        },
    }
}

/// The number of windows of a calendar that the script's arguments name. The script counts in the
/// window of its own time, which has to be among the first three: the pod's estimate may be wrong
/// by one. Each may be continued by the window after it, and the count of that one, and of the
/// next, has an end.
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
    let &[tokens, now_unix_us, window, count, next, pays, mark] = numbers else { return None };
    let limit = limit_of(ask.limit);
    let is_marked = mark == 1;
    let state = State { window, count, next, is_marked, pays };
    let counted = if ask.next_window { next } else { count };
    let debited = next <= COUNT_MAX && (tokens == 0 || (tokens <= counted && counted <= limit));
    let debited = debited && (ask.next_window || count >= ask.owed.min(COUNT_MAX));
    let is_possible = (!is_marked || count == limit) && (pays == 0 || count.max(next) > pays);
    let is_present = is_present(window, now_unix_us, ask.limit);
    (debited && is_possible && is_present).then(|| grant(ask, tokens, now_unix_us, state))
}

/// The state as of the present window. A new window starts with the tokens that were leased ahead
/// of it, and with the debt that is carried over.
fn rolled(state: Option<State>, now_unix_us: u64, terms: Limit) -> State {
    let window = window_of(state.map(|state| state.window), now_unix_us, terms);
    let fresh = State { window, count: 0, next: 0, is_marked: false, pays: 0 };
    let Some(state) = state.filter(|state| state.window <= window) else { return fresh };
    let begins = state.next.saturating_add(state.carried(terms)).min(COUNT_MAX);
    let count = match window - state.window {
        0 => return state,
        1 => begins,
        elapsed if elapsed < windows_carried(terms) => {
            State { count: begins, ..state }.carried_over(elapsed - 1, terms)
        }
        _ => 0,
    };
    let mut state = State { count, pays: state.pays, ..fresh };
    state.forget_payer_of_nothing();
    state
}

/// [`State::pays`] after an ask. If the rule carries debts over, each window pays the limit. A
/// limit of 0 leaves the payment to the limit before, or pays one token, so that every debt ends.
/// Other asks, such as for overrides, leave it as it is, and so does an ask that takes and owes
/// nothing.
fn payer(before: State, ask: &Ask) -> u64 {
    let lends_nothing = ask.want == 0 && ask.need == 0 && ask.owed == 0;
    match limit_of(ask.limit) {
        _ if !ask.carry_debt || lends_nothing => before.pays,
        0 => before.pays.max(1),
        limit => limit,
    }
}

/// The number of windows after which nothing is carried over any more.
fn windows_carried(terms: Limit) -> u64 {
    CARRIED_SECONDS_MAX.div_ceil(terms.window_max().as_secs().clamp(1, WINDOW_SECONDS_MAX))
}

// === impl State ===

impl State {
    /// As [`super::State::ends_at`]. A debt lasts for as many windows as pay for it.
    pub(super) fn ends_at(&self, ask: &Ask) -> u64 {
        let begins = self.next.saturating_add(self.carried(ask.limit));
        let paying = if self.pays > 0 { begins.div_ceil(self.pays) + 1 } else { 1 };
        let windows = match self {
            Self { next: 1.., .. } => paying.min(windows_carried(ask.limit)).max(2),
            Self { count: 1.., .. } | Self { is_marked: true, .. } => {
                paying.min(windows_carried(ask.limit))
            }
            _ => return 0,
        };
        let ends_us = ask.limit.window_starts(self.window.saturating_add(windows));
        ends_us.div_ceil(MICROS_PER_SECOND)
    }

    /// Credits a lease to the window that it belongs to, and a refund to the present window.
    fn credit(&mut self, back: Return) {
        if back.epoch.is_none_or(|epoch| epoch == self.window) {
            self.count = self.count.saturating_sub(back.tokens);
            self.is_marked = false;
        } else if back.epoch == self.window.checked_add(1) {
            self.next = self.next.saturating_sub(back.tokens);
        }
    }

    /// Counts costs, which may exceed the limit, so that no mark is needed any more.
    fn owe(&mut self, owed: u64) {
        if owed > 0 {
            self.count = self.count.saturating_add(owed).min(COUNT_MAX);
            self.is_marked = false;
        }
    }

    /// Whether the mark of a denial is in force, which it is under the limit that denied.
    fn is_overdrawn_by_mark(&self, limit: u64) -> bool {
        self.is_marked && self.count == limit
    }

    /// The part of the count that the next window begins with.
    fn carried(self, terms: Limit) -> u64 {
        self.carried_over(1, terms)
    }

    /// The part of the count that remains after so many windows.
    fn carried_over(self, windows: u64, terms: Limit) -> u64 {
        if self.pays == 0 || windows >= windows_carried(terms) {
            return 0;
        }
        self.count.saturating_sub(self.pays.saturating_mul(windows))
    }

    fn forget_payer_of_nothing(&mut self) {
        if self.count.max(self.next) <= self.pays {
            self.pays = 0;
        }
    }

    /// The first window after the one that `ask` is for in which a token is left, as a distance
    /// from the present window. A limit of 0 never has one: the pod asks again in the next window.
    fn windows_until_token(&self, ask: &Ask) -> u64 {
        let limit = limit_of(ask.limit);
        let begins = self.next.saturating_add(self.carried(ask.limit));
        let first = 1 + u64::from(ask.next_window);
        if self.pays == 0 || limit == 0 || begins < limit {
            return first;
        }
        let paying = (begins - limit) / self.pays + 2;
        paying.clamp(first, windows_carried(ask.limit).max(first))
    }
}

#[cfg(test)]
mod tests;
