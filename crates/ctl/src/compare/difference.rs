//! Where two answers to one request differ.

use std::collections::BTreeMap;

use serde_json::Value;

use super::call::Answer;
use crate::query::wire::{DescriptorReply, Reply, ReplyLimit, read_reply};

/// Difference of resets that is none, in seconds: one server rounds up and another down, and each
/// reads its own clock.
const RESET_TOLERANCE: f64 = 1.0;

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    /// One answered and the other did not, or with another error.
    Answer,
    /// The code of the whole request.
    Code,
    /// The number of statuses.
    Statuses,
    /// The code of a descriptor.
    Status,
    Limit,
    Remaining,
    Reset,
    /// A header for the client, by its name in lower case.
    ResponseHeader(String),
    /// A header for the upstream.
    RequestHeader(String),
    Metadata,
    Body,
}

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    pub(super) field: Field,
    /// The descriptor, by its index in the request; `None` for the request as a whole.
    pub(super) descriptor: Option<usize>,
    /// What the target answered.
    pub(super) target: String,
    /// What the other server answered.
    pub(super) against: String,
}

/// Two answers, as far as both are answers.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) differences: Vec<Difference>,
    /// Both answers; `None` if one is an error.
    pub(super) replies: Option<(Reply, Reply)>,
}

/// Compares two answers.
pub(super) fn compare(target: Answer, against: Answer) -> Compared {
    match (read(target), read(against)) {
        (Ok(target), Ok(against)) => {
            let differences = replies(&target, &against);
            Compared { differences, replies: Some((target, against)) }
        }
        (target, against) => {
            let (target, against) = (outcome(target), outcome(against));
            let differs = target.0 != against.0;
            let differences = differs.then_some(Difference {
                field: Field::Answer,
                descriptor: None,
                target: target.1,
                against: against.1,
            });
            Compared { differences: differences.into_iter().collect(), replies: None }
        }
    }
}

/// Reads an answer. The error is the name of its code, and the code with its message.
fn read(answer: Answer) -> Result<Reply, (String, String)> {
    let (code, text) = match answer {
        Ok(message) => match read_reply(message) {
            Ok(reply) => return Ok(reply),
            Err(error) => ("unreadable".to_owned(), error.to_string()),
        },
        Err((code, text)) => (format!("{code:?}"), text),
    };
    let shown = format!("error {code}: {text}");
    Err((code, shown))
}

/// The name of the code, empty for an answer, and the text of a difference.
fn outcome(read: Result<Reply, (String, String)>) -> (String, String) {
    match read {
        Ok(reply) => (String::new(), reply.code),
        Err(error) => error,
    }
}

pub(super) fn replies(target: &Reply, against: &Reply) -> Vec<Difference> {
    let mut found = Found::default();
    found.unequal(Field::Code, &target.code, &against.code);
    let (of_target, of_against) = (target.statuses.len(), against.statuses.len());
    found.unequal(Field::Statuses, &of_target.to_string(), &of_against.to_string());
    for (at, (target, against)) in target.statuses.iter().zip(&against.statuses).enumerate() {
        found.descriptor = Some(at);
        statuses(target, against, &mut found);
    }
    found.descriptor = None;
    let of_target = headers(&target.response_headers);
    headers_differ(
        &of_target,
        &headers(&against.response_headers),
        &mut found,
        Field::ResponseHeader,
    );
    let of_target = headers(&target.request_headers);
    headers_differ(
        &of_target,
        &headers(&against.request_headers),
        &mut found,
        Field::RequestHeader,
    );
    let (of_target, of_against) = (metadata(target), metadata(against));
    found.unequal(Field::Metadata, &of_target, &of_against);
    found.unequal(Field::Body, &target.body, &against.body);
    found.differences
}

fn statuses(target: &DescriptorReply, against: &DescriptorReply, found: &mut Found) {
    found.unequal(Field::Status, &target.code, &against.code);
    let (of_target, of_against) = (limit(target), limit(against));
    found.unequal(Field::Limit, &of_target, &of_against);
    if of_target != of_against {
        // What remains of another limit cannot be compared.
        return;
    }
    let (of_target, of_against) = (target.remaining.to_string(), against.remaining.to_string());
    found.unequal(Field::Remaining, &of_target, &of_against);
    let is_same = match (target.reset_seconds, against.reset_seconds) {
        (Some(target), Some(against)) => (target - against).abs() <= RESET_TOLERANCE,
        (target, against) => target.is_none() && against.is_none(),
    };
    if !is_same {
        found.add(Field::Reset, reset(target), reset(against));
    }
}

fn limit(status: &DescriptorReply) -> String {
    match &status.limit {
        None => "none".to_owned(),
        Some(ReplyLimit { name, requests_per_unit, unit }) => {
            let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
            format!("{requests_per_unit} per {}{name}", unit.to_lowercase())
        }
    }
}

fn reset(status: &DescriptorReply) -> String {
    status.reset_seconds.map_or_else(|| "none".to_owned(), |seconds| format!("{seconds} s"))
}

/// The values of each header, by its name in lower case.
fn headers(of: &[(String, String)]) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in of {
        let values = headers.entry(name.to_ascii_lowercase()).or_default();
        if !values.is_empty() {
            values.push_str(", ");
        }
        values.push_str(value);
    }
    headers
}

fn headers_differ(
    target: &BTreeMap<String, String>,
    against: &BTreeMap<String, String>,
    found: &mut Found,
    field: fn(String) -> Field,
) {
    let mut names: Vec<_> = target.keys().chain(against.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let value = |of: &BTreeMap<_, String>| of.get(name).cloned();
        let (of_target, of_against) = (value(target), value(against));
        let seconds = |value: &Option<String>| value.as_ref()?.parse::<f64>().ok();
        let is_time = name.contains("reset") || name == "retry-after";
        let is_near = is_time
            && seconds(&of_target)
                .zip(seconds(&of_against))
                .is_some_and(|(a, b)| (a - b).abs() <= RESET_TOLERANCE);
        if of_target != of_against && !is_near {
            let shown = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
            found.add(field(name.clone()), shown(of_target), shown(of_against));
        }
    }
}

