//! Starts the files of a recipe as they are, except for what the machine of a test needs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

use crate::objects;
use crate::support::envoy::{Envoy, Verdicts, patient, with_addresses};
use crate::support::files::put;
use crate::support::http::{Answer, Client};
use crate::support::module::{library, migrated};
use crate::support::ratectl::ratectl;
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;
use crate::support::windows::early_in_a_window;
use crate::upstream;

/// A recipe that runs: a pod and an Envoy, or an Envoy with the module.
pub struct Recipe {
    dir: PathBuf,
    pub envoy: Envoy,
    pub pod: Option<Ratelease>,
    /// Has the socket of a pod that serves on one, or what the module was made of.
    _files: TempDir,
}

/// Headers of a request.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

const SOCKET: &str = "/run/ratelease/rls.sock";

/// A machine that also compiles must not make a verdict an error.
const PATIENT: [(&str, &str); 2] = [("LEASE_MAX_WAIT", "5s"), ("REDIS_TIMEOUT", "5s")];

/// Recipes that this process has started.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The window of the recipes, and the maximum duration of a test.
const WINDOW: Duration = Duration::from_secs(3600);
const TEST_MAX: Duration = Duration::from_secs(60);

// === impl Recipe ===

impl Recipe {
    /// Starts a recipe. Requests go to the listener of this name.
    pub async fn start(name: &str, listener: &str) -> Self {
        Self::start_before(name, listener, upstream::address()).await
    }

    /// As [`Recipe::start`], with this application behind Envoy.
    pub async fn start_before(name: &str, listener: &str, app: SocketAddr) -> Self {
        Self::start_changed(name, listener, app, &[]).await
    }

    /// As [`Recipe::start_before`]. Another part takes the place of each of these parts of its
    /// `recipe.yaml`.
    pub async fn start_changed(
        name: &str,
        listener: &str,
        app: SocketAddr,
        changes: &[(&str, &str)],
    ) -> Self {
        let (dir, files) = (prepared(name).await, TempDir::new().expect("a temporary directory"));
        let socket = files.path().join("rls.sock").display().to_string();
        let env = settings(&dir, name, &socket);
        let env: Vec<_> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
        let rules = if changes.is_empty() {
            dir.join("rules")
        } else {
            changed_rules(&dir, changes, files.path())
        };
        let pod = Ratelease::start(&rules, &cluster().places(), &env).await;

        let bootstrap = placed(&bootstrap(&dir), pod.grpc, app).replace(SOCKET, &socket);
        let of_envoy = TempDir::new().expect("a temporary directory");
        let envoy = Envoy::run(of_envoy, &bootstrap, 1, listener).await;
        Self { dir, envoy, pod: Some(pod), _files: files }
    }

