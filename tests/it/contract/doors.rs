//! Both protocols: the same request over gRPC and as JSON over HTTP.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf as proto;
use pb::RateLimitRequest;
use pb::rate_limit_response::rate_limit::Unit;
use pb::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use pb::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::notation::Answer;
use crate::support::http::Client;
use crate::support::ratelease::Ratelease;

/// A connection to a pod.
pub(crate) enum Door {
    Grpc(RateLimitServiceClient<Channel>),
    Http(Client),
}

// === impl Door ===

impl Door {
    pub(crate) async fn grpc(pod: &Ratelease) -> Self {
        let channel = Channel::from_shared(format!("http://{}", pod.grpc)).unwrap();
        Self::Grpc(RateLimitServiceClient::new(channel.connect().await.unwrap()))
    }

    pub(crate) async fn http(pod: &Ratelease) -> Self {
        Self::Http(Client::connect(pod.http).await.unwrap())
    }

    /// Returns the answer, or the error as `CODE text`.
    pub(crate) async fn ask(&mut self, request: RateLimitRequest) -> Result<Answer, String> {
        match self {
            Self::Grpc(client) => ask_grpc(client, request).await,
            Self::Http(client) => ask_http(client, &request).await,
        }
    }
}

async fn ask_grpc(
    client: &mut RateLimitServiceClient<Channel>,
    request: RateLimitRequest,
) -> Result<Answer, String> {
    match client.should_rate_limit(request).await {
        Ok(response) => {
            let mut response = response.into_inner();
            let metadata = response.dynamic_metadata.take().map(from_struct);
            Ok(Answer { response, metadata })
        }
        Err(status) => Err(format!("{:?} {}", status.code(), status.message())),
    }
}

fn from_struct(fields: proto::Struct) -> Value {
    fields.fields.into_iter().map(|(name, value)| (name, from_value(value))).collect()
}

fn from_value(value: proto::Value) -> Value {
    use proto::value::Kind;
    match value.kind.expect("a value of some kind") {
        Kind::NullValue(_) => Value::Null,
        Kind::NumberValue(number) => number.into(),
        Kind::StringValue(text) => text.into(),
        Kind::BoolValue(truth) => truth.into(),
        Kind::StructValue(fields) => from_struct(fields),
        Kind::ListValue(list) => list.values.into_iter().map(from_value).collect(),
    }
}

async fn ask_http(client: &mut Client, request: &RateLimitRequest) -> Result<Answer, String> {
    let body = to_json(request).to_string();
    let answer = client.send("POST", "/json", &[], &body).await.expect("an HTTP answer");
    if matches!(answer.status, 400 | 503) {
        return Err(format!("{} {}", answer.status, answer.body.trim_end()));
    }
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let mut body: Value = serde_json::from_str(&answer.body).expect("an answer in JSON");
    let response = from_json(&body);
    let expected = if response.overall_code == i32::from(Code::Ok) { 200 } else { 429 };
    assert_eq!(answer.status, expected, "{}", answer.body);
    let metadata = body.get_mut("dynamicMetadata").map(Value::take);
    Ok(Answer { response, metadata })
}

/// Encodes by protobuf's JSON mapping: 64-bit numbers are strings, defaults are left out.
fn to_json(request: &RateLimitRequest) -> Value {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|entry| json!({ "key": entry.key, "value": entry.value }));
        let mut fields = json!({ "entries": entries.collect::<Vec<_>>() });
        if let Some(limit) = &descriptor.limit {
            let unit = Unit::try_from(limit.unit)
                .map_or(limit.unit.into(), |unit| Value::from(unit.as_str_name()));
            fields["limit"] = json!({ "requestsPerUnit": limit.requests_per_unit, "unit": unit });
        }
        if let Some(hits) = &descriptor.hits_addend {
            fields["hitsAddend"] = hits.value.to_string().into();
        }
        if descriptor.is_negative_hits {
            fields["isNegativeHits"] = true.into();
        }
        fields
    });
    let mut fields = json!({ "descriptors": descriptors.collect::<Vec<_>>() });
    if !request.domain.is_empty() {
        fields["domain"] = request.domain.as_str().into();
    }
    if request.hits_addend != 0 {
        fields["hitsAddend"] = request.hits_addend.into();
    }
    fields
}

fn from_json(body: &Value) -> pb::RateLimitResponse {
    let list = |name| body.get(name).and_then(Value::as_array).into_iter().flatten();
    let header = |header: &Value| HeaderValue {
        key: text(header, "key"),
        value: text(header, "value"),
        ..HeaderValue::default()
    };
    pb::RateLimitResponse {
        overall_code: code(&body["overallCode"]),
        statuses: list("statuses").map(status).collect(),
        response_headers_to_add: list("responseHeadersToAdd").map(header).collect(),
        ..pb::RateLimitResponse::default()
    }
}

fn status(status: &Value) -> DescriptorStatus {
    let limit = status.get("currentLimit").map(|limit| RateLimit {
        name: text(limit, "name"),
        requests_per_unit: number(limit, "requestsPerUnit"),
        unit: Unit::from_str_name(&text(limit, "unit")).expect("a unit").into(),
    });
    let span = status.get("durationUntilReset").map(|span| {
        let seconds = span.as_str().and_then(|span| span.strip_suffix('s'));
        let seconds = seconds.and_then(|seconds| seconds.parse().ok()).expect("whole seconds");
        proto::Duration { seconds, nanos: 0 }
    });
    DescriptorStatus {
        code: code(&status["code"]),
        current_limit: limit,
        limit_remaining: number(status, "limitRemaining"),
        duration_until_reset: span,
        ..DescriptorStatus::default()
    }
}

fn code(name: &Value) -> i32 {
    let code = name.as_str().and_then(Code::from_str_name);
    code.unwrap_or_else(|| panic!("no code: {name}")).into()
}

fn text(fields: &Value, name: &str) -> String {
    fields.get(name).map(|text| text.as_str().expect("text").to_owned()).unwrap_or_default()
}

fn number(fields: &Value, name: &str) -> u32 {
    let number = fields.get(name).map(|number| number.as_u64().expect("a number"));
    number.unwrap_or_default().try_into().expect("32 bits")
}
