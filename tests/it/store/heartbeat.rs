//! Pods that share a store count each other.

use ratelease::settings::redis::RedisSettings;
use ratelease::store::memory::MemoryStore;
use ratelease::store::{Beat, Store};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{connected, connected_under, within};
use crate::support::redis::{Cluster, Single};

async fn beat(store: &dyn Store, pod: u64, lasts_ms: u64, leaves: bool) -> u32 {
    let lasts = Duration::from_millis(lasts_ms);
    store.beat(Beat { pod, lasts, leaves, domain: None }).await.unwrap()
}

/// Three pods; one leaves, one lapses, before or after `pass`.
async fn counts_the_pods_alive(store: &dyn Store, pass: impl FnOnce()) {
    const LONG: u64 = 60_000;
    assert_eq!(beat(store, 1, LONG, false).await, 1);
    assert_eq!(beat(store, 1, LONG, false).await, 1, "it is the same pod");
    assert_eq!(beat(store, u64::MAX, LONG, false).await, 2);
    assert_eq!(beat(store, 3, 1_000, false).await, 3);
    assert_eq!(beat(store, u64::MAX, LONG, true).await, 2, "one leaves");
    assert_eq!(beat(store, u64::MAX, LONG, true).await, 2, "it cannot leave twice");
    pass();
    within(10, "one lapses", async { while beat(store, 1, LONG, false).await > 1 {} }).await;
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
    // A prefix of its own: other tests have pods too.
    let store = connected_under(Cluster::shared().config(), "heartbeat:").await;
    counts_the_pods_alive(&*store, || {}).await;
}

async fn pods_of(config: RedisSettings) -> u32 {
    let store = connected(config).await;
    beat(&*store, 7, 60_000, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_the_pods_expires_with_the_last_of_them() {
    let single = Single::start();
    assert_eq!(pods_of(single.config()).await, 1);
    let ttl: u64 = single.server.command(&["PTTL", "rl:pods"]);
    assert!((50_000..=61_000).contains(&ttl), "{ttl}");
    let store = connected(single.config()).await;
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
    let store = connected(single.config()).await;
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
    let store = connected(single.config()).await;
    let beat = Beat { pod: 7, lasts: Duration::from_secs(1), leaves: false, domain: None };
    assert!(store.beat(beat).await.is_err());
    assert_eq!(single.server.command::<String>(&["GET", "rl:pods"]), "mine");
}
