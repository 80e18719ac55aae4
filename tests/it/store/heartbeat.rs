//! Pods that share a store count each other.

use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::redis::RedisSettings;
use ratelease_engine::store::{Heartbeat, Store};
use ratelease_rules::key::Key;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{connected, connected_under, patient, until, within};
use crate::support::redis::{Cluster, Single};

async fn beat(store: &dyn Store, pod: u64, lasts_ms: u64, leaves: bool) -> u32 {
    beat_in(store, None, pod, lasts_ms, leaves).await
}

async fn beat_in(
    store: &dyn Store,
    domain: Option<Key>,
    pod: u64,
    lasts_ms: u64,
    leaves: bool,
) -> u32 {
    let lasts = Duration::from_millis(lasts_ms);
    store.beat(Heartbeat { pod, lasts, leaves, domain }).await.unwrap()
}

/// The store counts the pods of two domains, and of all domains together.
async fn counts_each_domain_apart(store: &dyn Store) {
    const LONG: u64 = 60_000;
    let [shop, mail] = [Some(Key::for_test(1)), Some(Key::for_test(2))];
    assert_eq!(beat_in(store, shop, 1, LONG, false).await, 1);
    assert_eq!(beat_in(store, shop, 2, LONG, false).await, 2);
    assert_eq!(beat_in(store, mail, 2, LONG, false).await, 1);
    assert_eq!(beat(store, 2, LONG, false).await, 1, "all together are a count of their own");
    assert_eq!(beat(store, 1, LONG, false).await, 2);
    assert_eq!(beat_in(store, shop, 2, LONG, true).await, 1);
    assert_eq!(beat_in(store, mail, 2, LONG, false).await, 1, "it left the other domain");
    assert_eq!(beat_in(store, shop, 3, 200, false).await, 2);
    until(10, "one lapses", async || beat_in(store, shop, 1, LONG, false).await <= 1).await;
    for domain in [shop, mail, None] {
        for pod in 1..=3 {
            beat_in(store, domain, pod, LONG, true).await;
        }
        assert_eq!(beat_in(store, domain, 4, LONG, true).await, 0);
    }
}

#[tokio::test]
async fn memory_counts_each_domain_apart() {
    counts_each_domain_apart(&MemoryStore::system()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_counts_each_domain_apart() {
    let store = connected_under(patient(Cluster::shared().config()), "domains:").await;
    counts_each_domain_apart(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_domain_have_a_key_of_their_own_that_expires() {
    let single = Single::start();
    let store = connected_under(patient(single.config()), "shop:").await;
    let domain = Key::for_test(1);
    assert_eq!(beat_in(&*store, Some(domain), 7, 60_000, false).await, 1);
    let key = format!("shop:rl:pods:{domain}");
    assert_eq!(single.server.keys(), [key.as_str()]);
    let ttl: u64 = single.server.command(&["PTTL", &key]);
    assert!((50_000..=61_000).contains(&ttl), "{ttl}");
    beat_in(&*store, Some(domain), 7, 0, true).await;
    assert_eq!(single.server.keys(), [""; 0]);
}

/// Three pods: one leaves and one expires, before or after `pass`.
async fn counts_the_pods_alive(store: &dyn Store, pass: impl FnOnce()) {
    const LONG: u64 = 60_000;
    assert_eq!(beat(store, 1, LONG, false).await, 1);
    assert_eq!(beat(store, 1, LONG, false).await, 1, "it is the same pod");
    assert_eq!(beat(store, u64::MAX, LONG, false).await, 2);
    assert_eq!(beat(store, 3, 1_000, false).await, 3);
    assert_eq!(beat(store, u64::MAX, LONG, true).await, 2, "one leaves");
    assert_eq!(beat(store, u64::MAX, LONG, true).await, 2, "it cannot leave twice");
    pass();
    until(10, "one lapses", async || beat(store, 1, LONG, false).await <= 1).await;
    assert_eq!(beat(store, 3, LONG, false).await, 2, "and is back");
    assert_eq!(beat(store, 3, LONG, true).await, 1);
    assert_eq!(beat(store, 1, LONG, true).await, 0);
}

#[tokio::test]
async fn memory_counts_the_pods_alive() {
    let millis = Arc::new(AtomicU64::new(1_700_000_000_000));
    let clock = Arc::clone(&millis);
    let now = move || Duration::from_millis(clock.load(Ordering::Relaxed));
    let store = MemoryStore::new(Arc::new(now), 10);
    let pass = || millis.store(1_700_000_001_000, Ordering::Relaxed);
    counts_the_pods_alive(&store, pass).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_counts_the_pods_alive() {
    // A prefix of its own, since other tests have pods too.
    let store = connected_under(patient(Cluster::shared().config()), "heartbeat:").await;
    counts_the_pods_alive(&*store, || {}).await;
}

async fn pods_of(config: RedisSettings) -> u32 {
    let store = connected(patient(config)).await;
    beat(&*store, 7, 60_000, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_the_pods_expires_with_the_last_of_them() {
    let single = Single::start();
    assert_eq!(pods_of(single.config()).await, 1);
    let ttl: u64 = single.server.command(&["PTTL", "rl:pods"]);
    assert!((50_000..=61_000).contains(&ttl), "{ttl}");
    let store = connected(patient(single.config())).await;
    assert_eq!(beat(&*store, 8, 5_000, false).await, 2);
    let ttl: u64 = single.server.command(&["PTTL", "rl:pods"]);
    assert!(ttl > 50_000, "the other one lasts longer: {ttl}");
    beat(&*store, 7, 0, true).await;
    beat(&*store, 8, 0, true).await;
    assert_eq!(single.server.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_pods_than_there_may_be_are_not_counted() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let fill = "local now = tonumber(redis.call('TIME')[1]) * 1000
        for pod = 1, 10000 do redis.call('ZADD', KEYS[1], now + 60000, pod) end";
    single.server.command::<()>(&["EVAL", fill, "1", "rl:pods"]);
    assert_eq!(beat(&*store, 10_001, 60_000, false).await, 10_000);
    assert_eq!(beat(&*store, 5, 60_000, false).await, 10_000, "one of them beats on");
    assert_eq!(beat(&*store, 5, 60_000, true).await, 9_999);
    assert_eq!(beat(&*store, 10_001, 60_000, false).await, 10_000);
    within(10, "memory holds as many", async {
        let memory = MemoryStore::system();
        let mut alive = 0;
        for pod in 0..10_010 {
            alive = beat(&memory, pod, 60_000, false).await;
        }
        assert_eq!(alive, 10_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_after_a_script_flush_and_under_a_foreign_value() {
    let single = Single::start();
    assert_eq!(pods_of(single.config()).await, 1);
    single.server.command::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(pods_of(single.config()).await, 1);
    single.server.command::<()>(&["SET", "rl:pods", "mine"]);
    let store = connected(patient(single.config())).await;
    let beat = Heartbeat { pod: 7, lasts: Duration::from_secs(1), leaves: false, domain: None };
    assert!(store.beat(beat).await.is_err());
    assert_eq!(single.server.command::<String>(&["GET", "rl:pods"]), "mine");
}
