//! Starts: nothing is decided before the first whole set of rules is in force.
//!
//! `RATELEASE_STARTS` sets how many pods are started of each kind, and `--nocapture` prints when
//! they answered. `RATELEASE_BIN` names another build.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use envoy_types::pb::google::protobuf::Any;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::stream::Rules;
use super::{SOON, spawn};
use crate::support::http::Client;
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, request_of_entry};
use crate::support::xds_server::{RULES_TYPE, XdsServer, any};

/// The number of starts of each kind, and without the variable.
const STARTS: (&str, usize) = ("RATELEASE_STARTS", 2);

/// How long a server takes that is slow.
const SLOW: Duration = Duration::from_millis(300);

/// Pause between two requests.
const ASK_PAUSE: Duration = Duration::from_millis(1);

const JSON: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;

/// What a pod answered, and when first, since its start.
#[derive(Debug, Default)]
struct Answers {
    limited: usize,
    unlimited: usize,
    failed: usize,
    decided_after: Option<Duration>,
    limited_after: Option<Duration>,
}

/// Asks all ports of a pod without end, from before it listens.
#[derive(Clone)]
struct Asker {
    started: Instant,
    is_over: Arc<AtomicBool>,
    answers: Arc<Mutex<Answers>>,
}

/// A start, with what it was asked and the server that it follows.
struct Start {
    pod: Ratelease,
    asker: Asker,
    tasks: Vec<JoinHandle<()>>,
    _dir: TempDir,
}

// === impl Asker ===

impl Asker {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Notes an answer: whether it has a limit; `None` without a decision.
    fn note(&self, has_limit: Option<bool>) {
        let (after, mut answers) = (self.started.elapsed(), self.answers.lock());
        let Some(has_limit) = has_limit else {
            answers.failed += 1;
            return;
        };
        answers.decided_after.get_or_insert(after);
        if has_limit {
            answers.limited += 1;
            answers.limited_after.get_or_insert(after);
        } else {
            answers.unlimited += 1;
        }
    }

    async fn ask_grpc(self, at: std::net::SocketAddr) {
        while TcpStream::connect(at).await.is_err() {
            tokio::time::sleep(ASK_PAUSE).await;
        }
        let (connection, request) =
            (Connection::open(at).await, request_of_entry("shop", "user", "a"));
        while !self.is_over() {
            let reply = connection.call(&request).await;
            // A status without a limit is its code alone.
            self.note(reply.is_over_limit().map(|_| reply.message.len() > 6));
            tokio::time::sleep(ASK_PAUSE).await;
        }
    }

    async fn ask_http(self, at: std::net::SocketAddr) {
        let mut client = None;
        while !self.is_over() {
            tokio::time::sleep(ASK_PAUSE).await;
            if client.is_none() {
                client = Client::connect(at).await.ok();
            }
            let Some(open) = &mut client else { continue };
            let json = [("content-type", "application/json")];
            match open.send("POST", "/json", &json, JSON).await {
                Ok(answer) if matches!(answer.status, 200 | 429) => {
                    self.note(Some(answer.body.contains("currentLimit")));
                }
                Ok(answer) => {
                    assert_eq!(answer.status, 503, "{answer:?}");
                    self.note(None);
                }
                Err(_) => client = None,
            }
        }
    }
}

// === impl Start ===

impl Start {
    fn new(server: std::net::SocketAddr, env: &[(&str, &str)]) -> Self {
        let env = [&[("CONFIG_GRPC_XDS_RATELEASE", "true")], env].concat();
        let asker = Asker { started: now(), is_over: Arc::default(), answers: Arc::default() };
        let (pod, dir) = spawn(&server.to_string(), &env);
        let tasks = vec![
            tokio::spawn(asker.clone().ask_grpc(pod.grpc)),
            tokio::spawn(asker.clone().ask_http(pod.http)),
        ];
        Self { pod, asker, tasks, _dir: dir }
    }

    /// Waits until probes are answered, which say that the pod is not ready, and that it decides
    /// nothing for a while.
    async fn decides_nothing(&self) {
        self.pod.says("/readyz", 503).await;
        self.pod.says("/healthcheck", 500).await;
        tokio::time::sleep(SLOW).await; // for what must not happen
        let answers = self.asker.answers.lock();
        assert!(answers.decided_after.is_none(), "{answers:?}");
    }

    /// Waits for answers by rules, and ends the pod.
    async fn end(self) -> Answers {
        self.pod.ready().await;
        self.pod.says("/healthcheck", 200).await;
        let decides = async || self.asker.answers.lock().limited >= 20;
        self.pod.process.until("deciding by its rules", SOON, decides).await;
        self.asker.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            tokio::time::timeout(SOON, task).await.expect("an end").expect("no panic");
        }
        assert_eq!(self.pod.stop().await, 0);
        std::mem::take(&mut self.asker.answers.lock())
    }
}

