//! Reads and writes Envoy's messages by their field numbers. The only file of this crate that names
//! Envoy's types.
//!
//! Field numbers are those of `envoy/service/ratelimit/v3/rls.proto`, of `v3/ratelimit.proto` in
//! `envoy/extensions/common/ratelimit`, and of `google/protobuf/struct.proto` and
//! `duration.proto`.

use bytes::BytesMut;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
pub(super) use pb::rate_limit_service_server::SERVICE_NAME;
use ratelease_engine::verdict::{AppliedLimit, Code, Status};
use ratelease_rules::request::{DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Entry, Few, Request};
use ratelease_rules::{Limit, Unit};
use serde_json::{Map, Value as Json};
use smallvec::SmallVec;

use crate::request::InvalidRequest;
use crate::service::Answer;

// === Requests ===
//
// All text is borrowed from the message. As protobuf specifies, unknown fields are skipped, the
// last occurrence of a number wins, and parts of a split message are merged. Descriptors and
// entries are counted as they are read, so the cost of a message is bounded before the number that
// it contains is known.

/// `RateLimitOverride` as in the message.
#[derive(Debug, Clone, Copy, Default)]
struct Override {
    requests_per_unit: u32,
    unit: u32,
}

/// Why a message is not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is not valid protobuf, or has another type.
    #[error("the message is no RateLimitRequest: {0}")]
    Malformed(#[from] Malformed),
    /// The request exceeds a bound or has an invalid value.
    #[error("{0}")]
    Invalid(InvalidRequest),
}

/// Reads a request from a protobuf message; its text is borrowed. The cost is bounded whatever
/// lengths the message claims.
///
/// # Errors
///
/// Fails if the message is not a request, or has more descriptors or entries than it may.
pub fn read(message: &[u8]) -> Result<Request<'_>, DecodeError> {
    let mut request = Request { domain: "", descriptors: Few::new(), hits_addend: 0 };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => request.domain = value.text()?,
            2 if request.descriptors.len() >= DESCRIPTORS_MAX => {
                return Err(DecodeError::Invalid(InvalidRequest::Descriptors));
            }
            2 => {
                let at = request.descriptors.len();
                descriptor(at, value.bytes()?, push(&mut request.descriptors))?;
            }
            3 => request.hits_addend = value.varint32()?.into(),
            _ => {}
        }
    }
    Ok(request)
}

/// Appends a new element, to be filled in place: descriptors are large.
fn push<'v, 'a>(descriptors: &'v mut Few<Descriptor<'a>>) -> &'v mut Descriptor<'a> {
    let at = descriptors.len();
    descriptors.push(Descriptor::default());
    &mut descriptors[at]
}

/// Reads the descriptor at this index.
fn descriptor<'a>(
    at: usize,
    message: &'a [u8],
    descriptor: &mut Descriptor<'a>,
) -> Result<(), DecodeError> {
    let mut limit = None;
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 if descriptor.entries.len() >= ENTRIES_MAX => {
                return Err(DecodeError::Invalid(InvalidRequest::Entries(at)));
            }
            1 => descriptor.entries.push(entry(value.bytes()?)?),
            2 => limit = Some(override_of(limit.unwrap_or_default(), value.bytes()?)?),
            3 => {
                let hits = wrapped(descriptor.hits_addend.unwrap_or_default(), value.bytes()?);
                descriptor.hits_addend = Some(hits?);
            }
            4 => descriptor.refund = value.varint()? != 0,
            _ => {}
        }
    }
    descriptor.limit = limit.map(|limit| limit_of(at, limit)).transpose()?;
    Ok(())
}

fn entry(message: &[u8]) -> Result<Entry<'_>, Malformed> {
    let mut entry = Entry { key: "", value: "" };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => entry.key = value.text()?,
            2 => entry.value = value.text()?,
            _ => {}
        }
    }
    Ok(entry)
}

fn override_of(mut read: Override, message: &[u8]) -> Result<Override, Malformed> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => read.requests_per_unit = value.varint32()?,
            2 => read.unit = value.varint32()?,
            _ => {}
        }
    }
    Ok(read)
}

/// Reads a `UInt64Value`.
fn wrapped(mut read: u64, message: &[u8]) -> Result<u64, Malformed> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            read = value.varint()?;
        }
    }
    Ok(read)
}

