//! **The resources of xDS** that carry rules: the names of both types, the message of our own, and
//! what a node says of the rules that it runs.
//!
//! The control plane sends these resources, and the sidecar takes them. The messages of Envoy's
//! protocol are those of `envoy-types`.

#![forbid(unsafe_code)]

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
