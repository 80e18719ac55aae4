//! A recipe of `envoy/recipes` that runs, whose parts end and start again; and the slots and holds
//! in use.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;

use crate::application::Application;
use crate::client::{Ending, Headers, USER, send_plain};
use crate::support::envoy::{Envoy, patient, with_addresses};
use crate::support::files::put;
use crate::support::http::{self, Client};
use crate::support::now;
use crate::support::process::Process;
use crate::support::proxy::{Fault, Proxy};
use crate::support::ratectl::ratectl;
use crate::support::ratelease::Ratelease;
use crate::support::redis::Server;

/// A recipe, and how a test changes it.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The directory below `envoy/recipes`.
    pub recipe: &'static str,
    /// Replaces the values of `requests_per_unit` in the recipe's rules, in their order; empty for
    /// the recipe's own.
    pub limits: &'static [u64],
    /// Parts of the bootstrap, each of which has to be there, and what takes their place.
    pub replaced: &'static [(&'static str, &'static str)],
    /// A part of the bootstrap that is left out where it stands.
    pub without: &'static str,
    /// Further recipes whose rules the pod has.
    pub with: &'static [&'static str],
    /// Workers of Envoy.
    pub workers: usize,
    /// Whether Envoy waits longer for an answer than the recipe says. False where a test is about
    /// calls that have no answer in time.
    pub is_patient: bool,
}

/// A pod on a Redis of its own, Envoy, and the application behind it.
pub struct Stand {
    pub envoy: Envoy,
    pub pod: Ratelease,
    pub app: Application,
    plan: Plan,
    /// A proxy in front of the pod's Redis.
    near_redis: Proxy,
    redis: Server,
    /// The directory of rules that the pod watches.
    rules: TempDir,
    /// The rules of the plan, also while the pod has others.
    kept_rules: TempDir,
    _turn: SemaphorePermit<'static>,
}

/// Holds and slots in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// `ratelease_holds` of the pod.
    pub holds: u64,
    /// Slots of the upstream that Redis counts, of the recipe llm-concurrency; else 0.
    pub slots: u64,
}

/// One of [`TURNS`], since the tests measure time, and load the machine.
pub static TURNS: Semaphore = Semaphore::const_new(1);

/// Maximum time until nothing is in use, from the moment at which all requests have ended.
pub const FREE_MAX: Duration = Duration::from_secs(5);

/// Nothing is in use.
pub const NOTHING: InUse = InUse { holds: 0, slots: 0 };

/// Within this time a start that was on its way has arrived.
const STEADY: Duration = Duration::from_secs(1);

/// Interval at which [`Stand::left_of`] looks.
const POLL: Duration = Duration::from_millis(50);

/// Longer than the defaults: a machine that also compiles must not make a failure mode decide.
pub const PATIENT: [(&str, &str); 3] =
    [("LEASE_MAX_WAIT", "5s"), ("REDIS_TIMEOUT", "5s"), ("DRAIN_TIMEOUT", "1s")];

/// Maximum time until a process has done as it was told, on a machine that also compiles.
const PATIENCE: Duration = Duration::from_secs(20);

/// The begin of the application's cluster in the recipes.
const APP: &str = "\n    - name: app\n      type: STATIC\n";

/// Settings that let thousands of streams run: more than the default circuit breakers admit, and on
/// more than one connection.
const APP_SETTINGS: &str = "      circuit_breakers:
        thresholds:
          - {max_connections: 100000, max_requests: 100000, max_pending_requests: 100000}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {max_concurrent_streams: 100}}
";

/// The file of a plan's rules.
const RULES: &str = "rules.yaml";

/// Whether the tests are as large as they should be.
pub fn is_full() -> bool {
    std::env::var("RATELEASE_ENDS").is_ok_and(|scale| scale == "full")
}

// === impl Plan ===

impl Plan {
    /// A recipe as it is.
    pub const fn of(recipe: &'static str) -> Self {
        let (limits, replaced): (&[_], &[_]) = (&[], &[]);
        Self { recipe, limits, replaced, without: "", with: &[], workers: 1, is_patient: false }
    }

    fn bootstrap(&self, pod: SocketAddr, app: SocketAddr) -> String {
        let text = std::fs::read_to_string(directory(self.recipe).join("envoy.yaml"));
        let mut text = text.expect("a bootstrap");
        let more = (APP, &*format!("{APP}{APP_SETTINGS}"));
        for (part, by) in self.replaced.iter().copied().chain([more]) {
            assert_eq!(text.matches(part).count(), 1, "{}: {part:?}", self.recipe);
            text = text.replace(part, by);
        }
        if !self.without.is_empty() {
            text = text.replace(self.without, "");
        }
        let text = if self.is_patient { patient(&text) } else { text };
        with_addresses(&text, pod, app)
    }