/// Refuses an unknown unit, which would end the reference implementation's process.
fn limit_of(at: usize, limit: Override) -> Result<Limit, DecodeError> {
    let unit = Unit::from_number(limit.unit.into())
        .ok_or(DecodeError::Invalid(InvalidRequest::Unit(at)))?;
    Ok(Limit::fixed_window(limit.requests_per_unit.into(), unit))
}

// === Answers ===
//
// Each message is written from its last field to its first: see [`ReverseEncoder`].

/// Appends `answer` to `bytes`, as one gRPC message with its prefix.
pub fn frame(answer: &Answer<'_>, bytes: &mut BytesMut) {
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
    sink.number(3, as_uint32(status.remaining));
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
    sink.number(2, limit.window_unit().map_or(0, Unit::number).into()); // 0 is UNKNOWN
    sink.number(1, as_uint32(limit.requests_per_unit));
}

/// An amount as the protocol has it, which knows no larger ones.
fn as_uint32(amount: u64) -> u64 {
    amount.min(u32::MAX.into())
}

/// Writes a `Struct`.
fn fields(sink: &mut ReverseEncoder, map: &Map<String, Json>) {
    for (name, value) in map.iter().rev() {
        sink.message(1, |sink| {
            sink.message(2, |sink| dynamic(sink, value));
            sink.text(1, name);
        });
    }
}

/// Writes a `Value`, whose kind is written even if it is a default. Numbers become doubles, as in
/// protobuf's JSON mapping. The depth is bounded when rules are read.
fn dynamic(sink: &mut ReverseEncoder, value: &Json) {
    match value {
        Json::Null => sink.varint_field(1, 0),
        Json::Number(number) => sink.double(2, number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => sink.text_field(3, text),
        Json::Bool(is) => sink.varint_field(4, u64::from(*is)),
        Json::Object(map) => sink.message(5, |sink| fields(sink, map)),
        Json::Array(values) => sink.message(6, |sink| {
            for value in values.iter().rev() {
                sink.message(1, |sink| dynamic(sink, value));
            }
        }),
    }
}

// === The wire format, read ===
//
// Reads protobuf's wire format without a library: values are borrowed from the message, and
// nothing is allocated. The format is <https://protobuf.dev/programming-guides/encoding/>.

/// Maximum size in bytes of a 64-bit varint.
const VARINT_BYTES_MAX: usize = 10;

/// Reads the fields of one message.
#[derive(Debug, Clone, Copy)]
struct Fields<'a> {
    rest: &'a [u8],
}

/// One field's value, by its wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    Varint(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// A type that none of the known messages uses; skipped.
    Other,
}

/// Maximum nesting of groups, the same as in prost. No known message has groups.
const GROUPS_MAX: usize = 100;

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The field number is 0, 2^29 or above, or missing.
    #[error("invalid tag: a field has no valid number")]
    Tag,
    /// The varint does not end within ten bytes, or exceeds 64 bits.
    #[error("invalid varint: a number has more than 64 bits, or no end")]
    Varint,
    /// A field's length exceeds the bytes that the message has left.
    #[error("buffer underflow: a field is longer than the message")]
    Length,
    /// A known field has another type, or the type does not exist.
    #[error("invalid wire type: a field is not of the type that the protocol gives it")]
    WireType,
    /// A text is not UTF-8.
    #[error("invalid string: a text is not UTF-8")]
    Text,
    /// A group has no end, or is nested too deeply.
    #[error("invalid group: it has no end, or more than {GROUPS_MAX} around it")]
    Group,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the next field's number and value.
    fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.tag()?;
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            2 => Value::Bytes(self.bytes()?),
            other => self.skip(number, other)?,
        };
        Ok(Some((number, value)))
    }

    fn tag(&mut self) -> Result<(u32, u64), Malformed> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        Ok((number.ok_or(Malformed::Tag)?, tag & 7))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        // One byte is by far the most frequent case: tags, lengths, small numbers.
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut value = 0_u64;
        for at in 0..VARINT_BYTES_MAX {
            let byte = *self.rest.get(at).ok_or(Malformed::Varint)?;
            if at == VARINT_BYTES_MAX - 1 && byte > 1 {
                return Err(Malformed::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = self.rest.get(at + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(Malformed::Varint)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Length)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(bytes)
    }

    #[cold]
    fn skip(&mut self, number: u32, wire_type: u64) -> Result<Value<'a>, Malformed> {
        let length = match wire_type {
            1 => 8,
            3 => return self.skip_group(number),
            5 => 4,
            _ => return Err(Malformed::WireType),
        };
        self.rest = self.rest.get(length..).ok_or(Malformed::Length)?;
        Ok(Value::Other)
    }

    /// Skips to the end of a group that has begun, including nested groups.
    fn skip_group(&mut self, number: u32) -> Result<Value<'a>, Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            match self.tag()? {
                (number, 4) if number == *innermost => drop(open.pop()),
                (number, 3) if open.len() < GROUPS_MAX => open.push(number),
                (_, 3 | 4) => return Err(Malformed::Group),
                (_, 0) => drop(self.varint()?),
                (_, 2) => drop(self.bytes()?),
                (number, other) => drop(self.skip(number, other)?),
            }
        }
        Ok(Value::Other)
    }
}

