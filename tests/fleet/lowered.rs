//! A limit that is lowered while pods hold tokens of it.

use std::time::Duration;

use crate::caller::charge;
use crate::pods::Pods;
use crate::support::redis::Cluster;
use crate::{DAY, MACHINE, early_in_a_window};

const PODS: usize = 2;

fn rule(limit: u64) -> String {
    format!("unit: day, requests_per_unit: {limit}")
}

/// Admits `first` under the limit `before`, lowers it to `then`, and admits all requests that may
/// pass.
async fn lowered(pods: &Pods, value: &str, before: u64, first: u64, then: u64) -> u64 {
    pods.change(&[("key", &rule(before)), (value, &rule(1))]).await;
    for number in 0..first {
        let caller = &pods.pods[usize::try_from(number).unwrap() % PODS].caller;
        assert!(caller.passes(&pods.domain, &[charge("key", value, 1)]).await, "{number}");
    }
    pods.change(&[("key", &rule(then)), (value, &rule(1))]).await;
    first + pods.drain(PODS, "key", value).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_below_what_is_lent_holds_at_once() {
    let _shared = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(120)).await;
    let places = Cluster::shared().places();
    let pods = Pods::start("lowered", PODS, &places, &[("key", &rule(1_000))], &[]).await;
    let mut wrong = Vec::new();
    for (before, first, then) in [
        (1_000, 100, 500),
        (1_000, 100, 101),
        (1_000, 100, 50),
        (1_000, 600, 601),
        (1_000, 600, 100),
        (1_000, 10, 0),
        (10, 2, 3),
    ] {
        let admitted = pods.undisturbed(async |round| {
            let value = format!("v{before}-{first}-{then}-{round}");
            lowered(&pods, &value, before, first, then).await
        });
        let (admitted, most) = (admitted.await, first.max(then));
        println!("{before} lowered to {then} after {first}: {admitted} admitted, at most {most}");
        if admitted > most || admitted * 100 < most * 99 {
            wrong.push((before, first, then, admitted));
        }
    }
    assert!(wrong.is_empty(), "limit, admitted, new limit, admitted in all: {wrong:?}");
    pods.are_unharmed();
}
