//! Sliding logs: no stretch of a window's length has more tokens lent than the limit.

use ratelease::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct SlidingLog {
    /// Each token lent and not given back: when, in the run's time and by the store's clock.
    lent: Vec<(Time, u64)>,
    excused: u64,
    window_us: u64,
}

impl Book for SlidingLog {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, wall_us, ask, grant } = step;
        let window_us = ask.limit.window_seconds() * 1_000_000;
        self.window_us = window_us;
        let newest = self.lent.last().map_or(0, |(_, time)| *time);
        // Where the clock was set back, the store goes on from its newest entry.
        let now_us = newest.max(*wall_us);
        self.lent.retain(|(_, time)| time + window_us > *wall_us);
        for _ in 0..ask.back.map_or(0, |back| back.tokens.min(self.lent.len() as u64)) {
            let of_lease = |(_, time): &(Time, u64)| {
                ask.back.and_then(|back| back.epoch).is_none_or(|epoch| *time == epoch)
            };
            if let Some(place) = self.lent.iter().rposition(of_lease) {
                self.lent.remove(place);
            }
        }
        self.lent.extend((0..grant.tokens).map(|_| (*at, now_us)));
        let limit = u64::from(ask.terms().requests_per_unit);
        if grant.tokens > 0 && self.lent.len() as u64 > limit {
            return Err(format!("{} tokens of {limit} lent in a window's length", self.lent.len()));
        }
        Ok(())
    }

    fn fail_over(&mut self, failover: &Failover) {
        let kept = self.lent.partition_point(|(at, _)| *at <= failover.kept_until);
        self.excused += self.lent.drain(kept..).count() as u64;
        // More than a window ahead, and the store takes its log for a mistake.
        let newest = self.lent.last().map_or(0, |(_, time)| *time);
        if newest > failover.wall_us.1 + self.window_us {
            self.excused += self.lent.drain(..).count() as u64;
        }
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
