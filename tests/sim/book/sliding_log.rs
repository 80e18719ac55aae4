//! Sliding logs: in every interval of a window's length, at most the limit is leased.

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct SlidingLog {
    /// The time at which each token was leased that was not given back, by the store's clock.
    lent: Vec<u64>,
    /// The latest time that a denial which spends the remaining tokens may be entered under. The
    /// store goes on from this time as from a token's.
    denied_at: u64,
    /// Every step, for failovers.
    log: Vec<Step>,
    excused: u64,
    ran_back: bool,
}

impl Book for SlidingLog {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        self.log.push(*step);
        let Step { wall_us, ask, grant, .. } = step;
        let window_us = ask.limit.window_seconds() * 1_000_000;
        let newest = self.lent.last().copied().unwrap_or(0);
        // Where the clock was set back, the store continues from its newest entry, which may be a
        // denial's. Under the time of the newest token, returns would find none of those that it
        // leases then.
        let at_us = if self.ran_back { grant.epoch } else { newest.max(*wall_us) };
        // If that entry is more than a window ahead, the store considers its log invalid.
        let is_ahead = newest.max(self.denied_at) > wall_us + window_us;
        if self.ran_back && at_us < newest && is_ahead {
            self.excused += self.lent.drain(..).count() as u64;
        } else if grant.epoch != at_us || at_us < newest.max(*wall_us) {
            return Err(format!("entered under {}, after {newest}", grant.epoch));
        }
        self.lent.retain(|time| time + window_us > *wall_us);
        for _ in 0..ask.back.map_or(0, |back| back.tokens.min(self.lent.len() as u64)) {
            let of_lease = |time: &u64| {
                ask.back.and_then(|back| back.epoch).is_none_or(|epoch| *time == epoch)
            };
            if let Some(place) = self.lent.iter().rposition(of_lease) {
                self.lent.remove(place);
            }
        }
        self.lent.extend((0..grant.tokens).map(|_| at_us));
        if ask.charge_denied && grant.tokens < ask.need {
            self.denied_at = at_us;
        }
        let limit = ask.limit.requests_per_unit;
        if grant.tokens > 0 && self.lent.len() as u64 > limit {
            return Err(format!("{} tokens of {limit} lent in a window's length", self.lent.len()));
        }
        Ok(())
    }

    /// The replica's log results from applying the steps that it received to an empty log.
    fn fail_over(&mut self, failover: &Failover) {
        let log = std::mem::take(&mut self.log);
        let kept = log.partition_point(|step| step.at <= failover.kept_until);
        let lost: u64 = log.iter().skip(kept).map(|step| step.grant.tokens).sum();
        let (before, after) = failover.wall_us;
        let ran_back = self.ran_back || after < before;
        *self = Self { excused: self.excused + lost, ran_back, ..Self::default() };
        for step in log.iter().take(kept) {
            // An error here was reported when the step was first entered.
            let _ = self.enter(step);
        }
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