    /// As [`Recipe::start`], with the engine within Envoy: a user has moved to the module as
    /// `ratectl migrate --to-module` says.
    pub async fn start_within_envoy(name: &str, listener: &str) -> Self {
        let (dir, files) = (prepared(name).await, TempDir::new().expect("a temporary directory"));
        let unused = SocketAddr::from(([127, 0, 0, 1], 9));
        let before = files.path().join("envoy.yaml");
        put(before.clone(), placed(&bootstrap(&dir), unused, upstream::address()));
        let (bootstrap, _) = migrated(&before);

        std::os::unix::fs::symlink(dir.join("rules"), files.path().join("config")).expect("a link");
        let library = library().parent().expect("a directory").display().to_string();
        let redis: Vec<_> = cluster().places().iter().map(ToString::to_string).collect();
        let mut env = settings(&dir, name, "");
        env.retain(|(name, _)| !name.starts_with("GRPC_"));
        env.extend(
            [
                ("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", library),
                ("RUNTIME_ROOT", files.path().display().to_string()),
                ("REDIS_TYPE", "cluster".to_owned()),
                ("REDIS_URL", redis.join(",")),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let env: Vec<_> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
        let of_envoy = TempDir::new().expect("a temporary directory");
        let envoy = Envoy::run_in(of_envoy, &bootstrap, 1, listener, &env).await;
        Self { dir, envoy, pod: None, _files: files }
    }

    /// The pod, of a recipe that has one.
    #[track_caller]
    pub fn pod(&self) -> &Ratelease {
        self.pod.as_ref().expect("a pod")
    }

    /// A file of the recipe.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The bootstrap, as JSON.
    pub fn bootstrap(&self) -> serde_json::Value {
        objects::document(&self.file("envoy.yaml"))
    }

    pub async fn get(&self, path: &str, headers: Headers<'_>) -> Answer {
        self.send("GET", path, headers).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: Headers<'_>) -> Answer {
        self.send_body(method, path, headers, "").await
    }

    pub async fn send_body(
        &self,
        method: &str,
        path: &str,
        headers: Headers<'_>,
        body: &str,
    ) -> Answer {
        let mut client = Client::connect(self.envoy.ingress).await.expect("Envoy listens");
        client.send(method, path, headers, body).await.expect("an answer")
    }

    /// Sends a request from this address of the loopback network.
    pub async fn get_from(&self, source: Ipv4Addr, path: &str) -> Answer {
        self.get_with(source, path, &[]).await
    }

    /// As [`Recipe::get_from`], with these headers.
    async fn get_with(&self, source: Ipv4Addr, path: &str, headers: Headers<'_>) -> Answer {
        let client = Client::connect_from(IpAddr::V4(source), self.envoy.ingress).await;
        client.expect("Envoy listens").get(path, headers).await.expect("an answer")
    }

    /// Requires that no other spelling of a path evades the limit that each client has for it.
    /// Returns how many requests the limit admitted, and how many it denied.
    pub async fn limits_spellings(
        &self,
        path: &str,
        limit: u64,
        headers: Headers<'_>,
        spellings: &[String],
    ) -> (u64, u64) {
        let mut denied = 0;
        for (spelling, client) in spellings.iter().zip(1..) {
            let client = Ipv4Addr::new(127, 0, 1, client);
            for _ in 0..limit {
                assert_eq!(self.get_with(client, path, headers).await.status, 200, "{path}");
            }
            denied += is_denied(&self.get_with(client, spelling, headers).await, spelling);
        }
        (limit * spellings.len() as u64, denied)
    }

    /// The statuses of as many requests, one after the other.
    pub async fn statuses(&self, path: &str, headers: Headers<'_>, requests: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..requests {
            statuses.push(self.get(path, headers).await.status);
        }
        statuses
    }

    /// Requires that Envoy has counted these verdicts and no error, and ends the recipe.
    #[track_caller]
    pub fn end(self, ok: u64, over_limit: u64) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let expected = Verdicts { ok, over_limit, ..Verdicts::default() };
            assert_eq!(self.envoy.verdicts().await, expected, "at {caller}");
            self.envoy.stop().await;
            if let Some(pod) = self.pod {
                assert_eq!(pod.stop().await, 0, "at {caller}");
            }
        }
    }
}

/// Other spellings of a path that Envoy and applications take for it: with a query, a slash at the
/// end, two slashes, segments of dots, an escaped letter.
pub fn spellings(path: &str) -> Vec<String> {
    let (parent, last) = path.rsplit_once('/').expect("a path");
    let (first, rest) = last.split_at(1);
    let escaped = format!("%{:02x}{rest}", first.as_bytes()[0]);
    vec![
        format!("{path}?x=1"),
        format!("{path}/"),
        format!("{parent}//{last}"),
        format!("{parent}/./{last}"),
        format!("{parent}/x/../{last}"),
        format!("{parent}/{escaped}"),
    ]
}

