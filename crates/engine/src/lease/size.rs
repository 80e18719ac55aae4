//! How many tokens to ask for. Pure: the demand is measured from times that are passed as
//! arguments.
//!
//! `G = max(min(max(min(λ·T, run/2), ε·L/n), φ·left/n, max), waiting, 1)`, where λ is the pod's
//! demand, T how long a lease should last, run the hits since the key was last idle, and n the
//! number of pods that draw on the key. `docs/decisions/0019` explains each part of the formula,
//! and what else was tried.

use std::num::NonZeroU8;
use std::time::Duration;

use ratelease_rules::LeaseTerms;

/// ε: the fraction of a limit that may lie unspent in the whole fleet, whatever the demand.
pub const UNSPENT_ALLOWANCE: f64 = 0.005;

/// A token is held before a request wants it only while this pod's part of what remains is at least
/// this many tokens. With fewer, other pods would miss the token when the count is empty.
const HELD_AHEAD_MIN: f64 = 1.5;

/// The expected length of a burst: demand that only the faster average has seen does not count as
/// demand of seconds yet.
const BURST: Duration = Duration::from_millis(250);

/// A lease is at most what was used since the key was last idle, divided by this. So returning what
/// a short burst leaves costs no more calls than the burst's leases saved.
const RUN_PART: u64 = 2;

/// Leases are long, whatever part of the limit remains, while the total that pods like this one
/// would hold is no more than this fraction of what remains.
const HARMLESS_PART: f64 = 0.1;

/// For a key that weighs on its shard: factors by which its leases last longer, and by which they
/// may be a larger part of what remains.
const RELIEF_SPAN: u32 = 4;
const RELIEF_PART: f64 = 2.0;

/// T while more than half of the limit remains, while more than a fifth remains, and below that.
const SPAN_LONG: Duration = Duration::from_secs(2);
const SPAN_MIDDLE: Duration = Duration::from_millis(250);
const SPAN_SHORT: Duration = Duration::from_millis(50);

/// The inputs that determine the size of a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseSize {
    /// Hits a second over about the last second.
    pub demand: f64,
    /// Recent hits a second.
    pub burst: f64,
    /// Hits since the key was last idle; `None` if there were many.
    pub run: Option<u64>,
    /// Hits that wait for this lease.
    pub waiting: u64,
    /// The largest number of tokens that may be spent at once.
    pub limit: u64,
    /// The number of tokens that the store is thought to have left.
    pub left: u64,
    /// Tokens that come back each second; 0 for fixed windows, whose tokens come back all at once.
    pub inflow: f64,
    /// How long a lease may last: until its window ends, if that is known, or for its term.
    pub lasts: Option<Duration>,
    /// The time that an ask takes: a lease that lasts no longer is used up before the next one
    /// arrives.
    pub round_trip: Duration,
    /// Number of pods to share with, at least 1: all pods that may use the key or, once that has
    /// been observed, the reciprocal of this pod's part of what the fleet draws. Too small a number
    /// strands tokens, too large a number costs round trips.
    pub pods: f64,
    /// The key weighs on its shard, so it gets fewer and larger leases.
    pub relief: bool,
    /// φ and the largest size of one lease.
    pub terms: LeaseTerms,
}

// === impl LeaseSize ===

impl LeaseSize {
    /// The number of tokens to ask for; at least 1. Leases are long while much remains, and single
    /// tokens near the end.
    #[allow(clippy::cast_possible_truncation, reason = "saturates, and rounds down as meant")]
    pub fn tokens(&self) -> u64 {
        let ahead = self.by_demand().min(self.by_run()).max(self.unspent_allowance());
        let size = ahead.min(self.part_of_remaining()).min(f64::from(self.terms.max));
        // Waiting hits are spent at once, so tokens for them strand nothing. With one token at a
        // time, a queue would not be served within its wait.
        (size as u64).max(self.waiting).max(1)
    }

    /// Whether to hold a token before a request wants it: if the demand will use it in time, and
    /// enough remains. Near the end each token is asked for by the request that spends it, so that
    /// none lies with one pod while another pod denies.
    pub fn may_hold_ahead(&self) -> bool {
        self.part_of_remaining() >= HELD_AHEAD_MIN && self.by_demand().min(self.by_run()) >= 1.0
    }

    /// λ·T.
    fn by_demand(&self) -> f64 {
        let span = self.span();
        let steady = self.demand * span.as_secs_f64();
        steady.max(self.burst * span.min(self.lengthened(BURST)).as_secs_f64())
    }

    /// The number of tokens that a run of this length may be expected to use.
    fn by_run(&self) -> f64 {
        self.run.map_or(f64::INFINITY, |run| (run / RUN_PART) as f64)
    }

