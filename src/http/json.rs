//! The proto3 JSON form of the rate limit request and response.
//!
//! As protobuf's mapping has it: names in lower camel case or as in the `.proto`, 64-bit numbers
//! also as strings, enums by name or number, unknown fields refused, default values left out.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::intake::Answer;
use crate::request;
use crate::rules::{Limit, Unit};
use crate::verdict::{Code, Status};

/// A request that owns its text.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(super) struct Request {
    domain: String,
    descriptors: Vec<Descriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: Number<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Descriptor {
    entries: Vec<Entry>,
    limit: Option<Override>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    key: String,
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Override {
    #[serde(alias = "requests_per_unit", default)]
    requests_per_unit: Number<u32>,
    unit: UnitName,
}

/// A number, or its digits in a string.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(try_from = "Value", bound = "T: TryFrom<u64>")]
struct Number<T>(T);

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct UnitName(Unit);

/// Parses a request, or says where and why it is none.
pub(super) fn parse(body: &[u8]) -> Result<Request, String> {
    serde_json::from_slice(body).map_err(|error| {
        format!("Bad Request: the body is not a RateLimitRequest in JSON: {error}")
    })
}

/// The response in JSON.
pub(super) fn print(answer: Answer) -> Value {
    let Answer { verdict, headers } = answer;
    let mut response = json!({
        "overallCode": code(verdict.code),
        "statuses": verdict.statuses.iter().map(status).collect::<Vec<_>>(),
    });
    if !headers.is_empty() {
        let header = |(key, value)| json!({ "key": key, "value": value });
        response["responseHeadersToAdd"] = headers.into_iter().map(header).collect();
    }
    if let Some(metadata) = verdict.metadata {
        response["dynamicMetadata"] = metadata.into();
    }
    response
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn status(status: &Status) -> Value {
    let mut fields = Map::new();
    fields.insert("code".into(), code(status.code).into());
    if let Some(applied) = &status.limit {
        let name = applied.rule.as_deref().map(|rule| &*rule.name).unwrap_or_default();
        let mut limit = json!({ "unit": applied.limit.unit.name() });
        if !name.is_empty() {
            limit["name"] = name.into();
        }
        if applied.limit.requests_per_unit > 0 {
            limit["requestsPerUnit"] = applied.limit.requests_per_unit.into();
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

// === impl Request ===

impl Request {
    pub(super) fn borrow(&self) -> request::Request<'_> {
        request::Request {
            domain: &self.domain,
            descriptors: self.descriptors.iter().map(Descriptor::borrow).collect(),
            hits_addend: self.hits_addend.0,
        }
    }
}

impl Descriptor {
    fn borrow(&self) -> request::Descriptor<'_> {
        request::Descriptor {
            entries: self.entries.iter().map(Entry::borrow).collect(),
            limit: self.limit.as_ref().map(|limit| Limit {
                requests_per_unit: limit.requests_per_unit.0,
                unit: limit.unit.0,
            }),
            hits_addend: self.hits_addend.map(|hits| hits.0),
            refund: self.is_negative_hits,
        }
    }
}

impl Entry {
    fn borrow(&self) -> request::Entry<'_> {
        request::Entry { key: &self.key, value: &self.value }
    }
}

impl<T: TryFrom<u64>> TryFrom<Value> for Number<T> {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = match &value {
            Value::Number(number) => number.as_u64(),
            Value::String(digits) => digits.parse().ok(),
            _ => None,
        };
        let number = number.and_then(|number| T::try_from(number).ok()).map(Number);
        number.ok_or_else(|| format!("{value} is not a number in range"))
    }
}

impl TryFrom<Value> for UnitName {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let unit = match &value {
            Value::String(name) => Unit::ALL.into_iter().find(|unit| unit.name() == name),
            Value::Number(number) => number.as_i64().and_then(Unit::from_number),
            _ => None,
        };
        unit.map(UnitName).ok_or_else(|| {
            format!(
                "{value} is not a unit; expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_spellings_and_numbers_in_strings() {
        let camel = r#"{"domain": "d", "hitsAddend": 2, "descriptors": [{
            "entries": [{"key": "k", "value": "v"}], "hitsAddend": "7", "isNegativeHits": true,
            "limit": {"requestsPerUnit": 10, "unit": "WEEK"}}]}"#;
        let snake = r#"{"domain": "d", "hits_addend": 2, "descriptors": [{
            "entries": [{"key": "k", "value": "v"}], "hits_addend": 7, "is_negative_hits": true,
            "limit": {"requests_per_unit": "10", "unit": 7}}]}"#;
        for body in [camel, snake] {
            let parsed = parse(body.as_bytes()).unwrap();
            let request = parsed.borrow();
            assert_eq!((request.domain, request.hits_addend), ("d", 2));
            let descriptor = &request.descriptors[0];
            assert_eq!(descriptor.entries, [request::Entry { key: "k", value: "v" }]);
            assert_eq!(descriptor.hits_addend, Some(7));
            assert_eq!(descriptor.limit, Some(Limit { requests_per_unit: 10, unit: Unit::Week }));
            assert!(descriptor.refund);
        }
    }

    #[test]
    fn refuses_what_is_no_request_and_says_why() {
        for (body, reason) in [
            ("", "EOF"),
            ("}", "expected value"),
            (r#"{"domian":"d"}"#, "unknown field `domian`"),
            (r#"{"hitsAddend":-1}"#, "-1 is not a number in range"),
            (r#"{"hitsAddend":4294967296}"#, "4294967296 is not a number in range"),
            (r#"{"descriptors":[{"limit":{"unit":"UNKNOWN"}}]}"#, "is not a unit"),
            (r#"{"descriptors":[{"limit":{"unit":0}}]}"#, "is not a unit"),
        ] {
            let fault = parse(body.as_bytes()).unwrap_err();
            assert!(fault.contains(reason), "{body}: {fault}");
        }
    }
}
