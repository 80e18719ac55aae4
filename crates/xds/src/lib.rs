//! **The resources of xDS** that carry rules: the names of both types, the message of our own, and
//! the report of a node on the rules that it runs. [`config`] translates Envoy's type from and to
//! the text of rule files, and [`shape`] bounds the memory of messages.
//!
//! The control plane sends these resources, and the sidecar takes them. The messages of Envoy's
//! protocol come from `envoy-types`.

#![forbid(unsafe_code)]

pub mod config;
pub mod shape;

use bytes::Bytes;
use prost::Message;

/// The type of envoyproxy/ratelimit, which cannot express all that a rule file can.
pub const CONFIG_TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The type of rule files: [`RulesResource`].
pub const RULES_TYPE: &str = "type.googleapis.com/ratelease.config.v1.Rules";

/// The key of a node's metadata at which a pod gives the version of the rules that it runs, as the
/// server named it. A new stream names no version in its requests: some servers would take that
/// for the version that they have, and send nothing.
pub const RULES_VERSION_KEY: &str = "rules_version";

/// The key of a node's metadata at which a pod gives the limit of its memory in bytes, if it has
/// one: rules that need more than it has left for them are refused.
pub const MEMORY_KEY: &str = "memory_bytes";

/// The part of a pod's memory that stays free while it loads rules: for requests meanwhile, for the
/// kernel, and for faults that are shown.
const RESERVE_PART: usize = 8;

/// Bytes that stay free in addition to the part [`RESERVE_PART`].
const RESERVE_BYTES: usize = 4 << 20;

/// The memory for rules that are loaded, of a pod with this limit that has `resident` bytes now.
pub fn memory_left(limit: usize, resident: usize) -> usize {
    limit.saturating_sub(resident).saturating_sub(limit / RESERVE_PART + RESERVE_BYTES)
}

/// A rule file as a resource: `ratelease.config.v1.Rules`.
#[derive(Clone, PartialEq, Message)]
pub struct RulesResource {
    /// The name, unique in the set.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The YAML document: a `string`, which a pod checks only if it differs from the last one.
    #[prost(bytes = "bytes", tag = "2")]
    pub yaml: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_file_has_the_fields_that_the_documentation_gives() {
        let resource = RulesResource { name: "shop".into(), yaml: "domain: shop".into() };
        // docs/xds.md: `string name = 1; string yaml = 2`.
        assert_eq!(resource.encode_to_vec(), b"\x0a\x04shop\x12\x0cdomain: shop");
    }
}
