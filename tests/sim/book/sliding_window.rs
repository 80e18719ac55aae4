//! Sliding windows: whenever a token is leased, this window's tokens plus the part of the last
//! one's that a window's length still covers are at most the limit.

use std::collections::BTreeMap;

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct SlidingWindow {
    /// Tokens that the store remembers to have leased in each window.
    windows: BTreeMap<u64, u64>,
    /// Every step, for failovers: the window, and its tokens before.
    log: Vec<(Time, u64, u64)>,
    window_us: u64,
    ran_back: bool,
    excused: u64,
}

impl Book for SlidingWindow {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, wall_us, ask, grant } = step;
        let window_us = ask.limit.window_seconds() * 1_000_000;
        self.window_us = window_us;
        let present = wall_us / window_us;
        // A key's window never goes back, even if the clock does.
        let number = if self.ran_back { grant.epoch } else { present };
        if grant.epoch != number || number.abs_diff(present) > 1 {
            return Err(format!("window {present} was called {}", grant.epoch));
        }
        let previous = number.checked_sub(1).and_then(|last| self.windows.get(&last).copied());
        let lent = self.windows.entry(number).or_default();
        self.log.push((*at, number, *lent));
        if let Some(back) = ask.back.filter(|back| back.epoch.is_none_or(|of| of == number)) {
            *lent = lent.saturating_sub(back.tokens);
        }
        *lent += grant.tokens + ask.owed;

        let elapsed = wall_us.saturating_sub(number * window_us);
        let covered = u128::from(previous.unwrap_or(0)) * u128::from(window_us - elapsed);
        let estimate = u128::from(*lent) * u128::from(window_us) + covered;
        let limit = u128::from(ask.limit.requests_per_unit);
        if grant.tokens > 0 && estimate > limit * u128::from(window_us) {
            let estimate = estimate as f64 / window_us as f64;
            return Err(format!("an estimate of {estimate:.3} tokens lent of {limit}"));
        }
        Ok(())
    }

    fn fail_over(&mut self, failover: &Failover) {
        while let Some((_, window, lent)) = self.log.pop_if(|(at, ..)| *at > failover.kept_until) {
            let after = self.windows.insert(window, lent).unwrap_or_default();
            self.excused += after.saturating_sub(lent);
        }
        let (before, after) = failover.wall_us;
        self.ran_back |= after < before;
        // After a jump back by more than a window, the store considers its state invalid.
        if self.window_us > 0 && after / self.window_us + 1 < before / self.window_us {
            self.excused += self.windows.values().sum::<u64>();
            self.windows.clear();
        }
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
