//! Requests that the attacks and the neighbour send.

use crate::support::raw_grpc::bytes_field;

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
    let descriptor = bytes_field(1, entry(key, value));
    [bytes_field(1, DOMAIN), bytes_field(2, descriptor)].concat()
}

/// An entry of a descriptor.
pub fn entry(key: &str, value: &str) -> Vec<u8> {
    [bytes_field(1, key), bytes_field(2, value)].concat()
}
