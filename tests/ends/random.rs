//! Requests that end or are aborted at random moments, while Envoy is killed, the pod is frozen, its
//! rules are away and an operator resets a key: the simulator's model of starts and ends
//! (`tests/sim/ends`), on a real Envoy and a real Redis. All follows from a seed, but for the order of
//! what happens at the same time.
//!
//! Requests are in groups: those of one group have all begun under the rules, and since the last
//! reset. Of each no more than the limit run at any moment, as the application counts them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use crate::application::{AFTER, Application, BEFORE, GROUP, HELD, RUN};
use crate::client::{Connection, Ending, Headers, Stream, USER, send_plain};
use crate::stand::{FREE_MAX, PATIENT, TURNS, freeze, key_of};
use crate::support::envoy::{Envoy, with_addresses};
use crate::support::files::put;
use crate::support::http::Client;
use crate::support::now;
use crate::support::ratectl::ratectl;
use crate::support::ratelease::Ratelease;
use crate::support::redis::Server;
use crate::support::rng::Rng;

/// Requests of the upstream that may run at a time.
const LIMIT: usize = 12;

/// Clients, each with one request at a time: more than may run.
const CLIENTS: usize = 30;

/// How long requests come.
const LASTS: Duration = Duration::from_secs(25);

/// How long the pod is frozen, and its rules are away.
const STRETCH: Duration = Duration::from_secs(1);

/// The times between two failures, in milliseconds.
const PAUSES: [u64; 4] = [50, 500, 1500, 3000];

/// Maximum time until a process has done as it was told, on a machine that also compiles.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that cannot connect, or is denied, tries again after this time.
const AGAIN: Duration = Duration::from_millis(20);

/// No request takes this long: a test fails instead of hanging.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// One limit of slots, and one of tokens whose requests hold an estimate.
const RULES: &str = "domain: random
descriptors:
- key: upstream
  descriptors:
  - key: request_id
    rate_limit: {algorithm: concurrency, requests_per_unit: 12, hold: {for: 60s}}
- key: user
  descriptors:
  - key: request_id
    rate_limit: {unit: day, requests_per_unit: 1000000, hold: {for: 60s, unless_settled: release}}
";

/// Rules of another domain.
const ABSENT: &str = "domain: other\ndescriptors: []\n";

const BOOTSTRAP: &str = include_str!("random.yaml");

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    EnvoyKilled,
    PodFrozen,
    EnvoyKilledWhilePodFrozen,
    RuleAbsent,
    KeyReset,
}

const FAILURES: [Failure; 5] = [
    Failure::EnvoyKilled,
    Failure::PodFrozen,
    Failure::EnvoyKilledWhilePodFrozen,
    Failure::RuleAbsent,
    Failure::KeyReset,
];

/// A pod on a Redis of its own, Envoy, and the application behind it.
struct Run {
    pod: Ratelease,
    redis: Server,
    rules: TempDir,
    kept_rules: TempDir,
    app: Application,
    /// Where Envoy takes requests.
    ingress: watch::Sender<SocketAddr>,
    /// The present group. A request that has no status yet keeps it as it is.
    group: RwLock<u64>,
    is_over: AtomicBool,
    /// The number of requests by what became of them.
    ended: Mutex<BTreeMap<&'static str, u64>>,
    next: AtomicU64,
}

/// How a client sends its requests.
enum Way {
    Plain(Ending),
    /// A stream of this connection, once it is open.
    Stream(Option<Connection>),
    /// A connection of HTTP/2 for each request.
    Connection(Ending),
}

/// How one request goes.
struct Plan {
    /// When the client leaves, after it has sent the request; `None` if it reads the whole answer.
    leaves: Option<Duration>,
    before: String,
    after: String,
    user: String,
}

// === impl Plan ===

impl Plan {
    fn random(rng: &mut Rng) -> Self {
        let leaves = match rng.below(6) {
            0 => Some(rng.below(3_000)),
            1 => Some(rng.below(20_000)),
            2 => Some(rng.below(400_000)),
            _ => None,
        };
        let most = rng.pick(&[5, 50, 800]);
        let [before, after] = [rng.below(most), rng.below(most)].map(|millis| millis.to_string());
        let user = format!("user-{}", rng.below(5));
        Self { leaves: leaves.map(Duration::from_micros), before, after, user }
    }
}

