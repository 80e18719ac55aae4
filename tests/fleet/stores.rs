//! Named stores: one that hangs under a flood leaves the others alone, and a limit that moves from
//! one to another is never exceeded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};

use crate::drive::Said;
use crate::pods::Pods;
use crate::support::now;
use crate::support::redis::{Cluster, Single};
use crate::support::windows::{early_in_a_window, wall_clock};
use crate::{DAY, MACHINE};

/// Requests that a used-up key of the isolation test gets, and those that it admits.
const ASKED: u64 = 60;
const EXACT: u64 = 40;
/// Keys of each store that is left alone.
const KEYS: usize = 5;
/// Connections' worth of flood: this many requests are under way at any time.
const FLOOD: usize = 32;
/// The flood has begun to count once this many of its requests were answered.
const FLOODED: u64 = 500;

/// Limit, window, and requests a second to each pod, of the moving test.
const LIMIT: u64 = 100;
const WINDOW: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(20);

/// For steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// The settings of stores `premium` and `batch`, and a wait that no busy machine exceeds.
fn settings(premium: &Single, batch: &Single) -> Vec<(&'static str, String)> {
    let url = |redis: &Single| format!("127.0.0.1:{}", redis.server.port());
    vec![
        ("REDIS_STORES", "premium,batch".to_owned()),
        ("REDIS_STORE_PREMIUM_URL", url(premium)),
        ("REDIS_STORE_BATCH_URL", url(batch)),
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
    assert!(!premium.server.keys().is_empty() && batch.server.keys().is_empty());
    pods.are_unharmed();
}

/// A request: whether it was admitted, and when it was sent and answered, since the Unix epoch.
struct Answered {
    passed: bool,
    sent: Duration,
    answered: Duration,
}

/// Requests of one window.
#[derive(Debug, Default)]
struct OfWindow {
    answered: u64,
    admitted: u64,
}

/// Sends a pod requests at a fixed rate until `ends` is set.
async fn offer(pods: &Arc<Pods>, pod: usize, ends: &Arc<AtomicBool>) -> Vec<Answered> {
    let (mut due, mut calls) = (Instant::from_std(now()), Vec::new());
    while !ends.load(Ordering::Relaxed) {
        sleep_until(due).await;
        due += EVERY;
        let hit = pods.hit(pod, "key", "tenant");
        calls.push(tokio::spawn(async move {
            let sent = wall_clock();
            let said = hit.await;
            assert_ne!(said, Said::Failed, "no verdict");
            Answered { passed: said == Said::Admitted, sent, answered: wall_clock() }
        }));
    }
    join_all(calls).await.into_iter().map(|call| call.expect("a verdict")).collect()
}

/// The requests of each window that were sent and answered in it. One that was answered after the
/// window had ended may belong to either of two.
fn by_window(requests: &[Answered]) -> BTreeMap<u64, OfWindow> {
    let mut windows = BTreeMap::new();
    let window = |at: Duration| at.as_secs() / WINDOW.as_secs();
    for Answered { passed, sent, answered } in requests {
        if window(*sent) == window(*answered) {
            let of_window: &mut OfWindow = windows.entry(window(*sent)).or_default();
            of_window.answered += 1;
            of_window.admitted += u64::from(*passed);
        }
    }
    windows
}

/// Waits until `windows` whole windows have passed.
async fn whole_windows(windows: u64) {
    let begins = (wall_clock().as_secs() / WINDOW.as_secs() + 1 + windows) * WINDOW.as_secs();
    sleep(Duration::from_secs(begins).saturating_sub(wall_clock())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_while_its_tenant_moves_and_pods_hear_of_it_at_different_times() {
    let _shared = MACHINE.read().await;
    let (premium, batch) = (Single::start(), Single::start());
    let env = settings(&premium, &batch);
    let limit = |store: &str| {
        let seconds = WINDOW.as_secs();
        format!(
            "unit: second, unit_multiplier: {seconds}, requests_per_unit: {LIMIT}, failure_mode: \
             deny{store}"
        )
    };
    let (before, moving) = (limit(""), limit(", store: premium, store_from: default"));
    let after = limit(", store: premium");
    let places = Cluster::shared().places();
    let limits = [("key", before.as_str())];
    let pods = Pods::start("moving", 2, &places, &limits, &borrowed(&env)).await;
    let (pods, ends) = (Arc::new(pods), Arc::new(AtomicBool::new(false)));
    let change = async {
        whole_windows(1).await;
        for rules in [&moving, &after] {
            for pod in 0..2 {
                // The other pod still has the old rules for a part of a window.
                sleep(WINDOW * 2 / 5).await;
                pods.change_one(pod, &[("key", rules)]).await;
            }
            // All pods know of the move for a whole window before one hears that it is over.
            whole_windows(1).await;
        }
        ends.store(true, Ordering::Relaxed);
    };
    let (first, second, ()) = tokio::join!(offer(&pods, 0, &ends), offer(&pods, 1, &ends), change);
    let requests: Vec<_> = first.into_iter().chain(second).collect();
    let windows = by_window(&requests);
    println!("limit {LIMIT} in each window of {WINDOW:?}: {windows:?}");
    for (window, OfWindow { answered, admitted }) in &windows {
        assert!(*admitted <= LIMIT, "{admitted} of {LIMIT} in window {window}");
        // Where more was asked for than the limit, most of it was admitted.
        let is_full = *answered > 2 * LIMIT;
        assert!(!is_full || *admitted * 10 >= LIMIT * 8, "{admitted} in window {window}");
    }
    let full = windows.values().filter(|it| it.answered > 2 * LIMIT).count();
    assert!(full >= 4, "the limit was reached in few windows: {windows:?}");
    assert!(!premium.server.keys().is_empty());
    pods.are_unharmed();
}
