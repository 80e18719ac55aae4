//! The unspent tokens of a pod that ends go to the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::MAX_WAIT;
use super::demand::Demand;
use super::drive::{Said, count, drive};
use super::fleet::Fleet;
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::rng::Rng;

const SPAN: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn what_a_closing_pod_had_left_is_admitted_by_another() {
    for limit in [200, 10_000] {
        let prefix = format!("hand-over-{limit}");
        let rules = [("key".to_owned(), format!("unit: year, requests_per_unit: {limit}"))];
        let fleet = Fleet::start(Cluster::shared(), &prefix, 2, &rules, MAX_WAIT).await;
        let fleet = Arc::new(fleet);
        let by_first = offer(&fleet, 0, limit / 2).await;
        fleet.pods[0].close().await;
        let by_second = offer(&fleet, 1, limit).await;
        let admitted = by_first + by_second;
        println!(
            "L {limit}: {by_first} admitted by a pod that then closes, {by_second} by the next: \
             {:.4} L",
            admitted as f64 / limit as f64
        );
        assert_eq!(by_first, limit / 2);
        assert!(admitted <= limit && admitted * 1_000 >= limit * 999, "{admitted} of {limit}");
    }
}

/// Number of `requests` to one pod that it admits.
async fn offer(fleet: &Fleet, pod: usize, requests: u64) -> u64 {
    let rate = requests as f64 / SPAN.as_secs_f64();
    let demand = Demand { rate, weights: vec![1.0], moves_every: None };
    let arrivals = demand.arrivals(Rng::new().next_u64(), Duration::MAX);
    let arrivals = arrivals.take(usize::try_from(requests).unwrap());
    let start = Instant::from_std(now());
    let answers = drive(arrivals, start, Duration::MAX, |_| fleet.decide(pod, "key")).await;
    assert_eq!(count(&answers, Said::Failed), 0);
    count(&answers, Said::Admitted)
}
