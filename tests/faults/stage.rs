//! Pods behind an Envoy under load, and their counts.
//!
//! At full scale every test has the machine to itself, since time is part of the measurement, and
//! `scripts/faults` runs one at a time. At small scale, whose bounds allow for a busy machine, four
//! run at a time: they wait most of the time. Windows are days, so that none ends during a test.
//! The load goes to [`TIGHT`], whose limit is reached; to warm keys, of which the pods hold tokens;
//! and to new keys continually, of which they hold none. The limit of the last two kinds is not
//! reached: their requests must all pass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::row::Row;
use crate::stand::{PATIENT, Rules, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::http;
use crate::support::now;
use crate::support::paced::{Paced, RunningPaced, Samples};
use crate::support::ratelease::Ratelease;
use crate::support::redis::Cluster;
use crate::support::redis_server::Server;
use crate::warm::warm;

/// The size of the rows: small by default, for a debug build on a busy machine.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub is_full: bool,
    /// Requests a second.
    pub rate: u32,
    /// How long Envoy waits for an answer.
    pub envoy_timeout: Duration,
    /// The percentile of latency that is judged, at the client and through Envoy, and its maximum.
    pub percent: usize,
    pub latency_max: Duration,
}

/// The configuration of a row's stage.
pub struct Plan<'a> {
    /// The domain of the rules and of the keys in Redis: one for each test.
    pub domain: &'a str,
    pub cluster: &'a Cluster,
    pub pods: usize,
    /// The limit of [`TIGHT`]: the load offers more than twice as much.
    pub tight: u64,
    /// Additional fields in the `rate_limit` of all other paths, such as `, lease: {max: 5}`.
    pub options: &'a str,
    /// Additional rules.
    pub more: String,
    /// The environment of each pod.
    pub env: Vec<(&'a str, &'a str)>,
    /// Replaces the scale's timeout.
    pub envoy_timeout: Option<Duration>,
    /// Whether exactly the leased tokens must pass. Then the failure mode is `deny`: a stall of a
    /// busy machine, which opens a breaker as a stall of Redis does, costs a denial.
    pub exact: bool,
}

/// The running processes of a row.
pub struct Stage {
    pub rules: Rules,
    pub pods: Vec<Ratelease>,
    pub envoy: Envoy,
    pub scale: Scale,
    pub tight: u64,
    exact: bool,
    /// The settings behind the row's figures, to be noted in the row.
    pub settings: String,
    prefix: String,
    stalls: Stalls,
}

/// When a thread woke up that does nothing but sleep, and how late: a busy machine delays every
/// process so. The thread ends when this is dropped.
struct Stalls(Arc<Mutex<Vec<(Instant, Duration)>>>);

/// See [`turn`].
static TURNS: Semaphore = Semaphore::const_new(4);

/// The path whose limit is reached; the first of [`paths`].
pub const TIGHT: &str = "/tight";

/// Limit per day of every other path, by scale: more than a test spends, and small enough that a
/// pod does not hold tokens for minutes.
pub fn plenty() -> u64 {
    Scale::of_env().pick(10_000, 100_000)
}

/// Warm keys: enough for each shard to own some of them.
const WARM_PATHS: usize = 8;

/// Number of [`paths`] that are new keys.
const NEW_PATHS: usize = 4;

/// Default maximum wait of a request for a lease.
const LEASE_WAIT: Duration = Duration::from_millis(5);

/// Envoy keeps its connections, so that each end takes the whole notice: a quarter of this. Leases
/// are given back in the last quarter.
const DRAIN: (&str, &str) = ("DRAIN_TIMEOUT", "4s");

/// Interval at which [`Stalls`] looks.
const STALL_POLL: Duration = Duration::from_millis(10);

/// Interval at which [`time_until`] checks.
const POLL: Duration = Duration::from_millis(20);

// === impl Scale ===

