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
use super::ports::free_port;
use super::process::{Process, leashed};

/// One pod. Killed when dropped; [`Ratelease::stop`] ends it as Kubernetes would. A test fails if
/// its pod has violated an invariant, however the pod ends.
pub(crate) struct Ratelease {
    pub(crate) process: Process,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) debug: SocketAddr,
    /// `DEBUG_TOKEN`.
    token: Option<String>,
}

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ratelease");

/// Maximum time until `/readyz` answers 200, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(20);

/// The maximum drain time of 10 s, and some time for a busy machine.
const STOP_MAX: Duration = Duration::from_secs(15);

/// Maximum time for a page of the debug port.
const STATUS_MAX: Duration = Duration::from_secs(10);

/// Counts of `/status` that are 0 unless a part of the process has panicked.
const PANICS: [&str; 4] = ["request_panics", "lease_panics", "loader_panics", "task_restarts"];

/// The part of `/status` that counts violated invariants.
const INVARIANTS: &str = "invariant_violations";

/// Text of panics and violated invariants in the log.
const HARM: [&str; 2] = ["panicked at", "invariant violated"];

/// Variables of our environment that a child inherits. A `REDIS_URL` that happens to be set is not.
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
    /// `redis` is empty. `env` is applied last: it can replace any setting made here except ports.
    pub(crate) fn spawn(rules: &Path, redis: &[SocketAddr], env: &[(&str, &str)]) -> Self {
        // Another build, for tests of time: a debug build takes longer for everything.
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
        let token = env.iter().find(|(name, _)| *name == "DEBUG_TOKEN");
        let token = token.map(|(_, token)| (*token).to_owned());
        Self { process: Process::spawn("ratelease", command), grpc, http, debug, token }
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

    /// Waits until a line of the log contains `what`, and returns the line. A separate thread
    /// writes the log, so a line may appear after its event is visible elsewhere.
    pub(crate) async fn logs(&self, what: &str) -> String {
        self.logs_times(what, 1).await.remove(0)
    }

    /// Waits until `times` lines of the log contain `what`, and returns them all. Whether there are
    /// more is known only once the process has ended: see [`Ratelease::logged`].
    pub(crate) async fn logs_times(&self, what: &str, times: usize) -> Vec<String> {
        let logged = async || self.lines_with(what).len() >= times;
        self.process.until(&format!("logging {what:?}, {times} times"), START_MAX, logged).await;
        self.lines_with(what)
    }

    /// All lines that contain `what` in the log of a process that has ended.
    pub(crate) fn logged(&self, what: &str) -> Vec<String> {
        if self.process.exited().is_none() {
            self.process.fail("still runs: its log is not whole");
        }
        self.lines_with(what)
    }

    fn lines_with(&self, what: &str) -> Vec<String> {
        let log = self.process.log();
        log.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// The content of `/status`. Blocks for some milliseconds.
    pub(crate) fn status(&self) -> Value {
        self.ask_status().unwrap_or_else(|error| self.process.fail(&format!("/status: {error}")))
    }

    fn ask_status(&self) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect_timeout(&self.debug, STATUS_MAX)?;
        stream.set_read_timeout(Some(STATUS_MAX))?;
        let token = self.token.iter().map(|token| format!("authorization: Bearer {token}\r\n"));
        let token: String = token.collect();
        let head =
            format!("GET /status HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(head.as_bytes())?;
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

    /// Panics and violated invariants in `/status`.
    pub(crate) fn harm(status: &Value) -> Vec<String> {
        let counts = PANICS.iter().map(|name| (*name, &status["counts"][name]));
        let all = counts.chain([(INVARIANTS, &status[INVARIANTS])]);
        let broken = all.filter(|(_, count)| count.as_u64() != Some(0));
        broken.map(|(name, count)| format!("{name} is {count}, not 0")).collect()
    }

    /// The first panic or violated invariant in the log, which is complete once the process has
    /// ended.
    pub(crate) fn logged_harm(&self) -> Option<String> {
        let log = self.process.log();
        log.lines().find(|line| HARM.iter().any(|it| line.contains(it))).map(str::to_owned)
    }

    /// Sends SIGTERM, waits for the drain and returns the exit status. The pod has to be serving.
    /// Fails the test if the pod has panicked or violated an invariant, including during the drain.
    pub(crate) async fn stop(&self) -> i32 {
        self.is_unharmed();
        self.process.signal("TERM");
        self.end().await
    }

    /// As [`Ratelease::stop`], for several pods at a time.
    pub(crate) async fn stop_all(pods: &[Self]) -> Vec<i32> {
        pods.iter().for_each(Self::is_unharmed);
        pods.iter().for_each(|pod| pod.process.signal("TERM"));
        let mut statuses = Vec::new();
        for pod in pods {
            statuses.push(pod.end().await);
        }
        statuses
    }

    async fn end(&self) -> i32 {
        let status = self.process.exit(STOP_MAX).await;
        self.ended_unharmed();
        status
    }

    /// Number of loads of rules that were refused so far.
    #[track_caller]
    pub(crate) fn loads_refused(&self) -> u64 {
        self.status()["rules"]["loads_failed"].as_u64().expect("a number")
    }

    /// Fails the test if the process has ended, has panicked, or has violated an invariant. The pod
    /// has to be serving.
    pub(crate) fn is_unharmed(&self) {
        if let Some(status) = self.process.exited() {
            self.process.fail(&format!("ended with status {status}"));
        }
        let broken = Self::harm(&self.status());
        if !broken.is_empty() {
            self.process.fail(&format!("is broken: {}", broken.join(", ")));
        }
    }

    /// Fails the test if the log of a process that has ended shows a panic or a violated invariant.
    pub(crate) fn ended_unharmed(&self) {
        if self.process.exited().is_none() {
            self.process.fail("still runs: its log is not whole");
        }
        if let Some(line) = self.logged_harm() {
            self.process.fail(&format!("is broken: {line}"));
        }
    }
}

impl Drop for Ratelease {
    /// Uses the log, which contains panics and violated invariants and outlives the process, so
    /// that this does not race with the end of the process.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        if let Some(line) = self.logged_harm() {
            self.process.fail(&format!("is broken: {line}"));
        }
    }
}

/// The variables of our environment that a child inherits.
pub(crate) fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED.iter().filter_map(|&name| Some((name, std::env::var_os(name)?)))
}
