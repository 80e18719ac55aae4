//! Limits that several stores count.

use super::*;
use crate::store::stores::{NamedStore, Stores};
use ratelease_rules::StoreNames;

/// Rules for `a` and `b`, 10 an hour each, with these fields beside; stores are `x` and `y`.
fn of_stores(a: &str, b: &str) -> Rules {
    let limit = |beside: &str| format!("unit: hour, requests_per_unit: 10, {beside}");
    let yaml = limits(&limit(a), &limit(b));
    let source = Source { name: "test.yaml".into(), text: yaml.into() };
    let stores = StoreNames::parse("x,y").unwrap();
    let options = rules::Options { stores, ..rules::Options::default() };
    rules::load(&[source], options).unwrap().rules
}

/// A default store and two named ones, all of the same fleet.
struct Rigs {
    default: Rig,
    x: Rig,
    y: Rig,
}

impl Rigs {
    fn new() -> Self {
        let rig = || Rig::new(&per_hour(10, 10));
        Self { default: rig(), x: rig(), y: rig() }
    }

    fn pod(&self) -> Limiter {
        let store = |rig: &Rig| Arc::clone(&rig.store) as Arc<dyn Store>;
        let named = |name: &str, rig: &Rig| NamedStore { name: name.into(), store: store(rig) };
        let named = vec![named("x", &self.x), named("y", &self.y)];
        let stores = Stores::new(store(&self.default), None, named);
        self.default.pod_on(Arc::new(stores), BUFFER_BYTES_MAX)
    }

