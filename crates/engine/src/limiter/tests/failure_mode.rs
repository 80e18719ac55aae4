//! Answers when the store cannot be asked.

use futures_util::future::join_all;

use super::*;
use crate::limiter::key::WAITING_MAX;
use crate::verdict::DecisionSource;

const HOUR: Duration = Duration::from_secs(3600);

/// A rule for `a` in this failure mode, `limit` an hour; `b` denies when the store is unavailable.
fn mode(limit: u32, mode: &str) -> Rig {
    let hour = |limit| format!("unit: hour, requests_per_unit: {limit}");
    let (a, b) = (hour(limit), hour(5));
    Rig::new(&limits(&format!("{a}, failure_mode: {mode}"), &format!("{b}, failure_mode: deny")))
}

fn fail(rig: &Rig) {
    rig.store.fails.store(true, Ordering::Relaxed);
}

/// How many of `requests` for `a` pass.
async fn passed(pod: &Limiter, rules: &Rules, requests: u32) -> u32 {
    passed_of(pod, rules, "a", requests).await
}

fn count(pod: &Limiter, counter: Counter) -> u64 {
    let counts = pod.counts();
    counts.iter().find(|(other, _)| *other == counter).map(|(_, count)| *count).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_failure_mode_gives_its_answer() {
    for (failure_mode, expected) in
        [(FailureMode::Local, 10), (FailureMode::Allow, 30), (FailureMode::Deny, 0)]
    {
        let name = failure_mode.name();
        let rig = mode(10, name);
        let pod = rig.pod();
        fail(&rig);
        assert_eq!(passed(&pod, &rig.rules, 30).await, expected, "{name}");
        assert_eq!(count(&pod, Counter::FailureMode(failure_mode)), 30);
        let unmetered = if failure_mode == FailureMode::Allow { 30 } else { 0 };
        assert_eq!(count(&pod, Counter::UnmeteredHits), unmetered, "{name}");
    }
    let rig = mode(10, "error");
    let pod = rig.pod();
    fail(&rig);
    assert!(pod.decided(&rig.rules, &request(&["a"])).await.is_err());
    assert_eq!(count(&pod, Counter::FailureMode(FailureMode::Error)), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_by_themselves_admit_parts_that_add_up_to_the_limit_on_average() {
    const WINDOWS: u32 = 20;
    for (limit, pods) in [(10_u32, 4_u32), (20, 200), (1, 40)] {
        let rig = mode(limit, "local");
        fail(&rig);
        let fleet: Vec<_> = (0..pods).map(|number| rig.pod_numbered(number.into())).collect();
        let mut sum = 0;
        for pod in &fleet {
            pod.shared.pods.set(pods);
        }
        for _ in 0..WINDOWS {
            for pod in &fleet {
                let part = passed(pod, &rig.rules, 4).await;
                let whole = limit / pods;
                assert!((whole..=whole + 1).contains(&part), "{part} of {limit} by {pods}");
                sum += part;
            }
            tokio::time::sleep(HOUR).await;
        }
        // Allows five standard deviations of the sum of this many parts of at most one token.
        let (expected, parts) = (f64::from(limit * WINDOWS), f64::from(WINDOWS) * f64::from(pods));
        let slack = 5.0 * (parts * 0.25).sqrt().min(expected.sqrt());
        assert!((f64::from(sum) - expected).abs() < slack, "{sum} of {expected}, {pods} pods");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_pod_that_never_met_the_store_admits_exactly_the_limit() {
    let rig = mode(100, "local");
    fail(&rig);
    let options = Options { pods_expected: 1, unix_start: START, ..Options::default() };
    let pod = Limiter::new(Arc::clone(&rig.store) as _, rig.clock, options);
    assert_eq!(passed(&pod, &rig.rules, 200).await, 100);
}

#[tokio::test(start_paused = true)]
async fn pods_heard_of_before_a_restart_are_counted_with_until_the_store_says_more() {
    let rig = mode(100, "local");
    fail(&rig);
    let pod = rig.pod_numbered(1);
    pod.expect_pods(&[("d".into(), 10)]);
    assert_eq!(passed(&pod, &rig.rules, 200).await, 10);
    assert_eq!(pod.pods_by_domain(), [("d".into(), 10)]);
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_a_pod_counts_by_itself_give_way_to_each_other() {
    let rig = mode(1, "local");
    fail(&rig);
    let pod = rig.pod();
    for value in 0..70_000 {
        let value = value.to_string();
        let mut request = request(&["a"]);
        request.descriptors[0].entries[0].value = &value;
        let verdict = pod.decided(&rig.rules, &request).await.unwrap();
        assert_eq!(verdict.code, Code::Ok, "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sliding_window_that_was_full_for_a_moment_has_its_part_when_the_store_is_away() {
    let a = "unit: second, requests_per_unit: 10, failure_mode: local, algorithm: sliding_window";
    let rig = Rig::new(&limits(a, "unit: hour, requests_per_unit: 1"));
    let pod = rig.pod();
    assert_eq!(passed(&pod, &rig.rules, 20).await, 10);
    fail(&rig);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(passed(&pod, &rig.rules, 20).await > 0, "its window is not over yet");
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_has_its_part() {
    for (algorithm, expected) in [
        ("fixed_window", 5),
        ("token_bucket, burst: 4", 2),
        ("sliding_window", 5),
        ("sliding_log", 5),
        ("leaky_bucket", 1),
    ] {
        let a = "unit: hour, requests_per_unit: 10, failure_mode: local, algorithm: ";
        let rig = Rig::new(&limits(&format!("{a}{algorithm}"), "unit: hour, requests_per_unit: 1"));
        let pod = rig.pod();
        pod.shared.pods.set(2);
        fail(&rig);
        assert_eq!(passed(&pod, &rig.rules, 20).await, expected, "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_held_are_spent_before_any_failure_mode_answers() {
    let rig = mode(4_000, "deny");
    let pod = rig.pod();
    assert_eq!(passed(&pod, &rig.rules, 1).await, 1);
    fail(&rig);
    assert_eq!(passed(&pod, &rig.rules, 100).await, 19, "of a lease of 0.5 %");
}

#[tokio::test(start_paused = true)]
async fn with_the_breaker_open_the_answer_comes_at_once() {
    let rig = mode(1_000, "local");
    let pod = rig.pod();
    rig.store.hangs.store(true, Ordering::Relaxed);
    let begun = rig.clock.now();
    assert_eq!(passed(&pod, &rig.rules, 1).await, 1);
    assert_eq!(rig.clock.now().since(begun), MAX_WAIT, "it waited");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let shards = pod.shards();
    let [shard] = &shards[..] else { panic!("one shard") };
    assert_eq!((shard.breaker, shard.opened), (BreakerState::Open, 1));
    let begun = rig.clock.now();
    assert_eq!(passed(&pod, &rig.rules, 100).await, 100);
    assert_eq!(rig.clock.now(), begun, "no request waited");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_used_up_stays_so_when_the_store_goes_away() {
    let rig = mode(10, "local");
    let pod = rig.pod();
    assert_eq!(passed(&pod, &rig.rules, 20).await, 10);
    fail(&rig);
    assert_eq!(passed(&pod, &rig.rules, 20).await, 0);
    tokio::time::sleep(HOUR).await;
    assert_eq!(passed(&pod, &rig.rules, 20).await, 10, "a new window, counted context");
}

#[tokio::test(start_paused = true)]
async fn what_was_admitted_while_its_lease_was_late_is_paid_from_that_lease() {
    let rig = Rig::slow(&per_hour(40, 5).replace("error", "local"), MAX_WAIT * 4);
    let pod = rig.pod();
    let mut admitted = 0;
    for _ in 0..60 {
        admitted += passed(&pod, &rig.rules, 1).await;
        tokio::time::sleep(MAX_WAIT * 10).await;
    }
    let late = count(&pod, Counter::FailureMode(FailureMode::Local));
    assert!(late >= 2, "{late}: some would have waited longer than they may");
    assert_eq!(admitted, 40, "and none was admitted beyond the limit");
    *rig.store.round_trip.lock() = Duration::ZERO;
    assert_eq!(rig.left(40).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_lease_is_not_charged_for_what_was_denied() {
    let rig = Rig::slow(&per_hour(1_000, 5).replace("error", "deny"), MAX_WAIT * 4);
    let pod = rig.pod();
    assert_eq!(passed(&pod, &rig.rules, 1).await, 0);
    tokio::time::sleep(MAX_WAIT * 10).await;
    pod.close().await;
    *rig.store.round_trip.lock() = Duration::ZERO;
    assert_eq!(rig.left(1_000).await, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_another_key_denies_spends_nothing_here() {
    let rig = mode(3, "local");
    let pod = rig.pod();
    fail(&rig);
    for _ in 0..10 {
        assert!(!decide(&pod, &rig.rules, &request(&["a", "b"])).await.0);
    }
    assert_eq!(passed(&pod, &rig.rules, 10).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_rule_in_shadow_mode_passes_whatever_its_failure_mode() {
    let yaml = "domain: d\ndescriptors:\n- {key: a, shadow_mode: true, rate_limit: {unit: hour, \
                requests_per_unit: 1, failure_mode: MODE}}\n";
    for mode in FailureMode::ALL {
        let rig = Rig::new(&yaml.replace("MODE", mode.name()));
        let pod = rig.pod();
        fail(&rig);
        assert_eq!(passed(&pod, &rig.rules, 5).await, 5, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_fails_the_asks_that_it_was_given_and_no_more() {
    let rig = mode(10, "local");
    let pod = rig.pod();
    rig.store.panics.store(true, Ordering::Relaxed);
    assert_eq!(passed(&pod, &rig.rules, 2).await, 2);
    rig.store.panics.store(false, Ordering::Relaxed);
    assert_eq!(count(&pod, Counter::LeasePanics), 2);
    assert_eq!(passed(&pod, &rig.rules, 20).await, 10, "the store's, and no longer its own");
}

#[tokio::test(start_paused = true)]
async fn windows_counted_here_end_with_the_stores() {
    let rig = mode(10, "local");
    let pod = rig.pod();
    assert_eq!(passed(&pod, &rig.rules, 1).await, 1);
    fail(&rig);
    assert!(passed(&pod, &rig.rules, 20).await >= 9);
    // By the pod's own time an hour has ended in between.
    tokio::time::sleep(Duration::from_secs(3_000)).await;
    assert_eq!(passed(&pod, &rig.rules, 20).await, 0);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(passed(&pod, &rig.rules, 20).await, 10, "a new window");
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_ask_was_lost_in_a_panic_is_asked_for_again() {
    let rig = mode(10, "local");
    let pod = rig.pod();
    rig.store.panics_in_requests.store(true, Ordering::Relaxed);
    let asked = pod.clone();
    let rules = Arc::new(compile(&limits("unit: hour, requests_per_unit: 10", "unlimited: true")));
    let panicked = tokio::spawn(async move {
        let _ = asked.decided(&rules, &request(&["a"])).await;
    });
    assert!(panicked.await.is_err());
    rig.store.panics_in_requests.store(false, Ordering::Relaxed);
    assert_eq!(passed(&pod, &rig.rules, 2).await, 2, "by itself");
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert_eq!(passed(&pod, &rig.rules, 20).await, 8, "the store's, less those two");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_somebody_elses_is_asked_for_twice_a_second_and_harms_no_other() {
    let day = "unit: day, requests_per_unit: 10, failure_mode: local";
    let rig = Rig::new(&limits(day, "unit: hour, requests_per_unit: 40, failure_mode: deny"));
    let pod = rig.pod();
    rig.store.has_foreign_days.store(true, Ordering::Relaxed);
    // The first grant reports the store's time, which the pod then uses to count by itself.
    assert!(decide(&pod, &rig.rules, &request(&["b"])).await.0);
    let asks = rig.asks();
    assert_eq!(passed(&pod, &rig.rules, 300).await, 10, "by itself");
    assert_eq!(rig.asks(), asks + 1);
    for _ in 1..40 {
        assert!(decide(&pod, &rig.rules, &request(&["b"])).await.0);
    }
    let (asks, began) = (rig.asks(), rig.clock.now());
    while rig.clock.now().since(began) < Duration::from_secs(5) {
        assert_eq!(passed(&pod, &rig.rules, 10).await, 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!((9..=11).contains(&(rig.asks() - asks)), "{}", rig.asks() - asks);
    assert_eq!(count(&pod, Counter::BreakerOpened), 0);
    rig.store.has_foreign_days.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(passed(&pod, &rig.rules, 20).await, 10, "the store's");
}

/// Hits that `allow` lets pass are owed to the lease that is out. If the window ends before its
/// reply, no lease pays for them, and the metric says so.
#[tokio::test(start_paused = true)]
async fn what_allow_admitted_is_counted_if_its_window_ends_before_the_reply() {
    let unit = "unit: second, requests_per_unit: 100, failure_mode: allow";
    let rig = Rig::slow(&limits(unit, unit), Duration::from_millis(80));
    let pod = rig.pod();
    tokio::time::sleep(Duration::from_millis(940)).await;
    let request = request(&["a"]);
    let decided = join_all((0..20).map(|_| decide(&pod, &rig.rules, &request))).await;
    assert!(decided.iter().all(|(passed, _)| *passed));
    assert_eq!(count(&pod, Counter::FailureMode(FailureMode::Allow)), 20);
    tokio::time::sleep(MAX_WAIT * 40).await;
    assert_eq!(count(&pod, Counter::UnmeteredHits), 20);
}

/// No room for a refund is no outage: it gives nothing back, and `error` fails no call for it.
#[tokio::test(start_paused = true)]
async fn a_refund_for_which_there_is_no_room_passes_in_every_failure_mode() {
    for mode in FailureMode::ALL {
        let rig = Rig::slow(&per_hour(100, 1).replace("error", mode.name()), MAX_WAIT * 4);
        let pod = rig.pod();
        let (charge, refund) = (charge("a", 1), refund("a", 5));
        let crowd = join_all((0..WAITING_MAX).map(|_| pod.decided(&rig.rules, &charge)));
        let (_, refunded) = tokio::join!(crowd, pod.decided(&rig.rules, &refund));
        let refunded = refunded.unwrap();
        let how = refunded.statuses[0].counted.as_ref().unwrap().how;
        assert_eq!((refunded.code, how), (Code::Ok, DecisionSource::Shed), "{mode:?}");
    }
}
