//! The built binary as a process of its own, on free ports of loopback.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::http;
use super::process::{Process, free_port, leashed};

/// One pod. Dropped, it is killed; [`Ratelease::stop`] ends it as Kubernetes would.
pub(crate) struct Ratelease {
    pub(crate) process: Process,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) debug: SocketAddr,
}

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ratelease");

/// To `/readyz`, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(20);

/// The drain's bound of 10 s, and some for a busy machine.
const STOP_MAX: Duration = Duration::from_secs(15);

/// What a child gets of our own environment. Not a `REDIS_URL` that happens to be set there.
const INHERITED: [&str; 3] = ["PATH", "LLVM_PROFILE_FILE", "RUST_BACKTRACE"];

// === impl Ratelease ===

impl Ratelease {
    /// Starts a pod and waits until it is ready. See [`Ratelease::spawn`].
    pub(crate) async fn start(rules: &Path, redis: &[SocketAddr], env: &[(&str, &str)]) -> Self {
        let pod = Self::spawn(rules, redis, env);
        pod.ready().await;
        pod
    }

    /// Starts a pod with the rules of a directory, on a Redis Cluster, or on the embedded store if
    /// `redis` is empty. `env` is set last: it can replace any setting made here, ports excepted.
    pub(crate) fn spawn(rules: &Path, redis: &[SocketAddr], env: &[(&str, &str)]) -> Self {
        let mut command = leashed(BINARY);
        command.args(["serve", "--rules"]).arg(rules);
        Self::run(command, redis, env)
    }

    /// As [`Ratelease::spawn`], with a [`leashed`] command that becomes the pod.
    pub(crate) fn run(mut command: Command, redis: &[SocketAddr], env: &[(&str, &str)]) -> Self {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (grpc, http, debug) = (at(free_port()), at(free_port()), at(free_port()));
        command.env_clear().envs(inherited());
        for (host, port, addr) in [
            ("HOST", "PORT", http),
            ("GRPC_HOST", "GRPC_PORT", grpc),
            ("DEBUG_HOST", "DEBUG_PORT", debug),
        ] {
            command.env(host, addr.ip().to_string()).env(port, addr.port().to_string());
        }
        if !redis.is_empty() {
            let nodes: Vec<_> = redis.iter().map(SocketAddr::to_string).collect();
            command.env("REDIS_TYPE", "cluster").env("REDIS_SOCKET_TYPE", "tcp");
            command.env("REDIS_URL", nodes.join(","));
        }
        command.envs(env.iter().copied());
        Self { process: Process::spawn("ratelease", command), grpc, http, debug }
    }

    /// Waits until `/readyz` answers 200.
    pub(crate) async fn ready(&self) {
        self.says("/readyz", 200).await;
    }

    /// Waits until a page of the HTTP port answers with this status.
    pub(crate) async fn says(&self, path: &str, status: u16) {
        let asked = async || http::get(self.http, path).await.is_ok_and(|a| a.status == status);
        self.process.until(&format!("saying {status} at {path}"), START_MAX, asked).await;
    }

    /// Waits until a line of the log holds `what`, and gives the line.
    pub(crate) async fn logs(&self, what: &str) -> String {
        let line = || {
            let log = self.process.log();
            log.lines().find(|line| line.contains(what)).map(str::to_owned)
        };
        let logged = async || line().is_some();
        self.process.until(&format!("logging {what:?}"), START_MAX, logged).await;
        line().expect("what is logged stays")
    }

    /// Sends SIGTERM, waits for the drain and gives the exit status.
    pub(crate) async fn stop(&self) -> i32 {
        self.process.signal("TERM");
        self.process.exit(STOP_MAX).await
    }

    /// Fails the test if the process has ended or a thread or task of it has panicked.
    pub(crate) fn is_unharmed(&self) {
        if let Some(status) = self.process.exited() {
            self.process.fail(&format!("ended with status {status}"));
        }
        self.has_not_panicked();
    }

    /// Fails the test if a thread or task of the process has panicked.
    pub(crate) fn has_not_panicked(&self) {
        if self.process.log().contains("panicked at") {
            self.process.fail("panicked");
        }
    }
}

/// The part of our own environment that a child gets.
pub(crate) fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED.iter().filter_map(|&name| Some((name, std::env::var_os(name)?)))
}
