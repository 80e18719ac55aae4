//! Orders for one key, followed by every pod: how long they take, and how many requests pass after
//! them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ratelease_engine::limiter::{Resolved, resolve};
use ratelease_engine::order::{Action, Order};
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, Store};
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Options, Source, load};
use tokio::time::sleep;

use crate::MACHINE;
use crate::caller::charge;
use crate::pods::{Pods, rules};
use crate::support::now;
use crate::support::redis::Cluster;

const LIMIT: u64 = 6;

/// The rule of the keys, with a limit of [`LIMIT`].
const LIMITS: [(&str, &str); 1] = [("user", "unit: day, requests_per_unit: 6")];

/// No failure mode answers, however late a busy machine is: it would admit beyond the limit.
pub const PATIENT: [(&str, &str); 2] = [("LEASE_MAX_WAIT", "4s"), ("LEASE_WAIT_LIMIT", "4s")];

/// An order may take this long to reach a pod.
const FOLLOWED_IN: Duration = Duration::from_millis(250);

/// A busy machine may take this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pods, and how often each order is given. More of both: `RATELEASE_ORDER_PODS`,
/// `RATELEASE_ORDER_ROUNDS`.
fn scale() -> (usize, usize) {
    let of = |name: &str, or: usize| {
        std::env::var(name).map_or(or, |text| text.parse().expect("a number"))
    };
    (of("RATELEASE_ORDER_PODS", 4), of("RATELEASE_ORDER_ROUNDS", 5))
}

/// The ask that names the count of `value`.
fn ask(domain: &str, value: &str) -> Ask {
    let text = rules(domain, &LIMITS).into_bytes();
    let source = Source { name: "a.yaml".to_owned(), text };
    let rules = load(&[source], Options::default()).unwrap().rules;
    let entries = [Entry { key: "user", value }].into_iter().collect();
    let descriptors = [Descriptor { entries, ..Descriptor::default() }].into_iter().collect();
    let request = Request { domain, descriptors, hits_addend: 1 };
    let resolved = resolve(&rules, &request, &KeyHasher::new(""));
    let Resolved::Charged(charge) = &resolved[0] else { panic!("no rule") };
    Ask::look(charge.own, charge.applied.limit)
}

fn order(action: Action) -> Order {
    Order::new(action, "a test")
}

/// Whether a pod lets hits of `value` pass; 0 hits spend nothing.
async fn lets_pass(pods: &Pods, pod: usize, value: &str, hits: u64) -> bool {
    pods.pods[pod].caller.passes(&pods.domain, &[charge("user", value, hits)]).await
}

/// How long each pod takes, from when something began, until it answers a look at `value` so.
async fn until_all(pods: &Pods, value: &str, passing: bool, begun: Instant) -> Vec<Duration> {
    let each = (0..pods.pods.len()).map(|pod| async move {
        while lets_pass(pods, pod, value, 0).await != passing {
            assert!(begun.elapsed() < PATIENCE, "pod {pod} does not follow");
            sleep(Duration::from_millis(1)).await;
        }
        begun.elapsed()
    });
    join_all(each).await
}

/// Spends the limit of `value`, until every pod denies a look.
async fn use_up(pods: &Pods, value: &str) -> u64 {
    let mut passed = 0;
    for _ in 0..LIMIT {
        for pod in 0..pods.pods.len() {
            passed += u64::from(lets_pass(pods, pod, value, 1).await);
        }
    }
    until_all(pods, value, false, now()).await;
    passed
}

fn report(what: &str, mut took: Vec<Duration>) {
    took.sort();
    let in_time = took.iter().filter(|took| **took < FOLLOWED_IN).count();
    assert!(2 * in_time > took.len(), "{what}: {in_time} of {} in time", took.len());
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    let (p50, p99, max) = (at(50), at(99), at(100));
    println!("{what}: {} times, p50 {p50:.1?}, p99 {p99:.1?}, most {max:.1?}", took.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_and_a_block_reach_every_pod_and_after_a_reset_one_limit_passes() {
    let _alone = MACHINE.write().await;
    let (pods_max, rounds) = scale();
    let domain = "orders";
    let cluster = Cluster::shared();
    let pods = Pods::start(domain, pods_max, &cluster.places(), &LIMITS, &PATIENT).await;
    let store = RedisStore::spawn(cluster.config(), &format!("{domain}:"));
    store.ready().await;
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for round in 0..rounds {
        let value = format!("v{round}");
        let ask = ask(domain, &value);
        assert_eq!(use_up(&pods, &value).await, LIMIT);

        let begun = now();
        store.clear(&ask).await.unwrap();
        store.order(&ask, order(Action::Reset)).await.unwrap();
        took.entry("reset").or_default().extend(until_all(&pods, &value, true, begun).await);
        let passed = use_up(&pods, &value).await;
        assert!((1..=LIMIT).contains(&passed), "{passed} passed after the reset");

        let other = format!("w{round}");
        assert!(lets_pass(&pods, 0, &other, 1).await);
        let other_ask = self::ask(domain, &other);
        let begun = now();
        store.order(&other_ask, order(Action::Block(Duration::from_secs(600)))).await.unwrap();
        took.entry("block").or_default().extend(until_all(&pods, &other, false, begun).await);
        let begun = now();
        store.order(&other_ask, order(Action::Lift)).await.unwrap();
        took.entry("unblock").or_default().extend(until_all(&pods, &other, true, begun).await);
    }
    took.into_iter().for_each(|(what, took)| report(what, took));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_starts_later_denies_what_is_blocked_and_a_block_ends_by_itself() {
    let _shared = MACHINE.read().await;
    let domain = "orders-later";
    let cluster = Cluster::shared();
    let store = RedisStore::spawn(cluster.config(), &format!("{domain}:"));
    store.ready().await;
    // Longer than a pod takes to start on a busy machine.
    let lasts = Duration::from_secs(12);
    let begun = now();
    store.order(&ask(domain, "a"), order(Action::Block(lasts))).await.unwrap();
    let pods = Pods::start(domain, 1, &cluster.places(), &LIMITS, &PATIENT).await;
    until_all(&pods, "a", false, now()).await;
    assert!(lets_pass(&pods, 0, "b", 1).await, "another key");
    while !lets_pass(&pods, 0, "a", 0).await {
        assert!(begun.elapsed() < lasts + PATIENCE, "the block does not end");
        sleep(Duration::from_millis(5)).await;
    }
    assert!(begun.elapsed() >= lasts, "{:?}", begun.elapsed());
    assert!(lets_pass(&pods, 0, "a", 1).await);
}
