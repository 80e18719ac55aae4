//! How tonic reads a request and writes an answer.

use bytes::BytesMut;
use prost::Message;
use prost::bytes::BufMut;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::pb::RateLimitRequest;

/// Requests by prost, which takes any message that is one; answers as they were written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Codec;

impl tonic::codec::Codec for Codec {
    type Encode = BytesMut;
    type Decode = RateLimitRequest;
    type Encoder = Codec;
    type Decoder = Codec;

    fn encoder(&mut self) -> Codec {
        Codec
    }

    fn decoder(&mut self) -> Codec {
        Codec
    }
}

impl Encoder for Codec {
    type Item = BytesMut;
    type Error = Status;

    fn encode(&mut self, message: BytesMut, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Codec {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        let read = RateLimitRequest::decode(buffer);
        read.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
