//! Compares the model with the sizing formula, and with results that are obvious.

use std::time::Duration;

use super::{Cost, Demand, Estimate, Fleet, groups};

/// Returns the cost of a key with a demand far above its limit, on this many pods, in a window of
/// an hour.
fn saturated(limit: f64, pods: f64) -> Cost {
    Demand { offered: 1e9, limit, window: 3600.0, pods }.cost()
}

fn fleet(pods: u32, keys: u64, limit: u64, seconds: u64, rate: f64) -> Fleet {
    let calls_per_shard = 50_000.0;
    let round_trip = Duration::from_micros(500);
    let window = Duration::from_secs(seconds);
    Fleet { pods, keys, limit, window, rate, zipf: 0.0, calls_per_shard, round_trip }
}

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 0.01
}

/// Counts the asks that lease all tokens of a saturated key, by stepping through the sizing formula
/// itself: each ask takes ⌊φ · left / pods⌋ tokens, at least one.
fn stepped(limit: u64, pods: u64) -> f64 {
    let mut left = limit;
    let mut asks = 0;
    while left > 0 {
        left -= (left / (4 * pods)).max(1);
        asks += 1;
    }
    f64::from(asks)
}

#[test]
fn asks_of_a_saturated_key_are_those_of_the_sizing_formula() {
    for (limit, pods) in
        [(1_000, 4), (10_000, 4), (100_000, 4), (10_000, 128), (100_000, 128), (10_000, 1024)]
    {
        // Subtract the asks that learn of the denial: one per pod, and one probe a second.
        let cost = saturated(limit as f64, pods as f64);
        let lent = cost.asks - pods as f64 - 3600.0 * (1.0 - limit as f64 / 1e9);
        let expected = stepped(limit, pods);
        assert!((lent / expected - 1.0).abs() < 0.06, "{limit} on {pods}: {lent}, not {expected}");
    }
}

#[test]
fn no_more_tokens_are_asked_for_than_there_are() {
    for limit in [1.0, 20.0, 1e3, 1e6] {
        for pods in [1.0, 4.0, 1e3, 1e4] {
            for offered in [1e-6, 0.5, 3.0, 1e3, 1e9] {
                let demand = Demand { offered, limit, window: 60.0, pods };
                let Cost { admitted, asks, waits, holders } = demand.cost();
                assert!(admitted <= limit && admitted <= offered, "{demand:?}");
                assert!(asks <= offered * (1.0 + 1e-9), "{demand:?}: {asks} asks");
                assert!(waits <= asks * (1.0 + 1e-9) && waits >= 0.0, "{demand:?}: {waits}");
                assert!(holders <= pods && holders <= offered * (1.0 + 1e-9), "{demand:?}");
            }
        }
    }
}

#[test]
fn a_key_that_is_touched_once_costs_one_ask() {
    let cost = Demand { offered: 1.0, limit: 1e6, window: 60.0, pods: 1e6 }.cost();
    assert!(near(cost.asks, 1.0) && near(cost.waits, 1.0), "{cost:?}");
}

#[test]
fn a_hot_key_of_a_high_limit_is_answered_locally() {
    let estimate = Estimate::of(&fleet(20, 1, 100_000_000, 3600, 20_000.0));
    assert!(estimate.local > 0.999 && estimate.is_p95_local, "{estimate:?}");
    // A lease is the number of tokens that may stay unspent, which is more than two seconds of
    // demand: 25 000.
    assert!(near(estimate.asks, 20_000.0 / 25_000.0), "{estimate:?}");
    assert_eq!(estimate.shards, 1.0);
}

#[test]
fn below_four_tokens_a_pod_each_admitted_request_waits() {
    let cost = saturated(20.0, 1_000.0);
    assert!(cost.waits >= 20.0, "{cost:?}");
    assert!(near(cost.waits, cost.asks), "{cost:?}");
}

#[test]
fn more_demand_than_the_limit_is_denied_and_the_denials_are_local() {
    let estimate = Estimate::of(&fleet(20, 100, 100, 60, 10_000.0));
    assert!(near(estimate.denied, 1.0 - 100.0 / 6_000.0), "{estimate:?}");
    assert!(estimate.local > 0.95, "{estimate:?}");
}

#[test]
fn every_key_restarts_in_the_first_second_of_its_window() {
    let estimate = Estimate::of(&fleet(20, 1_000, 1_000_000, 60, 1_000_000.0));
    assert!(near(estimate.asks_at_start, 20_000.0), "each pod, for each key: {estimate:?}");
    assert!(estimate.asks < estimate.asks_at_start);
}

#[test]
fn memory_is_that_of_the_keys_touched_in_a_window() {
    let all = Estimate::of(&fleet(10, 1_000_000, 100, 60, 1_000_000.0));
    assert!(near(all.redis_keys, 1_000_000.0) && near(all.redis_bytes, 147e6), "{all:?}");
    assert!(near(all.pod_keys, 1e6 * (1.0 - (-6.0_f64).exp())), "{all:?}");
    let few = Estimate::of(&fleet(10, 1_000_000_000, 100, 60, 1_000.0));
    assert!(near(few.redis_keys, 60_000.0), "a key of its own for each request: {few:?}");
    assert!(near(few.pod_keys, 6_000.0), "{few:?}");
}

#[test]
fn skew_saves_asks_and_shards_follow_them() {
    let even = fleet(20, 1_000_000, 1_000_000, 60, 1_000_000.0);
    let skewed = Estimate::of(&Fleet { zipf: 1.0, ..even });
    let estimate = Estimate::of(&even);
    assert!(skewed.asks < estimate.asks, "{skewed:?} and {estimate:?}");
    assert_eq!(estimate.shards, (estimate.asks / 50_000.0).ceil());
    let half = Estimate::of(&Fleet { calls_per_shard: 25_000.0, ..even });
    assert!((2.0 * estimate.shards - half.shards).abs() <= 1.0);
}

#[test]
fn the_groups_hold_every_key_and_all_demand() {
    for skew in [0.0, 0.5, 1.0, 1.2, 10.0] {
        for keys in [1, 2, 999, 1_000, 1_001, 123_456, 1_000_000_000_000] {
            let groups = groups(keys, skew);
            let held: f64 = groups.iter().map(|group| group.keys).sum();
            let weight: f64 = groups.iter().map(|group| group.keys * group.weight).sum();
            assert_eq!(held, keys as f64, "{skew}");
            assert!((weight - 1.0).abs() < 1e-9, "{weight} of {keys} by {skew}");
            assert!(groups.len() < 4_000, "{} groups of {keys}", groups.len());
        }
    }
}

#[test]
fn a_group_has_the_weight_of_its_keys() {
    let exact: f64 = (1..=100_000).map(|rank| 1.0 / f64::from(rank)).sum();
    let groups = groups(100_000, 1.0);
    let hottest = groups[0].weight;
    assert!((hottest * exact - 1.0).abs() < 1e-6, "{hottest}, not 1/{exact}");
    let tail: f64 = groups.iter().skip(1_000).map(|group| group.keys * group.weight).sum();
    assert!((0.35..0.42).contains(&tail), "{tail}");
}