// === impl Run ===

impl Run {
    async fn start() -> (Arc<Self>, Envoy) {
        ratectl(); // a build of it is no part of what the test measures
        let (redis, app) = (Server::start(&[]), Application::start());
        let dir = || TempDir::new().expect("a temporary directory");
        let (rules, kept_rules) = (dir(), dir());
        for dir in [&rules, &kept_rules] {
            put(dir.path().join("rules.yaml"), RULES);
        }
        let url = format!("127.0.0.1:{}", redis.port());
        let mut env = PATIENT.to_vec();
        env.extend([("REDIS_TYPE", "SINGLE"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*url)]);
        let pod = Ratelease::spawn(rules.path(), &[], &env);
        pod.ready().await;
        let envoy = start_envoy(pod.grpc, app.address).await;
        let run = Self {
            pod,
            redis,
            rules,
            kept_rules,
            app,
            ingress: watch::Sender::new(envoy.ingress),
            group: RwLock::new(0),
            is_over: AtomicBool::new(false),
            ended: Mutex::default(),
            next: AtomicU64::new(0),
        };
        (Arc::new(run), envoy)
    }

    fn note(&self, what: &'static str) {
        *self.ended.lock().entry(what).or_default() += 1;
    }

    fn count(&self, what: &str) -> u64 {
        self.ended.lock().get(what).copied().unwrap_or(0)
    }

    /// Begins another group, once each request of the present one has a status or has no client.
    async fn begin_group(&self) -> u64 {
        let mut group = self.group.write().await;
        *group += 1;
        *group
    }

    /// Runs `ratectl key` for the slots of the upstream.
    async fn key(&self, action: &str) -> Value {
        let url = format!("127.0.0.1:{}", self.redis.port());
        let common = ["--json", "--domain", "random", "upstream=app,request_id=x"];
        let run = async || {
            let mut command = Command::new(ratectl());
            command.args(["key", action]).args(common);
            command.args(["--redis-type", "single", "--redis-url", &url, "--rules"]);
            command.arg(self.kept_rules.path()).output().await.expect("ratectl runs")
        };
        key_of(&run, action).await
    }

    /// Slots that Redis counts.
    async fn slots(&self) -> u64 {
        let key = self.key("show").await;
        let number = |name: &str| key[name].as_u64().unwrap_or_else(|| panic!("{key}"));
        number("of") - number("left")
    }

    async fn load(&self, rules: &str) {
        let loads = || self.pod.status()["rules"]["loads_ok"].as_u64().expect("a number");
        let before = loads();
        put(self.rules.path().join("rules.yaml"), rules);
        let is_loaded = async || loads() > before;
        self.pod.process.until("under other rules", PATIENCE, is_loaded).await;
    }
}

async fn start_envoy(pod: SocketAddr, app: SocketAddr) -> Envoy {
    let files = TempDir::new().expect("a temporary directory");
    let envoy = Envoy::run(files, &with_addresses(BOOTSTRAP, pod, app), 2, "ingress").await;
    envoy.healthy(1).await;
    envoy
}

// === Clients ===

impl Run {
    /// Sends requests one after another until the run is over.
    async fn send_requests(&self, mut way: Way, mut rng: Rng) {
        while !self.is_over.load(Ordering::Relaxed) {
            let plan = Plan::random(&mut rng);
            let sent = timeout(REQUEST_MAX, self.send(&mut way, &plan)).await;
            let ended = sent.expect("an end in time").unwrap_or("failed");
            self.note(ended);
            if ["failed", "denied"].contains(&ended) {
                sleep(AGAIN).await;
            }
        }
    }

