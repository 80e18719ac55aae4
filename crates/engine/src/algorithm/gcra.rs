//! A rate kept with one time, which token and leaky bucket share (GCRA, the generic cell rate
//! algorithm of ITU-T I.371).
//!
//! The state is the time at which all that was spent is earned back, the *theoretical arrival
//! time*. How far it lies ahead is the **debt**; `n` tokens add `n · window / requests` to it.
//! Debits round up and credits round down, so that rounding never lends a token: each ask costs
//! less than one tick too much.

use std::time::Duration;

use ratelease_rules::{Algorithm, Limit};

use super::{MICROS_PER_SECOND, window_seconds};

/// What the store keeps of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The theoretical arrival time, in nanoseconds since the Unix epoch. Until the year 2262 it
    /// has 19 digits and 63 bits, which Redis keeps inside its object of 16 bytes.
    pub tat_ns: u64,
}

/// A rate and what may be owed to it, in whole ticks. The scripts are handed these numbers: doubles
/// are exact below 2^53, and [`Pace::of`] picks the tick so that no debt comes near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Nanoseconds in a tick: 1, or 1000 where the capacity is above [`TICKS_MAX`] nanoseconds.
    pub tick_ns: u64,
    /// Ticks in the window.
    pub window: u64,
    /// Tokens earned in a window, from 1.
    pub requests: u64,
    /// Tokens that may be had at once; 0 where there never is one.
    pub tokens_max: u64,
    /// The largest debt: an empty bucket, or a last slot lent.
    pub debt_max: u64,
    /// Room for tokens without a debt: these ticks, and so many parts of one, of which `requests`
    /// make a tick.
    pub room: (u64, u64),
    /// Tokens that there are as long as the debt does not exceed the room: the slot that begins
    /// at its end. What room is left holds the others.
    pub tokens_min: u64,
}

/// What is done to a debt in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// [`Ask::want`](crate::store::Ask::want)
    pub want: u64,
    /// [`Ask::need`](crate::store::Ask::need)
    pub need: u64,
    /// Whether a denial spends what is left.
    pub charge_denied: bool,
    /// Tokens to credit first.
    pub back: u64,
}

/// What became of it; a script replies with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Tokens lent.
    pub tokens: u64,
    /// The store's time, in microseconds since the Unix epoch.
    pub now_unix_us: u64,
    /// The debt in ticks, once what came back was credited.
    pub before: u64,
    /// The debt in ticks in the end.
    pub after: u64,
}

/// Some 52 days in nanoseconds. A debt of nanoseconds stays below, and with a second added to it
/// still far below 2^53.
pub const TICKS_MAX: u64 = 1 << 52;
/// A hundred years in microseconds, also below 2^53. Rules refuse a bucket that takes longer to
/// fill; one that gets here holds what that time fills.
pub const DEBT_MAX_US: u64 = 100 * 365 * 86_400 * MICROS_PER_SECOND;

// === impl Pace ===

impl Pace {
    /// The pace of token or leaky bucket.
    pub fn of(terms: Limit) -> Self {
        let fine = Self::in_ticks(terms, 1);
        if fine.debt_max <= TICKS_MAX { fine } else { Self::in_ticks(terms, 1_000) }
    }

    fn in_ticks(terms: Limit, tick_ns: u64) -> Self {
        let ticks_per_us = 1_000 / tick_ns;
        let mut pace = Self {
            tick_ns,
            window: window_seconds(terms) * MICROS_PER_SECOND * ticks_per_us,
            requests: u64::from(terms.requests_per_unit).max(1),
            tokens_max: 0,
            debt_max: 0,
            room: (0, 0),
            tokens_min: 0,
        };
        match terms.algorithm {
            // A rate of none: no debt, and nothing ever.
            _ if terms.requests_per_unit == 0 => {}
            Algorithm::LeakyBucket { max_delay_us } => {
                pace.room = (u64::from(max_delay_us) * ticks_per_us, 0);
                pace.tokens_min = 1;
                // 32 bits wide as all other amounts.
                pace.tokens_max = pace.earned(pace.room).min(u64::from(u32::MAX) - 1) + 1;
                pace.debt_max = pace.room.0 + pace.cost(1);
            }
            _ => {
                let most = pace.earned((DEBT_MAX_US.saturating_mul(ticks_per_us), 0));
                pace.tokens_max = terms.capacity().min(most);
                pace.room = pace.worth(pace.tokens_max);
                pace.debt_max = pace.cost(pace.tokens_max);
            }
        }
        pace
    }

