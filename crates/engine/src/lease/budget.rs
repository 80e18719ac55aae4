//! The budget of asks a second of one shard queue. Pure: time is an argument.

use crate::store::Purpose;
use crate::time::Time;

/// Asks a second that all pods together send to one shard. A Redis master can serve more on one
/// core, so it stays responsive however many pods there are.
const FLEET_RATE: u32 = 50_000;

/// Asks a second that each pod may send to a shard, however many pods there are.
const POD_RATE_MIN: u32 = 100;

/// A full budget holds a second's asks divided by this.
const BURST_DIVISOR: f64 = 10.0;

/// Asks ahead are dropped once less than this fraction of the budget is left.
const AHEAD_PART: f64 = 0.5;

/// A token bucket of asks. It decides only about asks that may be dropped; the others spend from it
/// too, and may put it into debt by up to its capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Budget {
    left: f64,
    at: Time,
}

// === impl Budget ===

impl Budget {
    /// Whether an ask for `purpose` may be sent by one pod of `pods`. Spends nothing.
    pub(super) fn permits(&mut self, purpose: Purpose, pods: u32, now: Time) -> bool {
        let burst = self.refill(pods, now);
        match purpose {
            Purpose::Request | Purpose::Return => true,
            Purpose::Probe => self.left >= 1.0,
            Purpose::Ahead => self.left >= (burst * AHEAD_PART).max(1.0),
        }
    }

    /// Spends one ask.
    pub(super) fn spend(&mut self, pods: u32, now: Time) {
        let burst = self.refill(pods, now);
        self.left = (self.left - 1.0).max(-burst);
    }

    /// Adds what has accrued. Returns the budget's capacity.
    fn refill(&mut self, pods: u32, now: Time) -> f64 {
        let rate = f64::from(rate(pods));
        let burst = rate / BURST_DIVISOR;
        self.left = (self.left + rate * now.since(self.at).as_secs_f64()).min(burst);
        self.at = self.at.max(now);
        burst
    }
}

impl Default for Budget {
    /// A full budget: the next refill cuts it to its capacity.
    fn default() -> Self {
        Self { left: f64::MAX, at: Time::default() }
    }
}

/// Asks a second that one pod of `pods` may send to a shard.
fn rate(pods: u32) -> u32 {
    (FLEET_RATE / pods.max(1)).max(POD_RATE_MIN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Time = Time::from_nanos(100_000_000_000);
    /// One pod of a hundred: 500 a second, 50 at once.
    const PODS: u32 = 100;

    fn at(millis: u64) -> Time {
        START + Duration::from_millis(millis)
    }

    /// The number of asks that are sent in a row, of 1000.
    fn sent(budget: &mut Budget, purpose: Purpose, pods: u32, now: Time) -> u32 {
        let mut sent = 0;
        for _ in 0..1_000 {
            if budget.permits(purpose, pods, now) {
                budget.spend(pods, now);
                sent += 1;
            }
        }
        sent
    }

    #[test]
    fn the_fleets_rate_is_divided_by_the_pods_and_has_a_floor() {
        let rates = [0, 1, 16, 100, 500, 501, 10_000].map(rate);
        assert_eq!(rates, [50_000, 50_000, 3_125, 500, 100, 100, 100]);
    }

    #[test]
    fn asks_ahead_leave_half_of_the_budget_to_probes_and_probes_leave_none() {
        let mut budget = Budget::default();
        assert_eq!(sent(&mut budget, Purpose::Ahead, PODS, START), 26, "until 24 of 50 are left");
        assert_eq!(sent(&mut budget, Purpose::Ahead, PODS, START), 0);
        assert_eq!(sent(&mut budget, Purpose::Probe, PODS, START), 24);
        assert_eq!(sent(&mut budget, Purpose::Probe, PODS, START), 0);
    }

    #[test]
    fn requests_and_returns_are_never_dropped_and_spend() {
        for purpose in [Purpose::Request, Purpose::Return] {
            let mut budget = Budget::default();
            assert_eq!(sent(&mut budget, purpose, PODS, START), 1_000);
            assert!(!budget.permits(Purpose::Probe, PODS, at(101)), "50 of debt take 100 ms");
            assert!(budget.permits(Purpose::Probe, PODS, at(103)));
            assert!(!budget.permits(Purpose::Ahead, PODS, at(149)));
            assert!(budget.permits(Purpose::Ahead, PODS, at(151)));
        }
    }

    #[test]
    fn the_budget_accrues_with_time_up_to_a_tenth_of_a_second() {
        let mut budget = Budget::default();
        sent(&mut budget, Purpose::Probe, PODS, START);
        assert_eq!(sent(&mut budget, Purpose::Probe, PODS, at(21)), 10);
        assert_eq!(sent(&mut budget, Purpose::Probe, PODS, at(60_000)), 50);
    }

    #[test]
    fn a_change_of_pods_holds_at_once() {
        let mut budget = Budget::default();
        assert_eq!(sent(&mut budget, Purpose::Probe, 1_000, START), 10, "the floor");
        assert_eq!(sent(&mut budget, Purpose::Probe, PODS, at(1_000)), 50);
        assert!(!budget.permits(Purpose::Probe, PODS, at(1_000)));
    }

    #[test]
    fn time_that_runs_back_adds_nothing() {
        let mut budget = Budget::default();
        sent(&mut budget, Purpose::Probe, PODS, at(1_000));
        assert!(!budget.permits(Purpose::Probe, PODS, START));
        assert!(!budget.permits(Purpose::Probe, PODS, at(1_000)));
    }
}