    /// The rules, as one file.
    fn rules(&self) -> String {
        const LIMIT: &str = "requests_per_unit: ";
        let text = rules_of(self.recipe);
        if self.limits.is_empty() {
            return text;
        }
        let mut parts = text.split(LIMIT);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        let rest: Vec<_> = parts.collect();
        assert_eq!(rest.len(), self.limits.len(), "{}: the number of limits", self.recipe);
        for (part, limit) in rest.iter().zip(self.limits) {
            let after = part.trim_start_matches(|c: char| c.is_ascii_digit());
            replaced += &format!("{LIMIT}{limit}{after}");
        }
        replaced
    }

    /// Starts all parts, once no other test runs any.
    pub async fn start(self) -> Stand {
        let turn = TURNS.acquire().await.expect("it is never closed");
        ratectl(); // a build of it is no part of what a test measures
        let (redis, app) = (Server::start(&[]), Application::start());
        let near_redis = Proxy::start().leading_to(redis.port());
        let dir = || TempDir::new().expect("a temporary directory");
        let (rules, kept_rules) = (dir(), dir());
        for dir in [&rules, &kept_rules] {
            put(dir.path().join(RULES), self.rules());
            for recipe in self.with {
                put(dir.path().join(format!("{recipe}.yaml")), rules_of(recipe));
            }
        }
        let pod = start_pod(&rules, near_redis.port(), None).await;
        let envoy = self.start_envoy(&pod, &app).await;
        Stand { envoy, pod, app, plan: self, near_redis, redis, rules, kept_rules, _turn: turn }
    }

    async fn start_envoy(&self, pod: &Ratelease, app: &Application) -> Envoy {
        let files = TempDir::new().expect("a temporary directory");
        let bootstrap = self.bootstrap(pod.grpc, app.address);
        let envoy = Envoy::run(files, &bootstrap, self.workers, "ingress").await;
        envoy.healthy(1).await;
        envoy
    }
}

/// The directory of a recipe.
fn directory(recipe: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/recipes").join(recipe)
}

/// The only rule file of a recipe.
fn rules_of(recipe: &str) -> String {
    let files = std::fs::read_dir(directory(recipe).join("rules")).expect("rules");
    let files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    let [file] = files.as_slice() else { panic!("{recipe}: not one file") };
    std::fs::read_to_string(file).expect("rules")
}

/// Stops a process until it gets SIGCONT, as a limit of its CPU may. Its sockets go on.
pub async fn freeze(process: &Process) {
    process.signal("STOP");
    let path = format!("/proc/{}/stat", process.pid());
    let is_stopped = async || {
        let stat = std::fs::read_to_string(&path).expect("a process that runs");
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    };
    process.until("stopped", PATIENCE, is_stopped).await;
}

/// Starts a pod, on this port if one is given.
async fn start_pod(rules: &TempDir, redis: u16, port: Option<u16>) -> Ratelease {
    let (url, port) = (format!("127.0.0.1:{redis}"), port.map(|port| port.to_string()));
    let mut env = PATIENT.to_vec();
    env.extend([("REDIS_TYPE", "SINGLE"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*url)]);
    env.extend(port.iter().map(|port| ("GRPC_PORT", &**port)));
    let mut pod = Ratelease::spawn(rules.path(), &[], &env);
    if let Some(port) = &port {
        pod.grpc.set_port(port.parse().expect("a port"));
    }
    pod.ready().await;
    pod
}

// === impl Stand ===

impl Stand {
    /// Ends Envoy by this signal, unless it has ended, and starts another one.
    pub async fn replace_envoy(&mut self, signal: &str) {
        self.envoy.process().signal(signal);
        self.envoy.process().exit(PATIENCE).await;
        self.start_envoy_again().await;
    }

    pub async fn start_envoy_again(&mut self) {
        self.envoy = self.plan.start_envoy(&self.pod, &self.app).await;
    }

    /// Ends the pod as Kubernetes does, and starts another one on its port.
    pub async fn replace_pod(&mut self) {
        let port = self.pod.grpc.port();
        self.pod.process.signal("TERM");
        self.pod.process.exit(PATIENCE).await;
        self.pod = start_pod(&self.rules, self.near_redis.port(), Some(port)).await;
        self.envoy.healthy(1).await;
    }

    /// Waits until as many calls to the pod are under way at Envoy, which may be frozen.
    pub async fn until_called(&self, count: u64) {
        let gauge = async |name| self.envoy.stat(&format!("cluster.ratelease.{name}")).await;
        let called = async || {
            let (active, pending) = ("upstream_rq_active", "upstream_rq_pending_active");
            let calls = [gauge(active).await, gauge(pending).await];
            calls.into_iter().flatten().sum::<u64>() >= count
        };
        self.envoy.until(&format!("calling {count} times"), called).await;
    }

    /// Puts a fault between the pod and its Redis.
    pub fn redis_at(&self, fault: Fault) {
        self.near_redis.set(fault);
    }

    /// Puts other rules in the place of the plan's, which are absent once this returns.
    pub async fn load_others(&self) {
        self.load("domain: other\ndescriptors: []\n").await;
    }

    /// Puts the plan's rules back, and waits until they are in force.
    pub async fn load_own(&self) {
        self.load(&self.plan.rules()).await;
    }

