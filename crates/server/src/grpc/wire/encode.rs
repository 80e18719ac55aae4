//! Writes a `RateLimitResponse` directly from the verdict. Field numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto`, `google/protobuf/struct.proto` and `duration.proto`.
//!
//! Each message is written from its last field to its first: see [`ReverseEncoder`].

use bytes::BytesMut;
use ratelease_engine::verdict::{AppliedLimit, Code, Status};
use serde_json::{Map, Value};

use super::reverse_encoder::ReverseEncoder;
use crate::service::Answer;

/// Appends `answer` to `bytes` as one gRPC message, with its prefix.
pub(super) fn framed(answer: &Answer<'_>, bytes: &mut BytesMut) {
    let mut sink = ReverseEncoder::new();
    response(&mut sink, answer);
    // The only part without a fixed bound is the metadata, which comes from rules, and their size
    // is limited to far less.
    let length = u32::try_from(sink.written().len()).unwrap_or(u32::MAX);
    sink.put(&length.to_be_bytes());
    sink.put(&[0]);
    bytes.extend_from_slice(sink.written());
}

fn response(sink: &mut ReverseEncoder, answer: &Answer<'_>) {
    let Answer { verdict, headers } = answer;
    if let Some(metadata) = &verdict.metadata {
        sink.message(6, |sink| fields(sink, metadata));
    }
    for (name, value) in headers.iter().rev() {
        sink.message(3, |sink| {
            sink.text(2, value);
            sink.text(1, name);
        });
    }
    for one in verdict.statuses.iter().rev() {
        sink.message(2, |sink| status(sink, one));
    }
    sink.number(1, number_of(verdict.code));
}

fn number_of(code: Code) -> u64 {
    match code {
        Code::Ok => 1,
        Code::OverLimit => 2,
    }
}

fn status(sink: &mut ReverseEncoder, status: &Status<'_>) {
    if let Some(seconds) = status.reset_seconds() {
        sink.message(4, |sink| sink.number(1, seconds));
    }
    sink.number(3, status.remaining.into());
    if let Some(applied) = &status.limit {
        sink.message(2, |sink| limit(sink, applied));
    }
    sink.number(1, number_of(status.code));
}

fn limit(sink: &mut ReverseEncoder, applied: &AppliedLimit<'_>) {
    let AppliedLimit { limit, rule } = applied;
    // Field 4 is from Envoy's pull request 47307. An Envoy without it (1.40) skips the field.
    if limit.unit_multiplier.get() > 1 {
        sink.message(4, |sink| sink.number(1, limit.unit_multiplier.get().into()));
    }
    sink.text(3, rule.map_or("", |rule| &rule.name));
    sink.number(2, limit.unit.number().into());
    sink.number(1, limit.requests_per_unit.into());
}

/// Writes a `Struct`.
fn fields(sink: &mut ReverseEncoder, map: &Map<String, Value>) {
    for (name, value) in map.iter().rev() {
        sink.message(1, |sink| {
            sink.message(2, |sink| dynamic(sink, value));
            sink.text(1, name);
        });
    }
}

/// Writes a `Value`, whose kind is written even if it is a default. Numbers become doubles, as in
/// protobuf's JSON mapping. The depth is bounded when rules are read.
fn dynamic(sink: &mut ReverseEncoder, value: &Value) {
    match value {
        Value::Null => sink.varint_field(1, 0),
        Value::Number(number) => sink.double(2, number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => sink.text_field(3, text),
        Value::Bool(is) => sink.varint_field(4, u64::from(*is)),
        Value::Object(map) => sink.message(5, |sink| fields(sink, map)),
        Value::Array(values) => sink.message(6, |sink| {
            for value in values.iter().rev() {
                sink.message(1, |sink| dynamic(sink, value));
            }
        }),
    }
}

#[cfg(test)]
mod tests;
