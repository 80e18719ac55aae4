//! The messages of xDS (Envoy's protocol buffers), and that of rule files as resources.

pub(super) use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
pub(super) use envoy_types::pb::google::protobuf::value::Kind;
pub(super) use envoy_types::pb::google::protobuf::{Any, ListValue, Struct, Value};
pub(super) use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use prost::Message;
pub(super) use ratelease_xds::{CONFIG_TYPE, RULES_TYPE, RulesResource};

pub(super) use discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
pub(super) use discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

/// A resource of this type.
pub(super) fn any(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}
