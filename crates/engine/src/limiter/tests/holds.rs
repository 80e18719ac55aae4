//! Requests that hold their tokens until a settlement says how much they have cost.

use ratelease_rules::{SETTLE_KEY, StoreNames};

use super::*;
use crate::counter::HoldCounter;
use crate::rng::mixed;
use crate::store::stores::{NamedStore, Stores};

const HOUR: &str = "unit: hour, requests_per_unit: 1000";

/// Rules for the users of domain `d`, whose requests have an id.
fn holding(limit: &str, hold: &str) -> String {
    let limit = format!("{{{limit}, hold: {{{hold}}}}}");
    format!(
        "domain: d\ndefaults: {{failure_mode: error}}\ndescriptors:\n- key: user\n  \
         descriptors: [{{key: id, rate_limit: {limit}}}]\n- {{key: b, rate_limit: {{unit: hour, \
         requests_per_unit: 5}}}}\n"
    )
}

fn rig(limit: &str) -> Rig {
    Rig::new(&holding(limit, "for: 2m"))
}

/// A pod with its maintenance.
fn running(rig: &Rig) -> Limiter {
    maintained(rig.pod())
}

fn maintained(pod: Limiter) -> Limiter {
    let maintained = pod.clone();
    tokio::spawn(async move { maintained.run().await });
    pod
}

/// The request of a user with this id, which is expected to cost so many hits.
fn start<'a>(user: &'a str, id: &'a str, hits: u64) -> Request<'a> {
    let entries = [("user", user), ("id", id)].map(|(key, value)| Entry { key, value });
    let descriptor = Descriptor {
        entries: entries.into_iter().collect(),
        hits_addend: Some(hits),
        ..Descriptor::default()
    };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

/// The end of that request, when its cost is known.
fn end<'a>(user: &'a str, id: &'a str, hits: u64) -> Request<'a> {
    let mut request = start(user, id, hits);
    request.descriptors[0].entries.push(Entry { key: SETTLE_KEY, value: "1" });
    request
}

async fn passes(pod: &Limiter, rules: &Rules, request: &Request<'_>) -> bool {
    decide(pod, rules, request).await.0
}

/// The remaining tokens of this user's limit, as the pod knows them.
async fn remains(pod: &Limiter, rules: &Rules, user: &str) -> u64 {
    decide(pod, rules, &start(user, "look", 0)).await.1
}

/// The tokens left at the store, once the pod has given back all that it does not use.
async fn left(rig: &Rig, pod: &Limiter) -> u64 {
    pod.close().await;
    remains(&rig.pod(), &rig.rules, "u").await
}

fn count(pod: &Limiter, of: HoldCounter) -> u64 {
    let counts = pod.counts();
    counts.iter().find(|(counter, _)| *counter == Counter::Holds(of)).unwrap().1
}

/// The requests that hold something, and the hits that they hold.
fn in_force(pod: &Limiter) -> (u64, u64) {
    (count(pod, HoldCounter::InForce), count(pod, HoldCounter::Hits))
}

#[tokio::test(start_paused = true)]
async fn what_a_request_has_cost_is_what_is_counted() {
    for limit in [
        HOUR,
        "unit: hour, requests_per_unit: 1000, lease: off",
        "unit: hour, requests_per_unit: 1000, lease: {ttl: 1s}",
        "unit: hour, requests_per_unit: 1000, algorithm: sliding_window",
        "unit: hour, requests_per_unit: 1000, algorithm: token_bucket",
        "unit: hour, requests_per_unit: 1000, shards: 4",
        "unit: hour, requests_per_unit: 1000, carry_debt: true",
    ] {
        for (cost, lasts) in
            [(0, 0), (30, 0), (100, 0), (101, 0), (700, 0), (0, 20), (30, 20), (101, 20)]
        {
            let rig = rig(limit);
            let pod = running(&rig);
            assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
            assert_eq!(in_force(&pod), (1, 100));
            tokio::time::sleep(Duration::from_secs(lasts)).await;
            assert!(passes(&pod, &rig.rules, &end("u", "1", cost)).await);
            assert_eq!(in_force(&pod), (0, 0));
            tokio::time::sleep(Duration::from_millis(20)).await;
            let earned = if limit.ends_with("bucket") { 1 + lasts } else { 0 };
            let left = left(&rig, &pod).await;
            let expected = 1_000 - cost;
            let most = (expected + earned).min(1_000);
            assert!((expected..=most).contains(&left), "{left} after {cost}, {lasts} s: {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_the_hold_covers_asks_nothing_and_what_it_frees_is_used_at_once() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules, &start("u", "1", 1_000)).await);
    assert!(!passes(&pod, &rig.rules, &start("u", "2", 1)).await, "all of it is held");
    let asks = rig.asks();
    assert!(passes(&pod, &rig.rules, &end("u", "1", 400)).await);
    assert!(passes(&pod, &rig.rules, &start("u", "2", 600)).await);
    assert!(passes(&pod, &rig.rules, &end("u", "2", 600)).await);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.asks(), asks);
}

#[tokio::test(start_paused = true)]
async fn an_estimate_that_is_refused_spends_nothing_and_holds_nothing() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules, &start("u", "1", 400)).await);
    assert!(!passes(&pod, &rig.rules, &start("u", "2", 700)).await);
    assert_eq!(in_force(&pod), (1, 400));
    assert!(passes(&pod, &rig.rules, &start("u", "3", 600)).await, "the 600 are still there");
    // Nor one that another limit of its request refuses.
    passes(&pod, &rig.rules, &end("u", "3", 0)).await;
    let mut both = start("u", "4", 100);
    both.descriptors.push(Descriptor { hits_addend: Some(6), ..descriptor("b") });
    assert!(!passes(&pod, &rig.rules, &both).await);
    assert_eq!(in_force(&pod), (1, 400));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_without_a_hold_counts_whole_and_becomes_none() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
    assert!(passes(&pod, &rig.rules, &end("u", "1", 40)).await);
    let cases = [
        ("twice", end("u", "1", 40), 920),
        ("an unknown id", end("u", "2", 20), 900),
        ("0 hits", end("u", "2", 0), 900),
        ("more than is left", end("u", "2", 1 << 63), 0),
    ];
    for (what, request, remaining) in cases {
        assert!(passes(&pod, &rig.rules, &request).await, "{what}");
        assert_eq!(in_force(&pod), (0, 0), "{what}");
        assert_eq!(remains(&pod, &rig.rules, "u").await, remaining, "{what}");
    }
    assert_eq!(count(&pod, HoldCounter::WithoutHold), 4);
    assert!(!passes(&pod, &rig.rules, &start("u", "3", 1)).await, "the debt is remembered");
    assert_eq!(left(&rig, &pod).await, 0);
}