    /// Sends a request, and reads its answer or leaves before. `None` if its connection has failed.
    async fn send(&self, way: &mut Way, plan: &Plan) -> Option<&'static str> {
        let to = *self.ingress.borrow();
        let group = self.group.read().await;
        let number = *group * GROUP + self.next.fetch_add(1, Ordering::Relaxed);
        let run = number.to_string();
        let headers: [(&str, &str); 4] =
            [(USER, &plan.user), (RUN, &run), (BEFORE, &plan.before), (AFTER, &plan.after)];
        let leaves = Leaves { number, at: plan.leaves.map(|after| now() + after) };
        match way {
            Way::Plain(ending) => {
                let client = send_plain(to, *ending, &headers).await.ok()?;
                self.finish_plain(client, leaves, group).await
            }
            Way::Stream(connection) => {
                if connection.is_none() {
                    *connection = Some(Connection::open(to, Ending::Close).await.ok()?);
                }
                let stream = connection.as_ref()?.get(&headers).await;
                let ended = match stream {
                    Ok(stream) => self.finish(stream, leaves, group).await,
                    Err(_) => None,
                };
                if ended.is_none() {
                    *connection = None;
                }
                ended
            }
            Way::Connection(ending) => {
                let own = Connection::open(to, *ending).await.ok()?;
                let stream = own.get(&headers).await.ok()?;
                let finished = self.finish(stream, leaves, group).await;
                own.end().await;
                finished
            }
        }
    }

    async fn finish_plain(
        &self,
        mut client: Client,
        leaves: Leaves,
        group: RwLockReadGuard<'_, u64>,
    ) -> Option<&'static str> {
        let Some(head) = leaves.or(client.head()).await else { return Some(self.leave(&leaves)) };
        drop(group);
        let head = head.ok()?;
        if head.status != 200 {
            return Some(refused(head.status));
        }
        let Some(body) = leaves.or(client.body(&head)).await else {
            return Some(self.leave(&leaves));
        };
        body.ok().map(|_| "passed")
    }

    async fn finish(
        &self,
        mut stream: Stream,
        leaves: Leaves,
        group: RwLockReadGuard<'_, u64>,
    ) -> Option<&'static str> {
        let Some(status) = leaves.or(stream.status()).await else {
            let left = self.leave(&leaves);
            stream.reset();
            return Some(left);
        };
        drop(group);
        let status = status.ok()?;
        if status != 200 {
            return Some(refused(status));
        }
        while let Some(event) = leaves.or(stream.event()).await {
            if !event.ok()? {
                return Some("passed");
            }
        }
        let left = self.leave(&leaves);
        stream.reset();
        Some(left)
    }

    /// Tells the application that a client is about to leave.
    fn leave(&self, leaves: &Leaves) -> &'static str {
        self.app.leaves(leaves.number);
        "left"
    }
}

fn refused(status: u16) -> &'static str {
    match status {
        429 => "denied",
        500 | 503 => "refused",
        other => panic!("status {other}"),
    }
}

/// When a client leaves its request of this number.
#[derive(Debug, Clone, Copy)]
struct Leaves {
    number: u64,
    at: Option<Instant>,
}

// === impl Leaves ===

impl Leaves {
    /// What `event` yields, unless the client leaves before.
    async fn or<T>(&self, event: impl Future<Output = T>) -> Option<T> {
        match self.at {
            Some(at) => timeout_at(at.into(), event).await.ok(),
            None => Some(event.await),
        }
    }
}

// === Failures ===

impl Run {
    /// Lets one thing after another fail, until the time is over: each kind at least once. Returns
    /// the groups in which no more than the limit may run.
    async fn fail(&self, mut envoy: Envoy, mut rng: Rng) -> (Envoy, Vec<u64>) {
        let (begun, mut groups) = (now(), vec![0]);
        let mut due = FAILURES.to_vec();
        while begun.elapsed() < LASTS || !due.is_empty() {
            let pause = rng.pick(&PAUSES);
            sleep(Duration::from_millis(rng.below(pause))).await;
            let failure = match due.len() as u64 {
                0 => rng.pick(&FAILURES),
                left => due.swap_remove(usize::try_from(rng.below(left)).expect("a small number")),
            };
            println!("{:>5.1?} s: {failure:?}", begun.elapsed().as_secs_f64());
            match failure {
                Failure::EnvoyKilled => {
                    envoy.process().signal("KILL");
                    envoy = self.replace(envoy).await;
                }
                Failure::PodFrozen => {
                    freeze(&self.pod.process).await;
                    sleep(STRETCH).await;
                    self.pod.process.signal("CONT");
                }
                Failure::EnvoyKilledWhilePodFrozen => {
                    freeze(&self.pod.process).await;
                    sleep(STRETCH / 2).await;
                    envoy.process().signal("KILL");
                    sleep(STRETCH / 2).await;
                    self.pod.process.signal("CONT");
                    envoy = self.replace(envoy).await;
                }
                Failure::RuleAbsent => {
                    self.begin_group().await;
                    self.load(ABSENT).await;
                    sleep(STRETCH).await;
                    self.load(RULES).await;
                    groups.push(self.begin_group().await);
                }
                Failure::KeyReset => {
                    self.begin_group().await;
                    let resets = "is reset by order";
                    let before = self.pod.log().matches(resets).count();
                    self.key("reset").await;
                    self.pod.logs_times(resets, before + 1).await;
                    groups.push(self.begin_group().await);
                }
            }
        }
        (envoy, groups)
    }

