//! Writes a `RateLimitResponse`, straight from the verdict. Numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto`, `google/protobuf/struct.proto` and `duration.proto`.

use bytes::{BufMut, BytesMut};
use serde_json::{Map, Value};

use super::proto::{self, Message, Sink};
use crate::grpc::PREFIX_BYTES;
use crate::intake::Answer;
use crate::verdict::{Applied, Code, Status};

/// `answer` as one message of gRPC, prefix and all, added to `bytes`.
pub(super) fn framed(answer: &Answer<'_>, bytes: &mut BytesMut) {
    let len = proto::measure(answer);
    bytes.reserve(PREFIX_BYTES + len);
    bytes.put_u8(0);
    // Metadata is what rules hold, and they are bounded far below.
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    answer.write(bytes);
}

/// `answer` alone.
pub(super) fn message(answer: &Answer<'_>) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(proto::measure(answer));
    answer.write(&mut bytes);
    bytes
}

impl Message for Answer<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let Answer { verdict, headers } = self;
        proto::number(sink, 1, number_of(verdict.code));
        for status in &verdict.statuses {
            proto::message(sink, 2, status);
        }
        for header in headers {
            proto::message(sink, 3, header);
        }
        if let Some(metadata) = &verdict.metadata {
            proto::message(sink, 6, metadata);
        }
    }
}

fn number_of(code: Code) -> u64 {
    match code {
        Code::Ok => 1,
        Code::OverLimit => 2,
    }
}

impl Message for Status<'_> {
    fn write(&self, sink: &mut impl Sink) {
        proto::number(sink, 1, number_of(self.code));
        if let Some(applied) = &self.limit {
            proto::message(sink, 2, applied);
        }
        proto::number(sink, 3, self.remaining.into());
        if let Some(seconds) = self.reset_seconds() {
            proto::message(sink, 4, &Only(seconds));
        }
    }
}

impl Message for Applied<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let Applied { limit, rule } = self;
        proto::number(sink, 1, limit.requests_per_unit.into());
        proto::number(sink, 2, limit.unit.number().into());
        proto::text(sink, 3, rule.map_or("", |rule| &rule.name));
        // Field 4 of Envoy's pull request 47307. An Envoy that does not know it (1.40) skips it.
        if limit.unit_multiplier.get() > 1 {
            proto::message(sink, 4, &Only(limit.unit_multiplier.get().into()));
        }
    }
}

/// A message of one number: `Duration` in seconds, `UInt32Value`.
struct Only(u64);

impl Message for Only {
    fn write(&self, sink: &mut impl Sink) {
        proto::number(sink, 1, self.0);
    }
}

/// `HeaderValue`.
impl Message for (String, String) {
    fn write(&self, sink: &mut impl Sink) {
        proto::text(sink, 1, &self.0);
        proto::text(sink, 2, &self.1);
    }
}

/// `Struct`.
impl Message for Map<String, Value> {
    fn write(&self, sink: &mut impl Sink) {
        for field in self {
            proto::message(sink, 1, &field);
        }
    }
}

/// `FieldsEntry`.
impl Message for (&String, &Value) {
    fn write(&self, sink: &mut impl Sink) {
        proto::text(sink, 1, self.0);
        proto::message(sink, 2, self.1);
    }
}

/// `Value`, of whose kinds one is there even if it is a default. Numbers become doubles, as JSON's
/// are in protobuf. The depth is bounded where rules are read.
impl Message for Value {
    fn write(&self, sink: &mut impl Sink) {
        match self {
            Value::Null => proto::varint_field(sink, 1, 0),
            Value::Number(number) => {
                proto::double(sink, 2, number.as_f64().unwrap_or(f64::NAN));
            }
            Value::String(text) => proto::text_field(sink, 3, text),
            Value::Bool(is) => proto::varint_field(sink, 4, u64::from(*is)),
            Value::Object(fields) => proto::message(sink, 5, fields),
            Value::Array(values) => proto::message(sink, 6, values),
        }
    }
}

/// `ListValue`.
impl Message for Vec<Value> {
    fn write(&self, sink: &mut impl Sink) {
        for value in self {
            proto::message(sink, 1, value);
        }
    }
}

#[cfg(test)]
mod tests;