    /// The remaining tokens of `a` at the three stores.
    async fn left(&self) -> [u64; 3] {
        [self.default.left(10).await, self.x.left(10).await, self.y.left(10).await]
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_hangs_affects_only_its_own_limits() {
    for hangs in [false, true] {
        let rigs = Rigs::new();
        let rules = of_stores("store: x, failure_mode: allow", "store: y");
        let pod = rigs.pod();
        assert_eq!(decide(&pod, &rules, &charge("a", 1)).await, (true, 9));
        assert_eq!(decide(&pod, &rules, &charge("b", 1)).await, (true, 9));
        let broken = if hangs { &rigs.x.store.hangs } else { &rigs.x.store.fails };
        broken.store(true, Ordering::Relaxed);
        for _ in 0..20 {
            let verdict = pod.decided(&rules, &charge("a", 5)).await.unwrap();
            assert_eq!(verdict.code, Code::Ok, "by its failure mode");
        }
        for remaining in (0..9).rev() {
            assert_eq!(decide(&pod, &rules, &charge("b", 1)).await, (true, remaining));
        }
        assert_eq!(decide(&pod, &rules, &charge("b", 1)).await, (false, 0));
        let breakers: Vec<_> =
            pod.shards().iter().map(|shard| (shard.store.to_string(), shard.breaker)).collect();
        let of = |name: &str| breakers.iter().find(|(store, _)| store == name).unwrap().1;
        assert_ne!(of("x"), BreakerState::Closed, "hangs: {hangs}");
        assert_eq!(of("y"), BreakerState::Closed, "hangs: {hangs}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_limit_that_changes_its_store_go_back_to_the_store_that_lent_them() {
    let rigs = Rigs::new();
    let (before, after) = (of_stores("", ""), of_stores("store: x", ""));
    let pod = rigs.pod();
    assert_eq!(decide(&pod, &before, &charge("a", 4)).await, (true, 6));
    pod.apply_rules(&after).await;
    pod.shared.lease_client.wait_for_replies().await;
    assert_eq!(rigs.left().await, [6, 10, 10], "what was lent and not spent");
    assert_eq!(decide(&pod, &after, &charge("a", 8)).await, (true, 2), "its window restarts");
    assert_eq!(rigs.left().await[0], 6);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_the_old_store_cannot_take_are_not_given_to_the_new_one() {
    let rigs = Rigs::new();
    let (before, after) = (of_stores("", ""), of_stores("store: x", ""));
    let pod = rigs.pod();
    assert_eq!(decide(&pod, &before, &charge("a", 1)).await, (true, 9));
    rigs.default.store.fails.store(true, Ordering::Relaxed);
    // The breaker of the default store opens, so that nothing is sent there.
    for _ in 0..20 {
        let _ = pod.decided(&before, &charge("b", 5)).await;
    }
    assert_eq!(decide(&rigs.x.pod(), &rigs.x.rules, &charge("a", 10)).await, (true, 0));
    let verdict = pod.decided(&after, &charge("a", 1)).await;
    let passes = verdict.is_ok_and(|verdict| verdict.code == Code::Ok);
    assert!(!passes, "the new store has no token");
    pod.shared.lease_client.wait_for_replies().await;
    assert_eq!(rigs.x.left(10).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_override_is_counted_by_the_store_of_its_rule() {
    let rigs = Rigs::new();
    let rules = of_stores("store: x", "");
    let mut request = charge("a", 3);
    request.descriptors[0].limit = Some(Limit::fixed_window(5, Unit::Hour));
    let pod = rigs.pod();
    assert_eq!(decide(&pod, &rules, &request).await, (true, 2));
    assert_eq!(decide(&pod, &rules, &charge("a", 1)).await, (true, 6), "one count");
    pod.close().await;
    assert_eq!(rigs.left().await, [10, 6, 10]);
}

/// The number of requests that two pods admit in each minute, under rules that each has from some
/// time of its minute on. Both pods offer more than the limit, which is a hundred.
async fn admitted_by_minute(rules: &[Rules]) -> Vec<u64> {
    /// The time between two steps.
    const EVERY: Duration = Duration::from_millis(300);
    /// Steps in a minute.
    const STEPS: u32 = 200;
    /// When each pod hears of a change, in steps of a minute.
    const HEARS: [u32; 2] = [60, 140];
    let rigs = Rigs::new();
    let pods = [rigs.pod(), rigs.pod()];
    for pod in pods.clone() {
        tokio::spawn(async move { pod.run().await });
    }
    let clock = rigs.default.clock;
    let begun = clock.now() + Duration::from_secs(30); // the beginning of a minute
    let (mut minutes, mut steps) = (Vec::new(), 0);
    for (at, of_minute) in rules.iter().enumerate() {
        let before = &rules[at.saturating_sub(1)];
        let mut admitted = 0;
        for step in 0..STEPS {
            tokio::time::sleep_until(clock.instant(begun + EVERY * steps)).await;
            steps += 1;
            for (pod, hears) in pods.iter().zip(HEARS) {
                if step == hears {
                    pod.apply_rules(of_minute).await;
                }
                let rules = if step >= hears { of_minute } else { before };
                let verdict = pod.decided(rules, &charge("a", 1)).await.unwrap();
                admitted += u64::from(verdict.code == Code::Ok);
            }
        }
        minutes.push(admitted);
    }
    minutes
}

#[tokio::test(start_paused = true)]
async fn only_the_window_in_which_a_store_changes_admits_more_than_the_limit_and_at_most_twice() {
    let of = |store: &str| {
        let limit = format!("unit: minute, requests_per_unit: 100{store}");
        let source = Source { name: "test.yaml".into(), text: limits(&limit, &limit).into() };
        let stores = StoreNames::parse("x,y").unwrap();
        let options = rules::Options { stores, ..rules::Options::default() };
        rules::load(&[source], options).unwrap().rules
    };
    let (before, after) = ("", ", store: x");
    let minutes = admitted_by_minute(&[before, before, after, after, after].map(of)).await;
    for (at, admitted) in minutes.iter().enumerate() {
        let most = if at == 2 { 200 } else { 100 };
        assert!((95..=most).contains(admitted), "minute {at} of {minutes:?}");
    }
}
