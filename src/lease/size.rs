//! How many tokens to ask for. Pure: the demand is measured on times that come in as arguments.
//!
//! The formula and its constants are `design.md`'s ("Leases"), simulated there: `G =
//! clamp(min(max(λ·T, ε·L/n), φ·remaining/n), 1, …)`. Hits that wait already count as demand too.

use std::time::Duration;

use crate::time::Time;

/// φ: of what remains, the part that one pod may hold when all ask at once. At ½, a demand that
/// moves between pods strands several per cent of the tokens; at ¼ it does not.
const SHARE_OF_REMAINING: f64 = 0.25;

/// ε: the part of a limit that may lie unspent in the whole fleet, whatever the demand.
const UNSPENT_ALLOWANCE: f64 = 0.005;

/// A demand is asked ahead of only if it would use a token within this time: a key that is used
/// less often would only strand what it holds.
const IDLE_AFTER: Duration = Duration::from_millis(200);

/// On top of two round trips, for a batch that is on its way already and for the scheduler.
const ASK_AHEAD_MARGIN: Duration = Duration::from_millis(1);

/// Demand is measured over spans of at least this.
const SPAN_MIN: Duration = Duration::from_millis(10);

/// Time constants of the two averages. The faster one sees a burst begin, the slower one
/// remembers that there is demand across a lull.
const FAST: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_secs(1);

/// This pod's demand for one key, in hits a second: two moving averages, of which the higher
/// counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Demand {
    fast: f32,
    slow: f32,
    /// Hits since `since`, not yet in the averages.
    hits: u32,
    since: Time,
}

/// What the size of a lease follows from.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// Hits a second.
    pub demand: f64,
    /// Hits that wait for this lease.
    pub waiting: u64,
    /// Tokens in a window.
    pub limit: u64,
    /// Tokens that the store is thought to have left.
    pub left: u64,
    /// Until the window ends, if known.
    pub reset_after: Option<Duration>,
    /// Pods alive, at least 1; too few strands tokens, too many costs trips.
    pub pods: u32,
}

// === impl Demand ===

impl Demand {
    /// Notes `hits` at `now`.
    pub fn note(&mut self, hits: u64, now: Time) {
        self.hits = self.hits.saturating_add(u32::try_from(hits).unwrap_or(u32::MAX));
        let span = now.since(self.since);
        if span < SPAN_MIN {
            return;
        }
        // A key's first hits have no span to be divided by: whatever came before is not known.
        if self.since == Time::default() {
            (self.hits, self.since) = (0, now);
            return;
        }
        let rate = self.hits as f32 / span.as_secs_f32();
        self.fast += (rate - self.fast) * weight(span, FAST);
        self.slow += (rate - self.slow) * weight(span, SLOW);
        (self.hits, self.since) = (0, now);
    }

    /// Hits a second.
    pub fn rate(&self) -> f64 {
        f64::from(self.fast.max(self.slow))
    }

    /// Whether `tokens` will be gone before a lease asked for now could arrive.
    pub fn outruns(&self, tokens: u64, round_trip: Duration) -> bool {
        let horizon = (2 * round_trip + ASK_AHEAD_MARGIN).as_secs_f64();
        self.rate() * IDLE_AFTER.as_secs_f64() >= 1.0 && (tokens as f64) < self.rate() * horizon
    }
}

/// The weight of the newest `span` in an exponential average with this time constant.
fn weight(span: Duration, constant: Duration) -> f32 {
    1.0 - (-span.as_secs_f32() / constant.as_secs_f32()).exp()
}

// === impl Need ===

