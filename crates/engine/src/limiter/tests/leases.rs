//! Leases that are shared, given back or lost; several pods; a store that is unavailable.

use futures_util::future::join_all;

use super::*;

#[tokio::test(start_paused = true)]
async fn requests_that_wait_share_one_lease() {
    let rig = Rig::new(&per_hour(1_000_000, 1));
    let pod = rig.pod();
    let request = request(&["a"]);
    let decided = join_all((0..500).map(|_| decide(&pod, &rig.rules, &request))).await;
    assert!(decided.iter().all(|(passed, _)| *passed));
    assert!(rig.asks() <= 2, "{} asks", rig.asks());
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_costs_few_asks_and_no_waiting() {
    let rig = Rig::new(&per_hour(10_000_000, 1));
    let pod = rig.pod();
    for _ in 0..50_000 {
        assert!(decide(&pod, &rig.rules, &request(&["a"])).await.0);
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
    assert!(rig.asks() <= 10, "{} asks", rig.asks());
}

#[tokio::test(start_paused = true)]
async fn a_flood_on_an_empty_key_is_answered_locally() {
    let rig = Rig::new(&per_hour(5, 1));
    let pod = rig.pod();
    for _ in 0..5_000 {
        decide(&pod, &rig.rules, &request(&["a"])).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Five single tokens, the denial, and about one probe for each of the five seconds.
    assert!(rig.asks() <= 5 + 1 + 6, "{} asks", rig.asks());
}

#[tokio::test(start_paused = true)]
async fn two_pods_admit_no_more_than_the_limit_and_hardly_less() {
    for limit in [20, 200, 40_000] {
        let rig = Rig::new(&per_hour(limit, 1));
        let pods = [rig.pod(), rig.pod()];
        let mut admitted = 0;
        for hit in 0..2 * limit {
            let pod = &pods[usize::from(hit % 3 == 0)];
            admitted += u64::from(decide(pod, &rig.rules, &request(&["a"])).await.0);
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert!(admitted <= limit && admitted as f64 >= 0.99 * limit as f64, "{admitted}");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_gives_every_unspent_token_back() {
    let rig = Rig::new(&per_hour(100_000, 1));
    let pod = rig.pod();
    for _ in 0..10 {
        decide(&pod, &rig.rules, &request(&["a"])).await;
    }
    assert!(rig.left(100_000).await < 99_990, "nothing was leased ahead: the test shows nothing");
    pod.close().await;
    assert_eq!(rig.left(100_000).await, 99_990);
}

/// The caller gave up, or the ask was made ahead: no request waits for the grant.
#[tokio::test(start_paused = true)]
async fn closing_gives_back_a_lease_that_is_still_on_its_way() {
    let rig = Rig::new(&per_hour(1_000, 1));
    let pod = rig.pod();
    let early = Duration::from_micros(100);
    let request = request(&["a"]);
    assert!(tokio::time::timeout(early, pod.decided(&rig.rules, &request)).await.is_err());
    pod.close().await;
    assert_eq!(rig.left(1_000).await, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_changed_or_removed_rule_gives_its_tokens_back() {
    for changed in [per_hour(50_000, 1), "domain: d".into()] {
        let rig = Rig::new(&per_hour(100_000, 1));
        let pod = rig.pod();
        decide(&pod, &rig.rules, &request(&["a"])).await;
        pod.apply_rules(&compile(&per_hour(100_000, 2))).await;
        assert!(rig.left(100_000).await < 99_999, "an unchanged rule keeps its lease");
        pod.apply_rules(&compile(&changed)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(rig.left(100_000).await, 99_999);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_holds_from_the_next_request_and_keeps_the_count() {
    let rig = Rig::new(&per_hour(10, 1));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 4)).await, (true, 6));
    let lower = compile(&per_hour(5, 1));
    assert_eq!(decide(&pod, &lower, &request(&["a"])).await, (true, 0));
    assert_eq!(decide(&pod, &lower, &request(&["a"])).await, (false, 0));
    let higher = compile(&per_hour(20, 1));
    assert_eq!(decide(&pod, &higher, &request(&["a"])).await, (true, 14));
}

/// By default Envoy lets requests pass on errors: a known denial must not become an error.
#[tokio::test(start_paused = true)]
async fn a_denial_stands_though_the_store_fails_for_another_key() {
    let rig =
        Rig::new(&limits("unit: hour, requests_per_unit: 0", "unit: day, requests_per_unit: 9"));
    for keys in [["a", "b"], ["b", "a"]] {
        let pod = rig.pod();
        rig.store.fails_for_days.store(true, Ordering::Relaxed);
        assert!(pod.decided(&rig.rules, &request(&["b"])).await.is_err());
        let verdict = pod.decided(&rig.rules, &request(&keys)).await.unwrap();
        assert_eq!(verdict.code, Code::OverLimit);
        let of_b = &verdict.statuses[keys.iter().position(|key| *key == "b").unwrap()];
        assert_eq!((of_b.code, of_b.remaining, of_b.reset_after), (Code::Ok, 9, None));
        rig.store.fails_for_days.store(false, Ordering::Relaxed);
        assert_eq!(decide(&pod, &rig.rules, &request(&["b"])).await, (true, 8), "none was charged");
        pod.close().await;
        assert_eq!(decide(&rig.pod(), &rig.rules, &refund("b", 1)).await, (true, 9));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_while_its_limit_changes_is_answered_under_its_own_limit() {
    for (old, new, expected) in
        [(10, 1_000, (true, 6)), (1_000, 10, (true, 996)), (1_000, 3, (true, 996))]
    {
        let rig = Rig::new(&per_hour(old, 1));
        let (pod, newer) = (rig.pod(), compile(&per_hour(new, 1)));
        let (four, none) = (charge("a", 4), look("a"));
        let (waits, _) = tokio::join!(decide(&pod, &rig.rules, &four), decide(&pod, &newer, &none));
        assert_eq!(waits, expected, "{old} became {new}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_under_a_limit_that_was_lowered_meanwhile_blocks_no_request() {
    let rig = Rig::new(&per_hour(1_000_000, 1));
    let (pod, lower) = (rig.pod(), compile(&per_hour(10, 1)));
    let one = request(&["a"]);
    // The first asks for thousands of tokens, and the second arrives before they do.
    let (_, second) = tokio::join!(decide(&pod, &rig.rules, &one), decide(&pod, &lower, &one));
    assert_eq!(second, (true, 8));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_a_request_its_wait_and_no_more() {
    let rig = Rig::new(&per_hour(10, 1));
    let pod = rig.pod();
    rig.store.hangs.store(true, Ordering::Relaxed);
    let before = rig.clock.now();
    assert_eq!(pod.decided(&rig.rules, &request(&["a"])).await, Err(StoreError::TimedOut));
    assert!(rig.clock.now().since(before) <= MAX_WAIT + Duration::from_millis(2));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_charges_nothing_and_is_asked_again() {
    let rig = Rig::new(&per_hour(10, 5));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &request(&["b"])).await, (true, 4));
    rig.store.fails.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert!(pod.decided(&rig.rules, &request(&["a", "b"])).await.is_err());
    }
    rig.store.fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(100)).await; // the breaker's wait
    assert_eq!(decide(&pod, &rig.rules, &request(&["b"])).await, (true, 3));
    assert_eq!(decide(&pod, &rig.rules, &request(&["a"])).await, (true, 9));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_gives_back_what_it_held_and_what_arrives_for_it() {
    let rig = Rig::new(&per_hour(10, 5));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &request(&["b"])).await, (true, 4));
    for _ in 0..20 {
        let both = request(&["b", "a"]);
        let early = Duration::from_micros(100);
        let cut = tokio::time::timeout(early, pod.decided(&rig.rules, &both)).await;
        if cut.is_ok() {
            break; // the lease that was asked for has arrived
        }
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    // One of the two may have been decided; both keys must agree.
    let (_, a) = decide(&pod, &rig.rules, &look("a")).await;
    let (_, b) = decide(&pod, &rig.rules, &look("b")).await;
    assert_eq!((10 - a) + 1, 5 - b);
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_past_window_are_forgotten() {
    let rig = Rig::new(&limits("unit: second, requests_per_unit: 3", "unlimited: true"));
    let pod = rig.pod();
    decide(&pod, &rig.rules, &request(&["a"])).await;
    assert_eq!(pod.keys(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    pod.evict_expired().await;
    assert_eq!(pod.keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_denied_request_took_of_a_key_that_was_evicted_meanwhile_reaches_the_store() {
    let rig = Rig::new(&per_hour(1_000, 0));
    let pod = rig.pod_of(16 << 10);
    assert!(decide(&pod, &rig.rules, &request(&["a"])).await.0, "it has leased some of a");
    let values: Vec<_> = (0..2_000).map(|n| n.to_string()).collect();
    let other = |value| {
        let mut other = request(&["a"]);
        other.descriptors[0].entries[0].value = value;
        other
    };
    let others: Vec<_> = values.iter().map(|value| other(value)).collect();
    let both = request(&["a", "b"]);
    // `both` takes from `a` at once and waits for `b`, while all the others come for their keys.
    let others = join_all(others.iter().map(|request| pod.decided(&rig.rules, request)));
    let (denied, _) = tokio::join!(decide(&pod, &rig.rules, &both), others);
    assert!(!denied.0);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.left(1_000).await, 999);
}

/// Tokio's clock, which stands still while a machine is suspended, is paused in these tests.
#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_its_window_also_while_the_machine_is_suspended() {
    for algorithm in ["fixed_window", "token_bucket", "sliding_window"] {
        let suspended: &'static AtomicU64 = Box::leak(Box::default());
        let limit = format!("unit: hour, requests_per_unit: 1000, algorithm: {algorithm}");
        let clock = Clock::start_suspended_for(suspended);
        let rig = Rig::on(clock, &limits(&limit, "unlimited: true"), Duration::from_micros(500));
        let (suspends, awake) = (rig.pod(), rig.pod());
        for _ in 0..300 {
            decide(&suspends, &rig.rules, &request(&["a"])).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let held = 700 - rig.left(1000).await;
        assert!(held > 0, "{algorithm}: the pod holds nothing");
        // Until the middle of the next window, or until the bucket is full.
        suspended.store(3_600_000_000_000, Ordering::Relaxed);
        let mut admitted = 0;
        for pod in [&awake, &suspends] {
            admitted += passed_of(pod, &rig.rules, "a", 1_100).await;
        }
        assert!(admitted <= 1_001, "{algorithm}: {admitted} with {held} held before");
        assert!(admitted >= 500, "{algorithm}: {admitted}");
    }
}

/// The ask that takes the place of one that counts as lost may be out when that one is answered.
#[tokio::test(start_paused = true)]
async fn a_key_goes_on_asking_after_a_suspension_while_its_asks_were_out() {
    for seconds in [10, 20, 40, 75] {
        let suspended: &'static AtomicU64 = Box::leak(Box::default());
        let clock = Clock::start_suspended_for(suspended);
        let limit = "unit: hour, requests_per_unit: 10000, failure_mode: deny";
        let rules = limits(limit, "unlimited: true");
        let rig = Rig::on(clock, &rules, Duration::from_millis(200));
        let pod = rig.pod();
        let (asks, before) = (request(&["a"]), crate::invariant::violations());
        let decided = async || drop(pod.decided(&rig.rules, &asks).await);
        tokio::join!(decided(), async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            suspended.store(seconds * 1_000_000_000, Ordering::Relaxed);
            decided().await;
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut passed = 0;
        for _ in 0..3_000 {
            let decided = pod.decided(&rig.rules, &asks).await;
            passed += u32::from(decided.is_ok_and(|verdict| verdict.code == Code::Ok));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(passed > 2_000, "{passed} after {seconds} s");
        assert_eq!(crate::invariant::violations(), before, "after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_until_a_time_ends_then_after_a_suspension() {
    let suspended: &'static AtomicU64 = Box::leak(Box::default());
    let clock = Clock::start_suspended_for(suspended);
    suspended.store(60_000_000_000, Ordering::Relaxed);
    let due = clock.now() + Duration::from_millis(20);
    tokio::time::sleep_until(clock.instant(due)).await;
    assert!(clock.now() >= due && clock.now().since(due) < Duration::from_millis(5));
}