/// As [`spellings`], and those that only some applications take for the path: with an escaped slash
/// or a parameter of the segment.
pub fn all_spellings(path: &str) -> Vec<String> {
    let (parent, last) = path.rsplit_once('/').expect("a path");
    let more = [
        format!("{parent}/%2F{last}"),
        format!("{path}%2F"),
        format!("{parent}/x%2F..%2F{last}"),
        format!("{path};x=1"),
    ];
    spellings(path).into_iter().chain(more).collect()
}

/// Requires that a request did not reach the application: it was denied (1), or sent to the usual
/// spelling of its path (0).
#[track_caller]
pub fn is_denied(answer: &Answer, spelling: &str) -> u64 {
    assert_eq!(answer.header(upstream::MARK), None, "{spelling}: {answer:?}");
    match answer.status {
        429 => 1,
        307 => {
            let location = answer.header("location").unwrap_or_default();
            assert!(!location.contains('%') && !location.contains("//"), "{spelling}: {answer:?}");
            0
        }
        _ => panic!("{spelling}: {answer:?}"),
    }
}

/// The directory of a recipe.
pub fn directory(name: &str) -> PathBuf {
    all().join(name)
}

/// The directory of all recipes.
pub fn all() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/recipes")
}

/// Requires that an answer passed the limit or was denied by it, and names this limit and what
/// remains of it in Envoy's headers.
#[track_caller]
pub fn assert_quota(answer: &Answer, status: u16, limit: &str, remaining: u64) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header(upstream::MARK).is_some(), status == 200, "{answer:?}");
    assert_eq!(answer.header("x-ratelimit-limit"), Some(limit), "{answer:?}");
    let left = remaining.to_string();
    assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left), "{answer:?}");
    let reset = answer.header("x-ratelimit-reset").and_then(|reset| reset.parse().ok());
    assert!(reset.is_some_and(|reset| (1..=3600).contains(&reset)), "{answer:?}");
}

/// Three masters for all recipes.
fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(3, 0))
}

/// The directory of a recipe that can be started, early in a window.
async fn prepared(name: &str) -> PathBuf {
    early_in_a_window(WINDOW, TEST_MAX).await;
    let dir = directory(name);
    require_rules_for_all(&dir).await;
    dir
}

fn bootstrap(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("envoy.yaml")).expect("a bootstrap")
}

/// A copy of the rules, with the changes.
fn changed_rules(dir: &Path, changes: &[(&str, &str)], to: &Path) -> PathBuf {
    let mut rules = std::fs::read_to_string(dir.join("rules/recipe.yaml")).expect("rules");
    for (part, other) in changes {
        rules = rules.replace(part, other);
    }
    let changed = to.join("rules");
    std::fs::create_dir(&changed).expect("a directory");
    put(changed.join("recipe.yaml"), rules);
    changed
}

/// The settings of `ratelease.env`, if there is one, and those of a test.
fn settings(dir: &Path, name: &str, socket: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(dir.join("ratelease.env")).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once('=').expect("NAME=VALUE"));
    let mut env: Vec<_> =
        pairs.map(|(name, value)| (name.to_owned(), value.replace(SOCKET, socket))).collect();
    // Counts of its own, also beside another start of the recipe.
    let secret = format!("{name} {}", STARTED.fetch_add(1, Ordering::Relaxed));
    env.push(("KEY_SECRET".to_owned(), secret));
    env.extend(PATIENT.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env
}

/// The bootstrap with the addresses and the time-out of a test.
pub fn placed(bootstrap: &str, pod: SocketAddr, app: SocketAddr) -> String {
    with_addresses(&patient(bootstrap), pod, app)
}

/// Requires that each descriptor that the recipe's Envoy sends has a rule, and each rule a
/// descriptor.
async fn require_rules_for_all(dir: &Path) {
    let mut command = Command::new(ratectl());
    command
        .args(["check", "--envoy", "envoy.yaml", "--rules", "rules", "--strict"])
        .current_dir(dir);
    let checked = command.output().await.expect("ratectl runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}: {said}", dir.display());
    assert!(said.contains("without a rule: 0; rules never found: 0"), "{}: {said}", dir.display());
}
