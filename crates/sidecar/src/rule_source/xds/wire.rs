//! The messages of xDS (Envoy's protocol buffers), that of rule files as resources, and the call of
//! ADS.

use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use prost::encoding::{decode_key, skip_field};
use ratelease_xds::shape::{self, FLAT, Field, Shape};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

pub use discovery::DiscoveryRequest;
pub use envoy_types::pb::envoy::config::core::v3::Node;
pub use envoy_types::pb::envoy::config::endpoint::v3::cluster_stats::DroppedRequests;
pub use envoy_types::pb::envoy::config::endpoint::v3::{ClusterStats, UpstreamLocalityStats};
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
pub use envoy_types::pb::google::protobuf::value::Kind;
pub use envoy_types::pb::google::protobuf::{Duration, Struct, Value};
pub use envoy_types::pb::google::rpc::Status;
pub use load_stats::load_reporting_service_client::LoadReportingServiceClient;
pub use load_stats::{LoadStatsRequest, LoadStatsResponse};
pub use ratelease_xds::{CONFIG_TYPE, MEMORY_KEY, RULES_TYPE, RULES_VERSION_KEY, RulesResource};

/// The fields of a `DiscoveryResponse` that are read. Decoded from `Bytes`, its resources share
/// them.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// A message of any type.
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A value that is a text.
pub fn text_value(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

/// What a `DiscoveryResponse` takes in memory.
static RESPONSE_SHAPE: Shape = Shape(&[Field { number: 2, item: size_of::<Any>(), of: &FLAT }]);

// The call of ADS, with bounds on a response that are checked before it is decoded: a resource
// takes fifty bytes in memory, and as few as two in the message.

/// The path of the call.
const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// Maximum number of resources in a response. Envoy Gateway has one for each listener.
const RESOURCES_MAX: usize = 100_000;

/// The field of a response's resources.
const RESOURCES: u32 = 2;

/// Maximum bytes of a version and of a nonce, which are kept.
const TEXT_BYTES_MAX: usize = 4096;

/// Opens the stream. The first response may take as long as the server likes.
pub async fn stream_aggregated_resources(
    channel: Channel,
    requests: Request<impl Stream<Item = DiscoveryRequest> + Send + 'static>,
    message_bytes_max: usize,
) -> Result<Streaming<DiscoveryResponse>, tonic::Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(message_bytes_max);
    client.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
    let path = PathAndQuery::from_static(PATH);
    Ok(client.streaming(requests, path, DiscoveryCodec).await?.into_inner())
}

/// Protocol buffers, with the bounds of this module.
#[derive(Debug, Clone, Copy, Default)]
struct DiscoveryCodec;

impl Codec for DiscoveryCodec {
    type Encode = DiscoveryRequest;
    type Decode = DiscoveryResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for DiscoveryCodec {
    type Item = DiscoveryRequest;
    type Error = tonic::Status;

    fn encode(
        &mut self,
        item: DiscoveryRequest,
        buf: &mut EncodeBuf<'_>,
    ) -> Result<(), tonic::Status> {
        item.encode(buf).map_err(|error| tonic::Status::internal(error.to_string()))
    }
}

impl Decoder for DiscoveryCodec {
    type Item = DiscoveryResponse;
    type Error = tonic::Status;

    fn decode(
        &mut self,
        buf: &mut DecodeBuf<'_>,
    ) -> Result<Option<DiscoveryResponse>, tonic::Status> {
        read(buf.copy_to_bytes(buf.remaining())).map(Some)
    }
}

fn read(message: Bytes) -> Result<DiscoveryResponse, tonic::Status> {
    if resources(&message) > RESOURCES_MAX {
        return Err(tonic::Status::out_of_range(format!("more than {RESOURCES_MAX} resources")));
    }
    shape::check(&message, &RESPONSE_SHAPE, usize::MAX)
        .map_err(|error| tonic::Status::out_of_range(format!("a DiscoveryResponse: {error}")))?;
    let response = DiscoveryResponse::decode(message)
        .map_err(|error| tonic::Status::data_loss(format!("not a DiscoveryResponse: {error}")))?;
    let longest = response.version_info.len().max(response.nonce.len());
    if longest > TEXT_BYTES_MAX {
        return Err(tonic::Status::out_of_range("a version or nonce of more than 4 KiB"));
    }
    Ok(response)
}

/// The number of resources of a response. If the message is malformed, only those before the fault
/// count.
fn resources(mut message: &[u8]) -> usize {
    let mut found = 0;
    while let Ok((field, wire_type)) = decode_key(&mut message) {
        found += usize::from(field == RESOURCES);
        if skip_field(wire_type, field, &mut message, Default::default()).is_err() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_of_too_many_resources_is_refused_before_it_is_decoded() {
        let of = |count: usize| [0x12, 0].repeat(count);
        assert_eq!(read(of(3).into()).unwrap().resources, vec![Any::default(); 3]);
        assert_eq!(read(of(RESOURCES_MAX + 1).into()).unwrap_err().code(), tonic::Code::OutOfRange);
        assert_eq!(
            read(Bytes::from_static(&[0x12, 9, 1])).unwrap_err().code(),
            tonic::Code::DataLoss
        );
    }

    #[test]
    fn a_version_that_is_a_book_is_refused() {
        let version_info = "x".repeat(TEXT_BYTES_MAX + 1);
        let message = DiscoveryResponse { version_info, ..Default::default() }.encode_to_vec();
        assert_eq!(read(message.into()).unwrap_err().code(), tonic::Code::OutOfRange);
    }
}
