//! One token in each slot of `window / requests_per_unit`. A token is the right to a slot that
//! begins within `max_delay`; the request is held until the slot begins.
//!
//! Slots pass whether they are used or not, so nothing that comes back is credited, neither the
//! rest of a lease nor a refund. A denied charge spends nothing, since the slot that it did not get
//! serves the next charge.

use super::gcra::{self, Move, Moved, Pace, State};
use super::{Counting, Steps, Token};
use crate::ask::{Ask, Grant};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: step_of!(LeakyBucket),
        script: &gcra::SCRIPT,
        arguments: |ask, store_us| {
            let taking = Ask { charge_denied: false, owed: 0, back: None, ..*ask };
            gcra::arguments(&taking, store_us)
        },
        reply: |ask, numbers| {
            let (pace, moved) = gcra::moved(ask, numbers)?;
            Some(grant(&pace, &moved))
        },
    },
    token: Token::Slot,
    is_windowed: false,
    store_time_us: |_, grant| Some(grant.epoch),
    windows_kept: gcra::windows_to_fill,
};

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    let pace = Pace::of(ask.limit);
    let by = Move { want: ask.want, need: ask.need, charge_denied: false, owed: 0, back: 0 };
    let (state, moved) = pace.step(state, now_unix_us, by);
    (state, grant(&pace, &moved))
}

/// The reply to the pod for the step `moved`.
pub fn grant(pace: &Pace, moved: &Moved) -> Grant {
    let left = pace.left(moved.after);
    let never = pace.tokens_max == 0;
    let starts_after = pace.span(moved.before);
    Grant {
        tokens: moved.tokens,
        left,
        overdrawn: left == 0,
        epoch: moved.now_unix_us,
        starts_after,
        // Until the last slot has passed, plus one slot as a grace period.
        ends_after: starts_after + pace.span(pace.cost(moved.tokens)) + pace.span(pace.cost(1)),
        reset_after: if never { pace.window() } else { pace.span(moved.after) },
        retry_after: match left {
            0 if never => pace.window(),
            _ => pace.span(pace.until_token(moved.after)),
        },
    }
}

#[cfg(test)]
mod tests;
