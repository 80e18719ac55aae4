//! A real Envoy in front of the pods of a test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use config::ANY_PORT;
pub(crate) use config::{EnvoyOptions, filter};

use super::http::{self, Answer, Client};
use super::load::{Load, RunningLoad};
use super::process::{Process, leashed};

mod config;

/// Envoy with one listener, the rate limit filter, and an upstream of its own that answers 200.
pub(crate) struct Envoy {
    process: Process,
    /// The address that accepts requests.
    pub(crate) ingress: SocketAddr,
    admin: SocketAddr,
    /// Its configuration and the upstream's socket.
    _files: TempDir,
}

/// Envoy's own counts of the answers that it got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    /// No answer in time, or a gRPC status other than OK.
    pub(crate) error: u64,
    /// Errors after which the request passed, by `failure_mode_deny: false`.
    pub(crate) failure_mode_allowed: u64,
}

const START_MAX: Duration = Duration::from_secs(20);
const STOP_MAX: Duration = Duration::from_secs(10);

// === impl Envoy ===

impl Envoy {
    /// Starts Envoy, and waits until it accepts requests and sees `options.healthy` pods.
    pub(crate) async fn start(options: EnvoyOptions) -> Self {
        let files = TempDir::new().expect("a temporary directory");
        let path = |name: &str| files.path().join(name);
        let config = options.bootstrap(&path("upstream.sock"));
        std::fs::write(path("envoy.json"), config.to_string()).expect("a written configuration");

        let mut command = leashed(binary());
        command.arg("--config-path").arg(path("envoy.json"));
        command.arg("--admin-address-path").arg(path("admin"));
        command.arg("--concurrency").arg(options.concurrency.to_string());
        command.args(["--disable-hot-restart", "--log-level", "warning"]);
        let process = Process::spawn("envoy", command);

        let reported = || std::fs::read_to_string(path("admin")).ok()?.parse().ok();
        process.until("listening for admin", START_MAX, async || reported().is_some()).await;
        let admin = reported().expect("an address that was reported stays");
        let mut envoy = Self { process, ingress: ANY_PORT, admin, _files: files };
        let live = async || http::get(admin, "/ready").await.is_ok_and(|a| a.status == 200);
        envoy.process.until("live", START_MAX, live).await;
        envoy.ingress = envoy.ingress().await;
        envoy.healthy(options.healthy).await;
        envoy
    }

    /// Waits until Envoy considers at least this many pods healthy.
    pub(crate) async fn healthy(&self, pods: usize) {
        let name = "cluster.ratelease.membership_healthy";
        let seen = async || self.stat(name).await.is_some_and(|n| n >= pods as u64);
        self.process.until("connected to healthy pods", START_MAX, seen).await;
    }

    /// Sends a GET through Envoy, on a connection of its own.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut client = Client::connect(self.ingress).await.expect("Envoy takes connections");
        client.get(path, headers).await.expect("Envoy answers")
    }

    /// Starts a load through Envoy.
    pub(crate) fn load(&self, load: Load) -> RunningLoad {
        load.start(self.ingress)
    }

    /// Envoy's own counts of ratelease's answers.
    pub(crate) async fn verdicts(&self) -> Verdicts {
        // Envoy creates each counter when it first counts, under the cluster that the request was
        // for.
        let count = async |name: &str| {
            self.stat(&format!("cluster.upstream.ratelimit.{name}")).await.unwrap_or(0)
        };
        Verdicts {
            ok: count("ok").await,
            over_limit: count("over_limit").await,
            error: count("error").await,
            failure_mode_allowed: count("failure_mode_allowed").await,
        }
    }

    /// One of Envoy's counters or gauges by its full name. A name that Envoy does not have (yet)
    /// fails the test, so that a misspelt one does not read as 0.
    pub(crate) async fn counter(&self, name: &str) -> u64 {
        match self.stat(name).await {
            Some(value) => value,
            None => self.process.fail(&format!("has no counter {name}")),
        }
    }

    /// Ends Envoy gracefully.
    pub(crate) async fn stop(self) {
        self.process.signal("TERM");
        self.process.exit(STOP_MAX).await;
    }

    async fn stat(&self, name: &str) -> Option<u64> {
        let page = self.admin("/stats").await;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value?.parse().ok()
    }

    async fn ingress(&self) -> SocketAddr {
        let page = self.admin("/listeners").await;
        let reported = page.lines().find_map(|line| line.strip_prefix("ingress::")?.parse().ok());
        reported.unwrap_or_else(|| self.process.fail(&format!("has no listener: {page}")))
    }

    async fn admin(&self, path: &str) -> String {
        http::get(self.admin, path).await.expect("Envoy's admin page").body
    }
}

/// Envoy's binary: `ENVOY_BIN`, or the path where `scripts/test` installs it.
fn binary() -> PathBuf {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/envoy");
    let path = std::env::var_os("ENVOY_BIN").map_or_else(installed, PathBuf::from);
    assert!(
        path.is_file(),
        "no Envoy at {}: run scripts/test once: it installs Envoy",
        path.display()
    );
    path
}
