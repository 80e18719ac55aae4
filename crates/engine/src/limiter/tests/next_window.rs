//! Leases of the next window: they save the asks at its beginning, and admit no more.

use super::demand::Demand;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn rule(limit: u32) -> Rig {
    let limit = format!("unit: second, requests_per_unit: {limit}");
    Rig::new(&limits(&limit, "unit: hour, requests_per_unit: 1"))
}

/// Sends a request of one pod in each of these milliseconds of a window that begins now, and
/// returns how many pass.
async fn passed(rig: &Rig, pod: &Limiter, millis: std::ops::Range<u64>) -> u32 {
    let begun = rig.clock.now();
    let mut passed = 0;
    for at in millis {
        tokio::time::sleep_until(rig.clock.instant(begun + Duration::from_millis(at))).await;
        let verdict = pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
        passed += u32::from(verdict.code == Code::Ok);
    }
    tokio::time::sleep_until(rig.clock.instant(begun + SECOND)).await;
    passed
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_has_tokens_when_its_window_begins() {
    let rig = rule(2_000);
    let pod = rig.pod();
    passed(&rig, &pod, 0..999).await;
    let asks = rig.asks();
    let request = request(&["a"]);
    let at_once = || {
        let may_not_wait = || Err::<(), _>(StoreError::NoRoom);
        pod.decide(&rig.rules, &request, rig.clock.now(), None, Owner::UNKNOWN, may_not_wait)
    };
    let verdict = at_once().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(verdict.is_err() || verdict.unwrap().code == Code::Ok);
    let verdict = at_once().await;
    assert_eq!(verdict.expect("no need to wait").code, Code::Ok);
    assert!(rig.asks() <= asks + 1, "at most the one on the edge");
}

#[tokio::test(start_paused = true)]
async fn no_window_admits_more_than_its_limit() {
    for (limit, rate) in [(100, 400.0), (1_000, 3_000.0), (20, 200.0)] {
        let rig = rule(limit);
        // In the last window too, more is asked for than it has.
        let span = 5 * SECOND + SECOND / 2;
        let demand = Demand { random: true, span, ..Demand::evenly(rate, 4) };
        let outcome = demand.meets(&rig).await;
        println!("{limit} a second, {rate} asked for: {outcome:?}");
        assert!(outcome.passed <= outcome.exact, "{outcome:?}");
        assert!(outcome.passed * 100 >= outcome.exact * 98, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_window_without_requests_goes_back() {
    let rig = rule(1_000);
    let (pod, other) = (rig.pod(), rig.pod());
    let kept = pod.clone();
    let upkeep = tokio::spawn(async move { kept.run().await });
    assert_eq!(passed(&rig, &pod, 0..999).await, 999);
    tokio::time::sleep(SECOND / 2).await; // it has begun, and the key is idle
    let all = passed_of(&other, &rig.rules, "a", 1_100).await;
    assert!(all >= 995, "{all}: the other pod has all but what may lie unspent, 0.5 %");
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_waits_for_its_window_delays_the_returns_of_others_by_seconds_at_most() {
    let rig = Rig::new(
        "domain: d\n\
         descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 100000}}, \
         {key: b, rate_limit: {unit: hour, requests_per_unit: 1000}}]",
    );
    let (pod, other) = (rig.pod(), rig.pod());
    let kept = pod.clone();
    let upkeep = tokio::spawn(async move { kept.run().await });
    // In the last tenth of the hour, `a` is lent tokens of the next hour, minutes before it begins.
    tokio::time::sleep(Duration::from_secs(54 * 60)).await;
    let begun = rig.clock.now();
    // For more than four minutes, so that the key has been checked; `b` is used for a while in
    // between.
    for at in 0..2_900_u64 {
        tokio::time::sleep_until(rig.clock.instant(begun + Duration::from_millis(100 * at))).await;
        pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
        if (2_500..2_800).contains(&at) {
            pod.decided(&rig.rules, &request(&["b"])).await.unwrap();
        }
    }
    let all = passed_of(&other, &rig.rules, "b", 1_100).await;
    assert!(all >= 695, "{all}: the other pod has all that `b` did not use, but for 0.5 %");
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_closes_gives_back_what_it_has_of_the_next_window() {
    let rig = rule(1_000);
    let pod = rig.pod();
    let begun = rig.clock.now();
    for at in 0..990 {
        tokio::time::sleep_until(rig.clock.instant(begun + Duration::from_millis(at))).await;
        pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
    }
    pod.close().await;
    tokio::time::sleep_until(rig.clock.instant(begun + SECOND + SECOND / 100)).await;
    let other = rig.pod();
    let all = passed_of(&other, &rig.rules, "a", 1_100).await;
    assert_eq!(all, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_returns_what_was_lent_ahead() {
    let rig = rule(1_000);
    let pod = rig.pod();
    let begun = rig.clock.now();
    for at in 0..990 {
        tokio::time::sleep_until(rig.clock.instant(begun + Duration::from_millis(at))).await;
        pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
    }
    let lowered = rule(50).rules;
    tokio::time::sleep_until(rig.clock.instant(begun + SECOND + SECOND / 100)).await;
    let mut all = 0;
    for _ in 0..500 {
        let verdict = pod.decided(&lowered, &request(&["a"])).await.unwrap();
        all += u32::from(verdict.code == Code::Ok);
    }
    assert_eq!(all, 50);
}
