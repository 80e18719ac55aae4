//! Where two answers to one request differ.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use foldhash::HashMap;
use foldhash::fast::FixedState;
use ratelease_engine::time::Time;
use ratelease_rules::Unit;
use ratelease_rules::request::{Descriptor, Request};
use serde_json::Value;

use crate::compare::Answer;
use crate::query::{DescriptorReply, Reply, ReplyLimit, read_reply};

/// Difference of resets that is none, in seconds: one server rounds up and another down, and each
/// reads its own clock.
const RESET_TOLERANCE: f64 = 1.0;

/// The part of an answer that differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
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
pub struct Difference {
    pub field: Field,
    /// The descriptor, by its index in the request; `None` for the request as a whole.
    pub descriptor: Option<usize>,
    /// The target's answer.
    pub target: String,
    /// The other server's answer.
    pub against: String,
}

/// Two answers, as far as both are answers.
#[derive(Debug)]
pub struct Compared {
    pub differences: Vec<Difference>,
    /// Both answers; `None` if one is an error.
    pub replies: Option<(Reply, Reply)>,
}

/// Compares two answers.
pub fn compare(target: Answer, against: Answer) -> Compared {
    match (read(target), read(against)) {
        (Ok(target), Ok(against)) => {
            let differences = replies(&target, &against);
            Compared { differences, replies: Some((target, against)) }
        }
        (target, against) => {
            let target = outcome(target);
            let against = outcome(against);
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

fn replies(target: &Reply, against: &Reply) -> Vec<Difference> {
    let mut found = Found::default();
    found.unequal(Field::Code, &target.code, &against.code);
    let of_target = target.statuses.len();
    let of_against = against.statuses.len();
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
    let of_target = metadata(target);
    let of_against = metadata(against);
    found.unequal(Field::Metadata, &of_target, &of_against);
    found.unequal(Field::Body, &target.body, &against.body);
    found.differences
}

fn statuses(target: &DescriptorReply, against: &DescriptorReply, found: &mut Found) {
    found.unequal(Field::Status, &target.code, &against.code);
    let of_target = limit(target);
    let of_against = limit(against);
    found.unequal(Field::Limit, &of_target, &of_against);
    if of_target != of_against {
        // The remaining tokens of different limits cannot be compared.
        return;
    }
    let of_target = target.remaining.to_string();
    let of_against = against.remaining.to_string();
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
        let of_target = value(target);
        let of_against = value(against);
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
    /// Returns the field's name in reports.
    pub fn name(&self) -> String {
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

// === Cause ===
//
// Whether the time at which two servers counted a request, or a documented difference, explains
// why their answers differ.

/// Maximum number of keys that are remembered to differ.
const KEYS_MAX: usize = 1 << 16;

/// Why answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Nothing known explains it.
    Unexplained,
    /// A request that one rule denies: ratelease does not charge its other rules.
    Design,
    /// The servers counted the request, or one before it, in different windows or orders.
    Timing,
}

/// Finds causes. Remembers keys whose counts differ for a known cause until their windows end.
#[derive(Debug)]
pub struct Causes {
    edge: Duration,
    /// Difference of remaining tokens that the order of requests may cause.
    within: u64,
    known: HashMap<u64, Known>,
}

/// Why the counts of a key differ.
#[derive(Debug, Clone, Copy)]
struct Known {
    cause: Cause,
    /// By how many tokens, at most.
    by: u64,
    /// The end of the window.
    until: Time,
}

/// One descriptor with its two statuses.
struct Pair<'a> {
    key: u64,
    hits: u64,
    target: &'a DescriptorReply,
    against: &'a DescriptorReply,
}

// === impl Causes ===

impl Causes {
    pub fn new(edge: Duration, within: u64) -> Self {
        Self { edge, within, known: HashMap::default() }
    }

    /// Returns the cause of each difference between two replies to `request`, in order.
    pub fn of(
        &mut self,
        request: &Request<'_>,
        (target, against): (&Reply, &Reply),
        differences: &[Difference],
        now: Time,
    ) -> Vec<Cause> {
        let is_denied = [target, against].iter().any(|reply| reply.code == "OVER_LIMIT");
        let is_split = is_denied && request.descriptors.len() > 1;
        let mut of_descriptors = Vec::with_capacity(request.descriptors.len());
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            let differs = differences.iter().any(|it| it.descriptor == Some(at));
            let statuses = target.statuses.get(at).zip(against.statuses.get(at));
            of_descriptors.push(match statuses {
                Some((target, against)) if differs => {
                    let key = key(request.domain, descriptor);
                    let hits = request.hits(descriptor);
                    self.of_descriptor(&Pair { key, hits, target, against }, is_split, now)
                }
                _ => None,
            });
        }
        // The request as a whole differs for the worst of the causes of its descriptors.
        let of_request = of_descriptors.iter().flatten().min().copied();
        let of_request = of_request.unwrap_or(Cause::Unexplained);
        let cause = |difference: &Difference| match (&difference.field, difference.descriptor) {
            (Field::Statuses | Field::Limit | Field::Body, _) => Cause::Unexplained,
            (_, Some(at)) => of_descriptors.get(at).copied().flatten().unwrap_or(of_request),
            (_, None) => of_request,
        };
        differences.iter().map(cause).collect()
    }

    fn of_descriptor(&mut self, pair: &Pair<'_>, is_split: bool, now: Time) -> Option<Cause> {
        let Pair { key, hits, target, against } = *pair;
        let cause = if self.is_at_edge(pair) {
            Cause::Timing
        } else if is_split && target.code == against.code && target.code == "OK" {
            Cause::Design
        } else {
            return Some(self.follows(pair, now));
        };
        let reset = [target, against].map(|status| status.reset_seconds.unwrap_or_default());
        let reset = Duration::try_from_secs_f64(reset[0].max(reset[1])).unwrap_or_default();
        let before = self.known.get(&key).filter(|known| known.until > now);
        let by = before.map_or(0, |known| known.by).saturating_add(hits);
        self.make_room(now);
        self.known.insert(key, Known { cause, by, until: now + reset + self.edge });
        Some(cause)
    }

    /// Whether the servers may have counted in different windows.
    fn is_at_edge(&self, pair: &Pair<'_>) -> bool {
        let edge = self.edge.as_secs_f64();
        [pair.target, pair.against].into_iter().any(|status| {
            let limit = status.limit.as_ref();
            let unit = limit.and_then(|limit| Unit::parse(&limit.unit)).map(unit_seconds);
            let (Some(unit), Some(reset)) = (unit, status.reset_seconds) else { return false };
            // The start of a window of several units is not known, since no answer has its length.
            reset <= edge || (unit - reset).abs() <= edge
        })
    }

    /// The cause of an earlier difference of the key, if this one follows from it; or the order of
    /// requests.
    fn follows(&self, pair: &Pair<'_>, now: Time) -> Cause {
        let known = self.known.get(&pair.key).filter(|known| known.until > now);
        let by = known.map_or(0, |known| known.by).saturating_add(self.within);
        let apart = pair.target.remaining.abs_diff(pair.against.remaining);
        let is_explained = u64::from(apart) <= by
            && (pair.target.code == pair.against.code || {
                // One server admitted the request with the tokens that it had left before.
                let left = pair.target.remaining.max(pair.against.remaining);
                u64::from(left).saturating_add(pair.hits) <= by.saturating_add(1) && by > 0
            });
        match known {
            _ if !is_explained => Cause::Unexplained,
            Some(known) => known.cause,
            None => Cause::Timing,
        }
    }

    fn make_room(&mut self, now: Time) {
        if self.known.len() >= KEYS_MAX {
            self.known.retain(|_, known| known.until > now);
        }
        if self.known.len() >= KEYS_MAX {
            self.known.clear();
        }
    }
}

fn unit_seconds(unit: Unit) -> f64 {
    // Exact: a year has some 31 million.
    u32::try_from(unit.seconds()).map_or(f64::MAX, f64::from)
}

fn key(domain: &str, descriptor: &Descriptor<'_>) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    domain.hash(&mut hasher);
    for entry in &descriptor.entries {
        (entry.key, entry.value).hash(&mut hasher);
    }
    std::hash::Hasher::finish(&hasher)
}

// === impl Cause ===

impl Cause {
    pub const ALL: [Self; 3] = [Self::Unexplained, Self::Timing, Self::Design];

    /// Returns the cause's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unexplained => "unexplained",
            Self::Timing => "timing",
            Self::Design => "by design",
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelease_rules::request::Entry;
    use smallvec::smallvec;
    use tonic::Code;

    use crate::query::ReplyLimit;

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

    fn status(code: &str, remaining: u32, reset: f64) -> DescriptorReply {
        let limit = ReplyLimit { name: String::new(), requests_per_unit: 9, unit: "MINUTE".into() };
        let limit = Some(limit);
        DescriptorReply { code: code.into(), limit, remaining, reset_seconds: Some(reset) }
    }

    fn reply_with(code: &str, statuses: Vec<DescriptorReply>) -> Reply {
        let response_headers = Vec::new();
        let request_headers = Vec::new();
        let code = code.to_owned();
        let metadata = None;
        let body = String::new();
        Reply { code, statuses, response_headers, request_headers, metadata, body }
    }

    /// The causes of the differences between two replies to a request with these values of `k`.
    fn causes(causes: &mut Causes, at: u64, values: &[&str], pair: (&Reply, &Reply)) -> Vec<Cause> {
        let descriptors = values.iter().map(|value| Descriptor {
            entries: smallvec![Entry { key: "k", value }],
            ..Descriptor::default()
        });
        let request = Request { domain: "d", descriptors: descriptors.collect(), hits_addend: 0 };
        let differences = replies(pair.0, pair.1);
        causes.of(&request, pair, &differences, Time::from_nanos(at * 1_000_000_000))
    }

    fn one(code: &str, remaining: u32, reset: f64) -> Reply {
        reply_with(code, vec![status(code, remaining, reset)])
    }

    #[test]
    fn a_difference_within_a_window_is_not_explained() {
        let mut it = Causes::new(Duration::from_secs(1), 0);
        let found = causes(&mut it, 0, &["a"], (&one("OK", 3, 30.0), &one("OK", 4, 30.0)));
        assert_eq!(found, [Cause::Unexplained]);
        let found = causes(&mut it, 0, &["a"], (&one("OK", 0, 30.0), &one("OVER_LIMIT", 0, 30.0)));
        assert_eq!(found, [Cause::Unexplained; 2]);
    }

    #[test]
    fn an_edge_explains_its_request_and_what_follows_in_the_window_and_no_more() {
        let mut it = Causes::new(Duration::from_secs(1), 0);
        let found = causes(&mut it, 100, &["a"], (&one("OK", 8, 60.0), &one("OK", 0, 1.0)));
        assert!(found.iter().all(|cause| *cause == Cause::Timing), "{found:?}");
        let later = (&one("OK", 5, 30.0), &one("OK", 6, 30.0));
        assert_eq!(causes(&mut it, 130, &["a"], later), [Cause::Timing]);
        assert_eq!(causes(&mut it, 130, &["b"], later), [Cause::Unexplained], "another key");
        let more = (&one("OK", 3, 30.0), &one("OK", 6, 30.0));
        assert_eq!(causes(&mut it, 130, &["a"], more), [Cause::Unexplained], "more than one token");
        let at_limit = (&one("OVER_LIMIT", 0, 20.0), &one("OK", 0, 20.0));
        assert_eq!(causes(&mut it, 140, &["a"], at_limit), [Cause::Timing; 2]);
        assert_eq!(causes(&mut it, 190, &["a"], later), [Cause::Unexplained], "the next window");
    }

    #[test]
    fn requests_in_another_order_differ_by_as_many_tokens_as_are_allowed() {
        let mut it = Causes::new(Duration::from_secs(1), 2);
        let near = (&one("OK", 3, 30.0), &one("OK", 5, 30.0));
        assert_eq!(causes(&mut it, 0, &["a"], near), [Cause::Timing]);
        let far = (&one("OK", 3, 30.0), &one("OK", 6, 30.0));
        assert_eq!(causes(&mut it, 0, &["a"], far), [Cause::Unexplained]);
        let verdict = (&one("OK", 1, 30.0), &one("OVER_LIMIT", 0, 30.0));
        assert!(causes(&mut it, 0, &["a"], verdict).iter().all(|it| *it == Cause::Timing));
        let verdict = (&one("OK", 7, 30.0), &one("OVER_LIMIT", 0, 30.0));
        assert!(causes(&mut it, 0, &["a"], verdict).contains(&Cause::Unexplained));
    }

    #[test]
    fn other_rules_of_a_denied_request_differ_by_design_then_and_later() {
        let mut it = Causes::new(Duration::from_secs(1), 0);
        let denied = |remaining| {
            reply_with(
                "OVER_LIMIT",
                vec![status("OVER_LIMIT", 0, 30.0), status("OK", remaining, 30.0)],
            )
        };
        let found = causes(&mut it, 0, &["a", "b"], (&denied(5), &denied(4)));
        assert_eq!(found, [Cause::Design]);
        let later = (&one("OK", 4, 20.0), &one("OK", 3, 20.0));
        assert_eq!(causes(&mut it, 5, &["b"], later), [Cause::Design]);
        assert_eq!(causes(&mut it, 5, &["a"], later), [Cause::Unexplained]);
    }

    #[test]
    fn another_limit_is_never_explained() {
        let mut it = Causes::new(Duration::from_secs(1), 99);
        let mut other = one("OK", 3, 1.0);
        other.statuses[0].limit = None;
        let found = causes(&mut it, 0, &["a"], (&one("OK", 3, 1.0), &other));
        assert_eq!(found, [Cause::Unexplained]);
    }
}
