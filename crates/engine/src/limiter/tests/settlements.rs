//! Costs that are known afterwards: each is counted whole, and requests of 0 hits wait until it is
//! paid.

use super::*;
use crate::rng::mixed;

/// Rules for `a`, which settles, and `b`, of 5 an hour.
fn settling(a: &str) -> Rig {
    Rig::new(&limits(&format!("{a}, settle: true"), "unit: hour, requests_per_unit: 5"))
}

async fn passes(pod: &Limiter, rig: &Rig, request: &Request<'_>) -> bool {
    decide(pod, &rig.rules, request).await.0
}

/// A pod with its maintenance.
fn running(rig: &Rig) -> Limiter {
    let pod = rig.pod();
    let maintained = pod.clone();
    tokio::spawn(async move { maintained.run().await });
    pod
}

/// The sum of the costs of the answers that `pod` lets pass. Each costs `cost`, and one is asked
/// for every 10 ms during this time, after a look.
async fn used(pod: &Limiter, rig: &Rig, cost: u64, lasts: Duration) -> u64 {
    let (mut used, begun) = (0, rig.clock.now());
    while rig.clock.now().since(begun) < lasts {
        if passes(pod, rig, &look("a")).await {
            assert!(passes(pod, rig, &charge("a", cost)).await, "a cost is never denied");
            used += cost;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    used
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_what_is_left_is_remembered_by_each_algorithm_until_it_is_paid() {
    for (limit, most) in [
        ("unit: second, requests_per_unit: 100, algorithm: token_bucket", 100 + 600 + 1_000),
        ("unit: hour, requests_per_unit: 600", 600 + 1_000),
        ("unit: hour, requests_per_unit: 600, algorithm: sliding_window", 600 + 1_000),
        ("unit: second, requests_per_unit: 100, carry_debt: true", 100 + 600 + 1_000),
    ] {
        let rig = settling(limit);
        let used = used(&rig.pod(), &rig, 1_000, Duration::from_secs(6)).await;
        assert!((1_000..=most).contains(&used), "{used} by {limit}");
    }
}

/// Also by a pod that has not counted the cost itself.
#[tokio::test(start_paused = true)]
async fn a_denial_after_costs_names_the_time_when_looks_pass_again() {
    for limit in [
        "unit: second, unit_multiplier: 5, requests_per_unit: 100, carry_debt: true",
        "unit: second, unit_multiplier: 5, requests_per_unit: 100, algorithm: sliding_window",
        "unit: second, unit_multiplier: 5, requests_per_unit: 100, algorithm: token_bucket",
    ] {
        let rig = settling(limit);
        let pods = [rig.pod(), rig.pod()];
        assert!(passes(&pods[0], &rig, &charge("a", 1_000)).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let denied_at = rig.clock.now();
        let mut named = Vec::new();
        for pod in &pods {
            let denied = pod.decided(&rig.rules, &look("a")).await.unwrap();
            assert_eq!(denied.code, Code::OverLimit, "{limit}");
            named.push(denied.statuses[0].reset_seconds().expect("the store has said"));
        }
        assert_eq!(named[0], named[1], "{limit}");
        let mut passed_after = Duration::ZERO;
        while !passes(&pods[0], &rig, &look("a")).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
            passed_after = rig.clock.now().since(denied_at);
        }
        let error = passed_after.as_secs_f64() - named[0] as f64;
        assert!((-1.1..1.1).contains(&error), "{limit}: {named:?}, {passed_after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_token_is_the_last_and_other_pods_see_a_debt() {
    for (costs, passes_then) in [([60, 39], true), ([60, 40], false), ([60, 400], false)] {
        let rig = settling("unit: hour, requests_per_unit: 100");
        let [one, other] = [rig.pod(), rig.pod()];
        for cost in costs {
            assert!(passes(&one, &rig, &charge("a", cost)).await);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(passes(&one, &rig, &look("a")).await, passes_then, "{costs:?}");
        // One pod may hold the last token.
        assert!(passes_then || !passes(&other, &rig, &look("a")).await, "{costs:?}");
    }
}

/// A shared budget of 5 denies; the cost that the same request charges to the user's own budget is
/// used all the same.
#[tokio::test(start_paused = true)]
async fn a_settlement_stands_though_another_limit_of_its_request_denies() {
    let rig = settling("unit: hour, requests_per_unit: 100");
    let pod = rig.pod();
    for _ in 0..3 {
        let mut both = charge("a", 7);
        both.descriptors.push(Descriptor { hits_addend: Some(9), ..descriptor("b") });
        assert!(!passes(&pod, &rig, &both).await, "9 of 5 are denied");
    }
    assert_eq!(decide(&pod, &rig.rules, &look("a")).await, (true, 79));
}

/// Hits of `a` and `b`: of each descriptor itself, or of the call.
fn hits_of_both(hits: u64, are_own: bool) -> Request<'static> {
    let hits_addend = are_own.then_some(hits);
    let of = |key| Descriptor { hits_addend, ..descriptor(key) };
    Request { descriptors: smallvec![of("a"), of("b")], hits_addend: hits, ..charge("a", hits) }
}

/// Gateways report the cost of an answer by one call with the hits of each of their limits.
#[tokio::test(start_paused = true)]
async fn a_call_of_costs_charges_each_limit_whole_though_one_denies() {
    let of = |limit: u32| format!("unit: hour, requests_per_unit: {limit}, settle_own_hits: true");
    let rig = Rig::new(&limits(&of(10), &of(100)));
    let left = async |pod: &Limiter, key| decide(pod, &rig.rules, &look(key)).await.1;
    let pod = rig.pod();
    for (left_of_a, left_of_b, costs) in [(3, 93, 7), (0, 73, 20), (0, 23, 50), (0, 0, 100)] {
        let fits = costs <= 7;
        assert_eq!(passes(&pod, &rig, &hits_of_both(costs, true)).await, fits);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let seen = (left(&pod, "a").await, left(&pod, "b").await);
        assert_eq!(seen, (left_of_a, left_of_b), "after {costs}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_one_limit_denies_charges_the_others_nothing() {
    let of = |limit: u32| format!("unit: hour, requests_per_unit: {limit}, settle_own_hits: true");
    let rig = Rig::new(&limits(&of(10), &of(100)));
    let pod = rig.pod();
    assert!(!passes(&pod, &rig, &hits_of_both(20, false)).await);
    assert_eq!(decide(&pod, &rig.rules, &look("b")).await, (true, 100));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_waits_for_no_reply_and_is_counted_by_the_store_before_long() {
    let rig = settling("unit: hour, requests_per_unit: 100");
    let pod = rig.pod();
    *rig.store.round_trip.lock() = Duration::from_secs(3);
    let begun = rig.clock.now();
    for _ in 0..20 {
        assert!(passes(&pod, &rig, &charge("a", 30)).await);
    }
    assert_eq!(rig.clock.now(), begun, "it took no time");
    tokio::time::sleep(Duration::from_secs(8)).await;
    *rig.store.round_trip.lock() = Duration::from_micros(500);
    assert!(!passes(&rig.pod(), &rig, &look("a")).await, "600 of 100 are used");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_leaves_its_settlement() {
    let rig = settling("unit: hour, requests_per_unit: 100");
    let pod = rig.pod();
    let mut both = charge("a", 70);
    both.descriptors.push(descriptor("b"));
    *rig.store.round_trip.lock() = MAX_WAIT * 4;
    let decision = pod.decided(&rig.rules, &both);
    assert!(tokio::time::timeout(MAX_WAIT / 2, decision).await.is_err(), "`b` waits");
    tokio::time::sleep(MAX_WAIT * 20).await;
    *rig.store.round_trip.lock() = Duration::ZERO;
    assert_eq!(decide(&pod, &rig.rules, &look("a")).await, (true, 30));
}

/// In an outage one cost may be reported, unanswered, and reported once more; never more often.
#[tokio::test(start_paused = true)]
async fn what_is_owed_outlasts_an_outage() {
    for lease in ["{}", "off"] {
        let limit = format!("unit: hour, requests_per_unit: 1000, lease: {lease}");
        let rig = settling(&format!("{limit}, failure_mode: local"));
        let pod = running(&rig);
        assert!(passes(&pod, &rig, &look("a")).await);
        rig.store.fails.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            assert!(passes(&pod, &rig, &charge("a", 3)).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        rig.store.fails.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(decide(&pod, &rig.rules, &look("a")).await, (true, 700), "lease: {lease}");
        assert!(rig.left(1000).await <= 700, "the store knows it too");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_store_the_pods_part_pays_for_costs() {
    let rig = settling("unit: hour, requests_per_unit: 1000, failure_mode: local");
    let pod = rig.pod();
    rig.store.fails.store(true, Ordering::Relaxed);
    let used = used(&pod, &rig, 300, Duration::from_secs(10)).await;
    // Until the breaker opens, each cost may be taken for one that the store counts.
    assert!((1_000..=1_000 + 6 * 300).contains(&used), "{used} of 1000");
}

#[tokio::test(start_paused = true)]
async fn what_is_owed_goes_to_the_store_when_the_pod_ends_and_when_its_window_does_it_ends() {
    let rig = settling("unit: minute, requests_per_unit: 100");
    let pod = rig.pod();
    rig.store.fails.store(true, Ordering::Relaxed);
    passes(&pod, &rig, &charge("a", 300)).await;
    rig.store.fails.store(false, Ordering::Relaxed);
    pod.close().await;
    assert!(!passes(&rig.pod(), &rig, &look("a")).await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let pod = rig.pod();
    assert!(passes(&pod, &rig, &look("a")).await, "a new window owes nothing");
    rig.store.fails.store(true, Ordering::Relaxed);
    passes(&pod, &rig, &charge("a", 300)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    rig.store.fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(passes(&pod, &rig, &look("a")).await, "nor what the pod could not report in time");
}

/// Pods that look and settle at random, with a store that is away at times. They use at most the
/// burst, the tokens earned, and a cost for each answer under way. The store counts all of it.
#[tokio::test(start_paused = true)]
async fn any_history_of_settlements_is_counted_whole() {
    for seed in 0..40 {
        let mut drawn = seed << 32;
        let mut below = |count| {
            drawn += 1;
            mixed(drawn) % count
        };
        let rig = settling("unit: second, requests_per_unit: 100, algorithm: token_bucket");
        let pods = [rig.pod(), rig.pod(), rig.pod()];
        let (mut used, mut under_way, mut costs) = (0, Vec::new(), 0);
        let begun = rig.clock.now();
        for _ in 0..400 {
            rig.store.fails.store(below(10) == 0, Ordering::Relaxed);
            let pod = &pods[usize::try_from(below(3)).unwrap()];
            if below(2) == 0 || under_way.is_empty() {
                let looked = pod.decided(&rig.rules, &look("a")).await;
                let cost = 1 + below(900);
                if looked.is_ok_and(|verdict| verdict.code == Code::Ok) && under_way.len() < 4 {
                    under_way.push(cost);
                    costs = costs.max(cost);
                }
            } else {
                let cost = under_way.swap_remove(0);
                pod.decided(&rig.rules, &charge("a", cost)).await.expect("a cost is counted");
                used += cost;
            }
            tokio::time::sleep(Duration::from_millis(below(40))).await;
        }
        rig.store.fails.store(false, Ordering::Relaxed);
        let span = rig.clock.now().since(begun).as_secs_f64();
        // Beside the answers under way, the costs not counted while the store is away: their pod
        // knows them.
        let earned = 100.0 * (1.0 + span);
        let under_way = (4 + 3) * costs;
        assert!(
            used as f64 <= earned + under_way as f64,
            "seed {seed}: {used} of {earned} and {under_way}"
        );
    }
}