#[tokio::test(start_paused = true)]
async fn another_user_with_the_same_id_settles_nothing() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
    assert!(passes(&pod, &rig.rules, &end("v", "1", 30)).await);
    assert_eq!(in_force(&pod), (1, 100));
    assert_eq!(remains(&pod, &rig.rules, "v").await, 970, "it counts whole");
    assert!(passes(&pod, &rig.rules, &end("u", "1", 30)).await);
    assert_eq!(remains(&pod, &rig.rules, "u").await, 970);
}

#[tokio::test(start_paused = true)]
async fn ids_of_any_length_are_ids_and_an_empty_one_is_none() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    let long = "x".repeat(64 << 10);
    for id in [long.as_str(), &long[1..]] {
        assert!(passes(&pod, &rig.rules, &start("u", id, 100)).await);
    }
    assert_eq!(in_force(&pod), (2, 200));
    for id in [long.as_str(), &long[1..]] {
        assert!(passes(&pod, &rig.rules, &end("u", id, 10)).await);
    }
    assert_eq!(remains(&pod, &rig.rules, "u").await, 980);
    assert!(passes(&pod, &rig.rules, &start("u", "", 100)).await, "an ordinary charge");
    assert_eq!(in_force(&pod), (0, 0));
    assert!(passes(&pod, &rig.rules, &end("u", "", 70)).await);
    assert_eq!(remains(&pod, &rig.rules, "u").await, 810);
    assert_eq!(count(&pod, HoldCounter::WithoutId), 2);
}

