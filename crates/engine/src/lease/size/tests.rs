//! Tests of lease, size.

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
    let poor =
        LeaseSize { inflow: 1_000.0, lasts: Some(Duration::from_secs(2)), ..need(900.0, 1_000, 0) };
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
    assert_eq!(LeaseSize { limit: 1_000, left: 1_000, ..after(1) }.tokens(), 5, "the allowance");
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
fn a_note_that_was_overtaken_forgets_no_demand() {
    let mut demand = demand(1_000, 3_000);
    let before = demand.rate();
    for millis in [2_999, 2_950, 2_000, 0] {
        demand.note(1, Time::from_nanos(millis * 1_000_000));
        let after = demand.rate();
        assert!((after / before - 1.0).abs() < 0.1, "{after} after {before}, {millis} ms");
        assert!(demand.idle_for(Time::from_nanos(millis * 1_000_000)) <= 2 * SPAN_MIN);
    }
}

#[test]
fn a_burst_is_seen_within_a_tenth_of_a_second() {
    assert!(demand(10_000, 100).rate() > 8_000.0);
}

#[test]
fn pods_are_seen_by_their_part_in_what_is_drawn() {
    let second = Duration::from_secs(1);
    let mut unused = Demand::default();
    unused.note_draw(100, second);
    assert_eq!(unused.pods(), None, "a pod that used nothing has no part to compare with");

    let mut demand = demand(100, 3_000);
    demand.note_draw(300, second);
    let pods = demand.pods().unwrap();
    assert!((3.6..4.4).contains(&pods), "{pods}");
    for _ in 0..20 {
        demand.note_draw(9_990, second / 10);
    }
    let pods = demand.pods().unwrap();
    assert!((850.0..1_150.0).contains(&pods), "{pods}");
    for _ in 0..30 {
        demand.note_draw(0, second);
    }
    assert!(demand.pods().unwrap() < 1.3, "no other pod draws");
}

#[test]
fn a_large_lease_of_its_own_does_not_make_a_pod_think_itself_alone() {
    let mut demand = demand(10, 3_000);
    // The others use 100 times as much as this pod. It asks twice within a hundredth of a
    // second, whatever it was lent in between.
    for _ in 0..20 {
        demand.note_draw(10, Duration::from_millis(10));
    }
    let pods = demand.pods().unwrap();
    assert!((80.0..125.0).contains(&pods), "{pods}");
}

#[test]
fn a_key_is_idle_after_four_of_its_mean_gaps_within_bounds() {
    assert_eq!(demand(1_000, 3_000).idle_after(), IDLE_MIN);
    let lukewarm = demand(3, 20_000).idle_after().as_secs_f64();
    assert!((1.1..1.6).contains(&lukewarm), "{lukewarm}");
    assert_eq!(demand(1, 20_000).idle_after(), IDLE_MAX);
}

#[test]
fn a_rarely_used_key_is_not_asked_ahead_for() {
    assert!(!demand(2, 5_000).uses_soon(Duration::from_secs(60)));
    assert!(!demand(9, 5_000).uses_soon(Duration::from_secs(1)));
    assert!(demand(11, 5_000).uses_soon(Duration::from_secs(1)));
    assert!(demand(1_000, 1_000).outruns(1, Duration::from_millis(1)));
    assert!(!demand(1_000, 1_000).outruns(10, Duration::from_millis(1)));
}
