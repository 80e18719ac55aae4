//! Pools of a split key, which hold tokens that the key's own count has already leased. A pool
//! leases no more than was put into it and has not ended.

use std::time::Duration;

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct Pool {
    /// The end of each deposit, and its tokens.
    lots: Vec<(Time, u64)>,
    /// Whether a failover may have brought back tokens that were leased.
    failed_over: bool,
    excused: u64,
}

/// A pool rounds times to whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

impl Book for Pool {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, ask, grant, .. } = step;
        self.lots.retain(|(until, _)| *until > *at);
        if let Some(deposit) = ask.deposit {
            self.lots.push((*at + deposit.lasts + ROUNDING, deposit.tokens));
        }
        if let Some(back) = ask.back {
            // Returned tokens end no later than those in the pool; the ask does not contain their
            // end.
            let until = self.lots.iter().map(|(until, _)| *until).max().unwrap_or(*at + ask.ttl);
            self.lots.push((until, back.tokens));
        }
        self.lots.sort_unstable();
        let mut missing = grant.tokens;
        for (_, tokens) in &mut self.lots {
            let paid = missing.min(*tokens);
            (missing, *tokens) = (missing - paid, *tokens - paid);
        }
        if missing > 0 && self.failed_over {
            self.excused += missing;
        } else if missing > 0 {
            return Err(format!("a pool lent {missing} more than was put into it"));
        }
        Ok(())
    }

    fn fail_over(&mut self, _failover: &Failover) {
        self.failed_over = true;
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
