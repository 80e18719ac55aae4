//! A rate represented by one point in time, which token bucket and leaky bucket share (GCRA, the
//! generic cell rate algorithm of ITU-T I.371).
//!
//! The state is the time at which all spent tokens are earned back, the *theoretical arrival time*.
//! Its distance from the present is the **debt**; `n` tokens add `n · window / requests` to it.
//! Debits round up and credits round down, so that rounding never lends a token: each ask costs
//! less than one tick too much.

use std::time::Duration;

use ratelease_rules::{Algorithm, Limit};

use super::{MICROS_PER_SECOND, window_seconds};

/// What the store keeps for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The theoretical arrival time, in nanoseconds since the Unix epoch. Until the year 2262 it
    /// has 19 digits and 63 bits, which Redis stores inside its object of 16 bytes.
    pub tat_ns: u64,
}

/// A rate and its largest debt, in whole ticks. The scripts receive these numbers: doubles are
/// exact below 2^53, and [`Pace::of`] picks the tick so that every debt stays well below that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Nanoseconds in a tick: 1, or 1000 if the capacity is above [`TICKS_MAX`] nanoseconds.
    pub tick_ns: u64,
    /// Ticks in the window.
    pub window: u64,
    /// Tokens earned in a window, at least 1.
    pub requests: u64,
    /// The most tokens that may be available at once; 0 if none ever is.
    pub tokens_max: u64,
    /// The largest debt: that of an empty bucket, or with the last slot lent.
    pub debt_max: u64,
    /// Room for tokens at a debt of 0: whole ticks, and parts of a tick, of which `requests` make
    /// one.
    pub room: (u64, u64),
    /// Tokens that are available as long as the debt does not exceed the room: for a leaky bucket,
    /// the slot that begins at the room's end. The rest of the room holds the other tokens.
    pub tokens_min: u64,
}

/// The change of a debt in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// As [`Ask::want`](crate::store::Ask::want).
    pub want: u64,
    /// As [`Ask::need`](crate::store::Ask::need).
    pub need: u64,
    /// Whether a denial spends what is left.
    pub charge_denied: bool,
    /// Tokens to credit first.
    pub back: u64,
}

/// The result of a step; a script replies with the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Tokens lent.
    pub tokens: u64,
    /// The store's time, in microseconds since the Unix epoch.
    pub now_unix_us: u64,
    /// The debt in ticks after the credit.
    pub before: u64,
    /// The debt in ticks after the step.
    pub after: u64,
}

/// Some 52 days in nanoseconds. A debt in nanoseconds stays below this, and with a second added to
/// it still far below 2^53.
pub const TICKS_MAX: u64 = 1 << 52;
/// A hundred years in microseconds, also below 2^53. Rules refuse a bucket that takes longer to
/// fill; if one gets here, its capacity is what that time fills.
pub const DEBT_MAX_US: u64 = 100 * 365 * 86_400 * MICROS_PER_SECOND;

// === impl Pace ===

impl Pace {
    /// The pace of a token bucket or leaky bucket.
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
            // A rate of zero: there is no debt, and there are never any tokens.
            _ if terms.requests_per_unit == 0 => {}
            Algorithm::LeakyBucket { max_delay_us } => {
                pace.room = (u64::from(max_delay_us) * ticks_per_us, 0);
                pace.tokens_min = 1;
                // 32 bits wide, like all other amounts.
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

    /// Applies a move to the debt of `state` at `now_unix_us`. If nothing changes, the state stays
    /// as it is.
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

    /// Tokens that are available with this debt.
    pub fn left(&self, debt: u64) -> u64 {
        match self.room.0.checked_sub(debt) {
            Some(ticks) => {
                let others = self.earned((ticks, self.room.1));
                self.tokens_min.saturating_add(others).min(self.tokens_max)
            }
            None => 0,
        }
    }

    /// The cost of `tokens` in ticks, rounded up.
    pub fn cost(&self, tokens: u64) -> u64 {
        let (ticks, parts) = self.worth(tokens);
        ticks.saturating_add(u64::from(parts > 0))
    }

    /// Ticks until a token is available: 0 if one is.
    pub fn until_token(&self, debt: u64) -> u64 {
        let most = match self.tokens_min {
            0 => self.worth(self.tokens_max.saturating_sub(1)).0,
            _ => self.room.0,
        };
        debt.saturating_sub(most)
    }

    /// The duration of this many ticks.
    pub fn span(&self, ticks: u64) -> Duration {
        Duration::from_nanos(ticks.saturating_mul(self.tick_ns))
    }

    /// Length of the window.
    pub fn window(&self) -> Duration {
        self.span(self.window)
    }

    /// The worth of one token, in the form of [`Pace::room`].
    pub fn token(&self) -> (u64, u64) {
        self.worth(1)
    }

    /// Whole tokens that are earned in this time.
    pub fn earned_in(&self, span: Duration) -> u64 {
        self.earned((fit(span.as_nanos() / u128::from(self.tick_ns)), 0))
    }

    /// Tokens that are earned in this many ticks and parts of a tick.
    fn earned(&self, (ticks, parts): (u64, u64)) -> u64 {
        let parts = u128::from(ticks) * u128::from(self.requests) + u128::from(parts);
        fit(parts / u128::from(self.window))
    }

    /// The worth of `tokens`, in whole ticks and parts of a tick.
    fn worth(&self, tokens: u64) -> (u64, u64) {
        let parts = u128::from(tokens) * u128::from(self.window);
        let requests = u128::from(self.requests);
        (fit(parts / requests), fit(parts % requests))
    }

    fn credited(&self, debt: u64, tokens: u64) -> u64 {
        // The debt is at most that of an empty bucket, so a credit of the whole capacity clears it.
        if tokens >= self.tokens_max { 0 } else { debt.saturating_sub(self.worth(tokens).0) }
    }

    /// A started tick counts as a whole one. A debt above the largest comes not from lent tokens
    /// but from a clock that was set back or a limit that was lowered, so it is cut.
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
