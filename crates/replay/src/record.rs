//! Parses one line of a log, and the request that it may contain.

use std::borrow::Cow;

use ratelease_rules::request::json;
use serde_json::{Map, Value};

use crate::decision_sample;
use crate::envoy;
use crate::timestamp;

/// Names that loggers use for the time; tried if no field is given.
const TIME_FIELDS: [&str; 6] = ["start_time", "time", "timestamp", "@timestamp", "ts", "date"];

/// Fields of a rate limit request in JSON, under both of their names.
const REQUEST_FIELDS: [&str; 4] = ["domain", "descriptors", "hitsAddend", "hits_addend"];

/// A parsed line.
#[derive(Debug)]
pub(crate) enum Record<'a> {
    /// A line in Envoy's default text format.
    Envoy(envoy::Line<'a>),
    /// A JSON object with any fields.
    Json(Map<String, Value>),
}

// === impl Record ===

impl<'a> Record<'a> {
    /// Parses a line; the error says why it cannot be read.
    pub(crate) fn parse(line: &'a str) -> Result<Self, String> {
        if !line.starts_with('{') {
            let line = envoy::Line::parse(line);
            return line.map(Self::Envoy).map_err(|why| format!("not Envoy's text format: {why}"));
        }
        serde_json::from_str(line).map(Self::Json).map_err(|error| format!("not JSON: {error}"))
    }

    /// Returns the time in microseconds since the Unix epoch; for a JSON line, from the field
    /// `named` or else from one of [`TIME_FIELDS`].
    pub(crate) fn time(&self, named: Option<&str>) -> Result<u64, String> {
        let fields = match self {
            Self::Envoy(line) => return line.time().ok_or_else(|| "its time is none".to_owned()),
            Self::Json(fields) => fields,
        };
        let found = match named {
            Some(name) => find(fields, name).map(|value| (name, value)),
            None => TIME_FIELDS.into_iter().find_map(|name| Some((name, fields.get(name)?))),
        };
        let (name, value) = found.ok_or_else(|| match named {
            Some(name) => format!("has no field {name}"),
            None => format!("has no time: no field {}; set --time", TIME_FIELDS.join(", ")),
        })?;
        timestamp::of_json(value).ok_or_else(|| format!("its {name} is no time"))
    }

    /// Returns a field as text; `None` if it is missing or empty.
    pub(crate) fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Envoy(line) => line.field(name).map(Cow::Borrowed),
            Self::Json(fields) => match find(fields, name)? {
                Value::String(text) if text == "-" => None,
                Value::String(text) => Some(Cow::Borrowed(text)),
                Value::Bool(_) | Value::Number(_) => Some(find(fields, name)?.to_string().into()),
                Value::Null | Value::Array(_) | Value::Object(_) => None,
            },
        }
    }

    /// Returns the rate limit request if the line itself is one: in the form that `/json` takes, or
    /// a decision sample of a pod.
    pub(crate) fn request(&self) -> Option<Result<json::Request, String>> {
        let Self::Json(fields) = self else { return None };
        if !fields.contains_key("descriptors") {
            return decision_sample::request(fields);
        }
        let known = REQUEST_FIELDS.into_iter().filter_map(|name| fields.get_key_value(name));
        let known = known.map(|(name, value)| (name.clone(), value.clone()));
        Some(json::from_object(known.collect()))
    }
}

/// Returns the field of this name, or else, if the name has dots, the nested field to which they
/// lead.
fn find<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| {
        let (head, rest) = name.split_once('.')?;
        find(fields.get(head)?.as_object()?, rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_lines_fields_are_found_by_name_and_by_dots() {
        let line = r#"{"a.b": "x", "c": {"d": {"e": 5}, "f": true}, "n": null, "g": "-", "l": []}"#;
        let record = Record::parse(line).unwrap();
        for (name, value) in [("a.b", Some("x")), ("c.d.e", Some("5")), ("c.f", Some("true"))] {
            assert_eq!(record.field(name).as_deref(), value, "{name}");
        }
        for name in ["a", "c", "c.d", "c.x", "n", "g", "l", "", "."] {
            assert_eq!(record.field(name), None, "{name}");
        }
    }

    #[test]
    fn the_time_is_where_it_is_said_or_where_loggers_put_it() {
        let line = r#"{"ts": 5, "start_time": "1970-01-01T00:00:02Z", "at": {"us": 3}, "x": "y"}"#;
        let record = Record::parse(line).unwrap();
        assert_eq!(record.time(None), Ok(2_000_000));
        assert_eq!(record.time(Some("at.us")), Ok(3_000_000));
        assert_eq!(record.time(Some("x")).unwrap_err(), "its x is no time");
        assert_eq!(record.time(Some("no")).unwrap_err(), "has no field no");
        let without = Record::parse("{}").unwrap().time(None).unwrap_err();
        assert!(without.ends_with("; set --time"), "{without}");
    }

    #[test]
    fn a_line_may_be_a_request_among_other_fields() {
        let line = r#"{"time": 1, "id": "x", "domain": "d", "descriptors":
            [{"entries": [{"key": "k", "value": "v"}], "hitsAddend": 2}]}"#;
        let request = Record::parse(line).unwrap().request().unwrap().unwrap();
        let request = request.borrow();
        assert_eq!((request.domain, request.descriptors[0].entries[0].value), ("d", "v"));
        assert_eq!(request.descriptors[0].hits_addend, Some(2));
        let bad = r#"{"descriptors": [{"entry": []}]}"#;
        let error = Record::parse(bad).unwrap().request().unwrap().unwrap_err();
        assert!(error.contains("unknown field `entry`"), "{error}");
        assert!(Record::parse("{}").unwrap().request().is_none());
    }

    #[test]
    fn a_line_of_no_known_form_is_refused_with_a_reason() {
        assert!(Record::parse("{\"a\":").unwrap_err().starts_with("not JSON: EOF"));
        assert!(Record::parse("GET /").unwrap_err().starts_with("not Envoy's text format: "));
    }
}
