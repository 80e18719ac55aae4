//! Bad input: each gets its reason, the connection stays open where the protocol allows it, and no
//! other client notices. Rule 7: no input can make the process exit.

mod cardinality;
mod conformance;
mod flood;
mod frames;
mod fresh;
mod grpc;
mod gzip;
mod h2spec;
mod http1;
mod json;
mod panic;
mod random;
mod scoped;
mod split;
mod unfinished;
mod unread;

use tempfile::TempDir;

use crate::support::files::dir_of;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{bytes_field, descriptor, number_field, request};

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: test
descriptors:
  - key: three
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: plenty
    rate_limit: {unit: year, requests_per_unit: 4294967295}
  - key: paced
    rate_limit: {unit: second, requests_per_unit: 2000, algorithm: leaky_bucket, max_delay: 10s}
";

/// A pod on the embedded store.
async fn pod() -> (Ratelease, TempDir) {
    pod_with(&[]).await
}

async fn pod_with(env: &[(&str, &str)]) -> (Ratelease, TempDir) {
    let rules = dir_of(&[("test.yaml", RULES)]);
    // This test is not about waiting, and the machine may be compiling.
    let env = [&[("LEASE_MAX_WAIT", "5s")], env].concat();
    (Ratelease::start(rules.path(), &[], &env).await, rules)
}

/// `hits_addend` of a descriptor.
fn hits(number: u64) -> Vec<u8> {
    bytes_field(3, number_field(1, number))
}

/// `is_negative_hits` of a descriptor.
fn refund() -> Vec<u8> {
    number_field(4, 1)
}

/// The override of a descriptor: 5 requests per unit, with this number for the unit.
fn limit(unit: u64) -> Vec<u8> {
    bytes_field(2, [number_field(1, 5), number_field(2, unit)].concat())
}

/// A request that any pod here allows.
fn good() -> Vec<u8> {
    request("test", &[descriptor("plenty", "good")])
}
