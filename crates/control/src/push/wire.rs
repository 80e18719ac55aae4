//! The messages of xDS (Envoy's protocol buffers), and that of rule files as resources.

use bytes::Bytes;
pub(super) use envoy_types::pb::envoy::service::load_stats::v3::LoadStatsResponse;
use envoy_types::pb::google::protobuf::Any;
pub(super) use envoy_types::pb::google::protobuf::value::Kind;
pub(super) use envoy_types::pb::google::protobuf::{Duration, ListValue, Struct, Value};
pub(super) use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use prost::Message;
pub(super) use ratelease_xds::{
    CONFIG_TYPE, MEMORY_KEY, RULES_TYPE, RULES_VERSION_KEY, RulesResource,
};

/// The fields of a `DiscoveryResponse` that are sent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    /// Encoded resources: see [`any`]. Streams share them.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) resources: Vec<Bytes>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// A resource of this type, encoded.
pub(super) fn any(type_url: &str, message: &impl Message) -> Bytes {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }.encode_to_vec().into()
}
