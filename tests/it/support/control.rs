//! `ratelease-control` as a process of its own, on SQLite in a directory of the test.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::http::{self, Client};
use super::ports::free_port;
use super::process::{Process, leashed};
use super::ratectl::built;
use super::ratelease::inherited;
use super::tls_files::{TlsFiles, text};

static BINARY: LazyLock<PathBuf> =
    LazyLock::new(|| built("ratelease-control", &["--workspace", "--bin", "ratelease-control"]));

/// Maximum time until it serves, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(20);

/// A control plane. Killed when dropped.
pub(crate) struct Control {
    pub(crate) process: Process,
    /// Where the API and the page are.
    pub(crate) http: SocketAddr,
    /// Where pods connect.
    pub(crate) pods: SocketAddr,
    dir: TempDir,
}

/// A control plane that was killed.
pub(crate) struct Gone {
    http: SocketAddr,
    pods: SocketAddr,
    dir: TempDir,
}

/// The path of the program.
pub(crate) fn binary() -> &'static Path {
    &BINARY
}

// === impl Control ===

impl Control {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one whose pods need certificates.
    pub(crate) async fn tls(files: &TlsFiles) -> Self {
        let (cert, key) = &files.server;
        Self::start_with(&[
            ("--pods-tls-cert", text(cert)),
            ("--pods-tls-key", text(key)),
            ("--pods-tls-client-ca", text(&files.root)),
        ])
        .await
    }

    /// Starts one whose API is at this address.
    pub(crate) async fn start_at(http: SocketAddr, flags: &[(&str, &str)]) -> Self {
        let pods = SocketAddr::from(([127, 0, 0, 1], free_port()));
        Self::start_in(tempfile::tempdir().unwrap(), http, pods, flags).await
    }

    async fn start_with(flags: &[(&str, &str)]) -> Self {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (http, pods) = (at(free_port()), at(free_port()));
        Self::start_in(tempfile::tempdir().unwrap(), http, pods, flags).await
    }

    async fn start_in(
        dir: TempDir,
        http: SocketAddr,
        pods: SocketAddr,
        flags: &[(&str, &str)],
    ) -> Self {
        let mut command = leashed(&*BINARY);
        command.env_clear().envs(inherited()).arg("serve");
        command.args(["--http-listen", &http.to_string(), "--pods-listen", &pods.to_string()]);
        command.arg("--database-file").arg(dir.path().join("rules.db"));
        command.args(flags.iter().flat_map(|(name, value)| [name, value]));
        command.arg("--token-file").arg(dir.path().join("token"));
        let process = Process::spawn("ratelease-control", command);
        let serves = async || http::get(http, "/healthz").await.is_ok_and(|it| it.status == 200);
        process.until("serving", START_MAX, serves).await;
        Self { process, http, pods, dir }
    }

    /// Kills it, and starts it again on the same ports and database.
    pub(crate) async fn restart(self) -> Self {
        self.gone().back().await
    }

    /// Kills it.
    pub(crate) fn gone(self) -> Gone {
        let Self { process, http, pods, dir } = self;
        drop(process);
        Gone { http, pods, dir }
    }

    /// A token of access admin.
    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("token")).unwrap()
    }

    /// The file of its database.
    pub(crate) fn database(&self) -> PathBuf {
        self.dir.path().join("rules.db")
    }

    /// Runs `ratelease-control token` with these arguments, and returns what it prints.
    pub(crate) fn token_command(&self, args: &[&str]) -> String {
        let mut command = std::process::Command::new(&*BINARY);
        command.arg("token").args(args);
        command.arg("--database-file").arg(self.database());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Sends a request, which has to succeed.
    pub(crate) async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, path, &[("if-match", "*")], body).await
    }

    /// Waits until so many pods that run rules are listed: a percentage chooses some of these.
    pub(crate) async fn lists(&self, pods: usize) {
        let listed = async || {
            let list = self.call("GET", "/v1/pods", &Value::Null).await;
            let run = list["pods"].as_array().unwrap().iter().filter(|it| it["accepted"] != 0);
            run.map(|it| it["node"].to_string()).collect::<BTreeSet<_>>().len() == pods
        };
        self.process.until("the list of all pods", START_MAX, listed).await;
    }

    /// The body of a page, as it is.
    pub(crate) async fn text(&self, path: &str) -> String {
        let token = format!("Bearer {}", self.token());
        let mut client = Client::connect(self.http).await.unwrap();
        let answer = client.get(path, &[("authorization", &token)]).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    /// Imports rule files, as `/v1/import` takes them.
    pub(crate) async fn import(&self, files: &Value) -> Value {
        self.send("POST", "/v1/import", &[("content-type", "application/json")], files).await
    }

    /// Imports rule files and publishes them, and returns the status and the body.
    pub(crate) async fn publish(&self, files: &Value) -> (u16, String) {
        let token = format!("Bearer {}", self.token());
        let headers = [("authorization", &*token), ("content-type", "application/json")];
        let mut client = Client::connect(self.http).await.unwrap();
        let body = files.to_string();
        let answer = client.send("POST", "/v1/import?publish=true", &headers, body).await.unwrap();
        (answer.status, answer.body)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Value {
        self.send_as(&self.token(), method, path, headers, body).await
    }

    /// Sends a request with another token, which has to succeed.
    pub(crate) async fn call_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Value {
        self.send_as(token, method, path, &[], body).await
    }

    async fn send_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Value {
        let token = format!("Bearer {token}");
        let headers = [&[("authorization", &*token)], headers].concat();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut client = Client::connect(self.http).await.unwrap();
        let answer = client.send(method, path, &headers, body).await.unwrap();
        assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or_default()
    }
}

// === impl Gone ===

impl Gone {
    /// Starts it again on the same ports and database.
    pub(crate) async fn back(self) -> Control {
        Control::start_in(self.dir, self.http, self.pods, &[]).await
    }
}