    /// φ·remaining/n. The inflow until the next ask is shared too: a bucket that is kept empty has
    /// nothing left, but still serves its rate. Only the fraction φ of the bucket's capacity counts
    /// as inflow, or pods would hold ahead what the bucket needs for a burst.
    fn part_of_remaining(&self) -> f64 {
        let fraction = f64::from(self.terms.fraction);
        let inflow = self.inflow * SPAN_SHORT.as_secs_f64();
        let inflow = inflow.min(fraction * self.limit as f64);
        let relief = if self.relief { RELIEF_PART } else { 1.0 };
        let part = (relief * fraction).min(1.0).max(fraction);
        (part * self.left as f64 + inflow) / self.pods.max(1.0)
    }

    /// ε·L/n: the number of tokens that this pod may hold of an unused key. Where tokens come back
    /// by themselves, those of a lease that ends unspent are lost, so the allowance is a part of
    /// what comes in during one lease.
    pub fn unspent_allowance(&self) -> f64 {
        let whole = match self.lasts {
            Some(lasts) if self.inflow > 0.0 => {
                (self.inflow * lasts.as_secs_f64()).min(self.limit as f64)
            }
            _ => self.limit as f64,
        };
        UNSPENT_ALLOWANCE * whole / self.pods.max(1.0)
    }

