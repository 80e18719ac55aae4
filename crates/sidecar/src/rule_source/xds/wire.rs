//! The messages of xDS (Envoy's protocol buffers), and that of rule files as resources.

use bytes::Bytes;
use prost::Message;

pub(super) use envoy_types::pb::envoy::config::core::v3::Node;
pub(super) use envoy_types::pb::envoy::config::endpoint::v3::cluster_stats::DroppedRequests;
pub(super) use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterStats, UpstreamLocalityStats,
};
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
pub(super) use envoy_types::pb::google::protobuf::value::Kind;
pub(super) use envoy_types::pb::google::protobuf::{Duration, Struct, Value};
pub(super) use envoy_types::pb::google::rpc::Status;
pub(super) use ratelease_xds::{
    CONFIG_TYPE, MEMORY_KEY, RULES_TYPE, RULES_VERSION_KEY, RulesResource,
};

use ratelease_xds::shape::{FLAT, Field, Shape};

pub(super) use discovery::DiscoveryRequest;
pub(super) use load_stats::load_reporting_service_client::LoadReportingServiceClient;
pub(super) use load_stats::{LoadStatsRequest, LoadStatsResponse};

/// The fields of a `DiscoveryResponse` that are read. Decoded from `Bytes`, its resources share
/// them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// A message of any type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// A value that is a text.
pub(super) fn text_value(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

/// What a `DiscoveryResponse` takes in memory.
pub(super) static RESPONSE_SHAPE: Shape =
    Shape(&[Field { number: 2, item: size_of::<Any>(), of: &FLAT }]);
