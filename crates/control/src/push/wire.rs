//! The messages of xDS (Envoy's protocol buffers), and that of rule files as resources.

pub(super) use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
pub(super) use envoy_types::pb::google::protobuf::value::Kind;
pub(super) use envoy_types::pb::google::protobuf::{Any, ListValue, Struct, Value};
pub(super) use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use prost::Message;

pub(super) use discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
pub(super) use discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

/// The type of Envoy's rate limit service, which says less than rule files do.
pub(super) const CONFIG_TYPE: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The type of rule files.
pub(super) const RULES_TYPE: &str = "type.googleapis.com/ratelease.config.v1.Rules";

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

/// A resource of this type.
pub(super) fn any(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}
