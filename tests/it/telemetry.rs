//! Telemetry: spans and metrics for a collector, samples in the log.

mod lines;
mod lost;
mod metrics;
mod samples;
mod spans;
mod statsd;
mod tls;

use tempfile::TempDir;

use crate::support::files::dir_of;
use crate::support::http::Client;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{
    Connection, Reply, SHOULD_RATE_LIMIT, framed, post, request_of_entry,
};

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: test
descriptors:
  - key: once
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: plenty
    rate_limit: {unit: year, requests_per_unit: 4000000000}
";

/// A value that no span may show, and no log line unless its field was requested.
const SECRET: &str = "4111-1111-1111-1111";

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: std::time::Duration = std::time::Duration::from_secs(10);

/// For spans that wait up to 5 s in a batch and are sent up to three times, at most 3 s apart.
const ARRIVED_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// A pod that waits for the store's reply in every request: the reply may be late on a busy
/// machine.
const PATIENT: [(&str, &str); 2] = [("LEASE_MAX_WAIT", "8s"), ("REDIS_TIMEOUT", "8s")];

fn rules() -> TempDir {
    dir_of(&[("test.yaml", RULES)])
}

/// A `RateLimitRequest` of one entry, in the domain `test` or another one.
fn request(domain: &str, key: &str) -> Vec<u8> {
    request_of_entry(domain, key, SECRET)
}

/// Requests one decision over gRPC, with these headers.
async fn decide(pod: &Ratelease, message: Vec<u8>, headers: &[(&str, &str)]) -> Reply {
    let mut head = post(SHOULD_RATE_LIMIT);
    for (name, value) in headers {
        head = head.header(*name, *value);
    }
    let body = futures_util::stream::iter([framed(&message)]);
    Connection::open(pod.grpc).await.request(head, body).await.unwrap()
}

/// Requests one decision over HTTP; returns the status.
async fn decide_json(pod: &Ratelease, key: &str, headers: &[(&str, &str)]) -> u16 {
    let entry = format!(r#"{{"key":"{key}","value":"{SECRET}"}}"#);
    let body = format!(r#"{{"domain":"test","descriptors":[{{"entries":[{entry}]}}]}}"#);
    let mut client = Client::connect(pod.http).await.unwrap();
    client.send("POST", "/json", headers, body).await.unwrap().status
}