/// The metadata as text. The reference prints limits with spaces of a random number.
fn metadata(reply: &Reply) -> String {
    fn normalize(value: &mut Value) {
        match value {
            Value::String(text) => *text = text.split_whitespace().collect::<Vec<_>>().join(" "),
            Value::Array(items) => items.iter_mut().for_each(normalize),
            Value::Object(fields) => fields.values_mut().for_each(normalize),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let Some(mut metadata) = reply.metadata.clone() else { return "none".to_owned() };
    normalize(&mut metadata);
    metadata.to_string()
}

/// Collects differences.
#[derive(Debug, Default)]
struct Found {
    differences: Vec<Difference>,
    /// The descriptor that is compared.
    descriptor: Option<usize>,
}

// === impl Found ===

impl Found {
    fn unequal(&mut self, field: Field, target: &str, against: &str) {
        if target != against {
            self.add(field, target.to_owned(), against.to_owned());
        }
    }

    fn add(&mut self, field: Field, target: String, against: String) {
        self.differences.push(Difference { field, descriptor: self.descriptor, target, against });
    }
}

// === impl Field ===

impl Field {
    /// Its name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Answer => "answer".to_owned(),
            Self::Code => "code".to_owned(),
            Self::Statuses => "number of statuses".to_owned(),
            Self::Status => "code of descriptor".to_owned(),
            Self::Limit => "limit".to_owned(),
            Self::Remaining => "remaining".to_owned(),
            Self::Reset => "reset".to_owned(),
            Self::ResponseHeader(name) => format!("header {name}"),
            Self::RequestHeader(name) => format!("request header {name}"),
            Self::Metadata => "metadata".to_owned(),
            Self::Body => "body".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn reply(code: &str, remaining: u32, reset: f64, headers: &[(&str, &str)]) -> Reply {
        let limit = ReplyLimit { name: "n".into(), requests_per_unit: 5, unit: "MINUTE".into() };
        let status = DescriptorReply {
            code: code.into(),
            limit: Some(limit),
            remaining,
            reset_seconds: Some(reset),
        };
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Reply {
            code: code.into(),
            statuses: vec![status],
            response_headers: headers.iter().map(header).collect(),
            request_headers: Vec::new(),
            metadata: None,
            body: String::new(),
        }
    }

    fn fields(target: &Reply, against: &Reply) -> Vec<String> {
        replies(target, against).iter().map(|it| it.field.name()).collect()
    }

    #[test]
    fn each_field_that_differs_is_found_and_a_reset_may_differ_by_a_second() {
        let base = reply("OK", 3, 20.0, &[]);
        assert_eq!(fields(&base, &base), [""; 0]);
        assert_eq!(fields(&base, &reply("OK", 3, 21.0, &[])), [""; 0]);
        assert_eq!(fields(&base, &reply("OK", 3, 22.5, &[])), ["reset"]);
        let denied = reply("OVER_LIMIT", 0, 20.0, &[]);
        assert_eq!(fields(&base, &denied), ["code", "code of descriptor", "remaining"]);
        let mut other = base.clone();
        other.statuses[0].limit.as_mut().unwrap().requests_per_unit = 6;
        other.statuses[0].remaining = 4;
        assert_eq!(fields(&base, &other), ["limit"]);
        let difference = &replies(&base, &other)[0];
        assert_eq!(
            (&*difference.target, &*difference.against),
            ("5 per minute (n)", "6 per minute (n)")
        );
        other.statuses.clear();
        assert_eq!(fields(&base, &other), ["number of statuses"]);
        assert_eq!(fields(&base, &Reply { body: "b".into(), ..base.clone() }), ["body"]);
    }

    #[test]
    fn headers_are_compared_by_name_whatever_their_case_and_order() {
        let one = reply("OK", 3, 20.0, &[("A", "1"), ("RateLimit-Reset", "20")]);
        let other = reply("OK", 3, 20.0, &[("ratelimit-reset", "19"), ("a", "1")]);
        assert_eq!(fields(&one, &other), [""; 0]);
        let far = reply("OK", 3, 20.0, &[("a", "2"), ("ratelimit-reset", "9")]);
        assert_eq!(fields(&one, &far), ["header a", "header ratelimit-reset"]);
        assert_eq!(fields(&one, &reply("OK", 3, 20.0, &[]))[0], "header a");
    }

    #[test]
    fn spaces_of_metadata_do_not_count() {
        let with = |text: &str| Reply {
            metadata: Some(serde_json::json!({"a": [text]})),
            ..reply("OK", 3, 20.0, &[])
        };
        assert_eq!(fields(&with("unit:MINUTE  name:a"), &with("unit:MINUTE name:a")), [""; 0]);
        assert_eq!(fields(&with("a"), &with("b")), ["metadata"]);
    }

    #[test]
    fn errors_are_the_same_if_their_codes_are() {
        let error = |code, text: &str| Err((code, text.to_owned()));
        let same = compare(error(Code::Unknown, "a"), error(Code::Unknown, "b"));
        assert_eq!(same.differences, []);
        let differs = compare(error(Code::Unknown, "a"), Ok(bytes::Bytes::new()));
        let [difference] = &*differs.differences else { panic!("{differs:?}") };
        assert_eq!(difference.field, Field::Answer);
        assert_eq!((&*difference.target, &*difference.against), ("error Unknown: a", "UNKNOWN"));
    }
}
