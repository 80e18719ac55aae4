//! The reference implementation's service tests of codes, headers and metadata, as tables.

use std::num::NonZeroU8;

use ratelease_rules::request::{Descriptor, Entry};
use ratelease_rules::{Algorithm, Allowance, Attachment, FailureMode, Leasing, Unit};
use serde_json::json;
use smallvec::smallvec;

use super::*;

const MINUTE: Limit = Limit::fixed_window(10, Unit::Minute);

fn rule() -> Rule {
    Rule {
        path: "d.k".into(),
        name: "".into(),
        allowance: Allowance::Limited(MINUTE),
        replaces: Box::default(),
        flags: ratelease_rules::Flags::default(),
        leasing: Leasing::default(),
        failure_mode: FailureMode::Local,
        shards: NonZeroU8::MIN,
        hold: None,
        metadata: None,
        levels: Arc::default(),
        meter: Attachment::default(),
    }
}

fn counted(rule: Rule, over: bool, remaining: u64) -> Status<'static> {
    let applied = AppliedLimit { limit: MINUTE, rule: Some(Box::leak(Box::new(Arc::new(rule)))) };
    Status::counted(applied, hit(over), remaining, None)
}

fn hit(over: bool) -> Counted {
    Counted { key: Key::for_test(1), hits: 1, fitted: 0, over, how: DecisionSource::Local }
}

fn plain(over: bool) -> Status<'static> {
    counted(rule(), over, u64::from(!over))
}

fn quota(over: bool) -> Status<'static> {
    counted(
        Rule { flags: ratelease_rules::Flags { quota_mode: true, ..Default::default() }, ..rule() },
        over,
        u64::from(!over),
    )
}

fn shadow(over: bool) -> Status<'static> {
    counted(
        Rule {
            flags: ratelease_rules::Flags { shadow_mode: true, ..Default::default() },
            ..rule()
        },
        over,
        u64::from(!over),
    )
}

/// The table of the reference implementation's service tests (V1, V2, V3, V8, V10 to V14).
#[test]
fn the_overall_code_follows_from_limits_quotas_and_modes() {
    let none = Modes::default();
    let global_quota = Modes { quota: true, ..none };
    let global_shadow = Modes { shadow: true, ..none };
    let (ok, over) = (Code::Ok, Code::OverLimit);
    for (case, statuses, modes, expected) in [
        ("one over, one free", vec![plain(true), Status::FREE], none, over),
        ("one free, one over", vec![Status::FREE, plain(true)], none, over),
        ("all within", vec![plain(false), Status::UNLIMITED, Status::FREE], none, ok),
        ("rules in shadow", vec![shadow(true), shadow(true)], none, ok),
        ("shadow and over", vec![shadow(true), plain(true)], none, over),
        ("global shadow", vec![plain(true)], global_shadow, ok),
        ("global shadow over quotas", vec![quota(true), plain(true)], global_shadow, ok),
        ("limit over, quota within", vec![plain(true), quota(false)], none, over),
        ("limit within, only quota over", vec![plain(false), quota(true)], none, over),
        ("two quotas within", vec![quota(false), quota(false)], none, ok),
        ("two quotas over", vec![quota(true), quota(true)], none, over),
        ("one of two quotas over", vec![quota(true), quota(false)], none, ok),
        ("global quota, all over", vec![plain(true), plain(true)], global_quota, over),
        ("global quota, one free", vec![plain(true), Status::FREE], global_quota, ok),
        ("global quota, one unlimited", vec![plain(true), Status::UNLIMITED], global_quota, over),
        ("nothing limits", vec![Status::FREE], none, ok),
    ] {
        assert_eq!(code(&statuses, modes), expected, "{case}");
    }
}

fn request<'a>(descriptors: usize) -> Request<'a> {
    let entries = vec![Entry { key: "k", value: "v" }];
    let descriptor = Descriptor { entries: entries.into(), ..Descriptor::default() };
    Request { domain: "d", descriptors: smallvec![descriptor; descriptors], hits_addend: 0 }
}

fn verdict<'r>(statuses: &[Status<'r>]) -> Verdict<'r> {
    Verdict::new(&request(statuses.len()), statuses.into(), Modes::default())
}

#[test]
fn statuses_stand_one_to_one_with_descriptors() {
    let verdict = verdict(&[Status::UNLIMITED, plain(true), Status::FREE, shadow(true)]);
    let codes: Vec<_> = verdict.statuses.iter().map(|status| status.code).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok, Code::Ok]);
    let remaining: Vec<_> = verdict.statuses.iter().map(|status| status.remaining).collect();
    assert_eq!(remaining, [UNLIMITED, 0, 0, 0]);
    let limited: Vec<_> = verdict.statuses.iter().map(|status| status.limit.is_some()).collect();
    assert_eq!(limited, [false, true, false, true]);
}

#[test]
fn headers_show_the_fewest_remaining_unless_one_is_over() {
    let within = |remaining| counted(rule(), false, remaining);
    assert_eq!(verdict(&[Status::FREE, Status::UNLIMITED]).tightest, None);
    assert_eq!(verdict(&[Status::FREE, within(3), within(2), within(2)]).tightest, Some(2));
    assert_eq!(verdict(&[plain(true), within(0), plain(true), within(0)]).tightest, Some(2));
    assert_eq!(verdict(&[within(1), quota(true)]).tightest, Some(1));
}