// === impl Value ===

impl<'a> Value<'a> {
    fn varint(self) -> Result<u64, Malformed> {
        match self {
            Value::Varint(value) => Ok(value),
            _ => Err(Malformed::WireType),
        }
    }

    /// A 32-bit number: higher bits are cut off, as protobuf requires.
    #[allow(clippy::cast_possible_truncation, reason = "as protobuf wants it")]
    fn varint32(self) -> Result<u32, Malformed> {
        self.varint().map(|value| value as u32)
    }

    fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::WireType),
        }
    }

    fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Text)
    }
}

// === The wire format, written ===

/// Size in bytes up to which a message is written without allocation: some four statuses with
/// names.
const INLINE_BYTES: usize = 256;

/// Writes protobuf from the end to the beginning: the length of a message is known once it is
/// written, and precedes it. So each byte is written once, and no message is measured first.
struct ReverseEncoder {
    buffer: SmallVec<[u8; INLINE_BYTES]>,
    /// Everything from this index on has been written.
    at: usize,
}

// === impl ReverseEncoder ===

impl ReverseEncoder {
    fn new() -> Self {
        Self { buffer: SmallVec::from_buf([0; INLINE_BYTES]), at: INLINE_BYTES }
    }

    /// The bytes written so far.
    fn written(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    /// Writes bytes unchanged.
    fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > self.at {
            self.grow(bytes.len());
        }
        let start = self.at.saturating_sub(bytes.len());
        if let Some(buffer) = self.buffer.get_mut(start..self.at) {
            buffer.copy_from_slice(bytes);
        }
        self.at = start;
    }

    /// Writes a number; a 0 is left out, as in proto3.
    fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint_field(field, value);
        }
    }

    /// Writes a number, even a 0.
    fn varint_field(&mut self, field: u32, value: u64) {
        self.varint(value);
        self.varint(u64::from(field) << 3);
    }

    /// Writes a double, even a 0.
    fn double(&mut self, field: u32, value: f64) {
        self.put(&value.to_le_bytes());
        self.varint(u64::from(field) << 3 | 1);
    }

    /// Writes text; empty text is left out.
    fn text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.text_field(field, text);
        }
    }

    /// Writes text, even if it is empty.
    fn text_field(&mut self, field: u32, text: &str) {
        self.message(field, |this| this.put(text.as_bytes()));
    }

    /// Writes a message, even if it is empty.
    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let after = self.written().len();
        write(self);
        self.varint((self.written().len() - after) as u64);
        self.varint(u64::from(field) << 3 | 2);
    }

    #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.put(&[value as u8]); // by far the most frequent case
        }
        let mut bytes = [0; VARINT_BYTES_MAX];
        let mut len = 0;
        while let Some(byte) = bytes.get_mut(len) {
            len += 1;
            *byte = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                break;
            }
            *byte |= 0x80;
        }
        self.put(bytes.get(..len).unwrap_or_default());
    }

    /// Makes room for `more` bytes before those written.
    #[cold]
    fn grow(&mut self, more: usize) {
        let free = self.buffer.len().max(more);
        self.buffer.insert_many(0, std::iter::repeat_n(0, free));
        self.at += free;
    }
}

#[cfg(test)]
mod tests;