impl Scale {
    /// The scale that `RATELEASE_FAULTS` names.
    pub fn of_env() -> Self {
        if std::env::var("RATELEASE_FAULTS").is_ok_and(|scale| scale == "full") {
            Self {
                is_full: true,
                rate: 2000,
                envoy_timeout: Duration::from_millis(20),
                percent: 99,
                latency_max: Duration::from_millis(5),
            }
        } else {
            // The machine may be compiling: the test shows that no request waits for Redis, whose
            // own time-out is 250 ms.
            Self {
                is_full: false,
                rate: 200,
                envoy_timeout: Duration::from_secs(5),
                percent: 95,
                latency_max: Duration::from_millis(200),
            }
        }
    }

    /// Returns one of the two values, by scale.
    pub fn pick<T>(&self, small: T, full: T) -> T {
        if self.is_full { full } else { small }
    }
}

// === impl Plan ===

impl<'a> Plan<'a> {
    /// Two pods with the default settings.
    pub fn new(domain: &'a str, cluster: &'a Cluster) -> Self {
        let (tight, env) = (Scale::of_env().pick(40, 400), Vec::new());
        Self {
            domain,
            cluster,
            pods: 2,
            tight,
            options: "",
            more: String::new(),
            env,
            envoy_timeout: None,
            exact: false,
        }
    }

    /// Starts the stage. The test must hold its [`turn`] already.
    pub async fn start(self) -> Stage {
        let scale = Scale::of_env();
        clear_of_midnight().await;
        let rules = Rules::new(&self.rules());
        let (prefix, exact, tight) = (format!("{}-", self.domain), self.exact, self.tight);
        let mut pods = Vec::new();
        for _ in 0..self.pods {
            let mut env = vec![("CACHE_KEY_PREFIX", prefix.as_str()), DRAIN];
            env.extend(&self.env);
            pods.push(Ratelease::start(rules.path(), &self.cluster.places(), &env).await);
        }
        let addrs: Vec<_> = pods.iter().map(|pod| pod.grpc).collect();
        let timeout = self.envoy_timeout.unwrap_or(scale.envoy_timeout);
        let options = EnvoyOptions { timeout, ..EnvoyOptions::new(self.domain, &addrs) };
        let envoy = Envoy::start(options).await;
        let settings = self.settings(timeout);
        let stalls = Stalls::watch();
        Stage { rules, pods, envoy, scale, tight, exact, settings, prefix, stalls }
    }

    /// The settings that differ from the defaults, and make requests wait or be denied instead of
    /// failing.
    fn settings(&self, envoy_timeout: Duration) -> String {
        let mut all = vec![format!("Envoy's time-out {envoy_timeout:?}")];
        all.extend(
            PATIENT.iter().filter(|it| self.env.contains(it)).map(|(k, v)| format!("{k}={v}")),
        );
        all.extend(self.exact.then(|| "failure_mode: deny".to_owned()));
        format!("with {}", all.join(", "))
    }

    fn rules(&self) -> String {
        let rest = format!(
            "- {{key: path, rate_limit: {{unit: day, requests_per_unit: {}{}}}}}\n",
            plenty(),
            self.options
        );
        let rules =
            file(self.domain, &[rule("path", Some(TIGHT), self.tight), self.more.clone(), rest]);
        let defaults = if self.exact { "defaults: {failure_mode: deny}\n" } else { "" };
        format!("{defaults}{rules}")
    }
}

// === impl Stage ===

impl Stage {
    /// Starts the load and lets it run until every key is warm.
    pub async fn load(&self, cluster: &Cluster) -> RunningPaced {
        self.load_of(&paths(), cluster).await
    }

    /// As [`Stage::load`], on the given paths.
    pub async fn load_of(&self, paths: &[String], cluster: &Cluster) -> RunningPaced {
        let load = Paced::new(paths, self.scale.rate).start(self.envoy.ingress);
        warm(&load, paths.len(), cluster, &self.prefix, self.pods.len()).await;
        load
    }

    /// Number of errors so far, as Envoy counts them.
    pub async fn errors(&self) -> u64 {
        let verdicts = self.envoy.verdicts().await;
        verdicts.error + verdicts.failure_mode_allowed
    }

