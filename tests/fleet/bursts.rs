//! Thousands of calls at once on few keys, with a Redis that is healthy, late or overdue: the
//! ceilings of a pod are no outage.
//!
//! The test runs a part of the matrix; `RATELEASE_BURSTS=full` runs all of it.

use std::time::Duration;

use futures_util::future::join_all;

use crate::caller::{Caller, charge, passes, request};
use crate::pods::Pods;
use crate::support::now;
use crate::support::proxy::Fault;
use crate::support::redis_cluster::{Cluster, ClusterOptions};
use crate::support::windows::early_in_a_window;
use crate::{DAY, MACHINE};

/// Calls at once, over all pods, in the part of the matrix that runs by default. A machine that is
/// busy with other tests takes seconds for a thousand calls.
const CALLS: usize = 4_000;

/// Calls at once, over all pods, in the whole matrix.
const CALLS_OF_ALL: usize = 10_000;

/// Calls at once on each connection: a client that is slow to read more answers than that gives up.
const CALLS_EACH: usize = 64;

/// Settings of the pods that differ from the defaults. Where Redis is to be in time, requests wait
/// for seconds, as a busy machine needs that long for thousands of calls. All requests may wait at
/// once.
const PATIENT: [(&str, &str); 4] = [
    ("LEASE_MAX_WAIT", "10s"),
    ("LEASE_WAIT_LIMIT", "10s"),
    ("REDIS_TIMEOUT", "5s"),
    ("MAX_IN_FLIGHT", "20000"),
];

const MODES: [&str; 4] = ["local", "allow", "deny", "error"];

/// Limits of the matrix: from far below the calls of a burst to far above.
const LIMITS: [u64; 3] = [10, 500, 100_000];

/// How Redis replies to the asks of a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Redis {
    InTime,
    /// After this time, within the wait of the requests.
    Late(Duration),
    /// After this time, when the requests have given up.
    Overdue(Duration),
}

const REPLIES: [Redis; 4] = [
    Redis::InTime,
    Redis::Late(Duration::from_millis(8)),
    Redis::Late(Duration::from_secs(1)),
    Redis::Overdue(Duration::from_millis(180)),
];

#[derive(Debug, Clone, Copy)]
struct Burst {
    keys: usize,
    limit: u64,
    mode: &'static str,
    redis: Redis,
}

/// The result of a burst.
#[derive(Debug, Default)]
struct Result {
    /// The most requests that passed of one key.
    most: u64,
    /// All requests that passed.
    admitted: u64,
    errors: u64,
    /// Answers of the failure mode, and hits that `allow` did not count.
    answers: u64,
    unmetered: u64,
}

/// Whether to run the whole matrix.
fn is_full() -> bool {
    std::env::var("RATELEASE_BURSTS").is_ok_and(|value| value == "full")
}

fn calls() -> usize {
    if is_full() { CALLS_OF_ALL } else { CALLS }
}

// === impl Burst ===

impl Burst {
    /// The whole matrix.
    fn all() -> Vec<Self> {
        let mut bursts = Vec::new();
        for mode in MODES {
            for keys in [1, 10, 100] {
                for limit in LIMITS {
                    let every = REPLIES.into_iter();
                    bursts.extend(every.map(|redis| Self { keys, limit, mode, redis }));
                }
            }
        }
        bursts
    }

    /// Whether it belongs to the part that runs by default.
    fn is_common(&self, pods: usize) -> bool {
        let is_local = self.mode == "local";
        let chosen = match self.redis {
            Redis::Overdue(_) => is_local,
            redis if pods == 1 => redis == REPLIES[2],
            redis => is_local && redis == REPLIES[1],
        };
        chosen && (self.keys, self.limit) == (1, 500)
    }