#[test]
fn a_window_that_lies_ahead_resets_after_its_unit_at_most() {
    let reset = |algorithm, remaining, after| {
        let limit = Limit { algorithm, ..MINUTE };
        let applied = AppliedLimit { limit, rule: None };
        Status::counted(applied, hit(false), remaining, Some(Duration::from_secs(after)))
    };
    for (algorithm, remaining, after, expected) in [
        (Algorithm::FixedWindow, 1, 59, 59),
        (Algorithm::FixedWindow, 1, 90, 60),
        (Algorithm::FixedWindow, 0, 90, 60),
        (Algorithm::SlidingWindow, 1, 90, 60),
        // The counts of two windows may exceed the limit.
        (Algorithm::SlidingWindow, 0, 90, 90),
        (Algorithm::SlidingWindow, 0, 130, 120),
        // A bucket may take longer to fill than its unit.
        (Algorithm::token_bucket(20), 1, 90, 90),
    ] {
        let reset = reset(algorithm, remaining, after).reset_seconds();
        assert_eq!(reset, Some(expected), "{algorithm:?}, {remaining}");
    }
}

#[test]
fn seconds_until_reset_are_rounded_up() {
    for (millis, seconds) in [(1, 1), (1_000, 1), (1_001, 2), (58_000, 58)] {
        let reset_after = Some(Duration::from_millis(millis));
        let status = Status { reset_after, ..Status::FREE };
        assert_eq!(status.reset_seconds(), Some(seconds));
    }
}

fn with_metadata(metadata: Value, over: bool) -> Status<'static> {
    let metadata = metadata.as_object().cloned().map(Box::new);
    counted(Rule { metadata, ..rule() }, over, 1)
}

#[test]
fn metadata_of_what_passes_is_merged_and_the_first_scalar_wins() {
    let statuses = [
        with_metadata(json!({"a": 1, "deep": {"x": 1}}), false),
        with_metadata(json!({"denied": true}), true),
        with_metadata(json!({"a": 2, "deep": {"x": 2, "y": 2}, "b": 2}), false),
    ];
    let mut request = request(3);
    request.hits_addend = 4;
    request.descriptors[1].hits_addend = Some(0);
    request.descriptors[2].limit = Some(MINUTE);
    let modes = Modes { metadata: true, ..Modes::default() };
    let expected = json!({
        "domain": "d",
        "descriptors": [
            {"entries": ["k=v"]},
            {"entries": ["k=v"], "hitsAddend": 0},
            {"entries": ["k=v"], "limit": "requests_per_unit:10 unit:MINUTE"},
        ],
        "hitsAddend": 4,
        "metadata": {"a": 1, "b": 2, "deep": {"x": 1, "y": 2}},
        "denied": {"denied": true},
    });
    for _ in 0..2 {
        let verdict = Verdict::new(&request, statuses.into_iter().collect(), modes);
        assert_eq!(verdict.metadata.map(Value::from), Some(expected.clone()));
    }
}

#[test]
fn metadata_of_what_denies_is_apart() {
    let quota = |name: &str, over| {
        let metadata = json!({"status": 1, name: true}).as_object().cloned().map(Box::new);
        counted(
            Rule {
                flags: ratelease_rules::Flags { quota_mode: true, ..Default::default() },
                metadata,
                ..rule()
            },
            over,
            1,
        )
    };
    let shadow = Rule {
        flags: ratelease_rules::Flags { shadow_mode: true, ..Default::default() },
        metadata: json!({"shadow": true}).as_object().cloned().map(Box::new),
        ..rule()
    };
    let denied = |statuses: &[Status<'static>], shadow| {
        let modes = Modes { metadata: true, shadow, ..Modes::default() };
        let statuses: Few<_> = statuses.iter().copied().collect();
        let verdict = Verdict::new(&request(statuses.len()), statuses, modes);
        verdict.metadata.and_then(|metadata| metadata.get("denied").cloned())
    };
    let rules = [
        with_metadata(json!({"free": true}), false),
        counted(shadow, true, 1),
        with_metadata(json!({"status": 503}), true),
        with_metadata(json!({"status": 403, "why": "plan"}), true),
    ];
    assert_eq!(denied(&rules, false), Some(json!({"status": 503, "why": "plan"})));
    assert_eq!(denied(&rules, true), None, "nothing is denied in the global shadow mode");
    assert_eq!(denied(&rules[..2], false), None);
    // Quotas deny only together.
    let (a, b) = (quota("a", true), quota("b", false));
    assert_eq!(denied(&[a, b], false), None);
    assert_eq!(denied(&[a, b, rules[2]], false), Some(json!({"status": 503})));
    let b = quota("b", true);
    assert_eq!(denied(&[a, b], false), Some(json!({"status": 1, "a": true, "b": true})));
    assert_eq!(
        denied(&[rules[2], a], false),
        Some(json!({"status": 503, "a": true})),
        "a quota that is over by itself denies"
    );
}

#[test]
fn metadata_is_absent_unless_asked_for() {
    assert_eq!(verdict(&[with_metadata(json!({"a": 1}), false)]).metadata, None);
}
