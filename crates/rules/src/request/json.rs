//! The proto3 JSON form of a rate limit request.
//!
//! Follows protobuf's JSON mapping: names are in lower camel case or as in the `.proto`, numbers
//! may be strings, enums are names or numbers, null stands for a default, and unknown fields are
//! refused.
//!
//! The cost of a body is bounded by its length: reading a list stops at its bound, faulty values
//! are not kept, and an error message has at most `FAULT_BYTES_MAX` (200) bytes.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use super::{DESCRIPTORS_MAX, ENTRIES_MAX};
use crate::limit::{Limit, Unit};
use crate::request;

/// Maximum bytes of an error message, without the place in the body, so that a client that sends a
/// long value does not get it back.
const FAULT_BYTES_MAX: usize = 200;

/// Parses a request that is the query of a URL: its JSON, percent-encoded.
///
/// # Errors
/// Why it is no request, in at most some 200 bytes.
pub fn parse_query(query: &str) -> Result<Request, String> {
    parse(&Cow::from(percent_decode_str(query)))
}

/// Encodes the JSON of a request as the query of a URL.
pub fn to_query(json: &str) -> String {
    utf8_percent_encode(json, NON_ALPHANUMERIC).to_string()
}

/// A request that owns its text.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Request {
    #[serde(deserialize_with = "nullable")]
    domain: String,
    #[serde(deserialize_with = "list")]
    descriptors: Vec<Object<Descriptor>>,
    #[serde(alias = "hits_addend", deserialize_with = "nullable")]
    hits_addend: Number<u32>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Descriptor {
    #[serde(deserialize_with = "list")]
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

/// Parses a request. The error says where and why the body is not one.
pub fn parse(body: &[u8]) -> Result<Request, String> {
    serde_json::from_slice(body).map(|Object(request)| request).map_err(|error| {
        format!("Bad Request: the body is not a RateLimitRequest in JSON: {}", shown(&error))
    })
}

/// Formats `error` as one line of bounded length.
pub(super) fn shown(error: &serde_json::Error) -> String {
    let reported = error.to_string().replace(char::is_control, " ");
    let end = reported.floor_char_boundary(FAULT_BYTES_MAX);
    match reported.get(end..) {
        Some("") | None => reported,
        Some(_) => {
            format!("{}... at line {} column {}", &reported[..end], error.line(), error.column())
        }
    }
}

/// Converts an object that was read to a request, or returns its fault.
pub fn from_object(object: Map<String, Value>) -> Result<Request, String> {
    let request = serde_json::from_value(object.into());
    request.map_err(|error| format!("not a RateLimitRequest: {error}"))
}

// === impl Request ===

impl Request {
    /// Returns the request, with borrowed text.
    pub fn borrow(&self) -> request::Request<'_> {
        request::Request {
            domain: &self.domain,
            descriptors: self.descriptors.iter().map(|Object(it)| it.borrow()).collect(),
            hits_addend: self.hits_addend.0.into(),
        }
    }
}

impl Listed for Object<Descriptor> {
    const NAME: &'static str = "descriptors";
    const MAX: usize = DESCRIPTORS_MAX;
}

impl Listed for Object<Entry> {
    const NAME: &'static str = "entries";
    const MAX: usize = ENTRIES_MAX;
}

impl Descriptor {
    fn borrow(&self) -> request::Descriptor<'_> {
        request::Descriptor {
            entries: self.entries.iter().map(|Object(it)| it.borrow()).collect(),
            limit: self.limit.as_ref().map(|Object(limit)| {
                Limit::fixed_window(limit.requests_per_unit.0.into(), limit.unit.0)
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

// Reads the values of a request in JSON, following protobuf's mapping. Faulty values are not kept.

/// A message, which must be an object: serde alone would also accept a list of its fields in order.
#[derive(Debug)]
struct Object<T>(T);

/// An element type of a list in the request.
trait Listed {
    const NAME: &'static str;
    /// Maximum number of elements in one list.
    const MAX: usize;
}

/// A whole number; `1.0`, `1e0` and a number in a string are accepted too.
#[derive(Debug, Default, Clone, Copy)]
struct Number<T>(T);

/// A unit, given by its name or number.
#[derive(Debug, Clone, Copy)]
struct UnitName(Unit);

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

/// Reads a field that may be null, which is the same as omitting it.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a list; null is an empty list. Fails at the first element above the maximum.
fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Listed + Deserialize<'de>,
{
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Listed + Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a sequence of {}", T::NAME)
        }

        fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while let Some(element) = list.next_element()? {
                if read.len() >= T::MAX {
                    let reported =
                        format!("more {} than the {} that are accepted", T::NAME, T::MAX);
                    return Err(A::Error::custom(reported));
                }
                read.push(element);
            }
            Ok(read)
        }
    }

    deserializer.deserialize_any(Elements(PhantomData))
}

/// 2^64, the first whole number that does not fit 64 bits.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

fn whole(number: f64) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, reason = "whole and in range")]
    #[allow(clippy::cast_sign_loss, reason = "in range")]
    (number.fract() == 0.0 && (0.0..TOO_LARGE).contains(&number)).then_some(number as u64)
}

