//! Requests and answers as text, so that a row of a table takes a line or two.
//!
//! ```text
//! request     [domain:]descriptor; descriptor… [xHITS]
//! descriptor  (key,value)(key,value)…[+HITS|-HITS][@REQUESTS/UNIT]     () has no entries
//! answer      CODE: status; status…            or just the status, if it is one and says the same
//! status      none | unlimited | CODE remaining/limit UNIT ["name"] [unasked]
//! ```
//! `+` and `-` are the descriptor's own hits, spent and given back, and `x` those of the request;
//! `@` is an override. `unasked` is a counted status without a `duration_until_reset`.

use descriptor_pb::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf::UInt64Value;
use pb::RateLimitRequest;
use pb::rate_limit_response::rate_limit::Unit;
use pb::rate_limit_response::{Code, DescriptorStatus};
use ratelease_rules as rules;

/// An answer, over either protocol.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The response without its metadata.
    pub(crate) response: pb::RateLimitResponse,
    pub(crate) metadata: Option<serde_json::Value>,
}

/// The request that `text` describes; in `domain` unless the text names another.
pub(crate) fn request(domain: &str, text: &str) -> RateLimitRequest {
    let (head, rest) = text.split_at(text.find('(').unwrap_or(text.len()));
    let (rest, hits) = rest.rsplit_once(" x").unwrap_or((rest, "0"));
    let descriptors = rest.split(';').map(str::trim).filter(|text| !text.is_empty());
    RateLimitRequest {
        domain: head.strip_suffix(':').unwrap_or(domain).to_owned(),
        descriptors: descriptors.map(descriptor).collect(),
        hits_addend: hits.parse().unwrap_or_else(|_| panic!("no hits: {text}")),
    }
}

fn descriptor(text: &str) -> descriptor_pb::RateLimitDescriptor {
    let (entries, tail) = text.rsplit_once(')').unwrap_or_else(|| panic!("no entries: {text}"));
    let (hits, limit) = match tail.split_once('@') {
        Some((hits, limit)) => (hits, Some(limit)),
        None => (tail, None),
    };
    let digits = hits.strip_prefix(['+', '-']);
    let entries = entries.split('(').map(|entry| entry.trim_end_matches(')'));
    descriptor_pb::RateLimitDescriptor {
        entries: entries.filter_map(|entry| entry.split_once(',')).map(entry).collect(),
        limit: limit.map(limit_override),
        hits_addend: digits.map(|digits| UInt64Value {
            value: digits.parse().unwrap_or_else(|_| panic!("no hits: {text}")),
        }),
        is_negative_hits: hits.starts_with('-'),
    }
}

fn entry((key, value): (&str, &str)) -> Entry {
    Entry { key: key.to_owned(), value: value.to_owned() }
}

/// The unit is a name, or a number for a unit without a name.
fn limit_override(text: &str) -> RateLimitOverride {
    let (requests, unit) = text.split_once('/').unwrap_or_else(|| panic!("no limit: {text}"));
    let named = Unit::from_str_name(unit).map(i32::from);
    RateLimitOverride {
        requests_per_unit: requests.parse().unwrap_or_else(|_| panic!("no limit: {text}")),
        unit: named.or(unit.parse().ok()).unwrap_or_else(|| panic!("no unit: {text}")),
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn text(&self) -> String {
        let overall = code(self.response.overall_code);
        let statuses: Vec<_> = self.response.statuses.iter().map(status).collect();
        match &statuses[..] {
            [only] if only.split(' ').next() == Some(overall) => only.clone(),
            [only] if overall == "OK" && !only.starts_with("OVER") => only.clone(),
            all => format!("{overall}: {}", all.join("; ")),
        }
    }
}

fn code(code: i32) -> &'static str {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER",
        _ => "UNKNOWN",
    }
}

fn status(status: &DescriptorStatus) -> String {
    let bare = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let Some(limit) = &status.current_limit else {
        return match status {
            status if *status == bare => "none".to_owned(),
            status if *status == (DescriptorStatus { limit_remaining: u32::MAX, ..bare }) => {
                "unlimited".to_owned()
            }
            odd => format!("{odd:?}"),
        };
    };
    let unit = rules::Unit::from_number(limit.unit.into()).expect("a unit that exists");
    let mut text = format!(
        "{} {}/{} {}",
        code(status.code),
        status.limit_remaining,
        limit.requests_per_unit,
        unit.name()
    );
    if !limit.name.is_empty() {
        text += &format!(" {:?}", limit.name);
    }
    match &status.duration_until_reset {
        None => text += " unasked",
        Some(span) if span.nanos == 0 && (1..=unit.seconds() as i64).contains(&span.seconds) => {}
        Some(odd) => text += &format!(" {odd:?}"),
    }
    text
}

#[test]
fn the_notation_says_what_it_means() {
    let read = request("d", "other:(a,b)(c,)+3; ()-4@10/DAY; (e,f) x5");
    let entry = |key, value| entry((key, value));
    assert_eq!((read.domain.as_str(), read.hits_addend), ("other", 5));
    let [first, second, third] = &read.descriptors[..] else { panic!("{read:?}") };
    assert_eq!(first.entries, [entry("a", "b"), entry("c", "")]);
    assert_eq!(first.hits_addend, Some(UInt64Value { value: 3 }));
    assert!(second.is_negative_hits && second.entries.is_empty());
    let limit = RateLimitOverride { requests_per_unit: 10, unit: Unit::Day.into() };
    assert_eq!((second.limit, second.hits_addend), (Some(limit), Some(UInt64Value { value: 4 })));
    assert_eq!((third.limit, third.hits_addend, third.is_negative_hits), (None, None, false));
    assert_eq!(request("d", "").domain, "d");
    assert_eq!(request("d", ":(a,b)").domain, "");
}
