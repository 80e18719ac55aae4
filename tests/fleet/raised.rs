//! Limits that are raised, and lowered, while their keys are used up: the new limit acts at once,
//! and the time to wait that an answer says is true.

use std::time::Duration;

use crate::MACHINE;
use crate::caller::{charge, passes, request};
use crate::pods::Pods;
use crate::support::now;
use crate::support::redis::Cluster;

const PODS: usize = 2;

/// Attempts at a round whose answers are in time to be judged.
const ROUNDS_MAX: usize = 5;

/// Limits of one key: it is used up under `before`, and then has the limit `then`, under which its
/// next token comes within this many seconds.
struct Case {
    key: &'static str,
    before: &'static str,
    then: &'static str,
    within: u64,
}

const CASES: [Case; 8] = [
    Case {
        key: "token-bucket-of-one",
        before: "unit: hour, requests_per_unit: 120, algorithm: token_bucket, burst: 1",
        then: "unit: hour, requests_per_unit: 900, algorithm: token_bucket, burst: 1",
        within: 4,
    },
    Case {
        key: "token-bucket",
        before: "unit: hour, requests_per_unit: 12, algorithm: token_bucket",
        then: "unit: hour, requests_per_unit: 900, algorithm: token_bucket",
        within: 0,
    },
    Case {
        key: "token-bucket-with-a-larger-burst",
        before: "unit: hour, requests_per_unit: 12, algorithm: token_bucket, burst: 2",
        then: "unit: hour, requests_per_unit: 12, algorithm: token_bucket, burst: 5",
        within: 0,
    },
    Case {
        key: "token-bucket-with-a-smaller-burst",
        before: "unit: hour, requests_per_unit: 900, algorithm: token_bucket, burst: 40",
        then: "unit: hour, requests_per_unit: 900, algorithm: token_bucket, burst: 2",
        // The time of two tokens: a started one stays in the debt of the smaller bucket.
        within: 8,
    },
    Case {
        key: "leaky-bucket",
        before: "unit: hour, requests_per_unit: 120, algorithm: leaky_bucket",
        then: "unit: hour, requests_per_unit: 900, algorithm: leaky_bucket",
        within: 4,
    },
    Case {
        key: "fixed-window",
        before: "unit: day, requests_per_unit: 12",
        then: "unit: day, requests_per_unit: 24",
        within: 0,
    },
    Case {
        key: "sliding-window",
        before: "unit: day, requests_per_unit: 12, algorithm: sliding_window",
        then: "unit: day, requests_per_unit: 24, algorithm: sliding_window",
        within: 0,
    },
    Case {
        key: "sliding-log",
        before: "unit: day, requests_per_unit: 12, algorithm: sliding_log",
        then: "unit: day, requests_per_unit: 24, algorithm: sliding_log",
        within: 0,
    },
];

/// Whether a hit on one of the pods passes, and after how many seconds it is said to.
async fn ask(pods: &Pods, pod: usize, key: &'static str, value: &str) -> (bool, u64) {
    let request = request(&pods.domain, &[charge(key, value, 1)]);
    let answer = pods.pods[pod].caller.clone().ask(request).await.expect("a verdict");
    let reset = answer.statuses[0].duration_until_reset.expect("a limit applies");
    (passes(&answer), u64::try_from(reset.seconds).expect("a time to come"))
}

/// Uses up the key of `case` under its first limit, changes the limit, and checks the answers.
/// Returns whether they came in time to be judged: a busy machine may be late.
async fn changed(pods: &Pods, case: &Case, value: &str) -> Result<bool, String> {
    let Case { key, before, then, within } = *case;
    // `value` makes each file differ from the one before.
    let marker = (value, "unit: day, requests_per_unit: 1");
    pods.change(&[(key, before), marker]).await;
    while ask(pods, 0, key, value).await.0 {}
    assert!(!ask(pods, 1, key, value).await.0, "{key} is used up");
    pods.change(&[(key, then), marker]).await;

    let changed_at = now();
    let (passed, said) = ask(pods, 0, key, value).await;
    println!("{key}: passes at once: {passed}; else after {said} s");
    if passed {
        return Ok(true);
    }
    if said > within {
        return Err(format!("{key}: denied for {said} s, at most {within} s are right"));
    }
    // The time is cut up to whole seconds.
    let too_early = Duration::from_secs(said).saturating_sub(Duration::from_millis(1_500));
    tokio::time::sleep(too_early.saturating_sub(changed_at.elapsed())).await;
    if said > 1 && ask(pods, 1, key, value).await.0 {
        if changed_at.elapsed() >= Duration::from_secs(said - 1) {
            return Ok(false);
        }
        return Err(format!("{key}: passed before the {said} s that were said"));
    }
    tokio::time::sleep(Duration::from_secs(said).saturating_sub(changed_at.elapsed())).await;
    // The answer came a little later than the clock was read.
    tokio::time::sleep(Duration::from_millis(50)).await;
    if !ask(pods, 0, key, value).await.0 {
        return Err(format!("{key}: denied after the {said} s that were said"));
    }
    println!("{key}: passed {:?} after the change", changed_at.elapsed());
    Ok(true)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_limit_acts_at_once_and_the_time_it_says_is_true() {
    let _shared = MACHINE.read().await;
    let places = Cluster::shared().places();
    let first = [("any", "unit: day, requests_per_unit: 1")];
    let pods = Pods::start("raised", PODS, &places, &first, &[]).await;
    let mut wrong = Vec::new();
    for case in &CASES {
        let judged = pods.undisturbed(async |round| {
            for again in 0..ROUNDS_MAX {
                if changed(&pods, case, &format!("round-{round}-{again}")).await? {
                    return Ok(());
                }
            }
            Err(format!("{}: {ROUNDS_MAX} rounds were too late to judge", case.key))
        });
        wrong.extend(judged.await.err());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    pods.are_unharmed();
}
