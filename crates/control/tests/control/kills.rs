//! Writes while the control plane or PostgreSQL is killed at random points: none that was
//! acknowledged is lost, none is half applied, and none is done twice.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::pods::{Pod, RULES, channel, node};
use super::support::rng::Rng;
use super::support::{Call, Place, Process, Server, now, places, rule, wait_for};

/// Writes of a test, and how often a process is killed meanwhile.
const WRITES: usize = 200;
const KILLS: usize = 20;

/// Maximum time of all writes, on a machine that also compiles.
const WRITES_MAX: Duration = Duration::from_secs(300);

/// A kill comes within this time after a write was acknowledged: in the next writes.
const KILL_WITHIN_MICROS: u64 = 60_000;

/// Pause before a write is repeated.
const RETRY: Duration = Duration::from_millis(20);

/// Writes that are done one after the other, each of which is repeated until it is acknowledged.
pub(super) struct Writes {
    task: JoinHandle<()>,
    /// Number of writes that were acknowledged.
    done: watch::Receiver<usize>,
    count: usize,
}

// === impl Writes ===

impl Writes {
    /// Begins writes to the address, which may change.
    pub(super) fn begin(http: watch::Receiver<SocketAddr>, token: &str, count: usize) -> Self {
        let (acknowledged, done) = watch::channel(0);
        let token = token.to_owned();
        let task = tokio::spawn(async move {
            for at in 0..count {
                loop {
                    let http = *http.borrow();
                    if is_acknowledged(http, &token, at).await {
                        break;
                    }
                    sleep(RETRY).await;
                }
                acknowledged.send_replace(at + 1);
            }
        });
        Self { task, done, count }
    }

    /// Number of writes that were acknowledged.
    pub(super) fn done(&self) -> usize {
        *self.done.borrow()
    }

    /// Waits until more than `done` writes are acknowledged. False if there are no more.
    pub(super) async fn more_than(&mut self, done: usize) -> bool {
        let more = timeout(WRITES_MAX, self.done.wait_for(|it| *it > done)).await;
        more.expect("writes go on").is_ok()
    }

    /// Waits for the last one, and then checks all of them.
    pub(super) async fn end(self) -> usize {
        timeout(WRITES_MAX, self.task).await.expect("writes end").expect("without a panic");
        self.count
    }
}

/// Adds a rule and publishes it, with a key of its own. Whether it was acknowledged.
async fn is_acknowledged(http: SocketAddr, token: &str, at: usize) -> bool {
    let call = Call::new("POST", "/v1/rules?publish=true").token(token);
    let call = call.header("idempotency-key", &format!("write-{at}"));
    match call.json(&rule("shop", "user", &at.to_string(), 5)).to(http).await {
        Ok(answer) if answer.status == 503 => false,
        Ok(answer) => {
            assert_eq!(answer.status, 201, "{answer:?}");
            true
        }
        // The process was killed.
        Err(_) => false,
    }
}