    /// Judges the samples of the load: no errors at Envoy or at the client, all requests of
    /// plentiful keys passed, and the tight key stayed within its bound.
    pub async fn judge(&self, row: &mut Row, samples: &Samples, bound: u64) {
        if self.exact {
            row.errors(self.errors().await + samples.tally().faults());
            let (sent, denied) = (samples.0.len() as u64, denied_of_plenty(samples));
            row.note(&format!("{sent} requests, {denied} denied in stalls of the machine"));
            row.holds(denied <= sent / 10, "hardly anything was lent: the row shows nothing");
        } else {
            judge_errors(row, samples, self.errors().await);
        }
        row.admitted(samples.of(|path| path == 0).passed(), bound);
    }

    /// Judges the answers' latency between two instants: on warm keys, and on keys that wait for a
    /// lease, which may take the maximum wait for one in addition.
    pub fn judge_latency(&self, row: &mut Row, samples: &Samples, from: Instant, to: Instant) {
        let Scale { is_full, percent, mut latency_max, .. } = self.scale;
        let spell = samples.between(from, to);
        let calm = samples.only(|sample| sample.due < from);
        row.note(&format!("calm p99 {:.1?}", calm.latency(99)));
        // A busy machine also slows the calm period before the fault, and stalls.
        latency_max = if is_full {
            latency_max.max(calm.latency(percent))
        } else {
            latency_max + 4 * calm.latency(percent) + self.stalls.longest(from, to)
        };
        let (warm, others) = (spell.of(is_warm), spell.of(|path| !is_warm(path)));
        for (name, part, max) in
            [("warm", warm, latency_max), ("new", others, latency_max + LEASE_WAIT)]
        {
            row.note(&format!("{name} p99 {:.1?}", part.latency(99)));
            let latency = part.latency(percent);
            let broken = format!("{percent} % of {name} keys within {latency:.1?}, not {max:?}");
            row.holds(latency <= max, &broken);
        }
    }

    /// Resident memory of the largest pod, in bytes.
    pub fn resident(&self) -> u64 {
        self.pods.iter().map(|pod| pod.process.memory("VmRSS")).max().unwrap_or(0)
    }

    /// Ends the pods as Kubernetes would; fails the row if one has violated an invariant.
    pub async fn stop(&self, row: &mut Row) {
        row.note(&self.settings);
        for pod in &self.pods {
            judge_process(row, pod).await;
        }
        for status in Ratelease::stop_all(&self.pods).await {
            row.holds(status == 0, &format!("a pod ended with status {status}"));
        }
    }

    /// Sends one request for an unused path, and so learns its key in Redis.
    pub async fn learn(&self, path: &str, cluster: &Cluster) -> String {
        let known = self.debited(cluster);
        assert_eq!(self.envoy.get(path, &[]).await.status, 200, "{path} was denied at once");
        let keys = self.debited(cluster).into_keys();
        keys.into_iter().find(|key| !known.contains_key(key)).expect("a new key")
    }

    /// Total debited by Redis. A denial may set the count of the tight key to one more than its
    /// limit.
    pub fn spent(&self, cluster: &Cluster, tight: &str) -> u64 {
        let debited = self.debited(cluster).into_iter();
        debited.map(|(key, count)| if key == tight { count.min(self.tight) } else { count }).sum()
    }

    /// The amounts debited by Redis, by key: its name there, and its count in this window. Nodes
    /// that do not answer are left out.
    pub fn debited(&self, cluster: &Cluster) -> BTreeMap<String, u64> {
        cluster.nodes.iter().flat_map(|node| debited_at(node, &self.prefix)).collect()
    }
}

// === impl Stalls ===

impl Stalls {
    fn watch() -> Self {
        let stalls = Self(Arc::default());
        let kept = Arc::downgrade(&stalls.0);
        thread::spawn(move || {
            while let Some(stalls) = kept.upgrade() {
                let slept = now();
                thread::sleep(STALL_POLL);
                let late = slept.elapsed().saturating_sub(STALL_POLL);
                stalls.lock().expect("no panic").push((now(), late));
            }
        });
        stalls
    }

