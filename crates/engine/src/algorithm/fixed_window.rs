//! A fixed number of tokens in each window. Windows are aligned to the Unix epoch and independent
//! of each other. Tokens of the next window may be leased before it begins: they are counted
//! separately, and the next window's count starts at their number.

use std::time::Duration;

use ratelease_rules::Limit;

use super::{
    Counting, Script, Steps, Token, arguments, is_present, until_end_us, window_of, window_seconds,
    window_us,
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
        arguments: |ask| {
            let limit = u64::from(ask.limit.requests_per_unit);
            arguments(ask, &[limit, window_seconds(ask.limit), u64::from(ask.next_window)])
        },
        reply,
    },
    token: Token::OfWindow,
    is_windowed: true,
    store_time_us: |ask, grant| {
        let reset_us = u64::try_from(grant.reset_after.as_micros()).unwrap_or(u64::MAX);
        let ends_us = grant.epoch.saturating_add(1).saturating_mul(window_us(ask.limit));
        Some(ends_us.saturating_sub(reset_us))
    },
};

static SCRIPT: Script = Script::new(include_str!("fixed_window.lua"));

/// What the store keeps for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Number of the window that `count` belongs to: `unix seconds / window seconds`.
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
    let window = Duration::from_micros(window_us(terms));
    let until_end =
        Duration::from_micros(until_end_us(state.window, now_unix_us, window_us(terms)));
    let (counted, starts_after, reset_after) = if ask.next_window {
        (u64::from(state.next), until_end, until_end.saturating_add(window))
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
    let is_present = is_present(state.window, now_unix_us, window_us(ask.limit));
    (debited && is_present).then(|| grant(ask, tokens, now_unix_us, state))
}

/// The state as of the present window. A new window starts with the tokens that were leased ahead of
/// it.
fn rolled(state: Option<State>, now_unix_us: u64, terms: Limit) -> State {
    let window = window_of(state.map(|state| state.window), now_unix_us, window_us(terms));
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
    pub(super) fn ends_at(&self, window_seconds: u64) -> u64 {
        let windows = match self {
            Self { next: 1.., .. } => 2,
            Self { count: 1.., .. } => 1,
            _ => return 0,
        };
        self.window.saturating_add(windows).saturating_mul(window_seconds)
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
