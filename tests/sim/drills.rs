//! Plans made by hand, each for one promise that seeds would seldom test.

use std::time::Duration;

use crate::plan::{Demand, Mood, Plan};
use crate::rule::RulePlan;
use crate::run::{Outcome, run};
use crate::weather::{Stretch, Trouble};

const MINUTES_10: u64 = 600_000_000;

fn bucket(requests_per_second: u64, burst: u64) -> RulePlan {
    RulePlan {
        algorithm: "token_bucket",
        burst: Some(burst),
        ..RulePlan::fixed_window(requests_per_second, "second")
    }
}

fn run_or_panic(plan: Plan) -> Outcome {
    run(plan).unwrap_or_else(|wrong| panic!("{wrong:?}"))
}

/// The named master, or every one, is unavailable the whole time, and replies with errors.
fn away(from_ms: u64, only_shard: Option<usize>) -> Stretch {
    let trouble = Trouble::Away { silent: false };
    Stretch { from_ms, until_ms: u64::MAX, only: None, only_shard, trouble }
}

/// A plan in which the store is unavailable from the start; no hour ends.
fn without_store(pods: u32, rule: RulePlan, demand: Demand, span_ms: u64) -> Plan {
    let rule = RulePlan { failure_mode: "local", ..rule };
    let mut plan = Plan::calm(pods, rule, demand, span_ms);
    plan.mood = Mood::Rough;
    plan.wait_min = Duration::from_millis(5);
    plan.wall_start_us += MINUTES_10;
    plan.weather.stretches.push(away(0, None));
    plan
}

#[test]
fn a_bucket_earned_in_less_than_50_ms_serves_what_one_server_would() {
    for (pods, rate, burst, offered) in [(4, 1_000, 10, 950), (1, 100, 1, 50), (4, 200, 4, 190)] {
        run_or_panic(Plan::calm(pods, bucket(rate, burst), Demand::even(offered), 3_000));
    }
}

#[test]
fn a_lukewarm_key_costs_less_than_an_ask_for_each_decision() {
    let rule = RulePlan::fixed_window(1_000, "hour");
    let mut plan = Plan::calm(4, rule, Demand::even(12), 80_000);
    plan.wall_start_us += MINUTES_10;
    let outcome = run_or_panic(plan);
    let asks: u32 = outcome.asks.iter().sum();
    let most = outcome.requests * 6 / 10;
    assert!(u64::from(asks) <= most, "{asks} asks for {} decisions", outcome.requests);
}

#[test]
fn a_pod_alone_without_store_admits_the_limit() {
    let rule = RulePlan::fixed_window(500, "hour");
    let outcome = run_or_panic(without_store(1, rule, Demand::even(300), 3_000));
    assert!((450..=500).contains(&outcome.admitted), "{} of 500", outcome.admitted);
}

#[test]
fn a_fleet_that_starts_without_store_admits_the_limit_about_once() {
    for (pods, limit) in [(200, 200), (200, 1_000), (200, 20)] {
        let rule = RulePlan::fixed_window(limit, "hour");
        let outcome = run_or_panic(without_store(pods, rule, Demand::even(6 * limit), 1_000));
        // Below one token per pod, a hash chooses the pods that have one: five standard deviations.
        let most = limit + 5 * limit.isqrt();
        assert!(outcome.admitted <= most, "{pods} pods: {} of {limit}", outcome.admitted);
    }
}

#[test]
fn a_pod_without_store_admits_more_keys_than_65536() {
    let mut demand = Demand::even(25_000);
    demand.values = 75_000;
    let mut plan = without_store(1, RulePlan::fixed_window(100, "hour"), demand, 8_000);
    plan.pod_bytes_max = 64 << 20;
    let outcome = run_or_panic(plan);
    assert_eq!(outcome.denied, 0, "{} were admitted", outcome.admitted);
}

#[test]
fn a_split_key_with_one_master_away_still_admits_the_limit() {
    for shard in [0, 1] {
        let rule = RulePlan { shards: 2, ..RulePlan::fixed_window(100, "hour") };
        let mut plan = without_store(1, rule, Demand::even(100), 3_000);
        plan.shards = 2;
        plan.weather.stretches = vec![away(0, Some(shard))];
        let outcome = run_or_panic(plan);
        assert!(outcome.admitted >= 90, "{} of 100, without {shard}", outcome.admitted);
    }
}

#[test]
fn a_sliding_window_that_was_empty_for_a_moment_fills_without_the_store() {
    let rule = RulePlan {
        algorithm: "sliding_window",
        unit_multiplier: 10,
        ..RulePlan::fixed_window(20, "second")
    };
    let mut plan = without_store(1, rule, Demand::even(10), 19_000);
    plan.weather.stretches = vec![away(11_500, None)];
    let outcome = run_or_panic(plan);
    assert!(outcome.admitted >= 30, "{} admitted in two windows of 20", outcome.admitted);
}

#[test]
fn one_slow_ask_delays_its_own_key_alone() {
    let rule = RulePlan { lease: "off".into(), ..RulePlan::fixed_window(1_000_000, "hour") };
    let mut demand = Demand::even(500);
    demand.values = 50;
    let mut plan = Plan::calm(1, rule, demand, 4_000);
    plan.mood = Mood::Rough;
    plan.wait_min = Duration::from_millis(20);
    plan.wall_start_us += MINUTES_10;
    let trouble = Trouble::Stuck { percent: 2, ms: 250 };
    let (from_ms, until_ms, only, only_shard) = (0, u64::MAX, None, None);
    plan.weather.stretches.push(Stretch { from_ms, until_ms, only, only_shard, trouble });
    let outcome = run_or_panic(plan);
    let Outcome { errors, requests, .. } = outcome;
    assert!(errors * 100 <= requests * 15, "{errors} of {requests} failed");
}

#[test]
fn a_store_ten_milliseconds_away_is_not_away() {
    let rule = RulePlan { failure_mode: "local", ..RulePlan::fixed_window(5, "hour") };
    let mut demand = Demand::even(800);
    (demand.values, demand.caller) = (200, Some(Duration::from_millis(20)));
    let mut plan = Plan::calm(4, rule, demand, 2_000);
    plan.mood = Mood::Rough;
    plan.wall_start_us += MINUTES_10;
    (plan.wait_min, plan.wait_max) = (Duration::from_millis(5), Duration::from_millis(15));
    plan.weather.way_ms = 5;
    let outcome = run_or_panic(plan);
    // A request that arrives while an ask is out may have to wait for two round trips.
    let Outcome { failure_modes, requests, admitted, .. } = outcome;
    assert!(failure_modes * 50 <= requests, "{failure_modes} of {requests}, {admitted} of 1000");
}

#[test]
fn masters_of_different_clocks_do_not_reset_what_a_pod_admitted_alone() {
    let mut demand = Demand::even(300);
    demand.values = 12;
    let rule = RulePlan { lease: "off".into(), ..RulePlan::fixed_window(10, "minute") };
    let mut plan = without_store(1, rule, demand, 3_000);
    plan.shards = 3;
    plan.skews_us = vec![0, 200_000_000, 400_000_000];
    plan.weather.stretches = vec![away(0, Some(2))];
    run_or_panic(plan);
}
