//! Requests that the attacks and the neighbour send.

use crate::support::raw_grpc::request_of_entry;

/// The domain of every rule here.
pub const DOMAIN: &str = "attack";

/// The rule of the neighbour's calls, and of those of attackers that have to be counted: a limit
/// that a test cannot use up, in a window that does not end during a test.
pub const PLENTY: &str = "
domain: attack
descriptors:
  - key: plenty
    rate_limit: {unit: year, requests_per_unit: 4294967295}
";

/// A call's message: one descriptor of one entry.
pub fn message(key: &str, value: &str) -> Vec<u8> {
    request_of_entry(DOMAIN, key, value)
}