    /// Moves the debt of `state` at `now_unix_us`. A state that nothing changed stays as it is.
    pub fn step(&self, state: Option<State>, now_unix_us: u64, by: Move) -> (State, Moved) {
        let stored = state.map_or(0, |state| self.debt(state, now_unix_us));
        let before = self.credited(stored, by.back);
        let left = self.left(before);
        let (tokens, spent) = if by.need <= left {
            let tokens = by.want.max(by.need).min(left);
            (tokens, tokens)
        } else {
            (0, if by.charge_denied { left } else { 0 })
        };
        let after = before.saturating_add(self.cost(spent));
        let state = match state {
            Some(state) if after == stored => state,
            None if after == 0 => State { tat_ns: 0 },
            _ => State { tat_ns: self.tat_ns(now_unix_us, after) },
        };
        (state, Moved { tokens, now_unix_us, before, after })
    }

    /// Tokens that there are with this debt.
    pub fn left(&self, debt: u64) -> u64 {
        match self.room.0.checked_sub(debt) {
            Some(ticks) => {
                let others = self.earned((ticks, self.room.1));
                self.tokens_min.saturating_add(others).min(self.tokens_max)
            }
            None => 0,
        }
    }

    /// Ticks that `tokens` cost, rounded up.
    pub fn cost(&self, tokens: u64) -> u64 {
        let (ticks, parts) = self.worth(tokens);
        ticks.saturating_add(u64::from(parts > 0))
    }

    /// Ticks that must pass until a token is there: 0 if one is.
    pub fn until_token(&self, debt: u64) -> u64 {
        let most = match self.tokens_min {
            0 => self.worth(self.tokens_max.saturating_sub(1)).0,
            _ => self.room.0,
        };
        debt.saturating_sub(most)
    }

    /// So many ticks as a span of time.
    pub fn span(&self, ticks: u64) -> Duration {
        Duration::from_nanos(ticks.saturating_mul(self.tick_ns))
    }

    /// Length of the window.
    pub fn window(&self) -> Duration {
        self.span(self.window)
    }

    /// What one token is worth, as [`Pace::room`] is written.
    pub fn token(&self) -> (u64, u64) {
        self.worth(1)
    }

    /// Tokens that fit into so many ticks and parts of one.
    fn earned(&self, (ticks, parts): (u64, u64)) -> u64 {
        let parts = u128::from(ticks) * u128::from(self.requests) + u128::from(parts);
        fit(parts / u128::from(self.window))
    }

    /// What `tokens` are worth, in whole ticks and parts of one.
    fn worth(&self, tokens: u64) -> (u64, u64) {
        let parts = u128::from(tokens) * u128::from(self.window);
        let requests = u128::from(self.requests);
        (fit(parts / requests), fit(parts % requests))
    }

    fn credited(&self, debt: u64, tokens: u64) -> u64 {
        // As many as the bucket holds is all that can be owed.
        if tokens >= self.tokens_max { 0 } else { debt.saturating_sub(self.worth(tokens).0) }
    }

    /// Part of a tick that is owed is owed whole. More than can be owed was never lent: the clock
    /// was set back, or the limit lowered.
    fn debt(&self, state: State, now_unix_us: u64) -> u64 {
        let ahead = state.tat_ns.saturating_sub(now_unix_us.saturating_mul(1_000));
        ahead.div_ceil(self.tick_ns).min(self.debt_max)
    }

    fn tat_ns(&self, now_unix_us: u64, debt: u64) -> u64 {
        now_unix_us.saturating_mul(1_000).saturating_add(debt.saturating_mul(self.tick_ns))
    }
}

fn fit(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
