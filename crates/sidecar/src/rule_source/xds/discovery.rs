//! The call of ADS, with bounds on a response that are checked before it is decoded: a resource
//! takes fifty bytes in memory, and as few as two in the message.

use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use prost::encoding::{decode_key, skip_field};
use ratelease_xds::shape;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use super::wire::{DiscoveryRequest, DiscoveryResponse, RESPONSE_SHAPE};

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
pub(super) async fn stream_aggregated_resources(
    channel: Channel,
    requests: Request<impl Stream<Item = DiscoveryRequest> + Send + 'static>,
    message_bytes_max: usize,
) -> Result<Streaming<DiscoveryResponse>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(message_bytes_max);
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
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
    type Error = Status;

    fn encode(&mut self, item: DiscoveryRequest, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for DiscoveryCodec {
    type Item = DiscoveryResponse;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<DiscoveryResponse>, Status> {
        read(buf.copy_to_bytes(buf.remaining())).map(Some)
    }
}

fn read(message: Bytes) -> Result<DiscoveryResponse, Status> {
    if resources(&message) > RESOURCES_MAX {
        return Err(Status::out_of_range(format!("more than {RESOURCES_MAX} resources")));
    }
    shape::check(&message, &RESPONSE_SHAPE, usize::MAX)
        .map_err(|error| Status::out_of_range(format!("a DiscoveryResponse: {error}")))?;
    let response = DiscoveryResponse::decode(message)
        .map_err(|error| Status::data_loss(format!("not a DiscoveryResponse: {error}")))?;
    let longest = response.version_info.len().max(response.nonce.len());
    if longest > TEXT_BYTES_MAX {
        return Err(Status::out_of_range("a version or nonce of more than 4 KiB"));
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
    use crate::rule_source::xds::wire::Any;

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
