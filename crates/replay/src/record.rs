//! Parses one line of a log, and the request that it may contain.

use std::borrow::Cow;

use jiff::Timestamp;
use ratelease_rules::request::json;
use serde_json::{Map, Value, json};

/// Names that loggers use for the time; tried if no field is given.
const TIME_FIELDS: [&str; 6] = ["start_time", "time", "timestamp", "@timestamp", "ts", "date"];

/// Fields of a rate limit request in JSON, under both of their names.
const REQUEST_FIELDS: [&str; 4] = ["domain", "descriptors", "hitsAddend", "hits_addend"];

/// A parsed line.
#[derive(Debug)]
pub enum Record<'a> {
    /// A line in Envoy's default text format.
    Envoy(Line<'a>),
    /// A JSON object with any fields.
    Json(Map<String, Value>),
}

// === impl Record ===

impl<'a> Record<'a> {
    /// Parses a line; the error says why it cannot be read.
    pub fn parse(line: &'a str) -> Result<Self, String> {
        if !line.starts_with('{') {
            let line = Line::parse(line);
            return line.map(Self::Envoy).map_err(|why| format!("not Envoy's text format: {why}"));
        }
        serde_json::from_str(line).map(Self::Json).map_err(|error| format!("not JSON: {error}"))
    }

    /// Returns the time in microseconds since the Unix epoch; for a JSON line, from the field
    /// `named` or else from one of [`TIME_FIELDS`].
    pub fn time(&self, named: Option<&str>) -> Result<u64, String> {
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
        time_of_json(value).ok_or_else(|| format!("its {name} is no time"))
    }

    /// Returns a field as text; `None` if it is missing or empty.
    pub fn field(&self, name: &str) -> Option<Cow<'_, str>> {
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
    pub fn request(&self) -> Option<Result<json::Request, String>> {
        let Self::Json(fields) = self else { return None };
        if !fields.contains_key("descriptors") {
            return sample_request(fields);
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

// === Envoy ===
//
// Parses Envoy's default text format of access logs, old and new, and Istio's, which has more
// fields at the end.
//
// ```text
// [%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE%
// %RESPONSE_FLAGS% [%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS%
// "%UPSTREAM_TRANSPORT_FAILURE_REASON%"] %BYTES_RECEIVED% %BYTES_SENT% %DURATION%
// %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%"
// "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"
// ```

/// Fields in order, without the three that only newer versions write. A line may end earlier.
const IN_ORDER: [&str; 17] = [
    "status",
    "response_flags",
    "bytes_received",
    "bytes_sent",
    "duration",
    "upstream_service_time",
    "x_forwarded_for",
    "user_agent",
    "request_id",
    "authority",
    "upstream_host",
    "upstream_cluster",
    "upstream_local_address",
    "downstream_local_address",
    "downstream_remote_address",
    "requested_server_name",
    "route_name",
];

/// Fields that are derived from others.
const MADE: [&str; 5] = ["method", "path", "path_without_query", "protocol", "remote_address"];

/// Minimum number of fields after the request: up to the duration.
const FIELDS_MIN: usize = 5;

/// Position of the fields that newer versions have in addition.
const NEWER_AT: usize = 2;

/// Number of the fields that newer versions have in addition.
const NEWER_COUNT: usize = 3;

/// One line, split into its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    time: &'a str,
    /// Method, path, protocol.
    request: &'a str,
    /// Values of the fields in [`IN_ORDER`].
    fields: Vec<&'a str>,
}

/// Returns the names that [`Line::field`] accepts.
pub fn envoy_names() -> impl Iterator<Item = &'static str> {
    MADE.into_iter().chain(IN_ORDER)
}

// === impl Line ===

impl<'a> Line<'a> {
    /// Parses a line; the error says what does not match the format.
    pub fn parse(line: &'a str) -> Result<Self, &'static str> {
        let rest = line.strip_prefix('[').ok_or("does not begin with [ or {")?;
        let (time, rest) = rest.split_once("] ").ok_or("has no ] behind its time")?;
        let (request, mut rest) = quoted(rest).ok_or("has no quoted request behind its time")?;
        let mut fields = Vec::with_capacity(IN_ORDER.len() + NEWER_COUNT);
        while !rest.is_empty() && fields.len() < IN_ORDER.len() + NEWER_COUNT {
            let (field, after) = match quoted(rest) {
                Some(cut) => cut,
                None => rest.split_once(' ').unwrap_or((rest, "")),
            };
            fields.push(field);
            rest = after;
        }
        // Older versions have the received bytes here, a number.
        let is_number = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
        if fields.len() >= NEWER_AT + NEWER_COUNT && !fields.get(NEWER_AT).is_some_and(is_number) {
            fields.drain(NEWER_AT..NEWER_AT + NEWER_COUNT);
        }
        if fields.len() < FIELDS_MIN {
            return Err("ends before its duration");
        }
        Ok(Self { time, request, fields })
    }

    /// Returns the time in microseconds since the Unix epoch.
    pub fn time(&self) -> Option<u64> {
        parse_time(self.time)
    }

    /// Returns the field of this name; `None` if it is `-` or missing.
    pub fn field(&self, name: &str) -> Option<&'a str> {
        let at = |name: &str| {
            let at = IN_ORDER.iter().position(|known| *known == name)?;
            self.fields.get(at).copied()
        };
        let field = match name {
            "method" => self.request.split(' ').next(),
            "protocol" => self.request.rsplit(' ').next(),
            "path" => self.path(),
            "path_without_query" => self.path().and_then(|path| path.split('?').next()),
            "remote_address" => at("x_forwarded_for")
                .filter(|list| *list != "-")
                .and_then(|list| list.rsplit(',').next())
                .or_else(|| at("downstream_remote_address").map(without_port))
                .map(str::trim),
            name => at(name),
        };
        field.filter(|field| *field != "-")
    }

