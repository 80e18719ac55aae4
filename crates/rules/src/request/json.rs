//! The proto3 JSON form of a rate limit request.
//!
//! Follows protobuf's JSON mapping: names are in lower camel case or as in the `.proto`, numbers
//! may be strings, enums are names or numbers, null stands for a default, and unknown fields are
//! refused.
//!
//! The cost of a body is bounded by its length: reading a list stops at its bound, faulty values
//! are not kept, and an error message has at most `FAULT_BYTES_MAX` (200) bytes.

mod values;

use serde_json::{Map, Value};

use values::{Listed, Number, Object, UnitName, list, nullable};

use super::{DESCRIPTORS_MAX, ENTRIES_MAX};
use crate::limit::Limit;
use crate::request;

/// Maximum bytes of an error message, without the place in the body, so that a client that sends a
/// long value does not get it back.
const FAULT_BYTES_MAX: usize = 200;

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

/// Converts an object that was read to a request, or returns what is wrong with it.
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
            hits_addend: self.hits_addend.0,
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
