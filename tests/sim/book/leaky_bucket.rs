//! Leaky buckets: each slot is leased once, in order, at a fixed distance from the last, and no
//! slot begins later than an answer may be delayed.

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct LeakyBucket {
    /// When the next slot may begin, by the store's clock, in nanoseconds.
    next_ns: u128,
    /// The distance to that slot, by the limit of the last lease. A limit of another rate begins
    /// its slots at its own distance from the last one.
    spacing_ns: u128,
    /// Every step, for failovers: the next slot after it.
    log: Vec<(Time, u128, u64)>,
    excused: u64,
}

impl Book for LeakyBucket {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, wall_us, ask, grant } = step;
        let limit = ask.limit;
        let max_delay_us = limit.algorithm.max_delay().as_micros();
        let spacing_ns = u128::from(limit.window_seconds()) * 1_000_000_000
            / u128::from(limit.requests_per_unit.max(1));
        let starts_ns = u128::from(*wall_us) * 1_000 + grant.starts_after.as_nanos();
        let sooner_ns = self.spacing_ns.saturating_sub(spacing_ns);
        let next_ns = self.next_ns.saturating_sub(sooner_ns);
        if grant.tokens > 0 {
            self.spacing_ns = spacing_ns;
            self.next_ns = starts_ns + spacing_ns * u128::from(grant.tokens);
        }
        self.log.push((*at, self.next_ns, grant.tokens));
        let last_after_ns =
            grant.starts_after.as_nanos() + spacing_ns * u128::from(grant.tokens.saturating_sub(1));
        match () {
            () if grant.tokens == 0 => Ok(()),
            () if limit.requests_per_unit == 0 => Err("a slot of a rate of none".into()),
            () if starts_ns < next_ns => {
                Err(format!("a slot begins {} ns before its time", next_ns - starts_ns))
            }
            () if last_after_ns > max_delay_us * 1_000 + spacing_ns => {
                Err(format!("a slot begins after {last_after_ns} ns of {max_delay_us} us"))
            }
            () => Ok(()),
        }
    }

    fn fail_over(&mut self, failover: &Failover) {
        while let Some((.., lent)) = self.log.pop_if(|(at, ..)| *at > failover.kept_until) {
            self.excused += lent;
        }
        self.next_ns = self.log.last().map_or(0, |(_, next_ns, _)| *next_ns);
        // A clock that was set back sees slots ahead of it that the store has leased already.
        let (before, after) = failover.wall_us;
        if after < before {
            self.next_ns = 0;
        }
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
