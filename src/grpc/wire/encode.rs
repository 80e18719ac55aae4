//! Writes a `RateLimitResponse`, straight from the verdict. Numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto`, `google/protobuf/struct.proto` and `duration.proto`.
//!
//! Each message is written from its last field to its first: see [`Backwards`].

use bytes::BytesMut;
use ratelease_engine::verdict::{Applied, Code, Status};
use serde_json::{Map, Value};

use super::backwards::Backwards;
use crate::intake::Answer;

/// `answer` as one message of gRPC, prefix and all, added to `bytes`.
pub(super) fn framed(answer: &Answer<'_>, bytes: &mut BytesMut) {
    let mut sink = Backwards::new();
    response(&mut sink, answer);
    // Metadata is what rules hold, and they are bounded far below.
    let length = u32::try_from(sink.written().len()).unwrap_or(u32::MAX);
    sink.put(&length.to_be_bytes());
    sink.put(&[0]);
    bytes.extend_from_slice(sink.written());
}

/// `answer` alone.
pub(super) fn message(answer: &Answer<'_>) -> BytesMut {
    let mut sink = Backwards::new();
    response(&mut sink, answer);
    BytesMut::from(sink.written())
}

fn response(sink: &mut Backwards, answer: &Answer<'_>) {
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

fn status(sink: &mut Backwards, status: &Status<'_>) {
    if let Some(seconds) = status.reset_seconds() {
        sink.message(4, |sink| sink.number(1, seconds));
    }
    sink.number(3, status.remaining.into());
    if let Some(applied) = &status.limit {
        sink.message(2, |sink| limit(sink, applied));
    }
    sink.number(1, number_of(status.code));
}

fn limit(sink: &mut Backwards, applied: &Applied<'_>) {
    let Applied { limit, rule } = applied;
    // Field 4 of Envoy's pull request 47307. An Envoy that does not know it (1.40) skips it.
    if limit.unit_multiplier.get() > 1 {
        sink.message(4, |sink| sink.number(1, limit.unit_multiplier.get().into()));
    }
    sink.text(3, rule.map_or("", |rule| &rule.name));
    sink.number(2, limit.unit.number().into());
    sink.number(1, limit.requests_per_unit.into());
}

/// `Struct`.
fn fields(sink: &mut Backwards, map: &Map<String, Value>) {
    for (name, value) in map.iter().rev() {
        sink.message(1, |sink| {
            sink.message(2, |sink| dynamic(sink, value));
            sink.text(1, name);
        });
    }
}

/// `Value`, of whose kinds one is there even if it is a default. Numbers become doubles, as JSON's
/// are in protobuf. The depth is bounded where rules are read.
fn dynamic(sink: &mut Backwards, value: &Value) {
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
