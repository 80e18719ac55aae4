//! The arithmetic of each algorithm, pure: state and time in, state and grant out. The memory store
//! runs it; the scripts of the Redis store do the same calculations on the shard, and tests compare
//! the two.
//!
//! Each file has a `step`, which applies an ask to a state, and a `grant`, which turns the result
//! of a step into the reply to the pod. The Redis store converts a script's reply with the same
//! `grant`.

pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod pool;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use ratelease_rules::{Algorithm, Limit, WINDOW_SECONDS_MAX};

use crate::ask::{Ask, Grant};

/// What the store keeps for one count. It is small, since there is one for each key; only a log is
/// stored on the heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The state of an [`Algorithm::FixedWindow`] count.
    FixedWindow(fixed_window::State),
    /// The state of an [`Algorithm::TokenBucket`] count.
    TokenBucket(gcra::State),
    /// The state of an [`Algorithm::SlidingWindow`] count.
    SlidingWindow(sliding_window::State),
    /// The state of an [`Algorithm::SlidingLog`] count.
    SlidingLog(Box<sliding_log::State>),
    /// The state of an [`Algorithm::LeakyBucket`] count.
    LeakyBucket(gcra::State),
    /// The state of a pool of a split key, with any algorithm.
    Pool(pool::State),
}

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), to a pool if the ask names one,
/// else by the algorithm of its limit, as the contract of [`Store`](crate::store::Store) says.
/// Defined for every input: nothing overflows, nothing panics. A state of another algorithm counts
/// as none, since no two algorithms share a key.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    if ask.pool.is_some() {
        let state = if let Some(State::Pool(of)) = state { Some(of) } else { None };
        let (state, grant) = pool::step(state, now_unix_us, ask);
        return (State::Pool(state), grant);
    }
    match ask.limit.algorithm {
        Algorithm::FixedWindow => {
            let state = if let Some(State::FixedWindow(of)) = state { Some(of) } else { None };
            let (state, grant) = fixed_window::step(state, now_unix_us, ask);
            (State::FixedWindow(state), grant)
        }
        Algorithm::TokenBucket { .. } => {
            let state = if let Some(State::TokenBucket(of)) = state { Some(of) } else { None };
            let (state, grant) = token_bucket::step(state, now_unix_us, ask);
            (State::TokenBucket(state), grant)
        }
        Algorithm::SlidingWindow => {
            let state = if let Some(State::SlidingWindow(of)) = state { Some(of) } else { None };
            let (state, grant) = sliding_window::step(state, now_unix_us, ask);
            (State::SlidingWindow(state), grant)
        }
        Algorithm::SlidingLog => {
            let mut log = match state {
                Some(State::SlidingLog(log)) => log,
                _ => Box::default(),
            };
            let grant = sliding_log::step(&mut log, now_unix_us, ask);
            (State::SlidingLog(log), grant)
        }
        Algorithm::LeakyBucket { .. } => {
            let state = if let Some(State::LeakyBucket(of)) = state { Some(of) } else { None };
            let (state, grant) = leaky_bucket::step(state, now_unix_us, ask);
            (State::LeakyBucket(state), grant)
        }
    }
}

// === impl State ===

impl State {
    /// When the state becomes equivalent to no state, in seconds since the Unix epoch; 0 if it
    /// already is. `terms` are those of the ask that produced it.
    pub fn ends_at(&self, terms: Limit) -> u64 {
        let after =
            |window: u64, more| window.saturating_add(more).saturating_mul(window_seconds(terms));
        match self {
            Self::FixedWindow(state) if state.next > 0 => after(state.window, 2),
            Self::FixedWindow(state) if state.count > 0 => after(state.window, 1),
            Self::SlidingWindow(state) if state.count > 0 => after(state.window, 2),
            Self::SlidingWindow(state) if state.previous > 0 => after(state.window, 1),
            Self::FixedWindow(_) | Self::SlidingWindow(_) => 0,
            Self::TokenBucket(state) | Self::LeakyBucket(state) => {
                state.ends_at(window_seconds(terms))
            }
            Self::Pool(state) => state.ends_at(),
            Self::SlidingLog(log) => log.newest().map_or(0, |newest| {
                newest.saturating_add(window_us(terms)).div_ceil(MICROS_PER_SECOND)
            }),
        }
    }
}

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Length of the window, limited to what rules may have, so that the scripts count it exactly.
pub(crate) fn window_seconds(terms: Limit) -> u64 {
    terms.window_seconds().min(WINDOW_SECONDS_MAX)
}

pub(crate) fn window_us(terms: Limit) -> u64 {
    window_seconds(terms) * MICROS_PER_SECOND
}

/// The window that the key is in: that of the clock, or the one after it if the state belongs to
/// that one. The clock of a master that takes over may be behind: a key's time must not run back,
/// or the tokens of its window would be lent twice. A state further ahead comes from a wrong clock.
fn window_of(stored: Option<u64>, now_unix_us: u64, window_us: u64) -> u64 {
    let window = now_unix_us / window_us;
    stored.filter(|of| *of == window.saturating_add(1)).unwrap_or(window)
}

/// Microseconds until `window` ends: at least 1, and more than its length only if the window lies
/// in the future.
fn until_end_us(window: u64, now_unix_us: u64, window_us: u64) -> u64 {
    let ends = window.saturating_add(1).saturating_mul(window_us);
    ends.saturating_sub(now_unix_us).max(1)
}

#[cfg(test)]
mod tests;
