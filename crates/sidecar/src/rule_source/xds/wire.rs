//! The messages of xDS (Envoy's protocol buffers), and that of rule files as resources.

pub(super) use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
pub(super) use envoy_types::pb::google::protobuf::value::Kind;
pub(super) use envoy_types::pb::google::protobuf::{Any, Struct, Value};
pub(super) use envoy_types::pb::google::rpc::Status;
#[cfg(test)]
pub(super) use envoy_types::pb::ratelimit::config::ratelimit::v3::RateLimitReplace;
pub(super) use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use prost::Message;

pub(super) use discovery::{DiscoveryRequest, DiscoveryResponse};

/// A rule file as a resource: `ratelease.config.v1.Rules`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RulesResource {
    /// The name, unique in the set.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// The YAML document.
    #[prost(string, tag = "2")]
    pub(super) yaml: String,
}
