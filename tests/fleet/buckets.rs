//! Token buckets whose burst is far below the usual size of a lease: pods admit as much as one
//! exact server would.

use std::fmt::Write;
use std::time::Duration;

use ratelease_rules::{Algorithm, Limit, Unit};
use tokio::time::Instant;

use crate::MACHINE;
use crate::demand::Arrival;
use crate::drive::{Said, count, drive};
use crate::oracle::Exact;
use crate::pods::Pods;
use crate::support::now;
use crate::support::redis::Cluster;

const SPAN: Duration = Duration::from_secs(3);

/// Minimum of the requests that the pods admit, as a fraction of those that one exact server
/// admits.
const PART_MIN: f64 = 0.95;

/// Maximum number of rounds, one of which must reach the minimum: a busy machine may stall a
/// process for as long as these bursts last. A shortfall of the pods themselves would show in each
/// round.
const ROUNDS_MAX: usize = 4;

/// A limit of `rate` a second with a `burst`, offered `offered` requests a second evenly.
struct Cell {
    key: &'static str,
    rate: u32,
    burst: u32,
    offered: u32,
}

const CELLS: [Cell; 3] = [
    Cell { key: "fast", rate: 1_000, burst: 10, offered: 950 },
    Cell { key: "medium", rate: 200, burst: 10, offered: 190 },
    Cell { key: "slow", rate: 100, burst: 1, offered: 50 },
];

impl Cell {
    fn rule(&self) -> String {
        let Self { rate, burst, .. } = self;
        format!("unit: second, requests_per_unit: {rate}, algorithm: token_bucket, burst: {burst}")
    }

    fn exact(&self) -> Exact {
        let algorithm = Algorithm::token_bucket(self.burst.into());
        Exact::new(Limit { algorithm, ..Limit::fixed_window(self.rate.into(), Unit::Second) })
    }

    /// Number of requests that one exact server admits, of those that arrive at these times.
    fn expected(&self, mut times: Vec<Duration>) -> usize {
        times.sort_unstable();
        let mut exact = self.exact();
        // The oracle takes any times since the epoch.
        times.into_iter().filter(|time| exact.admits(SPAN + *time)).count()
    }

    /// The requests that the pods admit, as a fraction of those that one exact server would admit
    /// at the same times. A pod decides at some moment between request and answer. A stall of the
    /// machine can bunch the times of the requests or the times of the answers, but not both.
    async fn offer(&self, pods: &Pods) -> f64 {
        let requests = self.offered * u32::try_from(SPAN.as_secs()).unwrap();
        let due = |number| Duration::from_secs(1) * number / self.offered;
        let pod = |number| usize::try_from(number).unwrap() % pods.pods.len();
        let arrivals = (0..requests).map(|number| Arrival { at: due(number), pod: pod(number) });
        let (local, start) = (pods.local(), Instant::from_std(now()));
        let send = |pod| pods.hit(pod, self.key, "only");
        let answers = drive(arrivals, start, Duration::MAX, send).await;
        let expected = self
            .expected(answers.iter().map(|answer| answer.issued).collect())
            .min(self.expected(answers.iter().map(|answer| answer.answered).collect()));
        let admitted = count(&answers, Said::Admitted);
        let part = admitted as f64 / expected as f64;
        let mut late: Vec<_> = answers.iter().map(|it| it.answered - it.issued).collect();
        late.sort_unstable();
        println!(
            "{} a second, burst {}, {} offered to {} pods: {admitted} of {requests}, {expected} by \
             one exact server: {part:.4}; {} failed, {} without Redis, p50 {:?}, p99 {:?}",
            self.rate,
            self.burst,
            self.offered,
            pods.pods.len(),
            count(&answers, Said::Failed),
            pods.local() - local,
            late[late.len() / 2],
            late[late.len() * 99 / 100],
        );
        part
    }
}

async fn keep_up(pods: usize) {
    let _alone = MACHINE.write().await;
    let rules = CELLS.map(|cell| (cell.key, cell.rule()));
    let rules: Vec<_> = rules.iter().map(|(key, rule)| (*key, rule.as_str())).collect();
    let domain = format!("buckets-{pods}");
    let pods = Pods::start(&domain, pods, &Cluster::shared().places(), &rules, &[]).await;
    let mut wrong = String::new();
    for cell in &CELLS {
        let mut parts = Vec::new();
        while parts.len() < ROUNDS_MAX && parts.last().is_none_or(|part| *part < PART_MIN) {
            parts.push(cell.offer(&pods).await);
        }
        if parts.last().is_none_or(|part| *part < PART_MIN) {
            writeln!(wrong, "{}: {parts:.4?}", cell.rule()).unwrap();
        }
    }
    pods.are_unharmed();
    assert!(wrong.is_empty(), "less than {PART_MIN} of what one exact server admits:\n{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_admits_what_a_bucket_with_a_small_burst_has() {
    keep_up(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_pods_admit_what_a_bucket_with_a_small_burst_has() {
    keep_up(4).await;
}
