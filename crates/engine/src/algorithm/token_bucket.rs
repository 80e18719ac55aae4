//! A bucket that refills steadily at the limit's rate, and holds at most `burst` tokens.

use std::time::Duration;

use super::gcra::{self, Move, Moved, Pace, State};
use super::{Counting, Steps, Token, amount};
use crate::ask::{Ask, Grant, Return};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: step_of!(TokenBucket),
        script: &gcra::SCRIPT,
        arguments: gcra::arguments,
        reply: |ask, numbers| {
            let (pace, moved) = gcra::moved(ask, numbers)?;
            Some(grant(&pace, ask, &moved))
        },
    },
    token: Token::Steady,
    is_windowed: false,
    store_time_us: |_, grant| Some(grant.epoch),
    windows_kept: gcra::windows_to_fill,
};

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let pace = Pace::of(ask.limit);
    let in_time = |back: &Return| is_in_time(back, now_unix_us, ask.ttl);
    let by = Move {
        want: ask.want,
        need: ask.need,
        charge_denied: ask.charge_denied,
        owed: ask.owed,
        back: ask.back.filter(in_time).map_or(0, |back| amount(back.tokens)),
    };
    let (state, moved) = pace.step(state, now_unix_us, by);
    (state, grant(&pace, ask, &moved))
}

/// The reply to the pod for the step `moved`.
pub fn grant(pace: &Pace, ask: &Ask, moved: &Moved) -> Grant {
    let left = pace.left(moved.after);
    let never = pace.tokens_max == 0;
    Grant {
        tokens: moved.tokens,
        left,
        overdrawn: left == 0,
        epoch: moved.now_unix_us,
        starts_after: Duration::ZERO,
        ends_after: ask.ttl,
        reset_after: if never { pace.window() } else { pace.span(moved.after) },
        retry_after: match left {
            0 if never => pace.window(),
            0 => pace.span(pace.until_token(moved.after)),
            _ => Duration::ZERO,
        },
    }
}

/// Whether the return is in time. Tokens that return after their lease could have lasted have been
/// earned again meanwhile. A return from the future comes from a wrong clock.
fn is_in_time(back: &Return, now_unix_us: u64, ttl: Duration) -> bool {
    back.epoch.is_none_or(|lent_at| now_unix_us.abs_diff(lent_at) <= gcra::ttl_us(ttl))
}

#[cfg(test)]
mod tests;
