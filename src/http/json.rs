//! The proto3 JSON form of the rate limit request and response.
//!
//! As protobuf's mapping has it: names in lower camel case or as in the `.proto`, numbers also as
//! strings, enums by name or number, null for a default, unknown fields refused, default values
//! left out.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::intake::Answer;
use crate::request;
use crate::rules::{Limit, Unit};
use crate::verdict::{Code, Status};

/// A request that owns its text.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Request {
    #[serde(deserialize_with = "nullable")]
    domain: String,
    #[serde(deserialize_with = "nullable")]
    descriptors: Vec<Object<Descriptor>>,
    #[serde(alias = "hits_addend", deserialize_with = "nullable")]
    hits_addend: Number<u32>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Descriptor {
    #[serde(deserialize_with = "nullable")]
    entries: Vec<Object<Entry>>,
    limit: Option<Object<Override>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "is_negative_hits", deserialize_with = "nullable")]
    is_negative_hits: bool,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    #[serde(deserialize_with = "nullable")]
    key: String,
    #[serde(deserialize_with = "nullable")]
    value: String,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Override {
    #[serde(alias = "requests_per_unit", default, deserialize_with = "nullable")]
    requests_per_unit: Number<u32>,
    unit: UnitName,
}

/// A message: an object. serde alone would also take a list of its fields in order.
#[derive(Debug)]
struct Object<T>(T);

/// A whole number, also as `1.0` or `1e0`, or in a string.
#[derive(Debug, Default, Clone, Copy, serde::Deserialize)]
#[serde(try_from = "Value", bound = "T: TryFrom<u64>")]
struct Number<T>(T);

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(try_from = "Value")]
struct UnitName(Unit);

/// Parses a request, or says where and why it is none.
pub(crate) fn parse(body: &[u8]) -> Result<Request, String> {
    serde_json::from_slice(body).map(|Object(request)| request).map_err(|error| {
        format!("Bad Request: the body is not a RateLimitRequest in JSON: {error}")
    })
}

/// The request in an object that was read, or what is wrong with it.
pub(crate) fn from_object(object: Map<String, Value>) -> Result<Request, String> {
    let request = serde_json::from_value(object.into());
    request.map_err(|error| format!("not a RateLimitRequest: {error}"))
}

/// The response in JSON.
pub(super) fn print(answer: Answer<'_>) -> Value {
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

// === impl Request ===

impl Request {
    pub(crate) fn borrow(&self) -> request::Request<'_> {
        request::Request {
            domain: &self.domain,
            descriptors: self.descriptors.iter().map(|Object(it)| it.borrow()).collect(),
            hits_addend: self.hits_addend.0,
        }
    }
}

impl Descriptor {
    fn borrow(&self) -> request::Descriptor<'_> {
        request::Descriptor {
            entries: self.entries.iter().map(|Object(it)| it.borrow()).collect(),
            limit: self
                .limit
                .as_ref()
                .map(|Object(limit)| Limit::fixed_window(limit.requests_per_unit.0, limit.unit.0)),
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

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: DeserializeOwned> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// A field that may be null, which is the same as leaving it out.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// 2^64, the first whole number above 64 bits.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

fn whole(number: &serde_json::Number) -> Option<u64> {
    let is_whole = |it: &f64| it.fract() == 0.0 && (0.0..TOO_LARGE).contains(it);
    #[allow(clippy::cast_possible_truncation, reason = "whole and in range")]
    #[allow(clippy::cast_sign_loss, reason = "in range")]
    number.as_u64().or_else(|| number.as_f64().filter(is_whole).map(|it| it as u64))
}

impl<T: TryFrom<u64>> TryFrom<Value> for Number<T> {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = match &value {
            Value::Number(number) => whole(number),
            Value::String(digits) => digits.parse().ok().as_ref().and_then(whole),
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
            assert_eq!(descriptor.entries[..], [request::Entry { key: "k", value: "v" }]);
            assert_eq!(descriptor.hits_addend, Some(7));
            assert_eq!(descriptor.limit, Some(Limit::fixed_window(10, Unit::Week)));
            assert!(descriptor.refund);
        }
    }

    #[test]
    fn null_is_a_default_and_a_whole_number_may_have_a_point() {
        let body = r#"{"domain": null, "hitsAddend": null, "descriptors": [{
            "entries": null, "limit": null, "hitsAddend": null, "isNegativeHits": null},
            {"entries": [{"key": null, "value": null}], "hitsAddend": 3.0,
            "limit": {"requestsPerUnit": "1e1", "unit": "DAY"}}]}"#;
        let parsed = parse(body.as_bytes()).unwrap();
        let request = parsed.borrow();
        assert_eq!((request.domain, request.hits_addend), ("", 0));
        assert_eq!(request.descriptors[0], request::Descriptor::default());
        let second = &request.descriptors[1];
        assert_eq!(second.entries[..], [request::Entry { key: "", value: "" }]);
        assert_eq!(second.hits_addend, Some(3));
        assert_eq!(second.limit, Some(Limit::fixed_window(10, Unit::Day)));
    }

    #[test]
    fn refuses_what_is_no_request_and_says_why() {
        for (body, reason) in [
            ("", "EOF"),
            ("[]", "expected an object"),
            ("null", "expected an object"),
            (r#"{"descriptors":[null]}"#, "expected an object"),
            (r#"{"descriptors":[{"entries":[["k","v"]]}]}"#, "expected an object"),
            (r#"{"hitsAddend":1.5}"#, "1.5 is not a number in range"),
            (r#"{"hitsAddend":"1 "}"#, "is not a number in range"),
            (r#"{"descriptors":[{"hitsAddend":18446744073709551616}]}"#, "not a number in range"),
            (r#"{"descriptors":[{"hitsAddend":-0.5}]}"#, "-0.5 is not a number in range"),
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
