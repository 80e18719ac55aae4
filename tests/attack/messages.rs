//! Requests as the attacks and the neighbour write them.

use crate::support::raw_grpc::bytes_field;

/// The domain of every rule here.
pub const DOMAIN: &str = "attack";

/// The rule that the neighbour's calls meet, and those of attackers which are to be counted: more
/// than a test can use up, in a window that does not end while one runs.
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
