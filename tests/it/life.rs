//! Start and end of the process: its messages when it cannot start, its behaviour without its store
//! or rules, and how it ends.

mod drain;
mod files;
mod goaway;
mod output;
mod overload;
mod quick;
mod redis;
mod settings;
mod snapshot;
mod start;
mod stores;
mod threads;

use std::path::Path;
use std::time::Duration;

use futures_util::stream;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::support::files::dir_of;
use crate::support::http;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{
    self, Connection, Reply, SHOULD_RATE_LIMIT, descriptor, framed, post,
};

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);

/// For tests that are not about the drain.
const QUICK_END: (&str, &str) = ("DRAIN_TIMEOUT", "200ms");

/// For tests whose calls wait for their slots: on a busy machine, even the embedded store may take
/// longer than the usual 5 ms, and then no slot is known.
const PATIENT: (&str, &str) = ("LEASE_MAX_WAIT", "5s");

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: test
descriptors:
  - key: hundred
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: plenty
    rate_limit: {unit: year, requests_per_unit: 4000000000}
  - key: held_6s
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: leaky_bucket, max_delay: 60s}
  - key: held_30s
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 60s}
";

/// A call under way: the second of a key whose requests wait for their slots.
struct Waiting(JoinHandle<Result<Reply, String>>);

impl Waiting {
    async fn begin(connection: &Connection, key: &str, value: &str) -> Self {
        let message = request(key, value, &[]);
        assert_eq!(connection.call(&message).await.is_over_limit(), Some(false), "the first slot");
        let connection = connection.clone();
        let body = stream::iter([framed(&message)]);
        let call = async move { connection.request(post(SHOULD_RATE_LIMIT), body).await };
        Self(tokio::spawn(call))
    }

    async fn answer(self) -> Result<Reply, String> {
        self.0.await.unwrap()
    }
}

/// Creates a directory with these rules.
fn rules(text: &str) -> TempDir {
    dir_of(&[("test.yaml", text)])
}

/// A `RateLimitRequest` of one entry, with `more` fields of its descriptor.
fn request(key: &str, value: &str, more: &[u8]) -> Vec<u8> {
    raw_grpc::request("test", &[[&descriptor(key, value), more].concat()])
}

/// Requests one decision, on a connection of its own.
async fn decide(pod: &Ratelease, key: &str, value: &str) -> Reply {
    Connection::open(pod.grpc).await.call(&request(key, value, &[])).await
}

/// The HTTP status of a page.
async fn status(addr: std::net::SocketAddr, path: &str) -> u16 {
    http::get(addr, path).await.unwrap().status
}

/// The only line that contains `what` in the log of a process that has ended.
#[track_caller]
fn only_line(pod: &Ratelease, what: &str) -> String {
    let lines = pod.logged(what);
    assert_eq!(lines.len(), 1, "lines with {what:?}: {lines:#?}\nin\n{}", pod.log());
    lines[0].clone()
}

/// Checks that the process does not start, gives the reason in one line, and exits with 1.
async fn refuses_to_start(rules: &Path, env: &[(&str, &str)], why: &[&str]) {
    let pod = Ratelease::spawn(rules, &[], env);
    let status = pod.process.exit(SOON).await;
    let log = pod.process.log();
    assert_eq!(status, 1, "{env:?}: {log}");
    let line = only_line(&pod, "ratelease: ");
    assert_eq!(log.lines().count(), 1, "{log}");
    for why in why {
        assert!(line.contains(why), "{env:?}: {why:?} not in {line}");
    }
}