    /// The longest at any time between two instants.
    fn longest(&self, from: Instant, to: Instant) -> Duration {
        let stalls = self.0.lock().expect("no panic");
        let within = stalls.iter().filter(|(ended, late)| *ended >= from && *ended - *late < to);
        within.map(|(_, late)| *late).max().unwrap_or_default()
    }
}

/// Waits for one of the permits that bound the tests running at a time, whatever the number of test
/// threads.
pub async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.expect("it is never closed")
}

/// All paths of the load.
pub fn paths() -> Vec<String> {
    let warm = (0..WARM_PATHS).map(|at| format!("/warm-{at}"));
    let new = (0..NEW_PATHS).map(|_| "/new-{n}".to_owned());
    std::iter::once(TIGHT.to_owned()).chain(warm).chain(new).collect()
}

/// Whether the path at this position is one of the warm ones.
pub fn is_warm(path: usize) -> bool {
    (1..=WARM_PATHS).contains(&path)
}

/// A pod's counter by its name; 0 if it has no such counter.
pub async fn count(pod: &Ratelease, name: &str) -> u64 {
    let page = status(pod).await.unwrap_or_default();
    page["counts"][name].as_u64().unwrap_or(0)
}

/// Number of scripts that a node has run, one for each ask; 0 while it does not answer.
pub fn scripts(node: &Server) -> u64 {
    node.try_command::<()>(&["PING"]).map_or(0, |()| node.calls("evalsha") + node.calls("eval"))
}

/// Judges a part of the load during which Envoy counted `errors`.
pub fn judge_errors(row: &mut Row, samples: &Samples, errors: u64) {
    let denied = denied_of_plenty(samples);
    row.errors(errors + samples.tally().faults());
    row.holds(denied == 0, &format!("{denied} denied that had plenty"));
    row.holds(!samples.0.is_empty(), "no request was sent: the row shows nothing");
    row.note(&format!("{} requests", samples.0.len()));
}

fn denied_of_plenty(samples: &Samples) -> u64 {
    samples.of(|path| path > 0).tally().limited()
}

/// Checks that a running pod has neither panicked nor violated an invariant.
pub async fn judge_process(row: &mut Row, pod: &Ratelease) {
    match status(pod).await {
        Some(page) => Ratelease::harm(&page).iter().for_each(|broken| row.holds(false, broken)),
        None => row.holds(false, "a pod does not serve its status page"),
    }
    judge_log(row, pod);
}

/// Checks that the log of a pod shows neither a panic nor a violated invariant.
fn judge_log(row: &mut Row, pod: &Ratelease) {
    let broken = pod.logged_harm();
    row.holds(broken.is_none(), &format!("a pod is broken: {}", broken.unwrap_or_default()));
}

/// The status page, if the pod answers.
pub async fn status(pod: &Ratelease) -> Option<Value> {
    let page = http::get(pod.debug, "/status").await.ok().filter(|page| page.status == 200)?;
    Some(serde_json::from_str(&page.body).expect("the status page is JSON"))
}

/// Waits until `done`, and returns how long that took; `None` after `patience`.
pub async fn time_until(
    patience: Duration,
    mut done: impl AsyncFnMut() -> bool,
) -> Option<Duration> {
    let start = now();
    while start.elapsed() < patience {
        if done().await {
            return Some(start.elapsed());
        }
        tokio::time::sleep(POLL).await;
    }
    None
}

/// Counts of fixed windows at one node.
fn debited_at(node: &Server, prefix: &str) -> Vec<(String, u64)> {
    let pattern = format!("{prefix}rl:{{*");
    let keys: Vec<String> = node.try_command(&["KEYS", &pattern]).unwrap_or_default();
    let counted = |key: String| count_at(node, &key).map(|count| (key, count));
    keys.into_iter().filter_map(counted).collect()
}

/// The count of a fixed window at one node, as `fixed_window.lua` writes it: the window, the count
/// in ten digits, and in the last tenth of the window a colon and what is lent of the next one.
pub fn count_at(node: &Server, key: &str) -> Option<u64> {
    let value: String = node.try_command(&["GET", key]).ok()?;
    let present = value.split(':').next()?;
    present.get(present.len().checked_sub(10)?..)?.parse().ok()
}
