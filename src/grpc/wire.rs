//! Envoy's messages and ours. The only file that names Envoy's types.

mod backwards;
pub(crate) mod client;
mod codec;
mod decode;
mod encode;
mod proto;

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::BytesMut;
use codec::Codec;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use pb::rate_limit_service_server::SERVICE_NAME;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request as GrpcRequest, Response, Status as GrpcStatus};

use super::deadline::Deadline;
use super::{MESSAGE_BYTES_MAX, status_of};
use crate::intake::{Answer, Fault, Intake, Refusal};
use crate::request::{Descriptor, Entry, Request};
use crate::rules::{Limit, Unit};
use crate::telemetry::trace::{self, Outcome, Span};

/// The request that a message of protobuf is, if it is a plain one, within the bounds of
/// [`crate::intake`]; its text is borrowed. All others are for tonic.
pub fn read(message: &[u8]) -> Option<Request<'_>> {
    decode::request(message).ok()
}

/// Adds `answer` to `bytes`, as one message of gRPC with its prefix.
pub fn frame(answer: &Answer<'_>, bytes: &mut BytesMut) {
    encode::framed(answer, bytes);
}

/// The service as tonic routes to it; its clones share everything.
pub(super) fn service(intake: Intake) -> Door {
    Door { intake, span: None }
}

/// `RateLimitService`. Not the generated server, which would answer in Envoy's messages.
#[derive(Clone)]
pub(super) struct Door {
    intake: Intake,
    /// Of the call that this clone is for, if it is traced.
    span: Option<Span>,
}

/// The one call of the service.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

// === impl Door ===

impl NamedService for Door {
    const NAME: &'static str = SERVICE_NAME;
}

impl tonic::codegen::Service<http::Request<Body>> for Door {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async { Ok(GrpcStatus::unimplemented("").into_http()) });
        }
        let intake = self.intake.clone();
        let span = intake.begin(trace::Door::Grpc, request.headers());
        let door = Self { intake: intake.clone(), span: span.clone() };
        let answered = async move {
            let mut grpc =
                Grpc::new(Codec).apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None);
            let answered = intake.pass(grpc.unary(door, request)).await;
            Ok(answered.unwrap_or_else(|refusal| status_of(&refusal).into_http()))
        };
        match span {
            None => Box::pin(answered),
            Some(span) => Box::pin(traced(span, answered)),
        }
    }
}

/// Ends `span` as it is answered.
async fn traced(
    span: Span,
    answered: impl Future<Output = Result<http::Response<Body>, Infallible>>,
) -> Result<http::Response<Body>, Infallible> {
    let response = span.around(answered).await?;
    // Only what has no message says its status this early.
    let status = GrpcStatus::from_header_map(response.headers());
    let code = status.map_or(Code::Ok, |status| status.code());
    span.end(Outcome::Grpc(code.into()));
    Ok(response)
}

impl UnaryService<pb::RateLimitRequest> for Door {
    type Response = BytesMut;
    type Future = BoxFuture<Response<BytesMut>, GrpcStatus>;

    fn call(&mut self, request: GrpcRequest<pb::RateLimitRequest>) -> Self::Future {
        let Self { intake, span } = self.clone();
        Box::pin(async move {
            let deadline = request.extensions().get().map(|Deadline(deadline)| *deadline);
            let request = request.into_inner();
            let decoded = decode(&request).map_err(|refusal| status_of(&refusal))?;
            let made = |answer: Answer<'_>| {
                if let Some(span) = &span {
                    span.note(&decoded, &answer.verdict);
                }
                encode::message(&answer)
            };
            let answer = intake.answer_by(deadline, &decoded, made).await;
            Ok(Response::new(answer.map_err(|refusal| status_of(&refusal))?))
        })
    }
}

fn decode(request: &pb::RateLimitRequest) -> Result<Request<'_>, Refusal> {
    let descriptors = request.descriptors.iter().enumerate().map(|(at, sent)| {
        let limit = sent.limit.as_ref().map(|limit| decode_limit(at, limit)).transpose()?;
        let entries = sent.entries.iter().map(|e| Entry { key: &e.key, value: &e.value }).collect();
        let hits_addend = sent.hits_addend.as_ref().map(|hits| hits.value);
        Ok(Descriptor { entries, limit, hits_addend, refund: sent.is_negative_hits })
    });
    Ok(Request {
        domain: &request.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: request.hits_addend,
    })
}

/// An override. A unit that does not exist is refused; it ends the reference's process.
fn decode_limit(
    at: usize,
    limit: &descriptor_pb::rate_limit_descriptor::RateLimitOverride,
) -> Result<Limit, Refusal> {
    let unit = Unit::from_number(limit.unit.into());
    let unit = unit.ok_or(Refusal::Invalid(Fault::Unit(at)))?;
    Ok(Limit::fixed_window(limit.requests_per_unit, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_the_number_of_the_protocol() {
        use pb::rate_limit_response::rate_limit::Unit as PbUnit;
        for unit in Unit::ALL {
            let number = i32::from(unit.number());
            assert_eq!(PbUnit::try_from(number).map(|it| it.as_str_name()), Ok(unit.name()));
            let limit = descriptor_pb::rate_limit_descriptor::RateLimitOverride {
                requests_per_unit: 3,
                unit: number,
            };
            assert_eq!(decode_limit(0, &limit), Ok(Limit::fixed_window(3, unit)));
        }
    }

    #[test]
    fn an_override_without_a_unit_is_refused() {
        for unit in [0, 8, -1] {
            let limit = descriptor_pb::rate_limit_descriptor::RateLimitOverride {
                requests_per_unit: 3,
                unit,
            };
            assert_eq!(decode_limit(5, &limit), Err(Refusal::Invalid(Fault::Unit(5))));
        }
    }
}
