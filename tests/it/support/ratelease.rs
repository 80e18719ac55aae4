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

/// One pod. Dropped, it is killed; [`Ratelease::stop`] ends it as Kubernetes would. A test whose
/// pod has violated an invariant fails, however the pod ends.
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

/// To `/readyz`, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(20);

/// The drain's bound of 10 s, and some for a busy machine.
const STOP_MAX: Duration = Duration::from_secs(15);

/// For a page of the debug port.
const STATUS_MAX: Duration = Duration::from_secs(10);

/// Counts of `/status` that are 0 unless a part of the process has panicked.
const PANICS: [&str; 4] = ["request_panics", "lease_panics", "loader_panics", "task_restarts"];

/// The part of `/status` that counts what did not hold and must always hold.
const INVARIANTS: &str = "invariant_violations";

/// What the log says of the same.
const HARM: [&str; 2] = ["panicked at", "invariant violated"];

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

    /// Waits until a line of the log holds `what`, and gives the line. A thread of its own writes
    /// the log: a line comes after what it tells of can be seen elsewhere.
    pub(crate) async fn logs(&self, what: &str) -> String {
        self.logs_times(what, 1).await.remove(0)
    }

    /// Waits until so many lines of the log hold `what`, and gives them all. That there are no more
    /// is known once the process has ended: see [`Ratelease::logged`].
    pub(crate) async fn logs_times(&self, what: &str, times: usize) -> Vec<String> {
        let logged = async || self.lines_with(what).len() >= times;
        self.process.until(&format!("logging {what:?}, {times} times"), START_MAX, logged).await;
        self.lines_with(what)
    }

    /// All lines with `what` of the log of the process, which has ended.
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

    /// What `/status` shows to be broken in the process: panics, or invariants that did not hold.
    pub(crate) fn harm(status: &Value) -> Vec<String> {
        let counts = PANICS.iter().map(|name| (*name, &status["counts"][name]));
        let all = counts.chain([(INVARIANTS, &status[INVARIANTS])]);
        let broken = all.filter(|(_, count)| count.as_u64() != Some(0));
        broken.map(|(name, count)| format!("{name} is {count}, not 0")).collect()
    }

    /// What the log shows to be broken in the process. It is whole once the process has ended.
    pub(crate) fn logged_harm(&self) -> Option<String> {
        let log = self.process.log();
        log.lines().find(|line| HARM.iter().any(|it| line.contains(it))).map(str::to_owned)
    }

    /// Sends SIGTERM, waits for the drain and gives the exit status. The pod has to be serving.
    /// Fails the test if a part of it has panicked, or if something did not hold that must always
    /// hold, the drain included.
    pub(crate) async fn stop(&self) -> i32 {
        self.is_unharmed();
        self.process.signal("TERM");
        self.end().await
    }

    /// As [`Ratelease::stop`], of several pods at a time.
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

    /// Loads of rules that were refused so far.
    #[track_caller]
    pub(crate) fn loads_refused(&self) -> u64 {
        self.status()["rules"]["loads_failed"].as_u64().expect("a number")
    }

    /// Fails the test if the process has ended, a part of it has panicked, or something did not
    /// hold that must always hold. The pod has to be serving.
    pub(crate) fn is_unharmed(&self) {
        if let Some(status) = self.process.exited() {
            self.process.fail(&format!("ended with status {status}"));
        }
        let broken = Self::harm(&self.status());
        if !broken.is_empty() {
            self.process.fail(&format!("is broken: {}", broken.join(", ")));
        }
    }

    /// Fails the test if the log of the process, which has ended, shows a panic or a broken
    /// invariant.
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
    /// The log tells of panics and broken invariants, and stays: this does not race the end of the
    /// process.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        if let Some(line) = self.logged_harm() {
            self.process.fail(&format!("is broken: {line}"));
        }
    }
}

/// The part of our own environment that a child gets.
pub(crate) fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED.iter().filter_map(|&name| Some((name, std::env::var_os(name)?)))
}
