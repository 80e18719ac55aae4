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
use crate::support::raw_grpc::bytes_field;
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
    let entry = [bytes_field(1, "plenty"), bytes_field(2, "a")].concat();
    [bytes_field(1, "test"), bytes_field(2, bytes_field(1, entry))].concat()
}

async fn pod(env: &[(&str, &str)]) -> (Ratelease, TempDir) {
    let rules = dir_of(&[("rules.yaml", RULES)]);
    (Ratelease::start(rules.path(), &[], env).await, rules)
}
