//! A real Envoy in front of the pods of a test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

pub(crate) use config::{
    ANY_PORT, EnvoyOptions, assignment, endpoint, filter, listener, pipe, router, socket,
};
pub(crate) use recipe::{patient, with_addresses};

use super::http::{self, Answer, Client};
use super::load::{Load, RunningLoad};
use super::process::{Process, leashed};

mod config;
mod recipe;

/// Envoy with the rate limit filter. One of [`Envoy::start`] has one listener, and an upstream of
/// its own that answers 200.
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
        let config = options.bootstrap(&files.path().join("upstream.sock"));
        let config = config.to_string();
        let envoy = Self::run(files, &config, options.concurrency, "ingress").await;
        envoy.healthy(options.healthy).await;
        envoy
    }

    /// Starts Envoy with a bootstrap in YAML, and waits until it is live. Its admin page and its
    /// listeners take free ports if their ports are 0; requests go to the listener `ingress`.
    pub(crate) async fn run(
        files: TempDir,
        bootstrap: &str,
        concurrency: usize,
        ingress: &str,
    ) -> Self {
        Self::run_in(files, bootstrap, concurrency, ingress, &[]).await
    }

    /// As [`Envoy::run`], with these variables in its environment.
    pub(crate) async fn run_in(
        files: TempDir,
        bootstrap: &str,
        concurrency: usize,
        ingress: &str,
        env: &[(&str, &str)],
    ) -> Self {
        let more = |command: &mut Command| {
            command.envs(env.iter().copied());
        };
        Self::run_with(files, bootstrap, concurrency, ingress, more).await
    }

    /// As [`Envoy::run`], with what `more` adds to the command.
    pub(crate) async fn run_with(
        files: TempDir,
        bootstrap: &str,
        concurrency: usize,
        ingress: &str,
        more: impl FnOnce(&mut Command),
    ) -> Self {
        let path = |name: &str| files.path().join(name);
        std::fs::write(path("envoy.yaml"), bootstrap).expect("a written configuration");
        let mut command = leashed(binary());
        command.arg("--config-path").arg(path("envoy.yaml"));
        command.arg("--admin-address-path").arg(path("admin"));
        command.arg("--concurrency").arg(concurrency.to_string());
        command.args(["--disable-hot-restart", "--log-level", "warning"]);
        more(&mut command);
        let process = Process::spawn("envoy", command);

        let reported = || std::fs::read_to_string(path("admin")).ok()?.parse().ok();
        process.until("listening for admin", START_MAX, async || reported().is_some()).await;
        let admin = reported().expect("an address that was reported stays");
        let mut envoy = Self { process, ingress: ANY_PORT, admin, _files: files };
        let live = async || http::get(admin, "/ready").await.is_ok_and(|a| a.status == 200);
        envoy.process.until("live", START_MAX, live).await;
        envoy.ingress = envoy.listener(ingress).await;
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

    /// Envoy's own counts of ratelease's answers, of all its rate limit filters and modules.
    pub(crate) async fn verdicts(&self) -> Verdicts {
        // Envoy creates each counter when it first counts: `cluster.NAME.ratelimit.COUNT`, under
        // the cluster that the request was for, `ratelimit.PREFIX.COUNT` of a network filter, or
        // `ratelease.COUNT` of the module.
        let page = self.admin("/stats").await;
        let count = |count: &str| {
            let values = page.lines().filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                let module = || name.strip_prefix("ratelease.");
                let of = name.rsplit_once("ratelimit.").map(|(_, of)| of).or_else(module)?;
                (of.rsplit('.').next() == Some(count)).then_some(value)?.parse::<u64>().ok()
            });
            values.sum()
        };
        Verdicts {
            ok: count("ok"),
            over_limit: count("over_limit"),
            error: count("error"),
            failure_mode_allowed: count("failure_mode_allowed"),
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

    /// Waits until `ready` is true.
    pub(crate) async fn until(&self, what: &str, ready: impl AsyncFn() -> bool) {
        self.process.until(what, START_MAX, ready).await;
    }

    /// Ends Envoy gracefully.
    pub(crate) async fn stop(self) {
        self.process.signal("TERM");
        self.process.exit(STOP_MAX).await;
    }

    pub(crate) async fn stat(&self, name: &str) -> Option<u64> {
        let page = self.admin("/stats").await;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value?.parse().ok()
    }

    /// What it, and a module in it, have logged so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// The address of a listener.
    pub(crate) async fn listener(&self, name: &str) -> SocketAddr {
        let page = self.admin("/listeners").await;
        let address = |line: &str| line.strip_prefix(name)?.strip_prefix("::")?.parse().ok();
        let reported = page.lines().find_map(address);
        reported.unwrap_or_else(|| self.process.fail(&format!("has no listener {name}: {page}")))
    }

    /// A page of Envoy's admin port.
    pub(crate) async fn admin(&self, path: &str) -> String {
        http::get(self.admin, path).await.expect("Envoy's admin page").body
    }

    /// Asks Envoy's admin port to do something.
    pub(crate) async fn post(&self, path: &str) {
        let mut client = Client::connect(self.admin).await.expect("Envoy's admin port");
        client.send("POST", path, &[], "").await.expect("Envoy's admin port answers");
    }

    /// Its process.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }
}

/// What Envoy says of a bootstrap configuration in YAML that it only checks, and whether it is
/// valid.
pub(crate) fn validate(bootstrap: &str, env: &[(&str, &str)]) -> (bool, String) {
    let files = TempDir::new().expect("a temporary directory");
    let path = files.path().join("envoy.yaml");
    std::fs::write(&path, bootstrap).expect("a written configuration");
    let mut command = Command::new(binary());
    command.arg("--config-path").arg(path).args(["--mode", "validate", "--log-level", "info"]);
    let output = command.envs(env.iter().copied()).output().expect("Envoy runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
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
