//! An ADS server of go-control-plane: the program of `tests/control_plane`, which reads commands
//! and writes events as lines of JSON.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::tls_files::{TlsFiles, text};

/// A server with the rules of one node. It ends when its stdin is closed, so at the latest with
/// this process.
pub(crate) struct ControlPlane {
    pub(crate) addr: SocketAddr,
    process: Child,
    commands: ChildStdin,
    events: watch::Receiver<Vec<Value>>,
}

/// Limit for each event, on a machine that also compiles.
const EVENT_MAX: Duration = Duration::from_secs(15);

/// The setting that makes a pod the node whose rules the server has.
pub(crate) const NODE: (&str, &str) = ("CONFIG_GRPC_XDS_NODE_ID", "the-node");

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts one that listens on `addr`, with TLS 1.3 for clients with a certificate if there are
    /// files.
    pub(crate) async fn start(addr: SocketAddr, tls: Option<&TlsFiles>) -> Self {
        let mut command = Command::new(binary());
        command.args(["-listen", &addr.to_string()]);
        if let Some(files) = tls {
            let (cert, key) = (text(&files.server.0), text(&files.server.1));
            command.args(["-cert", cert, "-key", key, "-clients", text(&files.root)]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("the control plane runs");
        let commands = process.stdin.take().expect("stdin is piped");
        let events = read(process.stdout.take().expect("stdout is piped"));
        let server = Self { addr, process, commands, events };
        server.event(json!({"event": "listening", "address": addr.to_string()})).await;
        server
    }

    /// Makes these the rules: each is the JSON form of a `RateLimitConfig`.
    pub(crate) async fn set(&mut self, version: &str, resources: &[Value]) {
        let command = json!({"node": NODE.1, "version": version, "resources": resources});
        self.commands.write_all(format!("{command}\n").as_bytes()).await.expect("it still runs");
    }

    /// Waits for the first event with these fields, and returns all of its fields.
    pub(crate) async fn event(&self, fields: Value) -> Value {
        let mut events = self.events.clone();
        let arrived = events.wait_for(|events| events.iter().any(|event| has(event, &fields)));
        match timeout(EVENT_MAX, arrived).await {
            Ok(Ok(events)) => events.iter().find(|event| has(event, &fields)).cloned(),
            _ => None,
        }
        .unwrap_or_else(|| panic!("no event {fields} in {:#?}", self.events()))
    }

    /// Waits until a client has accepted this version.
    pub(crate) async fn accepted(&self, version: &str) {
        let answer = self.event(json!({"event": "request", "version": version})).await;
        assert_eq!(answer.get("code"), None, "{answer}");
    }

    /// All events so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.events.borrow().clone()
    }

    /// Ends it, with its connections.
    pub(crate) async fn stop(mut self) {
        drop(self.commands);
        let status = timeout(EVENT_MAX, self.process.wait()).await.expect("an end").unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Whether an event has all of these fields.
fn has(event: &Value, fields: &Value) -> bool {
    let mut fields = fields.as_object().expect("fields").iter();
    fields.all(|(name, value)| event.get(name) == Some(value))
}

/// Keeps the events that a server writes.
fn read(stdout: ChildStdout) -> watch::Receiver<Vec<Value>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let event = serde_json::from_str(&line).expect("a line of JSON");
            sender.send_modify(|events| events.push(event));
        }
    });
    receiver
}

/// `CONTROL_PLANE_BIN`, or the path where `scripts/test` installs the program.
fn binary() -> PathBuf {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/control_plane");
    let path = std::env::var_os("CONTROL_PLANE_BIN").map_or_else(installed, PathBuf::from);
    assert!(
        path.is_file(),
        "no control plane at {}: run scripts/test once, which builds tests/control_plane, or name \
         a build by CONTROL_PLANE_BIN",
        path.display()
    );
    path
}
