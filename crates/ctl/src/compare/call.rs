//! Calls of a server whose messages are bytes, so that nothing that a newer server adds is lost on
//! the way.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Extensions, Request, Response, Status};

/// The call of Envoy.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The message of an answer, or the error that came in its place.
pub(super) type Answer = Result<Bytes, (Code, String)>;

/// A server, connected.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) channel: Channel,
    /// Maximum time for an answer.
    pub(super) timeout: Duration,
}

/// Passes messages through unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unchanged;

// === impl Server ===

impl Server {
    /// Sends `message` in a rate limit call.
    pub(super) async fn ask(&self, message: Bytes) -> Answer {
        let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
        answer(&self.call(path, MetadataMap::new(), message).await)
    }

    /// Sends a unary call of any path.
    pub(super) async fn call(
        &self,
        path: PathAndQuery,
        metadata: MetadataMap,
        message: Bytes,
    ) -> Result<Response<Bytes>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let request = Request::from_parts(metadata, Extensions::new(), message);
        let call = async {
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.unary(request, path, Unchanged).await
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answered) => answered,
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }
}

/// What of an answer is compared.
pub(super) fn answer(answered: &Result<Response<Bytes>, Status>) -> Answer {
    match answered {
        Ok(response) => Ok(response.get_ref().clone()),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

// === impl Unchanged ===

impl Codec for Unchanged {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Unchanged {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Unchanged {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
