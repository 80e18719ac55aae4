//! Compares the encoder with prost: both write the same messages.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use prost::Message;
use ratelease_engine::verdict::Verdict;
use ratelease_rules::request::Few;
use ratelease_rules::{Limit, Rule, Unit};
use serde_json::json;

use super::super::*;

fn rule(name: &str) -> Arc<Rule> {
    let text = format!(
        "domain: d\ndescriptors:\n\
         - {{key: k, rate_limit: {{unit: hour, requests_per_unit: 1, name: {name}}}}}"
    );
    let source = ratelease_rules::Source { name: "a.yaml".into(), text: text.into() };
    let loaded = ratelease_rules::load(&[source], ratelease_rules::Options::default()).unwrap();
    Arc::clone(loaded.rules.iter().next().unwrap())
}

/// `answer` without the prefix of a frame.
fn message(answer: &Answer<'_>) -> BytesMut {
    let mut bytes = BytesMut::new();
    frame(answer, &mut bytes);
    bytes.split_off(5)
}

fn answer<'r>(rule: &'r Arc<Rule>, units: u32) -> Answer<'r> {
    let unit_multiplier = NonZeroU32::new(units).unwrap();
    let limit = Limit { unit_multiplier, ..Limit::fixed_window(10, Unit::Minute) };
    let counted = Status {
        code: Code::OverLimit,
        limit: Some(AppliedLimit { limit, rule: Some(rule) }),
        remaining: 7,
        reset_after: Some(Duration::from_millis(8_500)),
        counted: None,
    };
    let (limit, reset_after) = (None, None);
    let free = Status { code: Code::Ok, limit, remaining: 0, reset_after, counted: None };
    let now = Status { reset_after: Some(Duration::ZERO), ..free };
    let metadata = json!({
        "domain": "d", "none": null, "is": true, "not": false, "zero": 0, "many": [1, -2.5, "", {}],
        "deep": {"er": {"": "x"}},
    });
    let verdict = Verdict {
        code: Code::OverLimit,
        statuses: [counted, free, now].into_iter().collect::<Few<_>>(),
        tightest: Some(0),
        shadowed: false,
        metadata: metadata.as_object().cloned(),
        started: None,
    };
    Answer { verdict, headers: vec![("k".into(), "v".into()), ("x-y".into(), String::new())] }
}

#[test]
fn every_byte_is_what_envoys_messages_make() {
    let rule = rule("n");
    let bytes = message(&answer(&rule, 1));
    let read = pb::RateLimitResponse::decode(&*bytes).unwrap();
    // prost writes the fields of a map in no fixed order.
    let mut again = read.encode_to_vec();
    let mut sorted = bytes.to_vec();
    again.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(again, sorted);
    let limit = read.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (10, 2, "n"));
    assert_eq!((read.overall_code, read.statuses[0].code, read.statuses[1].code), (2, 2, 1));
    assert_eq!(read.statuses[0].limit_remaining, 7);
    assert_eq!(read.statuses[0].duration_until_reset.unwrap().seconds, 9);
    assert_eq!(read.statuses[2].duration_until_reset.unwrap().seconds, 0);
    let headers = &read.response_headers_to_add;
    assert_eq!((&*headers[0].key, &*headers[0].value, &*headers[1].value), ("k", "v", ""));
    let fields = read.dynamic_metadata.unwrap().fields;
    assert_eq!(fields.len(), 7);
    assert!(fields["none"].kind.is_some() && fields["not"].kind.is_some());
}

#[test]
fn a_multiplier_is_skipped_by_who_does_not_know_it() {
    let rule = rule("n");
    let (with, without) = (message(&answer(&rule, 300)), message(&answer(&rule, 1)));
    let read = |bytes: &[u8]| pb::RateLimitResponse::decode(bytes).unwrap();
    assert_eq!(read(&with), read(&without));
    // Field 4 with a length of three bytes: field 1 of the inner message, the number 300.
    let multiplier = [0x22, 3, 0x08, 0xac, 0x02];
    assert_eq!(with.len(), without.len() + multiplier.len());
    assert!(with.windows(multiplier.len()).any(|bytes| bytes == multiplier));
}

#[test]
fn a_frame_is_a_flag_a_length_and_the_message() {
    let rule = rule("n");
    let answer = answer(&rule, 1);
    let mut bytes = BytesMut::from(&b"before"[..]);
    frame(&answer, &mut bytes);
    let message = message(&answer);
    assert_eq!(&bytes[6..7], [0]);
    assert_eq!(bytes[7..11], u32::try_from(message.len()).unwrap().to_be_bytes());
    assert_eq!(bytes[11..], message);
}
