//! The proto3 JSON form of the rate limit response: follows protobuf's mapping, with default values
//! left out.

use ::http::StatusCode;
use ::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use ratelease_engine::verdict::{Code, Status};
use serde_json::{Map, Value, json};

use ratelease_server::service::Answer;

/// The answer: 200 or 429.
pub(super) fn respond(answer: &Answer<'_>) -> Response {
    let status = match answer.verdict.code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    let content_type = [(CONTENT_TYPE, "application/json")];
    (status, content_type, print(answer).to_string()).into_response()
}

/// The response in JSON.
fn print(answer: &Answer<'_>) -> Value {
    let Answer { verdict, headers } = answer;
    let mut response = json!({
        "overallCode": code(verdict.code),
        "statuses": verdict.statuses.iter().map(status).collect::<Vec<_>>(),
    });
    if !headers.is_empty() {
        let header = |(key, value): &(String, String)| json!({ "key": key, "value": value });
        response["responseHeadersToAdd"] = headers.iter().map(header).collect();
    }
    if let Some(metadata) = &verdict.metadata {
        response["dynamicMetadata"] = metadata.clone().into();
    }
    response
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn status(status: &Status<'_>) -> Value {
    let mut fields = Map::new();
    fields.insert("code".into(), code(status.code).into());
    if let Some(applied) = &status.limit {
        let name = applied.rule.map(|rule| &*rule.name).unwrap_or_default();
        let mut limit = json!({ "unit": applied.limit.unit.name() });
        if !name.is_empty() {
            limit["name"] = name.into();
        }
        if applied.limit.requests_per_unit > 0 {
            limit["requestsPerUnit"] = applied.limit.requests_per_unit.into();
        }
        if applied.limit.unit_multiplier.get() > 1 {
            limit["unitMultiplier"] = applied.limit.unit_multiplier.get().into();
        }
        fields.insert("currentLimit".into(), limit);
    }
    if status.remaining > 0 {
        fields.insert("limitRemaining".into(), status.remaining.into());
    }
    if let Some(seconds) = status.reset_seconds() {
        fields.insert("durationUntilReset".into(), format!("{seconds}s").into());
    }
    fields.into()
}