impl Need {
    /// Tokens to ask for; at least 1. Long leases while much remains, one token at a time near the
    /// end.
    #[allow(clippy::cast_possible_truncation, reason = "saturates, and rounds down as meant")]
    pub fn size(&self) -> u64 {
        let pods = f64::from(self.pods.max(1));
        let by_demand = self.demand * self.span().as_secs_f64();
        let by_allowance = UNSPENT_ALLOWANCE * self.limit as f64 / pods;
        let by_remaining = SHARE_OF_REMAINING * self.left as f64 / pods;
        let wanted = by_demand.max(by_allowance).max(self.waiting as f64);
        (wanted.min(by_remaining) as u64).max(1)
    }

    /// T: how long a lease should last; no longer than its window.
    fn span(&self) -> Duration {
        let span = match self.left {
            left if left > self.limit / 2 => Duration::from_secs(2),
            left if left > self.limit / 5 => Duration::from_millis(250),
            _ => Duration::from_millis(50),
        };
        self.reset_after.map_or(span, |reset_after| span.min(reset_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(demand: f64, limit: u64, left: u64) -> Need {
        Need { demand, waiting: 0, limit, left, reset_after: None, pods: 1 }
    }

    fn demand(hits_per_second: u64, millis: u64) -> Demand {
        let mut demand = Demand::default();
        for hit in 0..hits_per_second * millis / 1_000 {
            demand.note(1, Time::from_nanos((hit + 1) * 1_000_000_000 / hits_per_second));
        }
        demand
    }

    #[test]
    fn a_steady_demand_is_measured_within_a_tenth() {
        for rate in [20, 1_000, 50_000] {
            let measured = demand(rate, 3_000).rate();
            assert!((measured / rate as f64 - 1.0).abs() < 0.1, "{measured} of {rate}");
        }
    }

    #[test]
    fn a_burst_is_seen_within_a_tenth_of_a_second() {
        assert!(demand(10_000, 100).rate() > 8_000.0);
    }

    #[test]
    fn low_limits_are_lent_one_token_at_a_time() {
        assert_eq!(need(1_000.0, 7, 7).size(), 1);
        assert_eq!(need(1_000.0, 1_000_000, 3).size(), 1);
        assert_eq!(need(0.0, 0, 0).size(), 1);
    }

    #[test]
    fn an_unknown_demand_gets_the_allowance() {
        assert_eq!(need(0.0, 1_000_000, 1_000_000).size(), 5_000);
        assert_eq!(Need { pods: 10, ..need(0.0, 1_000_000, 1_000_000) }.size(), 500);
    }

    #[test]
    fn hits_that_wait_are_demand_and_get_no_more_than_a_share() {
        assert_eq!(Need { waiting: 30, ..need(0.0, 1_000, 1_000) }.size(), 30);
        assert_eq!(Need { waiting: u64::MAX, ..need(0.0, 1_000, 1_000) }.size(), 250);
    }

    #[test]
    fn leases_shorten_as_the_tokens_go() {
        assert_eq!(need(1_000.0, 100_000, 90_000).size(), 2_000);
        assert_eq!(need(4_000.0, 100_000, 40_000).size(), 1_000);
        assert_eq!(need(20_000.0, 100_000, 10_000).size(), 1_000);
    }

    #[test]
    fn no_pod_gets_more_than_its_share_of_what_remains() {
        assert_eq!(need(1e9, 100_000, 80_000).size(), 20_000);
        assert_eq!(Need { pods: 4, ..need(1e9, 100_000, 80_000) }.size(), 5_000);
    }

    #[test]
    fn no_lease_is_sized_beyond_its_window() {
        let reset_after = Some(Duration::from_millis(10));
        let size = Need { reset_after, ..need(100_000.0, 100_000, 100_000) }.size();
        assert_eq!(size, 1_000);
    }

    #[test]
    fn a_rarely_used_key_is_not_asked_ahead_for() {
        assert!(!demand(2, 5_000).outruns(0, Duration::from_millis(1)));
        assert!(demand(1_000, 1_000).outruns(1, Duration::from_millis(1)));
        assert!(!demand(1_000, 1_000).outruns(10, Duration::from_millis(1)));
    }
}
