//! A pod with rules of its own, and the replay of tables on it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::doors::Door;
use super::notation::{self, Answer};
use super::{Case, World};
use crate::support::files::{dir_of, put};
use crate::support::http;
use crate::support::ratelease::Ratelease;
use crate::support::redis::Cluster;
use crate::support::windows::early_in_a_window;

/// A running ratelease, its rules directory and a connection.
pub(crate) struct Pod {
    pub(crate) ratelease: Ratelease,
    door: Door,
    rules: TempDir,
    fresh: u64,
}

/// Counts of loads on `/` of the debug port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loads {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

/// Set on every pod: a machine of two cores that runs six Redis nodes and compiles must not make a
/// request fail, and `/json` must support everything that gRPC does.
const PATIENT: [(&str, &str); 3] =
    [("LEASE_MAX_WAIT", "8s"), ("REDIS_TIMEOUT", "8s"), ("JSON_REFUNDS", "true")];

/// From exec to the first answer, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(20);

/// A change of the rules is live within 1 s; the rest allows for a busy machine.
const LOAD_MAX: Duration = Duration::from_secs(10);

/// Maximum time for the steps of one row.
const CASE_MAX: Duration = Duration::from_secs(4);

/// Every window ends with a minute, except those of a second.
const MINUTE: Duration = Duration::from_secs(60);

// === impl Pod ===

impl Pod {
    /// Starts a pod with these rule files, by name and text, and waits until it is ready.
    pub(crate) async fn start(world: World, rules: &[(&str, &str)], env: &[(&str, &str)]) -> Self {
        let pod = Self::start_unready(world, rules, env).await;
        pod.ratelease.ready().await;
        pod
    }

    /// As [`Pod::start`], but the rules may be invalid: the pod only has to be alive.
    pub(crate) async fn start_unready(
        world: World,
        rules: &[(&str, &str)],
        env: &[(&str, &str)],
    ) -> Self {
        let dir = dir_of(rules);
        let (ratelease, door) = run(world, dir.path(), env).await;
        Self { ratelease, door, rules: dir, fresh: 0 }
    }

    /// Replays a table. Descriptors are in `domain` unless a row names another.
    pub(crate) async fn check(&mut self, domain: &str, cases: &[Case<'_>]) {
        for case in cases {
            clear_of_window_ends().await;
            self.replay(domain, case).await.unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    /// Runs all steps of a row; returns an error for the first that differs from the expectation.
    async fn replay(
        &mut self,
        domain: &str,
        Case(name, requests, answers): &Case<'_>,
    ) -> Result<(), String> {
        self.fresh += 1;
        let fresh = format!("fresh{}", self.fresh);
        let asked: Vec<_> = requests.split(" | ").collect();
        let expected: Vec<_> = answers.split(" | ").collect();
        assert!([1, expected.len()].contains(&asked.len()), "{name}: as many steps as answers");
        for (step, expected) in expected.iter().enumerate() {
            let text = asked[step.min(asked.len() - 1)].replace('$', &fresh);
            let reported = self.ask(domain, &text).await.map_or_else(|error| error, |it| it.text());
            if reported != *expected {
                let step = step + 1;
                return Err(format!(
                    "{name}, step {step}: {text}\nreported: {reported}\nexpected: {expected}"
                ));
            }
        }
        Ok(())
    }

    /// Sends one request in the notation; the error is `CODE text`.
    pub(crate) async fn ask(&mut self, domain: &str, text: &str) -> Result<Answer, String> {
        self.door.ask(notation::request(domain, text)).await
    }

    /// The address of its HTTP port.
    pub(crate) fn http(&self) -> std::net::SocketAddr {
        self.ratelease.http
    }

    /// Creates or replaces a rule file atomically.
    pub(crate) fn write(&self, name: &str, text: &str) {
        put(self.path(name), text);
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.rules.path()).join(name)
    }

    /// The page `/` of the debug port.
    pub(crate) async fn index(&self) -> String {
        http::get(self.ratelease.debug, "/").await.expect("the debug page").body
    }

    pub(crate) async fn loads(&self) -> Loads {
        let page = self.index().await;
        let count = |label| {
            let line = page.lines().find_map(|line| line.strip_prefix(label));
            line.and_then(|count| count.trim().parse().ok()).expect("a count on the debug page")
        };
        Loads { accepted: count("loads accepted:"), refused: count("loads refused:") }
    }

    /// Waits until these numbers of loads were accepted and refused.
    pub(crate) async fn loaded(&self, accepted: u64, refused: u64) {
        let expected = Loads { accepted, refused };
        let seen = async || self.loads().await == expected;
        self.ratelease.process.until(&format!("at {expected:?}"), LOAD_MAX, seen).await;
    }
}

/// Starts a process with the rules of a directory and connects to it once it is alive.
async fn run(world: World, rules: &Path, env: &[(&str, &str)]) -> (Ratelease, Door) {
    let nodes: Vec<_> = match world {
        World::Memory | World::MemoryOverHttp => Vec::new(),
        World::Cluster => Cluster::shared().places(),
    };
    static PROCESSES: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("contract-{}:", PROCESSES.fetch_add(1, Ordering::Relaxed));
    let own = [("CACHE_KEY_PREFIX", prefix.as_str())];
    let all = [&PATIENT[..], &own[..], env].concat();
    let ratelease = Ratelease::spawn(rules, &nodes, &all);
    let alive = async || http::get(ratelease.http, "/livez").await.is_ok();
    ratelease.process.until("alive", START_MAX, alive).await;
    let door = match world {
        World::Memory | World::Cluster => Door::grpc(&ratelease).await,
        World::MemoryOverHttp => Door::http(&ratelease).await,
    };
    (ratelease, door)
}

/// Waits until no window ends while a row is replayed, except those of a second. Rarely waits, and
/// for at most [`CASE_MAX`].
pub(crate) async fn clear_of_window_ends() {
    early_in_a_window(MINUTE, CASE_MAX).await;
}