    /// Starts another Envoy once this one, which was killed, has ended.
    async fn replace(&self, envoy: Envoy) -> Envoy {
        envoy.process().exit(PATIENCE).await;
        let envoy = start_envoy(self.pod.grpc, self.app.address).await;
        self.ingress.send_replace(envoy.ingress);
        envoy
    }
}

// === The end ===

impl Run {
    /// Waits until nothing is held, and no slot is in use; at most [`FREE_MAX`].
    async fn frees_all(&self) {
        let ended = now();
        loop {
            let holds = self.pod.count("holds");
            let slots = self.slots().await;
            let after = ended.elapsed();
            if holds + slots == 0 {
                println!("nothing is in use after {after:.1?}");
                return;
            }
            assert!(after < FREE_MAX, "{holds} holds, {slots} slots after {after:.1?}");
            sleep(AGAIN).await;
        }
    }

    /// Requires that as many requests pass as the limit says, and no more.
    async fn passes_the_limit(&self) {
        let to = *self.ingress.borrow();
        let mut running = Vec::new();
        for at in 0..=LIMIT {
            let run = self.next.fetch_add(1, Ordering::Relaxed).to_string();
            let headers: Headers<'_> = &[(USER, "last"), (RUN, &run), (AFTER, HELD)];
            let mut client = send_plain(to, Ending::Close, headers).await.expect("Envoy listens");
            let status = client.head().await.expect("an answer").status;
            let free = LIMIT - at.min(LIMIT);
            assert_eq!(status, if free > 0 { 200 } else { 429 }, "{free} slots are free");
            running.push(client);
        }
        self.app.release();
        drop(running);
        self.app.until_running(0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_and_failures_at_random_leave_nothing_held() {
    let _turn = TURNS.acquire().await.expect("it is never closed");
    let (run, envoy) = Run::start().await;
    let mut rng = Rng::new();
    let mut clients = JoinSet::new();
    for at in 0..CLIENTS {
        let way = match at % 5 {
            0 => Way::Plain(Ending::Close),
            1 => Way::Plain(Ending::Reset),
            2 => Way::Connection(Ending::Close),
            3 => Way::Connection(Ending::Reset),
            _ => Way::Stream(None),
        };
        let (run, rng) = (Arc::clone(&run), Rng::seeded(rng.next_u64()));
        clients.spawn(async move { run.send_requests(way, rng).await });
    }
    let (envoy, groups) = run.fail(envoy, Rng::seeded(rng.next_u64())).await;
    run.is_over.store(true, Ordering::Relaxed);
    clients.join_all().await;
    run.app.until_running(0).await;
    let most: Vec<_> = groups.iter().map(|group| (*group, run.app.most_of(*group))).collect();
    println!("{:?}; the most at a time of each group: {most:?}", run.ended.lock());
    run.frees_all().await;
    assert!(most.iter().all(|(_, most)| *most <= LIMIT), "{most:?} run, where {LIMIT} may");
    assert!(run.count("passed") >= 100 && run.count("denied") > 0, "{:?}", run.ended.lock());
    run.passes_the_limit().await;
    run.frees_all().await;
    run.pod.is_unharmed();
    drop(envoy);
}
