//! Token buckets: over every interval, at most a full bucket plus the tokens earned in the interval
//! is leased.
//!
//! The book keeps the number of tokens that are owed. Each leased token adds one. Time pays them
//! off at the rate of the limit that last asked for tokens or reported costs. The debt never
//! exceeds a full bucket, except by costs. This holds at every step if and only if the bound holds
//! over every interval between two steps. A limit of another rate owes the same number of tokens. A
//! look, and tokens that come back, may be of a pod that has not loaded the limit in force, or has
//! loaded it alone: they change no rate.

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct TokenBucket {
    last: Owed,
    /// Every step, for failovers: the debt after it, and the tokens that it leased.
    log: Vec<(Time, Owed, u64)>,
    excused: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Owed {
    tokens: f64,
    /// Time of that debt, by the store's clock.
    as_of_us: u64,
    /// Tokens that are earned in a microsecond.
    rate: f64,
    /// `true`: costs raised the debt above a full bucket, so a smaller bucket owes all of it.
    /// `false`: a smaller bucket owes at most its size, since tokens that were spent within a
    /// larger burst stay spent.
    exceeds: bool,
}

/// Rounding error of doubles in the range of numbers used here, in tokens.
const ROUNDING: f64 = 1e-3;

impl Book for TokenBucket {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, wall_us, ask, grant } = step;
        let limit = ask.limit;
        let earns = limit.requests_per_unit > 0;
        let capacity = if earns { limit.capacity() as f64 } else { 0.0 };
        let rate = limit.requests_per_unit as f64 / (limit.window_seconds() as f64 * 1e6);
        let earned = wall_us.saturating_sub(self.last.as_of_us) as f64 * self.last.rate;
        let mut tokens = (self.last.tokens - earned).max(0.0);
        let only_credits = ask.want == 0 && ask.need == 0 && ask.owed == 0;
        if !only_credits && !self.last.exceeds {
            tokens = tokens.min(capacity);
        }
        let in_time = |epoch: u64| u128::from(wall_us.abs_diff(epoch)) <= ask.ttl.as_micros();
        if let Some(back) = ask.back.filter(|back| back.epoch.is_none_or(in_time)) {
            tokens = (tokens - back.tokens as f64).max(0.0);
        }
        tokens += (grant.tokens + ask.owed) as f64;
        self.last = Owed { tokens, as_of_us: *wall_us, ..self.last };
        if !only_credits {
            // Less than a token above a full bucket may be a token that is paid in part.
            (self.last.rate, self.last.exceeds) = (rate, tokens > capacity + 1.0);
        }
        self.log.push((*at, self.last, grant.tokens));
        let over = tokens - capacity;
        if grant.tokens > 0 && (over > ROUNDING || !earns) {
            return Err(format!("{over:.3} tokens lent beyond a bucket of {}", limit.capacity()));
        }
        Ok(())
    }

    /// The replica owes the debt of its last step; the elapsed time paid for the rest.
    fn fail_over(&mut self, failover: &Failover) {
        let kept = self.log.partition_point(|(at, ..)| *at <= failover.kept_until);
        self.excused += self.log.drain(kept..).map(|(.., lent)| lent).sum::<u64>();
        self.last = self.log.last().map(|(_, owed, _)| *owed).unwrap_or_default();
        // A clock that was set back earns nothing until it reaches its old time, which is stricter.
        self.last.as_of_us = self.last.as_of_us.min(failover.wall_us.1);
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
