//! The messages of xDS. Of what a pod sends, only the fields that are read: the others are skipped,
//! so that they take no memory. Of what it is sent, only the fields that are set.

use std::collections::HashMap;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Oneof};
use ratelease_xds::shape::{FLAT, Field, Shape};

/// A request of ADS.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<Node>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<ErrorDetail>,
}

/// Why a response was refused.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ErrorDetail {
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// A pod.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<Struct>,
    #[prost(string, tag = "6")]
    pub(super) user_agent_name: String,
}

/// Its metadata.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Struct {
    #[prost(map = "string, message", tag = "1")]
    pub(super) fields: HashMap<String, Value>,
}

/// A text, or a value of another type, which is skipped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(oneof = "Kind", tags = "3")]
    pub(super) kind: Option<Kind>,
}

/// The type of a value.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Kind {
    #[prost(string, tag = "3")]
    StringValue(String),
}

/// A report of LRS.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) node: Option<Node>,
    #[prost(message, repeated, tag = "2")]
    pub(super) cluster_stats: Vec<ClusterStats>,
}

/// The hits of a domain.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClusterStats {
    #[prost(string, tag = "1")]
    pub(super) cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) upstream_locality_stats: Vec<UpstreamLocalityStats>,
    #[prost(uint64, tag = "3")]
    pub(super) total_dropped_requests: u64,
    #[prost(message, repeated, tag = "5")]
    pub(super) dropped_requests: Vec<DroppedRequests>,
}

/// Hits that passed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct UpstreamLocalityStats {
    #[prost(uint64, tag = "8")]
    pub(super) total_issued_requests: u64,
}

/// Hits of a category that were dropped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DroppedRequests {
    #[prost(string, tag = "1")]
    pub(super) category: String,
    #[prost(uint64, tag = "2")]
    pub(super) dropped_count: u64,
}

/// A response of ADS.
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

/// What a `DiscoveryRequest` takes in memory.
pub(super) static DISCOVERY_SHAPE: Shape = Shape(&[Field { number: 2, item: 0, of: &NODE_SHAPE }]);

/// What a `LoadStatsRequest` takes in memory.
pub(super) static REPORT_SHAPE: Shape = Shape(&[
    Field { number: 1, item: 0, of: &NODE_SHAPE },
    Field { number: 2, item: size_of::<ClusterStats>(), of: &STATS_SHAPE },
]);

static NODE_SHAPE: Shape = Shape(&[Field { number: 3, item: 0, of: &STRUCT_SHAPE }]);

static STRUCT_SHAPE: Shape =
    Shape(&[Field { number: 1, item: size_of::<(String, Value)>(), of: &FLAT }]);

static STATS_SHAPE: Shape = Shape(&[
    Field { number: 2, item: size_of::<UpstreamLocalityStats>(), of: &FLAT },
    Field { number: 5, item: size_of::<DroppedRequests>(), of: &FLAT },
]);

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
    use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
    use ratelease_xds::shape::{Undecoded, decode};

    use super::*;

    fn report(bytes: &[u8]) -> Result<LoadStatsRequest, Undecoded> {
        decode(bytes, &REPORT_SHAPE, usize::MAX)
    }

    #[test]
    fn reports_and_requests_that_would_fill_the_memory_are_not_decoded() {
        let field = |number: u8, content: &[u8]| {
            let mut bytes = vec![number << 3 | 2];
            prost::encoding::encode_varint(content.len() as u64, &mut bytes);
            [&bytes, content].concat()
        };
        let stats = |fields: &[u8]| report(&field(2, fields));
        assert!(matches!(report(&[0x12, 0].repeat(500_000)), Err(Undecoded::TooLarge(_))));
        let localities = stats(&[0x12, 0].repeat(500_000)).unwrap();
        assert_eq!(localities.cluster_stats[0].upstream_locality_stats.len(), 500_000);
        assert!(size_of::<UpstreamLocalityStats>() <= 8, "500 000 of them take 8 MiB");
        assert!(matches!(stats(&[0x2a, 0].repeat(500_000)), Err(Undecoded::TooLarge(_))));
        // Extensions of the node are skipped.
        let node = |fields: &[u8]| {
            decode::<DiscoveryRequest>(&field(2, fields), &DISCOVERY_SHAPE, usize::MAX)
        };
        assert!(node(&[0x4a, 0].repeat(100_000)).is_ok());
    }

    #[test]
    fn the_fields_that_are_read_are_those_of_the_protocol() {
        let stats = endpoint::ClusterStats {
            cluster_name: "shop".into(),
            upstream_locality_stats: vec![endpoint::UpstreamLocalityStats {
                total_issued_requests: 7,
                total_successful_requests: 6,
                ..Default::default()
            }],
            total_dropped_requests: 3,
            dropped_requests: vec![endpoint::cluster_stats::DroppedRequests {
                category: "shadow".into(),
                dropped_count: 2,
            }],
            ..Default::default()
        };
        let many = load_stats::LoadStatsRequest { cluster_stats: vec![stats; 1000], node: None };
        let read = report(&many.encode_to_vec()).unwrap().cluster_stats;
        let ClusterStats { cluster_name, upstream_locality_stats: passed, .. } = &read[999];
        assert_eq!((read.len(), &**cluster_name), (1000, "shop"));
        assert_eq!((passed[0].total_issued_requests, read[0].total_dropped_requests), (7, 3));
        let dropped = &read[0].dropped_requests[0];
        assert_eq!((&*dropped.category, dropped.dropped_count), ("shadow", 2));
    }
}
