//! Token buckets: over every interval, at most a full bucket plus the tokens earned in the interval
//! is leased.
//!
//! The book keeps the time that is owed: each token costs its part of the window, time pays it off,
//! and the debt never exceeds the worth of a full bucket. This holds at every step if and only if
//! the bound holds over every interval between two steps.

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct TokenBucket {
    /// Debt, in microseconds of earning.
    owed_us: f64,
    /// Time of that debt, by the store's clock.
    as_of_us: u64,
    /// Every step, for failovers.
    log: Vec<Owed>,
    excused: u64,
}

#[derive(Debug, Clone, Copy)]
struct Owed {
    at: Time,
    as_of_us: u64,
    owed_us: f64,
    lent: u64,
}

/// Rounding error of doubles in the range of numbers used here, in tokens.
const ROUNDING: f64 = 1e-3;

impl Book for TokenBucket {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, wall_us, ask, grant } = step;
        let limit = ask.limit;
        let token_us = if limit.requests_per_unit == 0 {
            f64::INFINITY
        } else {
            limit.window_seconds() as f64 * 1e6 / f64::from(limit.requests_per_unit)
        };
        let full_us = limit.capacity() as f64 * token_us;
        // A smaller bucket cannot owe more than it holds.
        let mut owed_us = self.owed_us.min(full_us);
        owed_us -= wall_us.saturating_sub(self.as_of_us) as f64;
        let in_time = |epoch: u64| u128::from(wall_us.abs_diff(epoch)) <= ask.ttl.as_micros();
        if let Some(back) = ask.back.filter(|back| back.epoch.is_none_or(in_time)) {
            owed_us = owed_us.max(0.0) - back.tokens as f64 * token_us;
        }
        owed_us = owed_us.max(0.0);
        if grant.tokens > 0 {
            owed_us += grant.tokens as f64 * token_us;
        }
        (self.owed_us, self.as_of_us) = (owed_us, *wall_us);
        self.log.push(Owed { at: *at, as_of_us: *wall_us, owed_us, lent: grant.tokens });
        let over = (owed_us - full_us) / token_us;
        if grant.tokens > 0 && (over > ROUNDING || !token_us.is_finite()) {
            return Err(format!("{over:.3} tokens lent beyond a bucket of {}", limit.capacity()));
        }
        Ok(())
    }

    /// The replica owes the debt of its last step; the elapsed time paid for the rest.
    fn fail_over(&mut self, failover: &Failover) {
        let kept = self.log.partition_point(|owed| owed.at <= failover.kept_until);
        self.excused += self.log.drain(kept..).map(|owed| owed.lent).sum::<u64>();
        let last = self.log.last();
        self.owed_us = last.map_or(0.0, |owed| owed.owed_us);
        // A clock that was set back earns nothing until it reaches its old time, which is stricter.
        self.as_of_us = last.map_or(0, |owed| owed.as_of_us).min(failover.wall_us.1);
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