fn rules(unit: &str) -> Any {
    let yaml = format!(
        "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{unit: {unit}, \
         requests_per_unit: 5}}\n"
    );
    any(RULES_TYPE, &Rules { name: "shop".into(), yaml })
}

/// Has the server send good rules.
fn put(server: &XdsServer) {
    server.set_of(RULES_TYPE, "r1", vec![rules("year")]);
}

/// Starts pods, and prints when they answered. None may have answered without a limit.
async fn check(kind: &str, start: impl AsyncFn() -> Answers) {
    let (name, default) = STARTS;
    let count = std::env::var(name).map_or(default, |it| it.parse().expect("a number"));
    let (mut decided, mut limited, mut all) = (Vec::new(), Vec::new(), Answers::default());
    for _ in 0..count {
        let answers = start().await;
        decided.extend(answers.decided_after);
        limited.extend(answers.limited_after);
        all.limited += answers.limited;
        all.unlimited += answers.unlimited;
        all.failed += answers.failed;
    }
    decided.sort();
    limited.sort();
    println!(
        "{kind}: {count} starts, {} answers without a limit, {} with one, {} failed; first \
         decision after {:.0?} in the middle and {:.0?} at most, first limit after {:.0?} and \
         {:.0?}",
        all.unlimited,
        all.limited,
        all.failed,
        decided[count / 2],
        decided[count - 1],
        limited[count / 2],
        limited[count - 1]
    );
    assert_eq!(all.unlimited, 0, "{kind}");
}

#[tokio::test]
async fn a_server_that_has_rules_is_followed_at_once() {
    let server = XdsServer::start().await;
    put(&server);
    check("rules at once", async || Start::new(server.addr, &[]).end().await).await;
}

#[tokio::test]
async fn a_server_that_sends_another_type_first_is_waited_for() {
    check("slow", async || {
        let server = XdsServer::start().await;
        let start = Start::new(server.addr, &[]);
        let asks = async || !server.requests().is_empty();
        start.pod.process.until("asking for rules", SOON, asks).await;
        server.set("1", Vec::new());
        start.decides_nothing().await;
        let xds = start.pod.status()["rules"]["xds"].clone();
        assert_eq!((&xds["type"], &xds["accepted"]), (&RULES_TYPE.into(), &0.into()));
        let why = xds["last_failure"].as_str().unwrap_or_default();
        assert!(why.contains("CONFIG_GRPC_XDS_RATELEASE"), "{xds}");
        put(&server);
        start.end().await
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_away_or_restarts_is_waited_for() {
    check("away, then restarted", async || {
        let at = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
        let start = Start::new(at, &[]);
        start.decides_nothing().await;
        let server = XdsServer::start_at(at).await;
        let asks = async || !server.requests().is_empty();
        start.pod.process.until("asking for rules", SOON, asks).await;
        server.end_streams();
        start.decides_nothing().await;
        put(&server);
        start.end().await
    })
    .await;
}

#[tokio::test]
async fn a_first_set_that_is_refused_is_no_rules() {
    check("refused", async || {
        let server = XdsServer::start().await;
        server.set_of(RULES_TYPE, "r0", vec![rules("eon")]);
        let start = Start::new(server.addr, &[]);
        assert!(server.answer_to("nonce-r0").await.1.is_some(), "a refusal");
        tokio::time::sleep(SLOW).await; // for what must not happen
        let answers = start.asker.answers.lock().decided_after;
        assert!(answers.is_none(), "{answers:?}");
        put(&server);
        start.end().await
    })
    .await;
}

#[tokio::test]
async fn with_a_snapshot_a_pod_limits_at_once_whatever_the_server_does() {
    let server = XdsServer::start().await;
    put(&server);
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("snapshot");
    let env = [("RULES_SNAPSHOT", path.to_str().unwrap())];
    let first = Start::new(server.addr, &env);
    let written = async || path.exists();
    first.pod.process.until("writing the snapshot", SOON, written).await;
    first.end().await;
    check("a snapshot, the server away", async || {
        let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
        Start::new(nobody, &env).end().await
    })
    .await;
    check("a snapshot, no set", async || {
        let without = XdsServer::start().await;
        let start = Start::new(without.addr, &env);
        let asks = async || !without.requests().is_empty();
        start.pod.process.until("asking for rules", SOON, asks).await;
        tokio::time::sleep(Duration::from_secs(3)).await; // for what must not happen
        start.end().await
    })
    .await;
}

#[tokio::test]
async fn that_there_are_no_rules_counts_once_it_was_said() {
    let server = XdsServer::start().await;
    let start = Start::new(server.addr, &[]);
    start.decides_nothing().await;
    server.set_of(RULES_TYPE, "r1", Vec::new());
    start.pod.ready().await;
    let decides = async || start.asker.answers.lock().unlimited >= 20;
    start.pod.process.until("deciding", SOON, decides).await;
    start.asker.is_over.store(true, Ordering::Relaxed);
    assert_eq!(start.pod.stop().await, 0);
}
