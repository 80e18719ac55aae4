//! The metrics after a known sequence of decisions.

use std::time::Duration;

use ratelease_engine::time::Time;
use ratelease_engine::verdict::{Counted, DecisionSource, Modes, Status, Verdict};
use ratelease_rules::key::Key;
use ratelease_rules::request::{Descriptor, Entry};
use ratelease_rules::{self as rules, Limit, Rules, Source, Unit};
use smallvec::smallvec;

use super::family::{Family, Value};
use super::*;

const RULES: &str = "
domain: d
descriptors:
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: dark
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: open
    rate_limit: {unlimited: true}
  - key: by_value
    value_to_metric: true
    descriptors:
      - key: deep
        value_to_metric: true
        rate_limit: {unit: minute, requests_per_unit: 10}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 10}
";

fn rules() -> Rules {
    let source = Source { name: "d.yaml".into(), text: RULES.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

fn meters(series_max: usize) -> Meters {
    Meters::new(Options { series_max, ..Options::default() })
}

/// Records a decision on a descriptor of `entries` of the domain d.
fn note(meters: &Meters, rules: &Rules, entries: &[(&str, &str)], remaining: u64, over: bool) {
    let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    note_descriptor(meters, rules, descriptor, remaining, over);
}

fn note_descriptor(
    meters: &Meters,
    rules: &Rules,
    descriptor: Descriptor<'_>,
    remaining: u64,
    over: bool,
) {
    let request = Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 };
    let [limited] = limits(rules, &request)[..] else { unreachable!() };
    let (key, how) = (Key::for_test(1), DecisionSource::Local);
    let status = match limited {
        Some(LimitedHits { applied, hits }) => {
            Status::counted(applied, Counted { key, hits, fitted: 0, over, how }, remaining, None)
        }
        None if remaining > 0 => Status::UNLIMITED,
        None => Status::FREE,
    };
    let verdict = Verdict::new(&request, smallvec![status], Modes::default());
    let took = Duration::from_micros(30);
    meters.note(&Decision { request: &request, verdict: &verdict, took, now: Time::default() });
}

/// The series of this name: for each its labels in one text, and its count.
fn series(families: &[Family], name: &str) -> Vec<(String, u64)> {
    let family = families.iter().find(|family| family.name == name).expect(name);
    let families = family.samples.iter().map(|sample| {
        let labels: Vec<_> = sample.labels.iter().map(|(_, value)| value.as_ref()).collect();
        let Value::Count(count) = &sample.value else { panic!("{name} is no count") };
        (labels.join(" "), *count)
    });
    families.collect()
}

fn is(families: &[Family], name: &str, expected: &[(&str, u64)]) {
    let expected: Vec<_> = expected.iter().map(|(labels, n)| ((*labels).to_owned(), *n)).collect();
    assert_eq!(series(families, name), expected, "{name}");
}

#[test]
fn labels_are_bounded_whatever_clients_send() {
    const VALUES: usize = 500;
    let (meters, long) = (meters(VALUES), "v".repeat(60_000));
    let domain = "d".repeat(1024);
    let text = RULES.replace("domain: d", &format!("domain: {domain}"));
    let source = Source { name: "d.yaml".into(), text: text.into() };
    let mut rules = rules();
    for at in 0..VALUES / 2 {
        note(&meters, &rules, &[("detailed", &format!("{long}{at}"))], 9, false);
        let (value, deep) = (format!("{long}{at}"), format!("{at}{long}"));
        note(&meters, &rules, &[("by_value", &value), ("deep", &deep)], 9, false);
    }
    let kept = meters.shared.values.iter().map(|meter| &meter.keys);
    let kept: Vec<_> = kept.flat_map(|it| [Some(&it.key1), it.key2.as_ref()]).flatten().collect();
    assert!(kept.iter().all(|key| key.len() <= label::VALUE_BYTES_MAX));
    let different: std::collections::HashSet<_> = kept.iter().collect();
    assert_eq!(different.len(), VALUES / 2 * 3, "long values stay apart");
    // Text from the rules' author is bounded too.
    rules = rules::load(&[source], rules::Options::default()).unwrap().rules;
    let families = meters.families(Some(&rules));
    let samples = families.iter().flat_map(|family| &family.samples);
    let labels = samples.flat_map(|sample| &sample.labels).map(|(_, value)| value.len());
    assert_eq!(labels.max(), Some(label::VALUE_BYTES_MAX));
}

#[test]
fn a_known_sequence_yields_the_expected_counts() {
    let (meters, rules) = (meters(100), rules());
    let plain = [("plain", "a")];
    for (remaining, over) in [(9, false), (1, false), (0, false), (0, true)] {
        note(&meters, &rules, &plain, remaining, over);
    }
    note(&meters, &rules, &[("dark", "a")], 0, true);
    note(&meters, &rules, &[("open", "a")], 1, false);
    note(&meters, &rules, &[("unknown", "a")], 0, false);
    meters.note_error(&RequestError::NoRules);
    meters.note_error(&RequestError::Store(ratelease_engine::store::StoreError::TimedOut));
    let families = meters.families(None);
    let of = |name: &str| format!("ratelimit_service_rate_limit_{name}");
    is(&families, &of("total_hits"), &[("d dark", 1), ("d plain", 4)]);
    is(&families, &of("within_limit"), &[("d plain", 3)]);
    is(&families, &of("near_limit"), &[("d plain", 2)]);
    is(&families, &of("over_limit"), &[("d dark", 1), ("d plain", 1)]);
    is(&families, &of("shadow_mode"), &[("d dark", 1)]);
    let expected = [("redis_error", 1), ("service_error", 1)];
    is(&families, "ratelimit_service_should_rate_limit_error", &expected);
    is(&families, "ratelimit_service_total_requests", &[("ShouldRateLimit", 9)]);
    is(&families, "ratelimit_service_global_shadow_mode", &[("", 0)]);
    let expected = [
        ("d d.plain ok local", 3),
        ("d d.plain over_limit local", 1),
        ("d d.dark ok local", 1),
        ("none none ok none", 1),
        ("none none ok unlimited", 1),
    ];
    is(&families, "ratelease_decisions_total", &expected);
    let calls = meters.calls();
    assert_eq!((calls.ok, calls.over_limit, calls.errors), (6, 1, 2));
    assert_eq!(calls.took.count(), 7);
    assert_eq!(meters.by_how()[..3], [("denied_local", 1), ("local", 4), ("leased", 0)]);
    let rule = |rule: &str, ok, over_limit, near_limit, shadow| RuleTotals {
        rule: rule.to_owned(),
        ok,
        over_limit,
        near_limit,
        shadow,
    };
    assert_eq!(meters.by_rule(9), [rule("d.plain", 3, 1, 2, 0), rule("d.dark", 1, 0, 0, 1)]);
    assert_eq!(meters.by_rule(1).len(), 1);
}

#[test]
fn refunded_hits_are_not_counted_and_overrides_of_a_domain_are_one_series() {
    let (meters, rules) = (meters(100), rules());
    for value in ["a", "b", "c"] {
        let entries = smallvec![Entry { key: "any", value }];
        let limit = Some(Limit::fixed_window(5, Unit::Hour));
        let sent = Descriptor { entries, limit, hits_addend: Some(2), refund: value == "c" };
        note_descriptor(&meters, &rules, sent, 1, false);
    }
    let families = meters.families(None);
    is(&families, "ratelimit_service_rate_limit_total_hits", &[("d override", 4)]);
    is(&families, "ratelease_decisions_total", &[("d override ok local", 3)]);
}

#[test]
fn values_have_series_if_the_rule_asks_and_a_label_shows_them() {
    let (meters, rules) = (meters(3), rules());
    for (value, deep) in [("a", "x"), ("a", "x"), ("a", "y")] {
        note(&meters, &rules, &[("by_value", value), ("deep", deep)], 9, false);
    }
    for value in ["1.2.3.4", "1.2.3.4", "5.6.7.8"] {
        note(&meters, &rules, &[("detailed", value)], 9, false);
    }
    let families = meters.families(None);
    let expected = [
        ("d by_value_a deep_x", 2),
        ("d by_value_a deep_y", 1),
        ("d detailed_1_2_3_4", 2),
        ("folded folded", 1),
    ];
    is(&families, "ratelimit_service_rate_limit_total_hits", &expected);
    let expected = [("d d.by_value.deep ok local", 3), ("d d.detailed ok local", 3)];
    is(&families, "ratelease_decisions_total", &expected);
    let expected = [("ratelease_decisions", 0), ("ratelimit_service_rate_limit", 1)];
    is(&families, "ratelease_series_folded_total", &expected);
    let expected = [("ratelease_decisions", 2), ("ratelimit_service_rate_limit", 3)];
    is(&families, "ratelease_series", &expected);
}

/// Of the five rules one is unlimited, and two have series by value.
#[test]
fn rules_in_force_have_series_before_their_first_hit() {
    let (meters, rules) = (meters(100), rules());
    let families = meters.families(Some(&rules));
    for name in ["total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"] {
        let name = format!("ratelimit_service_rate_limit_{name}");
        is(&families, &name, &[("d dark", 0), ("d plain", 0)]);
    }
    let decisions = series(&families, "ratelease_decisions_total");
    assert_eq!(decisions.len(), 4 * 4, "{decisions:?}");
    assert!(decisions.contains(&("d d.detailed over_limit leased".to_owned(), 0)));
    note(&meters, &rules, &[("plain", "a")], 1, false);
    let families = meters.families(Some(&rules));
    let total = "ratelimit_service_rate_limit_total_hits";
    is(&families, total, &[("d dark", 0), ("d plain", 1)]);
    let decisions = series(&families, "ratelease_decisions_total");
    assert_eq!(decisions.len(), 4 * 4, "none is reported twice: {decisions:?}");
    assert!(decisions.contains(&("d d.plain ok local".to_owned(), 1)));
    // Series of a removed rule are included if they have counted anything.
    let none = Rules::default();
    is(&meters.families(Some(&none)), total, &[("d plain", 1)]);
}

#[test]
fn with_too_many_rules_none_has_series_before_its_first_hit() {
    let hits = |series_max: usize, count: usize| {
        let rule = |n| format!("- {{key: k{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}");
        let rules = (0..count).map(rule).collect::<Vec<_>>().join("\n");
        let text = format!("domain: d\ndescriptors:\n{rules}\n");
        let source = Source { name: "d.yaml".into(), text: text.into() };
        let rules = rules::load(&[source], rules::Options::default()).unwrap().rules;
        let families = meters(series_max).families(Some(&rules));
        series(&families, "ratelimit_service_rate_limit_total_hits").len()
    };
    assert_eq!(
        (hits(10_000, zero_series::RULES_MAX), hits(10_000, zero_series::RULES_MAX + 1)),
        (1000, 0)
    );
    assert_eq!((hits(5, 5), hits(5, 6)), (5, 0));
}

#[test]
fn hits_of_unanswered_calls_count_only_in_total() {
    let (meters, rules) = (meters(100), rules());
    let of = |key, limit, refund| {
        let entries = smallvec![Entry { key, value: "a" }];
        Descriptor { entries, limit, hits_addend: Some(3), refund }
    };
    let limit = Some(Limit::fixed_window(5, Unit::Hour));
    let descriptors = smallvec![
        of("plain", None, false),
        of("detailed", None, false),
        of("plain", None, true),
        of("open", None, false),
        of("unknown", None, false),
        of("any", limit, false),
    ];
    let request = Request { domain: "d", descriptors, hits_addend: 0 };
    meters.note_unanswered(&rules, &request);
    let families = meters.families(None);
    let of = |name: &str| format!("ratelimit_service_rate_limit_{name}");
    let expected = [("d detailed_a", 3), ("d override", 3), ("d plain", 3)];
    is(&families, &of("total_hits"), &expected);
    for name in ["within_limit", "near_limit", "over_limit", "shadow_mode"] {
        is(&families, &of(name), &[]);
    }
    is(&families, "ratelease_decisions_total", &[]);
}

#[test]
fn counts_continue_when_the_rules_are_reloaded() {
    let meters = meters(100);
    for _ in 0..3 {
        note(&meters, &rules(), &[("plain", "a")], 9, false);
    }
    is(&meters.families(None), "ratelease_decisions_total", &[("d d.plain ok local", 3)]);
}

#[test]
fn rules_above_the_maximum_are_counted_together() {
    let (meters, rules) = (meters(1), rules());
    note(&meters, &rules, &[("plain", "a")], 9, false);
    note(&meters, &rules, &[("dark", "a")], 9, false);
    note(&meters, &rules, &[("detailed", "a")], 9, false);
    let families = meters.families(None);
    let expected = [("d d.plain ok local", 1), ("folded folded ok local", 2)];
    is(&families, "ratelease_decisions_total", &expected);
    let expected = [("ratelease_decisions", 2), ("ratelimit_service_rate_limit", 0)];
    is(&families, "ratelease_series_folded_total", &expected);
    let hits = "ratelimit_service_rate_limit_total_hits";
    is(&families, hits, &[("d plain", 1), ("folded folded", 2)]);
}

#[test]
fn no_series_is_reported_twice_when_rules_and_overrides_are_folded() {
    let (meters, rules) = (meters(0), rules());
    note(&meters, &rules, &[("plain", "a")], 9, false);
    let entries = smallvec![Entry { key: "any", value: "a" }];
    let limit = Some(Limit::fixed_window(5, Unit::Hour));
    let sent = Descriptor { entries, limit, ..Descriptor::default() };
    note_descriptor(&meters, &rules, sent, 1, false);
    let families = meters.families(None);
    is(&families, "ratelease_decisions_total", &[("folded folded ok local", 2)]);
    is(&families, "ratelimit_service_rate_limit_total_hits", &[("folded folded", 2)]);
}

#[test]
fn counters_that_overflow_do_not_panic() {
    let (meters, rules) = (meters(100), rules());
    for key in ["plain", "dark", "detailed"] {
        for _ in 0..2 {
            let entries = smallvec![Entry { key, value: "a" }];
            let sent = Descriptor { entries, hits_addend: Some(u64::MAX), ..Descriptor::default() };
            note_descriptor(&meters, &rules, sent, 0, true);
        }
    }
    // Adding up the totals must not overflow.
    assert_eq!((meters.calls().over_limit, meters.by_how()[0].1), (4, 4));
    assert_eq!(meters.by_rule(9).len(), 3);
    assert!(text::write(&meters.families(None)).contains("key1=\"dark\""));
}

/// Records many values that would each have a series of their own in the reference implementation.
/// `RATELEASE_VALUES=5000000 cargo test --release --lib series_by_value` also asserts on the memory
/// of the process, in which no other test must run at the same time.
#[test]
fn series_by_value_are_bounded() {
    let alone = std::env::var("RATELEASE_VALUES").ok().map(|count| count.parse().unwrap());
    let values: u64 = alone.unwrap_or(50_000);
    const MAX: usize = 1000;
    let (meters, rules) = (meters(MAX), rules());
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let lines = |meters: &Meters| text::write(&meters.families(None)).lines().count();
    let note = |number: u64| {
        note(&meters, &rules, &[("detailed", &format!("user-{number}"))], 9, false);
    };
    (0..2 * MAX as u64).for_each(note);
    let (before, lines_before) = (resident(), lines(&meters));
    (2 * MAX as u64..values).for_each(note);
    assert_eq!(lines(&meters), lines_before, "no series more");
    let grown = resident().saturating_sub(before);
    println!("{values} values: {grown} bytes more, {lines_before} lines");
    assert!(alone.is_none() || grown < 16 << 20, "{grown} bytes more");
    let families = meters.families(None);
    let hits = series(&families, "ratelimit_service_rate_limit_total_hits");
    assert_eq!(hits.len(), MAX + 1);
    assert_eq!(hits.iter().map(|(_, count)| count).sum::<u64>(), values, "none is lost");
    let folded = ("folded folded".to_owned(), values - MAX as u64);
    assert!(hits.contains(&folded), "{:?}", hits.last());
}

#[test]
fn hits_of_a_domain_are_those_of_all_its_rules_with_shadow_apart() {
    let (meters, rules) = (meters(100), rules());
    note(&meters, &rules, &[("plain", "")], 9, false);
    note(&meters, &rules, &[("plain", "")], 0, true);
    note(&meters, &rules, &[("dark", "")], 0, true);
    note(&meters, &rules, &[("by_value", "x"), ("deep", "y")], 0, true);
    note(&meters, &rules, &[("nothing", "")], 0, false);
    let found = meters.hits_of(&["other".into(), "d".into()]);
    let expected = DomainHits { total: 4, denied: 2, shadow: 1 };
    assert_eq!(found, [DomainHits::default(), expected]);
}
