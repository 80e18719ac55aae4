//! The whole limit passes, however the demand is spread over the pods, and few are denied too
//! early.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::MAX_WAIT;
use super::demand::Demand;
use super::drive::{Answer, Said, count, drive};
use super::fleet::Fleet;
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::rng::Rng;

/// Relative demand of the four pods.
const SKEW: [f64; 4] = [7.0, 1.5, 1.0, 0.5];

/// A year replaces the hour of the promise: leases are sized by what remains and by the time until
/// the window ends, which is far off in both cases, and no year ends while a test runs.
fn rule(limit: u64) -> String {
    format!("unit: year, requests_per_unit: {limit}")
}

/// Sends `offered` requests for a key limited to `limit`, spread over `span`.
async fn run(prefix: &str, limit: u64, offered: u64, span: Duration) -> Vec<Answer> {
    let rules = [("key".to_owned(), rule(limit))];
    let fleet = Arc::new(Fleet::start(Cluster::shared(), prefix, 4, &rules, MAX_WAIT).await);
    let rate = offered as f64 / span.as_secs_f64();
    let demand = Demand { rate, weights: SKEW.to_vec(), moves_every: None };
    let arrivals = demand.arrivals(Rng::new().next_u64(), Duration::MAX);
    let arrivals = arrivals.take(usize::try_from(offered).unwrap());
    let start = Instant::from_std(now());
    drive(arrivals, start, Duration::MAX, |pod| fleet.decide(pod, "key")).await
}

/// Requests that were falsely denied, by two definitions:
///
/// 1. *out of turn*: of the first `limit` requests, which one exact server would have let pass,
///    those that were denied;
/// 2. *too early*: those denied before the last one was admitted, while the store or some pod
///    still had a token.
///
/// Requests are interchangeable: the first definition counts the requests that were denied
/// needlessly. The second also counts denials at other pods while the pod with the fewest requests
/// spends its last token, however few requests it has. It does not include tokens that were never
/// used: the admitted share shows them.
fn falsely_denied(answers: &[Answer], limit: u64) -> [u64; 2] {
    let first = &answers[..answers.len().min(usize::try_from(limit).unwrap())];
    let admitted = answers.iter().filter(|answer| answer.said == Said::Admitted);
    let last = admitted.map(|answer| answer.answered).max().unwrap_or_default();
    let early =
        answers.iter().filter(|answer| answer.said == Said::Denied && answer.answered < last);
    [count(first, Said::Denied), early.count() as u64]
}

async fn over_subscribed(limit: u64, span: Duration) {
    let offered = limit * 5 / 2;
    let answers = run(&format!("over-{limit}"), limit, offered, span).await;
    let admitted = count(&answers, Said::Admitted);
    let failed = count(&answers, Said::Failed);
    let falsely = falsely_denied(&answers, limit);
    let [out_of_turn, too_early] = falsely.map(|denied| denied as f64 / offered as f64);
    println!(
        "L {limit}, 2.5 L offered to four pods at {SKEW:?}: admitted {:.4} L, falsely denied \
         {:.3} % out of turn, {:.3} % too early, failed {failed}",
        admitted as f64 / limit as f64,
        100.0 * out_of_turn,
        100.0 * too_early,
    );
    assert_eq!(failed, 0);
    assert!(admitted <= limit, "{admitted} of {limit}");
    assert!(admitted * 1_000 >= limit * 995, "{admitted} of {limit}");
    assert!(out_of_turn <= 0.015, "{falsely:?} of {offered}");
    // 0.1 to 0.6 % were observed for the large limit, and 8 % on a very busy machine. Pods that do
    // not give tokens back deny all of the 60 % too early.
    assert!(too_early <= 0.2, "{falsely:?} of {offered}");
}

async fn within_the_limit(limit: u64, span: Duration) {
    let offered = limit * 95 / 100;
    let answers = run(&format!("within-{limit}"), limit, offered, span).await;
    let [admitted, denied] = [Said::Admitted, Said::Denied].map(|said| count(&answers, said));
    println!(
        "L {limit}, 0.95 L offered to four pods at {SKEW:?}: {admitted} of {offered} admitted"
    );
    assert_eq!((admitted, denied), (offered, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn four_pods_admit_a_large_limit_and_deny_few_too_early() {
    over_subscribed(40_000, Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_pods_admit_a_small_limit_and_deny_few_too_early() {
    over_subscribed(200, Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn below_the_limit_no_request_is_denied() {
    within_the_limit(40_000, Duration::from_secs(5)).await;
    within_the_limit(200, Duration::from_secs(5)).await;
}
