//! The built binary as a process of its own, on free ports of loopback.

use std::net::SocketAddr;
use std::path::Path;
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
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (grpc, http, debug) = (at(free_port()), at(free_port()), at(free_port()));
        let mut command = leashed(env!("CARGO_BIN_EXE_ratelease"));
        command.args(["serve", "--rules"]).arg(rules).env_clear();
        command.envs(INHERITED.iter().filter_map(|&name| Some((name, std::env::var_os(name)?))));
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
        let asked = async || http::get(self.http, "/readyz").await.is_ok_and(|a| a.status == 200);
        self.process.until("ready", START_MAX, asked).await;
    }

    /// Sends SIGTERM, waits for the drain and gives the exit status.
    pub(crate) async fn stop(&self) -> i32 {
        self.process.signal("TERM");
        self.process.exit(STOP_MAX).await
    }
}