    fn path(&self) -> Option<&'a str> {
        let (_, rest) = self.request.split_once(' ')?;
        Some(rest.rsplit_once(' ').map_or(rest, |(path, _)| path))
    }
}

/// Splits off a quoted text and the space after it. Envoy does not escape quotes, so only a quote
/// before a space or at the end closes the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    match inner.split_once("\" ") {
        Some(cut) => Some(cut),
        None => Some((inner.strip_suffix('"')?, "")),
    }
}

fn without_port(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

// === Decision sample ===
//
// Reads the decision samples that a pod logs with `LOG_FORMAT=json` and `LOG_VALUES=true`.
//
// A sample is one descriptor of a request. Its entries are `key=value`, separated by commas, and
// cut at a number of bytes. Commas are not escaped, so a part without `=` belongs to the value
// before it.

/// The value of the field `target` of a sample.
const TARGET: &str = "ratelease::decision";

/// The last character of an entry that was cut.
const CUT: char = '…';

/// Returns the request of a line, if the line is a sample.
fn sample_request(fields: &Map<String, Value>) -> Option<Result<json::Request, String>> {
    let is_sample = fields.get("target").and_then(Value::as_str) == Some(TARGET);
    is_sample.then(|| read_sample(fields))
}

fn read_sample(fields: &Map<String, Value>) -> Result<json::Request, String> {
    let values = fields.get("values").and_then(Value::as_str).ok_or_else(|| {
        "a decision sample without values; set LOG_VALUES=true on the pod".to_owned()
    })?;
    if values.ends_with(CUT) {
        return Err("a decision sample whose values were cut".to_owned());
    }
    let mut descriptor = json!({"entries": entries(values)});
    if let Some(hits) = fields.get("hits").filter(|hits| hits.is_u64()) {
        descriptor["hitsAddend"] = hits.clone();
    }
    let domain = fields.get("domain").cloned().unwrap_or_default();
    let request = [("domain", domain), ("descriptors", json!([descriptor]))];
    let request = request.into_iter().map(|(name, value)| (name.to_owned(), value));
    json::from_object(request.collect())
}

/// The entries, in order.
fn entries(values: &str) -> Vec<Value> {
    let mut entries: Vec<(String, String)> = Vec::new();
    for part in values.split(',') {
        match (part.split_once('='), entries.last_mut()) {
            (Some((key, value)), _) => entries.push((key.to_owned(), value.to_owned())),
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(part);
            }
            (None, None) => entries.push((part.to_owned(), String::new())),
        }
    }
    entries.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

// === Times ===
//
// Reads the times of logs, and writes them.

/// Upper bound of a number that is read as seconds since the Unix epoch: the year 5138. Read as
/// milliseconds, it is 1973. The bounds of the other units are the same years.
const SECONDS_MAX: f64 = 1e11;

/// Upper bound of a number that is read as milliseconds since the Unix epoch.
const MILLIS_MAX: f64 = 1e14;

/// Upper bound of a number that is read as microseconds since the Unix epoch. Larger numbers are
/// nanoseconds.
const MICROS_MAX: f64 = 1e17;

/// Returns the time in a JSON value in microseconds since the Unix epoch: text in the format of RFC
/// 3339, or a number since the epoch, whose size determines its unit. `None` for anything else, and
/// before 1970.
fn time_of_json(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => parse_time(text).or_else(|| time_of_number(text.parse().ok()?)),
        Value::Number(number) => time_of_number(number.as_f64()?),
        _ => None,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be within")]
fn time_of_number(number: f64) -> Option<u64> {
    let micros = match number {
        n if !n.is_finite() || n < 0.0 => return None,
        n if n < SECONDS_MAX => n * 1e6,
        n if n < MILLIS_MAX => n * 1e3,
        n if n < MICROS_MAX => n,
        n => n / 1e3,
    };
    (micros < MICROS_MAX).then_some(micros.round() as u64)
}

/// Parses a time of RFC 3339, such as `2026-11-21T10:00:00.123Z`, to microseconds since the Unix
/// epoch; a space may replace the `T`. `None` for anything else, and before 1970.
fn parse_time(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_microsecond()).ok()
}

/// Formats a time as in RFC 3339, to the second.
pub fn show_time(unix_us: u64) -> String {
    let time = i64::try_from(unix_us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    time.map_or_else(|| format!("{unix_us} us"), |time| format!("{time:.0}"))
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

    const OLD: &str = "[2016-04-15T20:17:00.310Z] \"POST /api/v1/locations?a=b HTTP/2\" 204 - 154 \
        0 226 100 \"10.0.35.28, 10.1.0.9\" \"nsq\"2inch\" \"cc21d9b0\" \"locations\" \
        \"tcp://10.0.2.1:80\"";
    const NEW: &str = "[2026-11-21T10:00:00.001Z] \"GET / HTTP/1.1\" 429 RL \
        request_rate_limited - \"-\" 0 18 1 - \"-\" \"curl/8.5.0\" \"id\" \"shop.test\" \"-\" \
        outbound|80||shop - 10.0.0.2:80 10.9.8.7:41020 - default";

    #[test]
    fn the_old_form_is_read() {
        let line = Line::parse(OLD).unwrap();
        assert_eq!(line.time(), Some(1_460_751_420_310_000));
        for (name, value) in [
            ("method", "POST"),
            ("path", "/api/v1/locations?a=b"),
            ("path_without_query", "/api/v1/locations"),
            ("protocol", "HTTP/2"),
            ("status", "204"),
            ("bytes_received", "154"),
            ("duration", "226"),
            ("x_forwarded_for", "10.0.35.28, 10.1.0.9"),
            ("remote_address", "10.1.0.9"),
            ("user_agent", "nsq\"2inch"),
            ("authority", "locations"),
            ("upstream_host", "tcp://10.0.2.1:80"),
        ] {
            assert_eq!(line.field(name), Some(value), "{name}");
        }
        assert_eq!((line.field("response_flags"), line.field("route_name")), (None, None));
        assert_eq!(line.field("nothing"), None);
    }

    #[test]
    fn the_new_form_is_read_and_istios_fields_behind_it() {
        let line = Line::parse(NEW).unwrap();
        for (name, value) in [
            ("path", "/"),
            ("status", "429"),
            ("response_flags", "RL"),
            ("bytes_sent", "18"),
            ("authority", "shop.test"),
            ("remote_address", "10.9.8.7"),
            ("upstream_cluster", "outbound|80||shop"),
            ("route_name", "default"),
        ] {
            assert_eq!(line.field(name), Some(value), "{name}");
        }
        assert_eq!((line.field("x_forwarded_for"), line.field("upstream_host")), (None, None));
    }

    #[test]
    fn every_name_is_a_field() {
        let line = Line::parse(NEW).unwrap();
        let missing: Vec<_> = envoy_names().filter(|name| line.field(name).is_none()).collect();
        let dashes = [
            "upstream_service_time",
            "x_forwarded_for",
            "upstream_host",
            "upstream_local_address",
            "requested_server_name",
        ];
        assert_eq!(missing, dashes);
    }

    #[test]
    fn no_line_panics_and_a_strange_one_is_refused() {
        for line in [
            "",
            "GET / HTTP/1.1",
            "[2016-04-15T20:17:00.310Z",
            "[2016-04-15T20:17:00.310Z] GET",
            "[2016-04-15T20:17:00.310Z] \"GET / HTTP/1.1\"",
            "[2016-04-15T20:17:00.310Z] \"GET / HTTP/1.1\" 200 -",
            "[x] \"\" - - - -",
        ] {
            assert!(Line::parse(line).is_err(), "{line}");
        }
        for (end, _) in NEW.char_indices() {
            if let Ok(line) = Line::parse(&NEW[..end]) {
                assert!(envoy_names().all(|name| line.field(name) != Some("-")));
            }
        }
    }

    /// A line as `docs/operate.md` shows it.
    const LINE: &str = r#"{"@message": "decided", "@timestamp": "2026-11-21T19:53:46.629469Z",
        "domain": "shop", "hits": 3, "how": "local", "target": "ratelease::decision",
        "values": "card=4111,note=a,b,path=/x=y", "verdict": "over_limit"}"#;

    fn fields(line: &str) -> Map<String, Value> {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_sample_is_a_request_of_one_descriptor() {
        let request = sample_request(&fields(LINE)).unwrap().unwrap();
        let request = request.borrow();
        let descriptor = &request.descriptors[0];
        let entries: Vec<_> = descriptor.entries.iter().map(|it| (it.key, it.value)).collect();
        assert_eq!(entries, [("card", "4111"), ("note", "a,b"), ("path", "/x=y")]);
        assert_eq!((request.domain, descriptor.hits_addend), ("shop", Some(3)));
    }

    #[test]
    fn a_sample_that_does_not_say_all_is_refused_with_the_reason() {
        assert!(sample_request(&fields(r#"{"values": "a=b"}"#)).is_none());
        let mut sample = fields(LINE);
        sample.insert("values".into(), "card=41…".into());
        assert!(sample_request(&sample).unwrap().unwrap_err().ends_with("were cut"));
        sample.remove("values");
        assert!(
            sample_request(&sample).unwrap().unwrap_err().ends_with("LOG_VALUES=true on the pod")
        );
    }

    #[test]
    fn times_are_read_as_rfc_3339_has_them() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2016-04-15T20:17:00.310Z", 1_460_751_420_310_000),
            ("2016-04-15 20:17:00.3101239Z", 1_460_751_420_310_123),
            ("2016-04-15T22:17:00+02:00", 1_460_751_420_000_000),
            ("2016-04-15T14:47:00-05:30", 1_460_751_420_000_000),
            ("2024-02-29T23:59:60Z", 1_709_251_199_000_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000_000),
        ] {
            assert_eq!(parse_time(text), Some(micros), "{text}");
        }
        for text in [
            "",
            "2016-04-15",
            "2016-04-15T20:17:00",
            "2016-04-15T20:17:00.Z",
            "2016-13-15T20:17:00Z",
            "2023-02-29T20:17:00Z",
            "2016-04-00T20:17:00Z",
            "2016-04-15T24:17:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "2016-04-15T20:17:00+2:00",
            "2016-04-15T20:17:00Zé",
            "15/Apr/2016:20:17:00 +0000",
            "2016-+4-15T20:17:00Z",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn the_size_of_a_number_determines_its_unit() {
        let micros = Some(1_460_751_420_310_000);
        for value in [
            json!(1_460_751_420.31),
            json!(1_460_751_420_310_u64),
            json!(1_460_751_420_310_000_u64),
            json!(1_460_751_420_310_000_000_u64),
            json!("1460751420.31"),
        ] {
            assert_eq!(time_of_json(&value), micros, "{value}");
        }
        for value in [json!(-1), json!(null), json!([1]), json!("x"), json!(1e300), json!("inf")] {
            assert_eq!(time_of_json(&value), None, "{value}");
        }
    }

    #[test]
    fn a_time_is_printed_as_it_was_read() {
        for text in [
            "1970-01-01T00:00:00Z",
            "1999-12-31T23:59:59Z",
            "2000-02-29T01:02:03Z",
            "2026-11-21T10:00:00Z",
        ] {
            assert_eq!(show_time(parse_time(text).unwrap()), text);
        }
    }
}
