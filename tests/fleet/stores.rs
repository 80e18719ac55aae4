//! Named stores: one that hangs under a flood leaves the others alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use crate::drive::Said;
use crate::pods::Pods;
use crate::support::redis::{Cluster, Single};
use crate::support::windows::early_in_a_window;
use crate::{DAY, MACHINE};

/// Requests that a used-up key of the isolation test gets.
const ASKED: u64 = 60;

/// The limit of such a key: exactly this many of its requests pass.
const EXACT: u64 = 40;

/// Keys of each store that is left alone.
const KEYS: usize = 5;
/// Connections' worth of flood: this many requests are under way at any time.
const FLOOD: usize = 32;
/// The flood has begun to count once this many of its requests were answered.
const FLOODED: u64 = 500;

/// For steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// The settings of stores `premium` and `batch`, and waits that no busy machine exceeds: the first
/// is also the least silence that opens a breaker.
fn settings(premium: &Single, batch: &Single) -> Vec<(&'static str, String)> {
    let url = |redis: &Single| format!("127.0.0.1:{}", redis.server.port());
    vec![
        ("REDIS_STORES", "premium,batch".to_owned()),
        ("REDIS_STORE_PREMIUM_URL", url(premium)),
        ("REDIS_STORE_BATCH_URL", url(batch)),
        ("LEASE_MAX_WAIT", "1s".to_owned()),
        ("LEASE_WAIT_LIMIT", "5s".to_owned()),
    ]
}

fn borrowed<'a>(env: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    env.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// Requests for new keys of one limit, as many at a time as [`FLOOD`] says, until it is dropped.
struct Flood {
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Flood {
    fn begin(pods: &Arc<Pods>) -> Self {
        let flood = Self { answered: Arc::default(), failed: Arc::default(), ends: Arc::default() };
        for lane in 0..FLOOD {
            let (answered, failed) = (Arc::clone(&flood.answered), Arc::clone(&flood.failed));
            let (ends, pods) = (Arc::clone(&flood.ends), Arc::clone(pods));
            tokio::spawn(async move {
                let mut number = 0;
                while !ends.load(Ordering::Relaxed) {
                    number += 1;
                    let said = pods.hit(0, "flood", &format!("{lane}-{number}")).await;
                    failed.fetch_add(u64::from(said == Said::Failed), Ordering::Relaxed);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        flood
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// The number of requests that each of [`KEYS`] keys admits of [`ASKED`]. Fails the test if one has
/// no verdict.
async fn exact(pods: &Pods, key: &'static str, round: &str) -> Vec<u64> {
    join_all((0..KEYS).map(async |at| {
        let value = format!("{round}-{at}");
        let mut admitted = 0;
        for number in 0..ASKED {
            let said = pods.hit(0, key, &value).await;
            assert_ne!(said, Said::Failed, "{key} {value}, request {number}");
            admitted += u64::from(said == Said::Admitted);
        }
        admitted
    }))
    .await
}

/// The states of the breakers of a store's shards, by the pod's status.
fn breakers(pods: &Pods, store: &str) -> Vec<String> {
    let status = pods.pods[0].process.status();
    let shards = status["shards"].as_array().expect("shards").clone();
    let of_store = shards.iter().filter(|shard| shard["store"] == store);
    of_store.map(|shard| shard["breaker"].as_str().expect("a state").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_under_a_flood_leaves_the_others_alone() {
    let _shared = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(120)).await;
    let (premium, batch) = (Single::start(), Single::start());
    let env = settings(&premium, &batch);
    let asked = format!("unit: day, requests_per_unit: {EXACT}, lease: off, failure_mode: error");
    let of_premium = format!("{asked}, store: premium");
    let limits = [
        ("gold", of_premium.as_str()),
        ("plain", asked.as_str()),
        ("flood", "unit: day, requests_per_unit: 1000000, store: batch"),
    ];
    let places = Cluster::shared().places();
    let pods = Pods::start("isolation", 1, &places, &limits, &borrowed(&env)).await;
    let pods = Arc::new(pods);
    assert_eq!(pods.hit(0, "flood", "first").await, Said::Admitted);
    assert_eq!(exact(&pods, "gold", "calm").await, [EXACT; KEYS]);
    let local = pods.local();
    batch.server.stop();
    let flood = Flood::begin(&pods);
    let is_flooded = async || flood.answered() >= FLOODED;
    pods.pods[0].process.process.until("flooded", SOON, is_flooded).await;
    let begun = flood.answered();
    for round in 0..4 {
        let round = format!("flood-{round}");
        let (gold, plain) =
            tokio::join!(exact(&pods, "gold", &round), exact(&pods, "plain", &round));
        assert_eq!((gold, plain), (vec![EXACT; KEYS], vec![EXACT; KEYS]), "{round}");
    }
    let meanwhile = flood.answered() - begun;
    println!("{meanwhile} requests of the flood beside {} others", 8 * ASKED * KEYS as u64);
    assert!(meanwhile > 0 && flood.failed.load(Ordering::Relaxed) == 0);
    assert!(pods.local() - local >= FLOODED / 2, "the failure mode of the flooded store");
    assert!(breakers(&pods, "batch").iter().any(|breaker| breaker != "closed"));
    for store in ["premium", "default"] {
        let states = breakers(&pods, store);
        assert!(
            !states.is_empty() && states.iter().all(|it| it == "closed"),
            "{store}: {states:?}"
        );
    }
    drop(flood);
    batch.server.cont();
    let probes = AtomicU64::new(0);
    let is_back = async || {
        // A key of which the pod holds no token: it is asked for.
        let value = format!("back-{}", probes.fetch_add(1, Ordering::Relaxed));
        pods.hit(0, "flood", &value).await;
        breakers(&pods, "batch").iter().all(|breaker| breaker == "closed")
    };
    pods.pods[0].process.process.until("asking the store again", SOON, is_back).await;
    pods.are_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_name_a_store_without_settings_leave_the_old_ones_in_force() {
    let _shared = MACHINE.read().await;
    let (premium, batch) = (Single::start(), Single::start());
    let env = settings(&premium, &batch);
    let limits = [("key", "unit: day, requests_per_unit: 4000000000, store: premium")];
    let places = Cluster::shared().places();
    let pods = Pods::start("unknown-store", 1, &places, &limits, &borrowed(&env)).await;
    assert_eq!(pods.hit(0, "key", "v").await, Said::Admitted);
    let limits = [("key", "unit: day, requests_per_unit: 0, store: premum")];
    pods.write(0, &limits);
    let is_refused = async || pods.pods[0].process.loads_refused() > 0;
    pods.pods[0].process.process.until("refusing the rules", SOON, is_refused).await;
    let fault = "unknown store 'premum'; expected one of default, premium, batch";
    pods.pods[0].process.logs(fault).await;
    assert_eq!(pods.hit(0, "key", "v").await, Said::Admitted, "by the old rules");
    let counts = [&premium, &batch]
        .map(|redis| redis.server.keys().into_iter().filter(|key| key.contains("rl:{")).count());
    assert_eq!(counts, [1, 0]);
    pods.are_unharmed();
}
