//! A pod with rules of its own, and how a table is replayed on it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::doors::Door;
use super::notation::{self, Answer};
use super::{Case, World};
use crate::support::http;
use crate::support::ratelease::Ratelease;
use crate::support::redis::Cluster;

/// A running ratelease, its rules directory and a connection.
pub(crate) struct Pod {
    pub(crate) ratelease: Ratelease,
    door: Door,
    rules: TempDir,
    fresh: u64,
}

/// Loads as `/` of the debug port counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loads {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

/// Set on every pod: a busy machine must not make a request fail.
const PATIENT: (&str, &str) = ("LEASE_MAX_WAIT", "2s");

/// A change of the rules is live within 1 s; the rest is for a busy machine.
const LOAD_MAX: Duration = Duration::from_secs(10);

/// The steps of one row take no longer than this.
const CASE_MAX: Duration = Duration::from_secs(4);

/// Every window ends with a minute, but for those of a second.
const MINUTE: Duration = Duration::from_secs(60);

// === impl Pod ===

impl Pod {
    /// A pod with these rule files, by name and text, that is ready.
    pub(crate) async fn start(world: World, rules: &[(&str, &str)], env: &[(&str, &str)]) -> Self {
        let (ratelease, rules) = Self::spawn(world, rules, env);
        ratelease.ready().await;
        Self::connect(world, ratelease, rules).await
    }

    /// As [`Pod::start`], but its rules may be bad: it need only be alive.
    pub(crate) async fn start_unready(
        world: World,
        rules: &[(&str, &str)],
        env: &[(&str, &str)],
    ) -> Self {
        let (ratelease, rules) = Self::spawn(world, rules, env);
        let alive = async || http::get(ratelease.http, "/livez").await.is_ok();
        ratelease.process.until("alive", LOAD_MAX, alive).await;
        Self::connect(world, ratelease, rules).await
    }

    fn spawn(world: World, rules: &[(&str, &str)], env: &[(&str, &str)]) -> (Ratelease, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        rules.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
        let nodes: Vec<_> = match world {
            World::Memory | World::MemoryOverHttp => Vec::new(),
            World::Cluster => {
                let masters = Cluster::shared().nodes.iter().take(3);
                masters.map(|node| ([127, 0, 0, 1], node.port()).into()).collect()
            }
        };
        // The counts of two pods on the shared cluster never mix.
        static PODS: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("contract-{}:", PODS.fetch_add(1, Ordering::Relaxed));
        let mut all = vec![PATIENT, ("CACHE_KEY_PREFIX", prefix.as_str())];
        all.extend(env);
        (Ratelease::spawn(dir.path(), &nodes, &all), dir)
    }

    async fn connect(world: World, ratelease: Ratelease, rules: TempDir) -> Self {
        let door = match world {
            World::Memory | World::Cluster => Door::grpc(&ratelease).await,
            World::MemoryOverHttp => Door::http(&ratelease).await,
        };
        Self { ratelease, door, rules, fresh: 0 }
    }

    /// Replays a table. Descriptors are of `domain` where a row names no other.
    pub(crate) async fn check(&mut self, domain: &str, cases: &[Case<'_>]) {
        for Case(name, requests, answers) in cases {
            self.fresh += 1;
            let fresh = format!("fresh{}", self.fresh);
            clear_of_window_ends().await;
            let asked: Vec<_> = requests.split(" | ").collect();
            let expected: Vec<_> = answers.split(" | ").collect();
            assert!([1, expected.len()].contains(&asked.len()), "{name}: as many steps as answers");
            for (step, expected) in expected.iter().enumerate() {
                let text = asked[step.min(asked.len() - 1)].replace('$', &fresh);
                let told = match self.ask(domain, &text).await {
                    Ok(answer) => answer.text(),
                    Err(error) => error,
                };
                assert_eq!(told, *expected, "{name}, step {}: {text}", step + 1);
            }
        }
    }

    /// One request in the notation; its error is `CODE text`.
    pub(crate) async fn ask(&mut self, domain: &str, text: &str) -> Result<Answer, String> {
        self.door.ask(notation::request(domain, text)).await
    }

    /// A rule file, new or in the place of the old one; never seen half written.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let passing = self.rules.path().join(".passing");
        fs::write(&passing, text).unwrap();
        fs::rename(passing, self.path(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.rules.path()).join(name)
    }

    /// The debug port's `/`.
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

    /// Waits until so many loads were accepted and refused.
    pub(crate) async fn loaded(&self, accepted: u64, refused: u64) {
        let expected = Loads { accepted, refused };
        let seen = async || self.loads().await == expected;
        self.ratelease.process.until(&format!("at {expected:?}"), LOAD_MAX, seen).await;
    }
}

/// Waits until no window ends while a row is replayed, unless that is a second's. Seldom at all,
/// and [`CASE_MAX`] at most.
pub(crate) async fn clear_of_window_ends() {
    // The wall clock is what windows follow, in memory and on this machine's Redis.
    #[allow(clippy::disallowed_methods)]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let into = Duration::new(now.as_secs() % MINUTE.as_secs(), now.subsec_nanos());
    let left = MINUTE - into;
    if left < CASE_MAX {
        tokio::time::sleep(left).await;
    }
}
