//! TLS with real certificates: on the gRPC port, and to Redis.

mod handshake;
mod keys;
pub(crate) mod redis;
mod rotation;
mod start;

use std::time::Duration;

use tempfile::TempDir;

use crate::support::files::dir_of;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::request_of_entry;
use crate::support::tls_files::{TlsFiles, client, text, write};

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);

const RULES: &str = "
domain: test
descriptors:
  - key: plenty
    rate_limit: {unit: year, requests_per_unit: 4000000000}
";

/// A request of the key that has plenty.
fn request() -> Vec<u8> {
    request_of_entry("test", "plenty", "a")
}

async fn pod(env: &[(&str, &str)]) -> (Ratelease, TempDir) {
    let rules = dir_of(&[("rules.yaml", RULES)]);
    (Ratelease::start(rules.path(), &[], env).await, rules)
}
