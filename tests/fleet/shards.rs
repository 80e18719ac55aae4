//! `shards` is changed under load: the limit stays the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::demand::Demand;
use crate::drive::{Said, count, drive};
use crate::pods::Pods;
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::rng::Rng;
use crate::support::windows::early_in_a_window;
use crate::{HOUR, MACHINE};

const LIMIT: u64 = 1_000;

/// Pods that share the limit.
const PODS: usize = 4;

/// Requests a second.
const RATE: f64 = 120.0;

/// Requests of a round.
const OFFERED: usize = 2_400;

/// Maximum time until enough requests have been admitted to change `shards`, on a busy machine.
const ADMITTED_MAX: Duration = Duration::from_secs(30);

fn rule(shards: u32) -> String {
    format!("unit: hour, requests_per_unit: {LIMIT}, shards: {shards}")
}

/// Returns the number of requests that the pods admit of those offered while `shards` changes, and
/// that number plus the requests that they admit afterwards. Fails the test if a request has no
/// verdict.
async fn offer(pods: &Pods, round: usize) -> [u64; 2] {
    // The file contains the number of the round, so that the pods have a change to load.
    let numbered = format!("unit: day, requests_per_unit: {}", round + 1);
    pods.change(&[("key", &rule(1)), ("round", &numbered)]).await;
    let value = format!("round-{round}");
    let admitted = Arc::new(AtomicU64::new(0));
    let send = |pod| {
        let (hit, admitted) = (pods.hit(pod, "key", &value), Arc::clone(&admitted));
        async move {
            let said = hit.await;
            admitted.fetch_add(u64::from(said == Said::Admitted), Ordering::Relaxed);
            said
        }
    };
    let demand = Demand { rate: RATE, weights: vec![1.0; PODS], moves_every: None };
    let arrivals = demand.arrivals(Rng::new().next_u64(), Duration::MAX).take(OFFERED);
    let start = Instant::from_std(now());
    let load = drive(arrivals, start, Duration::MAX, send);
    let (answers, ()) = tokio::join!(load, change(pods, &admitted));
    assert_eq!(count(&answers, Said::Failed), 0);
    let admitted = count(&answers, Said::Admitted);
    let later = pods.drain(PODS, "key", &value).await;
    println!("{admitted} of {LIMIT} admitted under load, {later} more when asked again and again");
    [admitted, admitted + later]
}

/// Changes `shards` each time a further number of requests has been admitted.
async fn change(pods: &Pods, admitted: &AtomicU64) {
    for (after, shards) in [(LIMIT / 5, 4), (LIMIT * 9 / 20, 2), (LIMIT * 7 / 10, 1)] {
        let seen = async {
            while admitted.load(Ordering::Relaxed) < after {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::time::timeout(ADMITTED_MAX, seen).await;
        assert!(seen.is_ok(), "{after} are never admitted: {admitted:?}");
        let before = admitted.load(Ordering::Relaxed);
        pods.change(&[("key", &rule(shards))]).await;
        let after = admitted.load(Ordering::Relaxed);
        println!("{shards} shards in the files after {before} admitted, in force after {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_while_its_shards_change() {
    let _shared = MACHINE.read().await;
    early_in_a_window(HOUR, Duration::from_secs(120)).await;
    let one = rule(1);
    let limits = [("key", one.as_str())];
    let pods = Pods::start("shards", PODS, &Cluster::shared().places(), &limits, &[]).await;
    let offered = pods.undisturbed(async |round| offer(&pods, round).await).await;
    let [admitted, in_all] = offered;
    println!("L {LIMIT}, {OFFERED} offered to {PODS} pods, shards 1, 4, 2, 1: {admitted} admitted");
    assert!(in_all <= LIMIT, "{in_all} of {LIMIT}");
    assert!(admitted * 100 >= LIMIT * 95, "{admitted} of {LIMIT}");
    pods.are_unharmed();
}
