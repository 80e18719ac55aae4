//! Limits that are lowered while pods hold tokens of them.

use std::time::Duration;

use futures_util::future::join_all;

use crate::caller::charge;
use crate::pods::Pods;
use crate::support::redis::Cluster;
use crate::support::windows::early_in_a_window;
use crate::{DAY, MACHINE};

const PODS: usize = 2;

/// A key whose limit is `before` while `first` requests are admitted, and `then` after that.
struct Case {
    key: &'static str,
    before: u64,
    first: u64,
    then: u64,
}

/// All of them change at once, with the same file.
const CASES: [Case; 7] = [
    Case { key: "to-half", before: 1_000, first: 100, then: 500 },
    Case { key: "to-one-left", before: 1_000, first: 100, then: 101 },
    Case { key: "below-what-passed", before: 1_000, first: 100, then: 50 },
    Case { key: "late-to-one-left", before: 1_000, first: 600, then: 601 },
    Case { key: "late-below-what-passed", before: 1_000, first: 600, then: 100 },
    Case { key: "to-nothing", before: 1_000, first: 10, then: 0 },
    Case { key: "of-few-tokens", before: 10, first: 2, then: 3 },
];

fn rules(limit: fn(&Case) -> u64) -> Vec<(&'static str, String)> {
    let rule = |case| format!("unit: day, requests_per_unit: {}", limit(case));
    CASES.iter().map(|case| (case.key, rule(case))).collect()
}

/// Gives the pods these limits. `round` makes each file differ from the one before.
async fn change(pods: &Pods, limits: &[(&'static str, String)], round: &str) {
    let mut all: Vec<_> = limits.iter().map(|(key, limit)| (*key, limit.as_str())).collect();
    all.push((round, "unit: day, requests_per_unit: 1"));
    pods.change(&all).await;
}

/// Lowers the limits of all keys after their first requests; returns how many requests each key
/// admits in all, of those that may pass.
async fn lowered(pods: &Pods, round: usize) -> Vec<u64> {
    let value = &format!("round-{round}");
    change(pods, &rules(|case| case.before), value).await;
    join_all(CASES.iter().map(async |case| {
        for number in 0..case.first {
            let caller = &pods.pods[usize::try_from(number).unwrap() % PODS].caller;
            let passes = caller.passes(&pods.domain, &[charge(case.key, value, 1)]).await;
            assert!(passes, "{}: {number}", case.key);
        }
    }))
    .await;
    change(pods, &rules(|case| case.then), value).await;
    join_all(CASES.iter().map(async |case| case.first + pods.drain(PODS, case.key, value).await))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_lowered_below_what_is_leased_holds_at_once() {
    let _shared = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(120)).await;
    let places = Cluster::shared().places();
    let first = [("to-half", "unit: day, requests_per_unit: 1")];
    let pods = Pods::start("lowered", PODS, &places, &first, &[]).await;
    let admitted = pods.undisturbed(async |round| lowered(&pods, round).await).await;
    let mut wrong = Vec::new();
    for (Case { key, before, first, then }, admitted) in CASES.iter().zip(admitted) {
        let most = *first.max(then);
        println!("{key}: {before} lowered to {then} after {first}: {admitted}, at most {most}");
        if admitted > most || admitted * 100 < most * 99 {
            wrong.push((key, admitted, most));
        }
    }
    assert!(wrong.is_empty(), "key, admitted, and at most that many: {wrong:?}");
    pods.are_unharmed();
}