    async fn load(&self, rules: &str) {
        let loads = || self.pod.status()["rules"]["loads_ok"].as_u64().expect("a number");
        let before = loads();
        put(self.rules.path().join(RULES), rules);
        self.pod.process.until("under other rules", PATIENCE, async || loads() > before).await;
    }

    /// The status of a GET of a user of its own, whose answer is whole at once.
    pub async fn fresh(&self) -> u16 {
        self.get(&[(USER, "fresh")]).await
    }

    /// Median duration of a request that waits for nothing. Each one has given its slot back before
    /// the next begins: the end comes a few milliseconds after the answer.
    pub async fn round_trip(&self) -> Duration {
        let mut client = Client::connect(self.envoy.ingress).await.expect("Envoy listens");
        let mut took = Vec::new();
        for _ in 0..51 {
            let begun = now();
            let answer = client.get("/", &[(USER, "fresh")]).await.expect("an answer");
            assert_eq!(answer.status, 200, "{answer:?}");
            took.push(begun.elapsed());
            let has_ended = async || self.metric("ratelease_holds ").await == 0;
            self.pod.process.until("told of the end", PATIENCE, has_ended).await;
        }
        took.sort_unstable();
        took[took.len() / 2]
    }

    /// The status of a GET, whose answer is read.
    pub async fn get(&self, headers: Headers<'_>) -> u16 {
        let client = send_plain(self.envoy.ingress, Ending::Close, headers).await;
        client.expect("Envoy takes connections").answer().await.expect("an answer").status
    }

    /// Runs `ratectl key` for a descriptor of the recipe's domain.
    pub async fn key(&self, action: &str, descriptor: &str) -> Value {
        let url = format!("127.0.0.1:{}", self.redis.port());
        let run = async || {
            let mut command = Command::new(ratectl());
            command.args(["key", action, "--json", "--domain", self.plan.recipe]).arg(descriptor);
            command.args(["--redis-type", "single", "--redis-url", &url, "--rules"]);
            command.arg(self.kept_rules.path()).output().await.expect("ratectl runs")
        };
        key_of(&run, action).await
    }

    /// The sum of a metric of the pod over all its labels, by its name and what follows it.
    async fn metric(&self, name: &str) -> u64 {
        let page = http::get(self.pod.debug, "/metrics").await.expect("a page").body;
        let values = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit(' ').next());
        values.map(|value| value.parse::<u64>().expect("a whole number")).sum()
    }

    /// Descriptors that the pod has decided.
    pub async fn decided(&self) -> u64 {
        self.metric("ratelease_decisions_total{").await
    }

    /// Returns the holds and slots in use.
    pub async fn in_use(&self) -> InUse {
        let holds = self.metric("ratelease_holds ").await;
        let mut slots = 0;
        if self.plan.recipe == "llm-concurrency" {
            let key = self.key("show", "upstream=app,request_id=look").await;
            let number = |name: &str| key[name].as_u64().unwrap_or_else(|| panic!("{key}"));
            slots = number("of") - number("left");
        }
        InUse { holds, slots }
    }

    /// Waits until nothing is in use, and stays so for [`STEADY`]; at most until [`FREE_MAX`] after
    /// `ended`, the moment at which the last request had ended. Returns the holds and slots that
    /// are left.
    pub async fn left_of(&self, ended: Instant) -> InUse {
        let mut free_since = None;
        loop {
            let in_use = self.in_use().await;
            let after = ended.elapsed();
            let since = *free_since.get_or_insert(after);
            match in_use == NOTHING {
                true if after - since >= STEADY => {
                    println!("nothing is in use after {since:.1?}");
                    return in_use;
                }
                true => {}
                false if after > FREE_MAX => {
                    println!("after {after:.1?}: {in_use}");
                    return in_use;
                }
                false => free_since = None,
            }
            sleep(POLL).await;
        }
    }

    /// Requires that nothing is in use [`FREE_MAX`] after `ended`, and that a fresh request passes
    /// then.
    pub async fn frees_all(&self, ended: Instant) {
        let left = self.left_of(ended).await;
        self.passes_after(left).await;
    }

    /// Requires that nothing was left, and that a fresh request passes now.
    pub async fn passes_after(&self, left: InUse) {
        let status = self.fresh().await;
        println!("a fresh request gets {status}");
        assert!(left == NOTHING, "{left} still; a fresh request gets {status}");
        assert_eq!(status, 200, "a fresh request");
        self.pod.is_unharmed();
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, slots } = self;
        write!(f, "{holds} holds, {slots} slots of the upstream in Redis")
    }
}

/// The key that `run` prints. A pod says within seconds in Redis that it has other rules again; until
/// then ratectl refuses.
pub async fn key_of(run: &impl AsyncFn() -> Output, action: &str) -> Value {
    const REFUSED: Option<i32> = Some(2);
    let begun = now();
    let output = loop {
        let output = run().await;
        if output.status.code() != REFUSED || begun.elapsed() > PATIENCE {
            break output;
        }
        sleep(Duration::from_millis(100)).await;
    };
    assert!(output.status.success(), "ratectl key {action}: {output:?}");
    let page: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    page["keys"][0]["key"].clone()
}
