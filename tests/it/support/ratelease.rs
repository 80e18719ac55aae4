//! The built binary as a process of its own, on free ports of loopback.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::http;
use super::process::{Process, free_port, leashed};

/// One pod. Dropped, it is killed; [`Ratelease::stop`] ends it as Kubernetes would. A test whose
/// pod has violated an invariant fails, however the pod ends.
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

/// For a page of the debug port.
const STATUS_MAX: Duration = Duration::from_secs(10);

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
        // Another build of it, for tests of time: a debug build takes longer for everything.
        let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
        let mut command = leashed(binary);
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

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// What `/status` says. Blocks for some milliseconds.
    pub(crate) fn status(&self) -> Value {
        self.ask_status().unwrap_or_else(|error| self.process.fail(&format!("/status: {error}")))
    }

    fn ask_status(&self) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect_timeout(&self.debug, STATUS_MAX)?;
        stream.set_read_timeout(Some(STATUS_MAX))?;
        stream.write_all(b"GET /status HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        Ok(serde_json::from_str(body)?)
    }

    /// One of the `counts` of `/status`.
    #[track_caller]
    pub(crate) fn count(&self, name: &str) -> u64 {
        let status = self.status();
        status["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"))
    }

    /// Fails the test if something did not hold in the process that must always hold.
    fn has_kept_its_invariants(&self) {
        let status = self.status();
        if status["invariant_violations"] != 0 {
            self.process.fail(&format!("has violated invariants: {status}"));
        }
    }

    /// Sends SIGTERM, waits for the drain and gives the exit status. The pod has to be serving.
    pub(crate) async fn stop(&self) -> i32 {
        self.has_kept_its_invariants();
        self.process.signal("TERM");
        self.process.exit(STOP_MAX).await
    }

    /// Fails the test if the process has ended, a thread or task of it has panicked, or something
    /// did not hold that must always hold. The pod has to be serving.
    pub(crate) fn is_unharmed(&self) {
        if let Some(status) = self.process.exited() {
            self.process.fail(&format!("ended with status {status}"));
        }
        self.has_kept_its_invariants();
        self.has_not_panicked();
    }

    /// Fails the test if a thread or task of the process has panicked.
    pub(crate) fn has_not_panicked(&self) {
        if self.process.log().contains("panicked at") {
            self.process.fail("panicked");
        }
    }
}

impl Drop for Ratelease {
    /// The log tells of the first violations, and stays: this does not race the end of the process.
    fn drop(&mut self) {
        if !thread::panicking() && self.process.log().contains("invariant violated") {
            self.process.fail("has violated invariants");
        }
    }
}

/// The part of our own environment that a child gets.
pub(crate) fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED.iter().filter_map(|&name| Some((name, std::env::var_os(name)?)))
}
