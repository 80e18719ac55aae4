//! Each algorithm, and each way of lending, from the view of a request.

use super::*;

/// Rules for the key `a`, and a second rule for `b` that allows `b` requests an hour.
fn rule(a: &str, b: u32) -> String {
    limits(a, &format!("unit: hour, requests_per_unit: {b}"))
}

async fn passes(pod: &Limiter, rules: &Rules) -> bool {
    decide(pod, rules, &request(&["a"])).await.0
}

/// How many of `offered` requests pass, one after the other.
async fn passing(pod: &Limiter, rules: &Rules, offered: usize) -> usize {
    let mut passed = 0;
    for _ in 0..offered {
        passed += usize::from(passes(pod, rules).await);
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    passed
}

async fn pass_time(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn a_token_bucket_holds_its_burst_and_fills_at_its_rate() {
    let rig = Rig::new(&rule(
        "unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 3",
        1,
    ));
    let pod = rig.pod();
    assert_eq!(passing(&pod, &rig.rules, 5).await, 3);
    pass_time(1_000).await;
    assert_eq!(passing(&pod, &rig.rules, 5).await, 3, "never more than the burst");
    for _ in 0..10 {
        pass_time(100).await;
        assert!(passes(&pod, &rig.rules).await, "one each tenth of a second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_of_a_bucket_gives_the_time_of_the_next_token_and_a_pass_that_of_a_full_bucket() {
    let rig =
        Rig::new(&rule("unit: minute, requests_per_unit: 6, algorithm: token_bucket, burst: 2", 1));
    let pod = rig.pod();
    let reset = async || {
        let verdict = pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
        (verdict.code, verdict.statuses[0].reset_seconds().unwrap())
    };
    assert_eq!(reset().await, (Code::Ok, 10));
    assert_eq!(reset().await, (Code::Ok, 10), "empty: until there is a token");
    assert_eq!(reset().await, (Code::OverLimit, 10));
}

#[tokio::test(start_paused = true)]
async fn no_lease_of_a_bucket_outlives_its_term() {
    let rig = Rig::new(&rule(
        "unit: hour, requests_per_unit: 3600000, algorithm: token_bucket, lease: {ttl: 1s}",
        1,
    ));
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules).await);
    let asks = rig.asks();
    pass_time(900).await;
    assert!(passes(&pod, &rig.rules).await);
    assert_eq!(rig.asks(), asks, "from the lease");
    pass_time(101).await;
    assert!(passes(&pod, &rig.rules).await);
    assert_eq!(rig.asks(), asks + 1, "it had ended");
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_answers_at_its_slots_and_denies_beyond_its_delay() {
    let rig = Rig::new(&rule(
        "unit: second, requests_per_unit: 100, algorithm: leaky_bucket, max_delay: 30ms",
        1,
    ));
    let pod = rig.pod();
    let start = rig.clock.now();
    let charge = async || {
        let passed = passes(&pod, &rig.rules).await;
        (passed, rig.clock.now().since(start).as_millis())
    };
    let (a, b, c, d, e) = tokio::join!(charge(), charge(), charge(), charge(), charge());
    let mut answers = [a, b, c, d];
    answers.sort_unstable();
    // The first slot begins when the store is asked; timers resolve a millisecond.
    for (nth, (passed, at)) in answers.iter().enumerate() {
        let slot = 10 * nth as u128;
        assert!(*passed && (slot..=slot + 2).contains(at), "{answers:?}");
    }
    assert!(!e.0, "{e:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_request_that_another_rule_denies_serves_the_next_request() {
    let rig = Rig::new(&rule(
        "unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, lease: {max: 1}",
        0,
    ));
    let pod = rig.pod();
    assert!(!decide(&pod, &rig.rules, &request(&["a", "b"])).await.0);
    assert!(passes(&pod, &rig.rules).await, "its slot was put back");
    assert!(!passes(&pod, &rig.rules).await);
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_denies_a_charge_of_more_slots_than_it_may_hold_back() {
    let rig = Rig::new(&rule(
        "unit: second, requests_per_unit: 100, algorithm: leaky_bucket, max_delay: 30ms",
        1,
    ));
    let pod = rig.pod();
    assert!(!decide(&pod, &rig.rules, &charge("a", 5)).await.0);
    assert!(decide(&pod, &rig.rules, &charge("a", 4)).await.0, "the denial took none");
}

#[tokio::test(start_paused = true)]
async fn a_sliding_window_remembers_the_one_before() {
    let rig = Rig::new(&rule("unit: minute, requests_per_unit: 100, algorithm: sliding_window", 1));
    let pod = rig.pod();
    // The store's clock starts half a minute into a window.
    assert_eq!(passing(&pod, &rig.rules, 150).await, 100);
    pass_time(30_000 + 15_000).await;
    let passed = passing(&pod, &rig.rules, 100).await;
    assert!((23..=25).contains(&passed), "a quarter of the next window has passed: {passed}");
}

/// By the pod's clock a window ends as long before the store's as an ask takes to get there.
#[tokio::test(start_paused = true)]
async fn no_large_lease_is_asked_for_in_the_last_moment_of_a_sliding_window() {
    let limit = "unit: minute, requests_per_unit: 1000, algorithm: sliding_window";
    let rig = Rig::slow(&rule(limit, 1), Duration::from_millis(4));
    let pod = rig.pod();
    let ends = Time::default() + Duration::from_secs(30);
    let sleep_until = |at| tokio::time::sleep_until(rig.clock.instant(at));
    let (mut passed, from) = (0, ends.since(Time::default()) - Duration::from_millis(400));
    sleep_until(Time::default() + from).await;
    while ends.since(rig.clock.now()) > Duration::from_millis(3) {
        passed += u64::from(passes(&pod, &rig.rules).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    *rig.store.round_trip.lock() = Duration::ZERO;
    sleep_until(Time::default() + (from + Duration::from_millis(399))).await;
    passed += u64::from(passes(&pod, &rig.rules).await);
    sleep_until(ends + Duration::from_millis(1)).await;
    let left = rig.left(1_000).await;
    assert!(passed > 300 && passed + left >= 975, "{passed} passed, {left} are left of 1000");
}

#[tokio::test(start_paused = true)]
async fn a_sliding_log_admits_its_limit_in_any_window_and_asks_each_time() {
    let rig = Rig::new(&rule("unit: second, requests_per_unit: 5, algorithm: sliding_log", 1));
    let (one, other) = (rig.pod(), rig.pod());
    assert_eq!(passing(&one, &rig.rules, 3).await, 3);
    pass_time(500).await;
    assert_eq!(passing(&other, &rig.rules, 4).await, 2);
    assert!(rig.asks() >= 7);
    pass_time(501).await;
    assert_eq!(passing(&other, &rig.rules, 5).await, 3, "those of a second ago");
}

#[tokio::test(start_paused = true)]
async fn with_leases_off_every_decision_asks_and_nothing_is_held() {
    let rig = Rig::new(&rule("unit: hour, requests_per_unit: 1000, lease: off", 1));
    let pod = rig.pod();
    assert_eq!(passing(&pod, &rig.rules, 10).await, 10);
    assert_eq!(rig.asks(), 10);
    assert_eq!(rig.left(1_000).await, 990);
    // Tokens that one descriptor took and another of the request denied go straight back.
    assert!(decide(&pod, &rig.rules, &request(&["b"])).await.0);
    assert!(!decide(&pod, &rig.rules, &request(&["a", "b"])).await.0);
    pass_time(1).await;
    assert_eq!(rig.left(1_000).await, 990);
}

#[tokio::test(start_paused = true)]
async fn with_leases_off_no_denial_is_remembered() {
    let rig = Rig::new(&rule("unit: hour, requests_per_unit: 1, lease: off", 1));
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules).await);
    for _ in 0..3 {
        let asks = rig.asks();
        pass_time(1).await;
        assert!(!passes(&pod, &rig.rules).await);
        assert!(rig.asks() > asks);
    }
}

#[tokio::test(start_paused = true)]
async fn a_split_key_admits_its_whole_limit() {
    for limit in [0, 1, 3, 10, 1_000] {
        let rig = Rig::new(&rule(&format!("unit: hour, requests_per_unit: {limit}, shards: 4"), 1));
        let (one, other) = (rig.pod(), rig.pod());
        let mut passed = 0;
        for _ in 0..limit + 20 {
            passed += u32::from(passes(&one, &rig.rules).await);
            passed += u32::from(passes(&other, &rig.rules).await);
        }
        assert_eq!(passed, limit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_split_key_asks_its_own_count_alone() {
    let rig = Rig::new(&rule("unit: hour, requests_per_unit: 100, shards: 4", 1));
    assert_eq!(decide(&rig.pod(), &rig.rules, &look("a")).await, (true, 100));
    assert_eq!(rig.asks(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_count_of_a_split_key_grants_a_large_charge_whole() {
    let rig = Rig::new(&rule("unit: hour, requests_per_unit: 100, shards: 4", 1));
    let pod = rig.pod();
    assert!(decide(&pod, &rig.rules, &charge("a", 90)).await.0);
    assert!(!decide(&pod, &rig.rules, &charge("a", 11)).await.0);
}

#[tokio::test(start_paused = true)]
async fn what_an_idle_key_holds_above_its_allowance_goes_back() {
    let rig = Rig::new(&rule("unit: hour, requests_per_unit: 1000", 1));
    let pod = rig.pod();
    let upkeep = tokio::spawn({
        let pod = pod.clone();
        async move { pod.run().await }
    });
    // A demand that leases ahead and then ends.
    for _ in 0..200 {
        assert!(passes(&pod, &rig.rules).await);
        pass_time(1).await;
    }
    assert!(rig.left(1_000).await < 790, "more is out than was spent");
    pass_time(400).await;
    assert!(rig.left(1_000).await >= 795, "but for the allowance of 5");
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn a_large_refund_serves_other_pods_too() {
    let rig = Rig::new(&rule("unit: hour, requests_per_unit: 1000", 1));
    let (one, other) = (rig.pod(), rig.pod());
    assert!(decide(&one, &rig.rules, &charge("a", 1_000)).await.0);
    assert!(!passes(&other, &rig.rules).await);
    assert!(decide(&one, &rig.rules, &refund("a", 500)).await.0);
    pass_time(1_500).await;
    assert!(decide(&other, &rig.rules, &charge("a", 490)).await.0);
}
