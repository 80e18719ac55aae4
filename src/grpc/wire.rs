//! Envoy's messages and ours. The only file that names Envoy's types.

mod response;

use std::convert::Infallible;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf as proto;
use pb::rate_limit_response::Code as PbCode;
use pb::rate_limit_service_server::SERVICE_NAME;
use response::{DescriptorStatus, RateLimit, RateLimitResponse};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request as GrpcRequest, Response, Status as GrpcStatus};
use tonic_prost::ProstCodec;

use super::{MESSAGE_BYTES_MAX, status_of};
use crate::intake::{Answer, Fault, Intake, Refusal};
use crate::request::{Descriptor, Entry, Request};
use crate::rules::{Limit, Unit};
use crate::verdict::{Applied, Code, Status};

/// The service as tonic routes to it; its clones share everything.
pub(super) fn service(intake: Intake) -> Door {
    Door { intake }
}

/// `RateLimitService`. Not the generated server, which would answer in Envoy's messages.
#[derive(Clone)]
pub(super) struct Door {
    intake: Intake,
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

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
        let door = self.clone();
        let intake = self.intake.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default())
                .apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None);
            let answered = intake.pass(grpc.unary(door, request)).await;
            Ok(answered.unwrap_or_else(|refusal| status_of(&refusal).into_http()))
        })
    }
}

impl UnaryService<pb::RateLimitRequest> for Door {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, GrpcStatus>;

    fn call(&mut self, request: GrpcRequest<pb::RateLimitRequest>) -> Self::Future {
        let intake = self.intake.clone();
        Box::pin(async move {
            let request = request.into_inner();
            let decoded = decode(&request).map_err(|refusal| status_of(&refusal))?;
            let answer = intake.answer(&decoded, encode).await;
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

fn encode(answer: Answer<'_>) -> RateLimitResponse {
    let Answer { verdict, headers } = answer;
    RateLimitResponse {
        overall_code: encode_code(verdict.code),
        statuses: verdict.statuses.iter().map(encode_status).collect(),
        response_headers_to_add: headers.into_iter().map(encode_header).collect(),
        dynamic_metadata: verdict.metadata.map(encode_struct),
    }
}

fn encode_code(code: Code) -> i32 {
    match code {
        Code::Ok => PbCode::Ok.into(),
        Code::OverLimit => PbCode::OverLimit.into(),
    }
}

fn encode_status(status: &Status<'_>) -> DescriptorStatus {
    let reset = status.reset_seconds().and_then(|seconds| i64::try_from(seconds).ok());
    DescriptorStatus {
        code: encode_code(status.code),
        current_limit: status.limit.as_ref().map(encode_limit),
        limit_remaining: status.remaining,
        duration_until_reset: reset.map(|seconds| proto::Duration { seconds, nanos: 0 }),
    }
}

fn encode_limit(applied: &Applied<'_>) -> RateLimit {
    let Applied { limit, rule } = applied;
    let multiplier = Some(limit.unit_multiplier.get()).filter(|units| *units > 1);
    RateLimit {
        requests_per_unit: limit.requests_per_unit,
        unit: limit.unit.number().into(),
        name: rule.map(|rule| rule.name.to_string()).unwrap_or_default(),
        unit_multiplier: multiplier.map(|value| proto::UInt32Value { value }),
    }
}

fn encode_header((key, value): (String, String)) -> HeaderValue {
    HeaderValue { key, value, ..Default::default() }
}

fn encode_struct(fields: serde_json::Map<String, serde_json::Value>) -> proto::Struct {
    let fields = fields.into_iter().map(|(name, value)| (name, encode_value(value))).collect();
    proto::Struct { fields }
}

/// Numbers become doubles, as JSON's are in protobuf. The depth is bounded where rules are read.
fn encode_value(value: serde_json::Value) -> proto::Value {
    use proto::value::Kind;
    use serde_json::Value;
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or(f64::NAN)),
        Value::String(value) => Kind::StringValue(value),
        Value::Array(values) => {
            let values = values.into_iter().map(encode_value).collect();
            Kind::ListValue(proto::ListValue { values })
        }
        Value::Object(fields) => Kind::StructValue(encode_struct(fields)),
    };
    proto::Value { kind: Some(kind) }
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