    /// The key of its rule.
    fn rule(&self) -> &'static str {
        let all = RULES.iter().find(|it| (it.1, it.2) == (self.mode, self.limit));
        all.expect("a rule for each mode and limit").0
    }

    /// Sends the calls to `pods`, and half as many once all replies have come.
    async fn run(&self, cluster: &Cluster, pods: &Pods, name: &str) -> Result {
        let counts =
            || (pods.count(&format!("failure_mode_{}", self.mode)), pods.count("unmetered_hits"));
        let before = counts();
        let delay = match self.redis {
            Redis::InTime => Duration::ZERO,
            Redis::Late(delay) | Redis::Overdue(delay) => delay,
        };
        let slow = Fault::Latency { delay, jitter: Duration::ZERO };
        cluster.proxies.iter().for_each(|proxy| proxy.set(slow));
        let mut admitted = vec![0; self.keys];
        let mut errors = self.send(pods, name, calls(), &mut admitted).await;
        cluster.proxies.iter().for_each(|proxy| proxy.set(Fault::None));
        tokio::time::sleep(2 * delay).await;
        errors += self.send(pods, name, calls() / 2, &mut admitted).await;
        let after = counts();
        Result {
            most: admitted.iter().copied().max().unwrap_or_default(),
            admitted: admitted.iter().sum(),
            errors,
            answers: after.0 - before.0,
            unmetered: after.1 - before.1,
        }
    }

    /// Sends this many calls at once, adds up the calls of each key that passed, and returns the
    /// number of errors.
    async fn send(&self, pods: &Pods, name: &str, calls: usize, admitted: &mut [u64]) -> u64 {
        let each = calls / pods.pods.len() / CALLS_EACH + 1;
        let callers = async |pod: usize| {
            let open = (0..each).map(|_| Caller::open(pods.pods[pod].process.grpc));
            join_all(open).await
        };
        let mut connections = Vec::new();
        for pod in 0..pods.pods.len() {
            connections.push(callers(pod).await);
        }
        let values: Vec<_> = (0..self.keys).map(|key| format!("{name}-{key}")).collect();
        let asked = (0..calls).map(|call| {
            let (pod, key) = (call % connections.len(), call / connections.len() % self.keys);
            let caller = connections[pod][call / connections.len() % each].clone();
            let request = request(&pods.domain, &[charge(self.rule(), &values[key], 1)]);
            tokio::spawn(async move { (key, caller.ask(request).await) })
        });
        let mut errors = 0;
        for answer in join_all(asked).await {
            match answer.expect("no panic") {
                (key, Ok(answer)) => admitted[key] += u64::from(passes(&answer)),
                (_, Err(error)) => {
                    if errors == 0 {
                        println!("{self:?}: {error}");
                    }
                    errors += 1;
                }
            }
        }
        errors
    }

    /// Maximum number of requests of a key that may pass. While the reply is overdue, each of
    /// several pods admits its part. A lease of one pod may be spent before the leases of the other
    /// pods pay for their parts. A reply that is lost pays for nothing.
    fn bound(&self, pods: u64, has_lost: bool) -> u64 {
        match self.redis {
            Redis::Overdue(_) if self.mode == "local" && (pods > 1 || has_lost) => {
                2 * self.limit + pods
            }
            _ => self.limit,
        }
    }
}

/// A rule for each failure mode and limit.
const RULES: [(&str, &str, u64); 12] = [
    ("local-10", "local", 10),
    ("local-500", "local", 500),
    ("local-100000", "local", 100_000),
    ("allow-10", "allow", 10),
    ("allow-500", "allow", 500),
    ("allow-100000", "allow", 100_000),
    ("deny-10", "deny", 10),
    ("deny-500", "deny", 500),
    ("deny-100000", "deny", 100_000),
    ("error-10", "error", 10),
    ("error-500", "error", 500),
    ("error-100000", "error", 100_000),
];

/// Has each pod use the domain, and waits until all have heard of all: until then their parts of a
/// limit add up to more or less than the limit. A pod shows its count nowhere, so this waits for
/// several heartbeats.
async fn know_each_other(pods: &Pods) {
    for _ in 0..4 {
        for pod in 0..pods.pods.len() {
            pods.hit(pod, RULES[1].0, "known").await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_calls_at_once_are_held_to_the_limit() {
    let _alone = MACHINE.write().await;
    early_in_a_window(DAY, Duration::from_secs(600)).await;
    let cluster = Cluster::start_with(&ClusterOptions::new(3, 0).proxied());
    let limit = |(_, mode, limit): &(&str, &str, u64)| {
        format!("unit: day, requests_per_unit: {limit}, failure_mode: {mode}")
    };
    let limits = RULES.map(|rule| (rule.0, limit(&rule)));
    let limits: Vec<_> = limits.iter().map(|(key, limit)| (*key, limit.as_str())).collect();
    let mut wrong = Vec::new();
    println!(
        "pods keys  limit mode  redis          admitted of a key, in all  errors answers unmetered"
    );
    for pods in [1, 4] {
        let start = async |name: &str, env: &[(&str, &str)]| {
            Pods::start(name, pods, &cluster.places(), &limits, env).await
        };
        let patient = start(&format!("patient-{pods}"), &PATIENT).await;
        let usual = start(&format!("usual-{pods}"), &[]).await;
        know_each_other(&usual).await;
        let chosen = |burst: &Burst| is_full() || burst.is_common(pods);
        for (number, burst) in Burst::all().into_iter().filter(chosen).enumerate() {
            let is_overdue = matches!(burst.redis, Redis::Overdue(_));
            let (fleet, began) = (if is_overdue { &usual } else { &patient }, now());
            let lost = fleet.count("redis_timed_out");
            let result = burst.run(&cluster, fleet, &format!("{number}")).await;
            let Burst { keys, limit, mode, redis } = burst;
            let Result { most, admitted, errors, answers, unmetered } = result;
            let redis = format!("{redis:?}");
            println!(
                "{pods:>4} {keys:>4} {limit:>6} {mode:<5} {redis:<16} {most:>8} {admitted:>8} \
                 {errors:>6} {answers:>6} {unmetered:>6}  {:.1?}",
                began.elapsed()
            );
            let passes = mode == "allow" && is_overdue;
            let has_lost = fleet.count("redis_timed_out") > lost;
            let bound = burst.bound(pods as u64, has_lost) + if passes { unmetered } else { 0 };
            let fails = errors > 0 && !(mode == "error" && is_overdue);
            let uncounted = unmetered > 0 && !is_overdue;
            if most > bound || fails || uncounted {
                wrong.push(format!("{pods} pods, {burst:?}: {result:?}, at most {bound}"));
            }
        }
        patient.are_unharmed();
        usual.are_unharmed();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