    /// The number of tokens for a pool, one of `pools`, from which `others` take leases like this
    /// one.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    pub fn for_pool(&self, others: f64, pools: NonZeroU8) -> u64 {
        let part = f64::from(self.terms.fraction) * self.left as f64 / f64::from(pools.get());
        (self.tokens() as f64 * others).min(part) as u64
    }

    /// The number of tokens held that the demand will use, or that may lie unspent.
    #[allow(clippy::cast_possible_truncation, reason = "saturates, and rounds down as meant")]
    pub fn in_use(&self) -> u64 {
        self.by_demand().max(self.unspent_allowance()).max(1.0) as u64
    }

    /// T: how long a lease should last, well within its end.
    fn span(&self) -> Duration {
        let span = match self.left {
            left if left > self.limit / 2 || self.is_harmless() => SPAN_LONG,
            left if left > self.limit / 5 => SPAN_MIDDLE,
            _ => SPAN_SHORT,
        };
        let span = self.lengthened(span.max(2 * self.round_trip));
        match self.lasts {
            // Half of its term: tokens that are unspent at the lease's end are lost.
            Some(lasts) if self.inflow > 0.0 => span.min(lasts / 2),
            Some(lasts) if self.is_harmless() => span.min(lasts),
            // A fraction of the rest of the window, so that the forecast improves towards the
            // window's end.
            Some(lasts) => span.min(lasts / 4),
            None => span,
        }
    }

    /// Whether long leases of this demand, by all pods, would be only a small part of what remains.
    fn is_harmless(&self) -> bool {
        let span = self.lasts.map_or(SPAN_LONG, |lasts| lasts.min(SPAN_LONG));
        let held = self.demand.max(self.burst) * span.as_secs_f64() * self.pods.max(1.0);
        held <= HARMLESS_PART * self.left as f64
    }

    fn lengthened(&self, span: Duration) -> Duration {
        if self.relief { RELIEF_SPAN * span } else { span }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(demand: f64, limit: u64, left: u64) -> LeaseSize {
        let (waiting, inflow, lasts, pods) = (0, 0.0, None, 1.0);
        let (round_trip, terms) = (Duration::from_micros(500), LeaseTerms::default());
        let (burst, run, relief) = (demand, None, false);
        LeaseSize {
            demand,
            burst,
            run,
            waiting,
            limit,
            left,
            inflow,
            lasts,
            round_trip,
            pods,
            relief,
            terms,
        }
    }

    #[test]
    fn low_limits_are_lent_one_token_at_a_time() {
        assert_eq!(need(1_000.0, 7, 7).tokens(), 1);
        assert_eq!(need(1_000.0, 1_000_000, 3).tokens(), 1);
        assert_eq!(need(0.0, 0, 0).tokens(), 1);
    }

    #[test]
    fn an_unknown_demand_gets_the_allowance() {
        assert_eq!(need(0.0, 1_000_000, 1_000_000).tokens(), 5_000);
        assert_eq!(LeaseSize { pods: 10.0, ..need(0.0, 1_000_000, 1_000_000) }.tokens(), 500);
    }

    #[test]
    fn hits_that_wait_are_asked_for_whatever_remains() {
        assert_eq!(LeaseSize { waiting: 30, ..need(0.0, 1_000, 1_000) }.tokens(), 30);
        assert_eq!(LeaseSize { waiting: 30, ..need(0.0, 1_000, 5) }.tokens(), 30);
    }

    #[test]
    fn leases_shorten_as_the_tokens_go() {
        assert_eq!(need(1_000.0, 100_000, 90_000).tokens(), 2_000);
        assert_eq!(need(4_000.0, 100_000, 40_000).tokens(), 1_000);
        assert_eq!(need(20_000.0, 100_000, 10_000).tokens(), 1_000);
    }

    #[test]
    fn leases_grow_with_the_round_trip() {
        let slow = |millis| LeaseSize {
            round_trip: Duration::from_millis(millis),
            ..need(4_000.0, 100_000, 40_000)
        };
        assert_eq!([5, 50, 500].map(|millis| slow(millis).tokens()), [1_000, 1_000, 4_000]);
        assert_eq!(slow(50_000).tokens(), 10_000, "and never above the share of what remains");
    }

    #[test]
    fn no_pod_gets_more_than_its_share_of_what_remains() {
        assert_eq!(need(1e9, 100_000, 80_000).tokens(), 20_000);
        assert_eq!(LeaseSize { pods: 4.0, ..need(1e9, 100_000, 80_000) }.tokens(), 5_000);
    }

    #[test]
    fn near_the_end_no_token_is_held_before_it_is_wanted() {
        assert!(LeaseSize { pods: 4.0, ..need(1e9, 200, 24) }.may_hold_ahead());
        assert!(!LeaseSize { pods: 4.0, ..need(1e9, 200, 23) }.may_hold_ahead());
        assert!(!need(19.0, 200, 39).may_hold_ahead(), "it would lie for more than 50 ms");
    }

    #[test]
    fn no_lease_is_sized_beyond_its_window() {
        let lasts = Some(Duration::from_millis(10));
        let scarce = LeaseSize { lasts, ..need(400_000.0, 100_000, 6_000) }.tokens();
        assert_eq!(scarce, 1_000, "a quarter of its rest");
        let plenty = LeaseSize { lasts, ..need(400_000.0, 100_000, 100_000) }.tokens();
        assert_eq!(plenty, 4_000, "its rest, where that is little of what remains");
    }

    #[test]
    fn the_terms_of_a_rule_set_the_share_and_the_ceiling() {
        let half = LeaseTerms { fraction: 0.5, ..LeaseTerms::default() };
        assert_eq!(LeaseSize { terms: half, ..need(1e9, 100, 80) }.tokens(), 40);
        let few = LeaseTerms { max: 7, ..LeaseTerms::default() };
        assert_eq!(LeaseSize { terms: few, ..need(1e9, 100, 80) }.tokens(), 7);
    }

    #[test]
    fn an_empty_bucket_lends_a_share_of_what_comes_in() {
        let poor = LeaseSize {
            inflow: 1_000.0,
            lasts: Some(Duration::from_secs(2)),
            ..need(900.0, 1_000, 0)
        };
        assert_eq!(poor.tokens(), 45, "50 ms of the demand");
        assert_eq!(LeaseSize { pods: 5.0, ..poor }.tokens(), 10, "a fifth of 50 ms of the rate");
    }

    #[test]
    fn what_may_lie_unspent_is_a_part_of_what_comes_in_meanwhile() {
        let hour = LeaseSize {
            inflow: 10.0,
            lasts: Some(Duration::from_secs(2)),
            ..need(0.0, 36_000, 36_000)
        };
        assert_eq!(hour.tokens(), 1, "0.5 % of 20 tokens");
        assert_eq!(need(0.0, 36_000, 36_000).tokens(), 180, "0.5 % of the window's");
    }

    #[test]
    fn a_short_run_is_lent_no_more_than_half_of_what_it_used() {
        let after = |run| LeaseSize { run: Some(run), ..need(1_000.0, 100_000, 100_000) };
        assert_eq!(
            LeaseSize { limit: 1_000, left: 1_000, ..after(1) }.tokens(),
            5,
            "the allowance"
        );
        assert_eq!(LeaseSize { limit: 100, left: 100, ..after(3) }.tokens(), 1);
        assert!(!LeaseSize { limit: 100, left: 100, ..after(1) }.may_hold_ahead());
        assert_eq!(LeaseSize { limit: 100, left: 100, ..after(20) }.tokens(), 10);
    }

    #[test]
    fn a_burst_is_not_taken_for_a_demand_of_seconds() {
        let burst = LeaseSize { burst: 1_000.0, ..need(3.0, 100_000, 100_000) };
        assert_eq!(LeaseSize { limit: 1_000, left: 1_000, pods: 1.0, ..burst }.tokens(), 250);
    }

    #[test]
    fn long_leases_go_on_near_the_end_while_they_are_little_of_what_remains() {
        assert_eq!(LeaseSize { pods: 4.0, ..need(3.0, 1_000, 240) }.tokens(), 6);
        assert_eq!(
            LeaseSize { pods: 4.0, ..need(3.0, 1_000, 239) }.tokens(),
            1,
            "6 * 4 are more than 23"
        );
    }

    #[test]
    fn a_key_that_weighs_on_its_shard_gets_larger_leases() {
        let relieved = LeaseSize { relief: true, ..need(1_000.0, 1_000_000, 900_000) };
        assert_eq!((need(1_000.0, 1_000_000, 900_000).tokens(), relieved.tokens()), (5_000, 8_000));
        let little = LeaseSize { relief: true, ..need(1e9, 100_000, 80_000) };
        assert_eq!(little.tokens(), 40_000, "half of what remains");
    }
}