// === impl Number ===

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits<T>(PhantomData<T>);

        impl<T: TryFrom<u64>> Digits<T> {
            fn in_range<E: Error>(
                reported: impl fmt::Display,
                is: Option<u64>,
            ) -> Result<Number<T>, E> {
                let number = is.and_then(|number| T::try_from(number).ok()).map(Number);
                number.ok_or_else(|| E::custom(format!("{reported} is not a number in range")))
            }
        }

        impl<T: TryFrom<u64>> Visitor<'_> for Digits<T> {
            type Value = Number<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number in range")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number<T>, E> {
                Self::in_range(number, Some(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number<T>, E> {
                Self::in_range(number, u64::try_from(number).ok())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number<T>, E> {
                Self::in_range(format_args!("{number:?}"), whole(number))
            }

            fn visit_str<E: Error>(self, digits: &str) -> Result<Number<T>, E> {
                let number = digits.parse().ok().and_then(|number: serde_json::Number| {
                    number.as_u64().or_else(|| number.as_f64().and_then(whole))
                });
                Self::in_range(format_args!("{digits:?}"), number)
            }
        }

        deserializer.deserialize_any(Digits(PhantomData))
    }
}

// === impl UnitName ===

impl<'de> Deserialize<'de> for UnitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Name {
            fn known<E: Error>(
                reported: impl fmt::Display,
                unit: Option<Unit>,
            ) -> Result<UnitName, E> {
                unit.map(UnitName).ok_or_else(|| {
                    E::custom(format!(
                        "{reported} is not a unit; \
                         expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
                    ))
                })
            }
        }

        impl Visitor<'_> for Name {
            type Value = UnitName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a unit")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<UnitName, E> {
                Self::known(number, Unit::from_number(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<UnitName, E> {
                Self::known(number, i64::try_from(number).ok().and_then(Unit::from_number))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<UnitName, E> {
                let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name);
                Self::known(format_args!("{name:?}"), unit)
            }
        }

        deserializer.deserialize_any(Name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Unit;

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
    fn refuses_a_body_that_is_no_request_with_the_reason() {
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

    /// Parsing must stop there, because anything may follow.
    #[test]
    fn a_list_is_refused_at_its_first_element_too_many() {
        let entries = vec![r#"{"key":"k"}"#; ENTRIES_MAX + 1].join(",");
        let descriptors = vec!["{}"; DESCRIPTORS_MAX + 1].join(",");
        for (body, reason) in [
            (format!(r#"{{"descriptors":[{descriptors},"#), "more descriptors than the 256"),
            (format!(r#"{{"descriptors":[{{"entries":[{entries},"#), "more entries than the 64"),
        ] {
            let fault = parse(body.as_bytes()).unwrap_err();
            assert!(fault.contains(reason), "{fault}");
        }
    }

    #[test]
    fn a_fault_is_a_short_line_however_long_the_value() {
        let long = r"v\u000a\u001b".repeat(100_000);
        for body in [
            format!(r#"{{"{long}":1}}"#),
            format!(r#"{{"hitsAddend":"{long}"}}"#),
            format!(r#"{{"descriptors":"{long}"}}"#),
            format!(r#"{{"descriptors":[{{"limit":{{"unit":"{long}"}}}}]}}"#),
            format!(r#"{{"hitsAddend":[{}0]}}"#, "0,".repeat(100_000)),
        ] {
            let fault = parse(body.as_bytes()).unwrap_err();
            assert!(fault.len() < FAULT_BYTES_MAX + 120, "{} bytes", fault.len());
            assert!(fault.contains(" at line 1 column "), "{fault}");
            assert!(!fault.contains(char::is_control), "{fault:?}");
        }
    }
}
