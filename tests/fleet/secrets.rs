//! Rolling changes of `KEY_SECRET`, to a new one and back in the same way: counts move to their new
//! names while all pods serve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::drive::Said;
use crate::pods::Pods;
use crate::support::redis::Cluster;
use crate::support::windows::early_in_a_window;
use crate::{DAY, MACHINE};

const PODS: usize = 4;

/// Requests of each limit in its window.
const LIMIT: u64 = 4_000;

/// One limit of each kind of value in Redis. Their windows do not end while the test runs.
const LIMITS: [(&str, &str); 4] = [
    ("window", "unit: day, requests_per_unit: 4000, failure_mode: deny"),
    ("bucket", "unit: year, requests_per_unit: 4000, algorithm: token_bucket, failure_mode: deny"),
    (
        "sliding",
        "unit: year, requests_per_unit: 4000, algorithm: sliding_window, failure_mode: deny",
    ),
    ("log", "unit: year, requests_per_unit: 4000, algorithm: sliding_log, failure_mode: deny"),
];

/// No failure mode answers, however late a busy machine is.
const WAIT: (&str, &str) = ("LEASE_WAIT_LIMIT", "4s");

/// Settings before the secret is replaced.
const OLD: &[(&str, &str)] = &[WAIT, ("KEY_SECRET", "old")];

/// Settings with the new secret, while the old one still names counts.
const BOTH: &[(&str, &str)] = &[WAIT, ("KEY_SECRET", "new"), ("KEY_SECRET_PREVIOUS", "old")];

/// Settings once the old secret is forgotten.
const NEW: &[(&str, &str)] = &[WAIT, ("KEY_SECRET", "new")];

/// Settings that return to the old secret, while the new one still names counts.
const BACK: &[(&str, &str)] = &[WAIT, ("KEY_SECRET", "old"), ("KEY_SECRET_PREVIOUS", "new")];

/// Interval between two hits of one limit by one pod.
const HIT_EVERY: Duration = Duration::from_millis(20);

/// Rounds of hits between two pods that are replaced.
const ROUNDS: u64 = 20;

/// The requests that each limit has admitted, and how often all limits have been asked.
#[derive(Default)]
struct Load {
    admitted: [AtomicU64; LIMITS.len()],
    rounds: AtomicU64,
}

impl Load {
    /// Waits until the pods have been hit for some rounds more.
    async fn goes_on(&self) {
        let until = self.rounds.load(Ordering::Relaxed) + ROUNDS;
        while self.rounds.load(Ordering::Relaxed) < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Hits the pod with every limit until it is stopped.
    async fn hit(self: Arc<Self>, pods: Arc<Pods>, ends: Arc<AtomicBool>) {
        while !ends.load(Ordering::Relaxed) {
            for (at, (key, _)) in LIMITS.iter().enumerate() {
                let said = pods.hit(0, key, "v").await;
                assert_ne!(said, Said::Failed, "{key}");
                self.admitted[at].fetch_add(u64::from(said == Said::Admitted), Ordering::Relaxed);
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(HIT_EVERY).await;
        }
    }
}

/// A pod under load.
struct Loaded {
    pods: Arc<Pods>,
    ends: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Loaded {
    async fn start(domain: &str, env: &[(&str, &str)], load: &Arc<Load>) -> Self {
        let places = Cluster::shared().places();
        let pods = Arc::new(Pods::start(domain, 1, &places, &LIMITS, env).await);
        let ends = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(load).hit(Arc::clone(&pods), Arc::clone(&ends)));
        Self { pods, ends, tasks }
    }

    async fn calm(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("every hit had a verdict");
        }
    }

    /// Ends the load, and then the process, which gives its leases back.
    async fn stop(mut self) {
        self.calm().await;
        self.pods.are_unharmed();
        assert_eq!(self.pods.count("redis_foreign"), 0);
        assert_eq!(self.pods.pods[0].process.stop().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_changes_of_the_secret_there_and_back_admit_each_limit_once() {
    let _alone = MACHINE.write().await;
    early_in_a_window(DAY, Duration::from_secs(300)).await;
    let (domain, load) = ("secrets", Arc::<Load>::default());
    let mut pods = Vec::new();
    for _ in 0..PODS {
        pods.push(Loaded::start(domain, OLD, &load).await);
    }
    for env in [BOTH, NEW, BACK, OLD] {
        for _ in 0..PODS {
            load.goes_on().await;
            pods.remove(0).stop().await;
            pods.push(Loaded::start(domain, env, &load).await);
        }
    }
    for pod in &mut pods {
        pod.calm().await;
    }
    let during = load.admitted.each_ref().map(|it| it.load(Ordering::Relaxed));
    let mut after = [0; LIMITS.len()];
    for (at, (key, _)) in LIMITS.iter().enumerate() {
        for pod in &pods {
            after[at] += pod.pods.drain(1, key, "v").await;
        }
    }
    let total: Vec<u64> = during.iter().zip(after).map(|(during, after)| during + after).collect();
    println!("admitted of {LIMIT}: {total:?}, of these {during:?} during the changes");
    for ((key, _), total) in LIMITS.iter().zip(total) {
        assert!(total <= LIMIT, "{key}: {total}");
        assert!(total >= LIMIT - LIMIT / 100, "{key}: {total}");
    }
    for pod in pods {
        pod.stop().await;
    }
}

/// By the default failure mode, which would admit the limit again for a count that is not found.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_limit_is_admitted_once_while_secrets_go_and_return() {
    let _alone = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(60)).await;
    let limits = [("few", "unit: day, requests_per_unit: 20")];
    let places = Cluster::shared().places();
    let values: Vec<String> = (0..10).map(|nth| nth.to_string()).collect();
    let mut admitted = vec![0; values.len()];
    for (nth, env) in [OLD, BOTH, NEW, BACK, OLD].into_iter().enumerate() {
        let pod = Pods::start("secrets-few", 1, &places, &limits, env).await;
        for (admitted, value) in admitted.iter_mut().zip(&values) {
            for _ in 0..if nth < 4 { 4 } else { 30 } {
                *admitted += u32::from(pod.hit(0, "few", value).await == Said::Admitted);
            }
        }
        assert_eq!((pod.local(), pod.count("redis_foreign")), (0, 0), "change {nth}");
        assert_eq!(pod.pods[0].process.stop().await, 0);
    }
    assert_eq!(admitted, vec![20; values.len()]);
}