/// Checks that each of the writes was done once and as a whole: rule, history, audit and version.
pub(super) async fn are_whole(server: &Server, count: usize) {
    let list = server.json("/v1/rules?limit=1000").await;
    let rules = list["rules"].as_array().unwrap();
    for at in 0..count {
        let is = |it: &&serde_json::Value| it["entries"][0]["value"] == json!(at.to_string());
        assert_eq!(rules.iter().filter(is).count(), 1, "write {at}");
    }
    assert_eq!(rules.len(), count);
    for rule in rules {
        let path = format!("/v1/rules/{}/history", rule["id"].as_str().unwrap());
        let history = server.json(&path).await;
        assert_eq!(history["changes"].as_array().unwrap().len(), 1, "{history}");
    }
    let audit = server.json("/v1/audit?limit=1000").await;
    let added = audit["actions"].as_array().unwrap().iter().filter(|it| it["action"] == "rule.add");
    assert_eq!(added.count(), count);
    let versions = server.json("/v1/versions?limit=1000").await;
    let numbers: Vec<_> = versions["versions"].as_array().unwrap().iter().collect();
    let numbers: Vec<_> = numbers.iter().map(|it| it["version"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=count as u64).rev().collect::<Vec<_>>());
    for version in numbers {
        let text = server.get(&format!("/v1/export?domain=shop&version={version}")).await.text;
        assert_eq!(text.matches("key: user").count() as u64, version, "version {version}");
    }
    assert_eq!(server.post("/v1/check", &json!({})).await.json()["differences"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_whole_when_the_control_plane_is_killed_at_random_points() {
    for place in places().await {
        let mut rng = Rng::new();
        let mut process = Process::start(&place, &[]);
        let token = std::fs::read_to_string(place.token_file()).unwrap();
        let (moves, http) = watch::channel(process.http);
        let mut writes = Writes::begin(http, &token, WRITES);
        let mut kills = 0;
        while kills < KILLS && writes.more_than(writes.done()).await {
            sleep(Duration::from_micros(rng.below(KILL_WITHIN_MICROS))).await;
            process.kill();
            process = Process::start(&place, &[]);
            moves.send_replace(process.http);
            kills += 1;
        }
        let count = writes.end().await;
        assert_eq!(kills, KILLS, "the writes ended before the last kill");
        process.kill();
        let server = place.serve().await;
        are_whole(&server, count).await;
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_whole_when_postgres_is_killed_at_random_points() {
    let mut place = Place::postgres().await;
    let mut rng = Rng::new();
    let server = place.serve().await;
    let (_stays, http) = watch::channel(server.http);
    let mut writes = Writes::begin(http, &server.token, WRITES);
    let mut kills = 0;
    while kills < KILLS && writes.more_than(writes.done()).await {
        sleep(Duration::from_micros(rng.below(KILL_WITHIN_MICROS))).await;
        let postgres = place.postgres.as_mut().unwrap();
        postgres.crash();
        postgres.restart().await;
        kills += 1;
    }
    let count = writes.end().await;
    assert_eq!(kills, KILLS, "the writes ended before the last kill");
    are_whole(&server, count).await;
    server.stop().await;
}

/// Pods of a replica that is killed.
const PODS: usize = 6;

/// Within this time a pod that has connected to another replica counts there alone. The rows of the
/// one that died are forgotten after 30 s.
const MOVED_MAX: Duration = Duration::from_secs(10);

/// Connects pods of different nodes, which accept the rules that they get.
async fn connected(process: &Process) -> Vec<Pod> {
    let mut pods = Vec::new();
    for at in 0..PODS {
        let node = node(&format!("pod-{at}"), "test");
        let mut pod = Pod::over(channel(process.pods).await, node, &[RULES]).await;
        let first = pod.next().await;
        pod.accept(&first).await;
        pods.push(pod);
    }
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_killed_replica_count_once() {
    let place = Place::postgres().await;
    let (mut one, other) = (Process::start(&place, &[]), Process::start(&place, &[]));
    let token = std::fs::read_to_string(place.token_file()).unwrap();
    let call = async |method: &str, path: &str, body: &serde_json::Value| {
        let call = Call::new(method, path).token(&token).json(body);
        call.to(other.http).await.unwrap()
    };
    call("POST", "/v1/rules?publish=true", &rule("shop", "user", "", 5)).await;
    call("POST", "/v1/rules", &rule("shop", "user", "1", 5)).await;
    let label = json!({"pods": {"label": {"key": "zone", "value": "none"}}});
    assert_eq!(call("POST", "/v1/rollouts", &label).await.status, 201);
    // How many pods are listed, how many of them are current, how many count in a rollout, and their
    // replicas.
    let counted = async || {
        let list = call("GET", "/v1/pods", &json!({})).await.json();
        let rows = list["pods"].as_array().unwrap();
        let current = rows.iter().filter(|row| row["accepted"] == list["version"]).count();
        let replicas: BTreeSet<_> = rows.iter().map(|row| row["replica"].to_string()).collect();
        let shown = call("GET", "/v1/rollouts/1", &json!({})).await.json();
        let others = shown["pods"]["others"]["connected"].as_u64().unwrap();
        ([rows.len(), current, usize::try_from(others).unwrap()], replicas)
    };
    // The one replica that all pods count at.
    let all = async || {
        let (counts, mut replicas) = counted().await;
        assert!(counts.iter().all(|count| *count <= PODS), "{counts:?} at {replicas:?}");
        let replica = replicas.pop_first()?;
        (counts == [PODS; 3] && replicas.is_empty()).then_some(replica)
    };
    let pods = connected(&one).await;
    let first = wait_for("all pods at one replica", all).await;
    one.kill();
    let began = now();
    drop(pods);
    let _moved = connected(&other).await;
    let moved = async || all().await.filter(|replica| *replica != first);
    wait_for("all pods at the other replica, each once", moved).await;
    eprintln!("{PODS} pods count once again {:?} after their replica was killed", began.elapsed());
    assert!(began.elapsed() < MOVED_MAX, "{:?}", began.elapsed());
}