#[tokio::test(start_paused = true)]
async fn two_requests_with_one_id_at_once_are_counted_at_least_whole() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    for _ in 0..2 {
        assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
    }
    assert_eq!(in_force(&pod), (2, 200));
    assert!(passes(&pod, &rig.rules, &end("u", "1", 60)).await);
    assert!(passes(&pod, &rig.rules, &end("u", "1", 70)).await);
    assert_eq!(remains(&pod, &rig.rules, "u").await, 1_000 - 130);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_nothing_settles_ends_in_time_and_its_estimate_stays_or_comes_back() {
    for (unless_settled, lasts, expected) in
        [("keep", 61, 900), ("release", 61, 1_000), ("release", 1, 1_000)]
    {
        for limit in [HOUR, "unit: hour, requests_per_unit: 1000, algorithm: token_bucket"] {
            let hold = format!("for: {lasts}s, unless_settled: {unless_settled}");
            let rig = Rig::new(&holding(limit, &hold));
            let pod = running(&rig);
            assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
            tokio::time::sleep(Duration::from_millis(lasts * 1_000 - 1)).await;
            assert_eq!(in_force(&pod), (1, 100));
            tokio::time::sleep(Duration::from_millis(1_001)).await;
            assert_eq!(in_force(&pod), (0, 0), "at most a second late");
            assert_eq!(count(&pod, HoldCounter::Expired), 1);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(count(&pod, HoldCounter::Bytes), 0);
            let earned = if limit == HOUR { 0 } else { 20 };
            let left = left(&rig, &pod).await;
            assert!((expected..=expected + earned).contains(&left), "{left}, {hold}: {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_after_the_hold_counts_whole() {
    let rig = Rig::new(&holding(HOUR, "for: 1s, unless_settled: release"));
    let pod = running(&rig);
    assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(passes(&pod, &rig.rules, &end("u", "1", 30)).await);
    assert_eq!(left(&rig, &pod).await, 970);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_window_that_is_over_come_back_to_no_other() {
    let rig = rig("unit: minute, requests_per_unit: 1000");
    let pod = running(&rig);
    for id in ["1", "2"] {
        assert!(passes(&pod, &rig.rules, &start("u", id, 300)).await);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(passes(&pod, &rig.rules, &start("u", "3", 900)).await, "a new window");
    assert!(passes(&pod, &rig.rules, &end("u", "1", 0)).await);
    assert!(!passes(&pod, &rig.rules, &start("u", "4", 101)).await);
    assert!(passes(&pod, &rig.rules, &end("u", "2", 350)).await);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!passes(&pod, &rig.rules, &start("u", "4", 51)).await, "50 beyond the estimate");
    assert!(passes(&pod, &rig.rules, &start("u", "4", 50)).await);
}

#[tokio::test(start_paused = true)]
async fn a_rule_may_change_while_a_request_holds_its_tokens() {
    let lower = compile(&holding("unit: hour, requests_per_unit: 500", "for: 2m"));
    let daily = compile(&holding("unit: day, requests_per_unit: 1000", "for: 2m"));
    let gone = compile("domain: d\ndescriptors: [{key: b}]\n");
    let unheld = compile(&holding(HOUR, "for: 2m").replace(", hold: {for: 2m}", ""));
    // The remaining tokens under the new rules, and of the count of the old rules, whose estimate
    // is 100.
    let cases = [
        (&lower, Some(470), 970),
        (&daily, Some(1_000), 970),
        (&unheld, None, 970),
        (&gone, None, 970),
    ];
    for (rules, remaining, old) in cases {
        let rig = rig(HOUR);
        let pod = running(&rig);
        assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
        pod.apply_rules(rules).await;
        assert!(passes(&pod, rules, &end("u", "1", 30)).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some(remaining) = remaining {
            assert_eq!(remains(&pod, rules, "u").await, remaining);
        }
        tokio::time::sleep(Duration::from_secs(122)).await;
        assert_eq!(in_force(&pod), (0, 0));
        assert_eq!(left(&rig, &pod).await, old, "{remaining:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_go_back_to_the_store_that_lent_them() {
    let compile = |more: &str| {
        let yaml = holding(&format!("{HOUR}{more}"), "for: 2m");
        let source = Source { name: "test.yaml".into(), text: yaml.into() };
        let stores = StoreNames::parse("x").unwrap();
        let options = rules::Options { stores, ..rules::Options::default() };
        rules::load(&[source], options).unwrap().rules
    };
    let (before, after) = (compile(""), compile(", store: x"));
    let (default, other) = (rig(HOUR), rig(HOUR));
    let named = NamedStore { name: "x".into(), store: Arc::clone(&other.store) as _ };
    let stores = Stores::new(Arc::clone(&default.store) as _, None, vec![named]);
    let pod = maintained(default.pod_on(Arc::new(stores), BUFFER_BYTES_MAX));
    for id in ["1", "2"] {
        assert!(passes(&pod, &before, &start("u", id, 100)).await);
    }
    pod.apply_rules(&after).await;
    assert!(passes(&pod, &after, &start("u", "3", 500)).await);
    assert!(passes(&pod, &after, &end("u", "1", 30)).await);
    assert!(passes(&pod, &after, &end("u", "2", 130)).await);
    assert!(passes(&pod, &after, &end("u", "3", 400)).await);
    tokio::time::sleep(Duration::from_millis(10)).await;
    pod.close().await;
    assert_eq!(remains(&default.pod(), &default.rules, "u").await, 1_000 - 100 - 30);
    assert_eq!(remains(&other.pod(), &other.rules, "u").await, 1_000 - 400 - 30);
}

#[tokio::test(start_paused = true)]
async fn a_cost_beyond_the_limit_stays_counted_when_others_give_tokens_back() {
    for algorithm in ["fixed_window", "sliding_window", "token_bucket"] {
        for beyond in [1, 2] {
            let limit = format!("unit: day, requests_per_unit: 1000, algorithm: {algorithm}");
            let rig = rig(&limit);
            let pods = [running(&rig), running(&rig)];
            for (pod, id) in pods.iter().zip(["1", "2"]) {
                assert!(passes(pod, &rig.rules, &start("u", id, 500)).await);
            }
            for (pod, id, cost) in [(0, "1", 500 + beyond), (1, "2", 400)] {
                assert!(passes(&pods[pod], &rig.rules, &end("u", id, cost)).await);
                tokio::time::sleep(Duration::from_secs(1)).await; // until the store has counted it
            }
            pods[0].close().await;
            assert_eq!(left(&rig, &pods[1]).await, 100 - beyond, "{algorithm}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_needs_no_store() {
    let rig = rig(HOUR);
    let pod = running(&rig);
    for id in ["1", "2"] {
        assert!(passes(&pod, &rig.rules, &start("u", id, 300)).await);
    }
    rig.store.fails.store(true, Ordering::Relaxed);
    let begun = rig.clock.now();
    assert!(passes(&pod, &rig.rules, &end("u", "1", 100)).await);
    assert!(passes(&pod, &rig.rules, &end("u", "2", 700)).await);
    assert_eq!(rig.clock.now(), begun);
    tokio::time::sleep(Duration::from_secs(2)).await;
    rig.store.fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(left(&rig, &pod).await, 200);
}

/// Hits that `local` admits while the store is away are held too. Unused hits come back to the
/// pod's part, and hits beyond the held ones count.
#[tokio::test(start_paused = true)]
async fn what_a_pod_admits_by_itself_is_held_and_settled() {
    let rig = rig(&format!("{HOUR}, failure_mode: local"));
    let pod = rig.pod();
    rig.store.fails.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        passes(&pod, &rig.rules, &start("v", "0", 1)).await; // until the breaker is open
    }
    for n in 0..50 {
        let id = n.to_string();
        assert!(passes(&pod, &rig.rules, &start("u", &id, 900)).await, "{n}");
        assert!(passes(&pod, &rig.rules, &end("u", &id, 0)).await);
    }
    assert!(passes(&pod, &rig.rules, &start("u", "x", 500)).await);
    assert!(passes(&pod, &rig.rules, &end("u", "x", 800)).await);
    assert!(!passes(&pod, &rig.rules, &start("u", "y", 201)).await);
    assert!(passes(&pod, &rig.rules, &start("u", "y", 200)).await);
}

/// The tokens were leased under the limit before, and the store can take nothing as they come back.
#[tokio::test(start_paused = true)]
async fn what_is_not_used_in_an_outage_after_a_change_of_the_limit_comes_back() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules, &start("u", "1", 100)).await);
    let lowered = compile(&holding("unit: hour, requests_per_unit: 50", "for: 2m"));
    assert!(!passes(&pod, &lowered, &start("u", "2", 1)).await, "100 of 50 are held");
    rig.store.fails.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        let _ = pod.decided(&lowered, &start("v", "0", 1)).await; // until the breaker is open
    }
    assert!(passes(&pod, &lowered, &end("u", "1", 20)).await);
    rig.store.fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let _ = pod.decided(&lowered, &start("v", "0", 1)).await; // closes the breaker
    tokio::time::sleep(Duration::from_secs(1)).await;
    pod.close().await;
    assert_eq!(remains(&rig.pod(), &lowered, "u").await, 30);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_before_its_answer_holds_nothing() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    assert!(passes(&pod, &rig.rules, &start("u", "1", 1)).await);
    *rig.store.round_trip.lock() = MAX_WAIT * 4;
    let mut both = start("u", "2", 100);
    both.descriptors.push(descriptor("b"));
    let decision = pod.decided(&rig.rules, &both);
    assert!(tokio::time::timeout(MAX_WAIT / 2, decision).await.is_err(), "`b` waits");
    assert_eq!(in_force(&pod), (1, 1));
    tokio::time::sleep(MAX_WAIT * 20).await;
    *rig.store.round_trip.lock() = Duration::ZERO;
    assert_eq!(left(&rig, &pod).await, 999);
}

/// The hits of a settled request are those that it has cost.
#[tokio::test(start_paused = true)]
async fn hits_that_were_held_are_reported_once() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    for (cost, reported) in [(0, 0), (100, 0), (130, 30)] {
        passes(&pod, &rig.rules, &start("u", "1", 100)).await;
        let verdict = pod.decided(&rig.rules, &end("u", "1", cost)).await.unwrap();
        assert_eq!(verdict.statuses[0].counted.unwrap().hits, reported);
    }
    let verdict = pod.decided(&rig.rules, &end("u", "1", 7)).await.unwrap();
    assert_eq!(verdict.statuses[0].counted.unwrap().hits, 7, "without a hold");
}

#[tokio::test(start_paused = true)]
async fn an_override_of_a_rule_is_held_as_its_rule() {
    let rig = rig(HOUR);
    let pod = rig.pod();
    let limit = Some(Limit::fixed_window(200, Unit::Day));
    let with = |mut request: Request<'static>| {
        request.descriptors[0].limit = limit;
        request
    };
    assert!(passes(&pod, &rig.rules, &with(start("u", "1", 150))).await);
    assert!(!passes(&pod, &rig.rules, &with(start("u", "2", 150))).await, "one count for all ids");
    assert!(passes(&pod, &rig.rules, &with(end("u", "1", 50))).await);
    assert!(passes(&pod, &rig.rules, &with(start("u", "2", 150))).await);
}

/// No other limit can be charged beyond its remaining tokens: there the mark is an entry that no
/// rule has.
#[tokio::test(start_paused = true)]
async fn a_mark_settles_only_rules_that_hold_or_settle() {
    for (limit, is_counted) in [
        ("unit: hour, requests_per_unit: 10, settle: true", true),
        ("unit: hour, requests_per_unit: 10, algorithm: token_bucket, settle: true", true),
        ("unit: hour, requests_per_unit: 10", false),
        ("unit: hour, requests_per_unit: 10, algorithm: sliding_log", false),
    ] {
        let rig = Rig::new(&limits(limit, HOUR));
        let pod = rig.pod();
        let mut settlement = charge("a", 25);
        settlement.descriptors[0].entries.push(Entry { key: SETTLE_KEY, value: "" });
        assert!(passes(&pod, &rig.rules, &settlement).await, "{limit}");
        assert_eq!(passes(&pod, &rig.rules, &look("a")).await, !is_counted, "{limit}");
    }
}

/// Pods that start and settle at random, with ends at another pod, late, twice and never, and a
/// store that is away at times. In the end at least the hits that were used are counted. At most
/// the estimates of the requests that never ended, or ended elsewhere, are counted in addition.
#[tokio::test(start_paused = true)]
async fn any_history_of_holds_is_counted_at_least_whole() {
    for seed in 0..30 {
        let mut drawn = seed << 32;
        let mut below = |count| {
            drawn += 1;
            mixed(drawn) % count
        };
        let rig = Rig::new(&holding("unit: day, requests_per_unit: 1000000", "for: 1s"));
        let pods = [running(&rig), running(&rig)];
        let (mut used, mut over, mut under_way) = (0, 0, Vec::new());
        for n in 0..400_u64 {
            let pod = usize::try_from(below(2)).unwrap();
            if below(2) == 0 || under_way.is_empty() {
                let (id, estimate) = (n.to_string(), below(1_000));
                if passes(&pods[pod], &rig.rules, &start("u", &id, estimate)).await {
                    under_way.push((pod, id, estimate));
                }
            } else {
                let at = usize::try_from(below(under_way.len() as u64)).unwrap();
                let (started, id, estimate) = under_way.swap_remove(at);
                let cost = below(1_500);
                let ends_at = if below(8) == 0 { 1 - started } else { started };
                assert!(passes(&pods[ends_at], &rig.rules, &end("u", &id, cost)).await);
                used += cost;
                over += estimate; // if its hold has ended, or is another pod's
            }
            tokio::time::sleep(Duration::from_millis(below(60))).await;
        }
        tokio::time::sleep(Duration::from_secs(15)).await; // until no end is remembered
        over += under_way.iter().map(|(_, _, estimate)| estimate).sum::<u64>();
        for pod in &pods {
            assert_eq!(in_force(pod), (0, 0), "seed {seed}");
            assert_eq!(count(pod, HoldCounter::Bytes), 0, "seed {seed}");
            pod.close().await;
        }
        let counted = 1_000_000 - remains(&rig.pod(), &rig.rules, "u").await;
        assert!((used..=used + over).contains(&counted), "seed {seed}: {counted} of {used}");
    }
}
