//! The metrics after a known sequence of decisions.

use std::time::Duration;

use ratelease_engine::limiter::resolve;
use ratelease_engine::time::Time;
use ratelease_engine::verdict::{Counted, DecisionSource, Modes, Status, Verdict};
use ratelease_listener::tls::HandshakeFailure;
use ratelease_rules::key::{Key, KeyHasher};
use ratelease_rules::request::{Descriptor, Entry};
use ratelease_rules::{self as rules, Limit, Rules, Source, Unit};
use smallvec::smallvec;

use super::counter::Counter;
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
    let resolved = resolve(rules, &request, &KeyHasher::new(""));
    let (key, how) = (Key::for_test(1), DecisionSource::Local);
    let status = match &resolved[0] {
        Resolved::Charged(charge) => {
            let counted = Counted { key, hits: charge.hits, fitted: 0, over, how };
            Status::counted(charge.applied, counted, remaining, None)
        }
        Resolved::Unlimited => Status::UNLIMITED,
        Resolved::Free => Status::FREE,
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
    assert!(kept.iter().all(|key| key.len() <= VALUE_BYTES_MAX));
    let different: HashSet<_> = kept.iter().collect();
    assert_eq!(different.len(), VALUES / 2 * 3, "long values stay apart");
    // Text from the rules' author is bounded too.
    rules = rules::load(&[source], rules::Options::default()).unwrap().rules;
    let families = meters.families(Some(&rules));
    let samples = families.iter().flat_map(|family| &family.samples);
    let labels = samples.flat_map(|sample| &sample.labels).map(|(_, value)| value.len());
    assert_eq!(labels.max(), Some(VALUE_BYTES_MAX));
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
    assert_eq!((hits(10_000, RULES_MAX), hits(10_000, RULES_MAX + 1)), (1000, 0));
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
    meters.note_unanswered(&request, &resolve(&rules, &request, &KeyHasher::new("")));
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
    assert!(family::text(&meters.families(None)).contains("key1=\"dark\""));
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
    let lines = |meters: &Meters| family::text(&meters.families(None)).lines().count();
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
    let expected = DomainHits { total: 4, denied: 2, shadow: 1, left_out: 0 };
    assert_eq!(meters.hits_by_domain(), HashMap::from([("d".into(), expected)]));
}

mod table {
    use super::super::*;

    fn hash(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).unwrap()
    }

    #[test]
    fn a_hash_keeps_its_value_and_one_above_the_maximum_has_none() {
        let table = Table::new(2);
        assert_eq!(table.iter().count(), 0);
        // All three have the same first place.
        assert_eq!(table.get_or_insert(hash(4), || "a"), Some(&"a"));
        assert_eq!(table.get_or_insert(hash(8), || "b"), Some(&"b"));
        assert_eq!(table.get_or_insert(hash(12), || "c"), None);
        assert_eq!(table.get_or_insert(hash(4), || "d"), Some(&"a"));
        assert_eq!(table.get_or_insert(hash(8), || "d"), Some(&"b"));
        assert_eq!((table.iter().count(), table.len()), (2, 2));
    }

    #[test]
    fn a_table_for_no_values_allocates_nothing() {
        assert_eq!(Table::new(0).get_or_insert(hash(1), || "a"), None);
    }

    #[test]
    fn racing_threads_find_the_same_values() {
        const VALUES: u64 = 1000;
        const MAX: usize = 500;
        let table = Table::new(MAX);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 1..=VALUES {
                        let make = || {
                            made.fetch_add(1, Ordering::Relaxed);
                            number
                        };
                        let found = table.get_or_insert(hash(number), make);
                        assert!(found.is_none_or(|found| *found == number));
                    }
                });
            }
        });
        assert_eq!((table.iter().count(), table.len(), made.into_inner()), (MAX, MAX, MAX));
    }
}

mod label {
    use super::super::*;

    #[test]
    fn a_long_value_is_cut_at_a_character_and_stays_apart_from_others() {
        for value in ["", "short", &"x".repeat(VALUE_BYTES_MAX)] {
            assert_eq!(bounded(value), value);
        }
        for unit in ["x", "é", "€", "🦀"] {
            let long = unit.repeat(20_000);
            let alike = ["", "a", "b"].map(|end| long.clone() + end);
            let shown = [0, 1, 2].map(|at| bounded(&alike[at]));
            let kept = VALUE_BYTES_MAX - HASH_DIGITS - unit.len();
            for it in &shown {
                assert!((kept + HASH_DIGITS..=VALUE_BYTES_MAX).contains(&it.len()), "{it}");
                assert!(it.starts_with(&unit.repeat(50)) && it.contains('~'), "{it}");
            }
            assert!(shown[0] != shown[1] && shown[1] != shown[2] && shown[0] != shown[2]);
            assert_eq!(shown[0], bounded(&long), "the same value, the same label");
        }
    }
}

mod hits {
    use super::super::*;
    use ratelease_engine::verdict::{AppliedLimit, Code, DecisionSource};
    use ratelease_rules::key::KeyHasher;
    use ratelease_rules::{Limit, Unit};

    /// With a limit of 10 and a ratio of 0.8.
    fn hits(hits: u64, remaining: u64, over: bool) -> (u64, u64, u64, u64) {
        split(hits, remaining, 0, over)
    }

    fn split(hits: u64, remaining: u64, fitted: u64, over: bool) -> (u64, u64, u64, u64) {
        let key = KeyHasher::new("").key("d", 0, std::iter::empty());
        let counted = Counted { key, hits, fitted, over, how: DecisionSource::Local };
        let limit = Limit::fixed_window(10, Unit::Minute);
        let status = Status {
            code: if over { Code::OverLimit } else { Code::Ok },
            limit: Some(AppliedLimit { limit, rule: None }),
            remaining,
            reset_after: None,
            counted: Some(counted),
        };
        let Hits { total, within, over, near, .. } = Hits::of(&status, &counted, 0.8);
        (total, within, over, near)
    }

    #[test]
    fn hits_are_split_as_the_reference_splits_them() {
        for ((count, remaining, over), expected) in [
            ((1, 9, false), (1, 1, 0, 0)),
            ((1, 2, false), (1, 1, 0, 0)),
            ((1, 1, false), (1, 1, 0, 1)),
            ((1, 0, false), (1, 1, 0, 1)),
            ((3, 1, false), (3, 3, 0, 1)),
            ((3, 0, false), (3, 3, 0, 2)),
            ((10, 0, false), (10, 10, 0, 2)),
            ((0, 0, false), (0, 0, 0, 0)),
            ((1, 0, true), (1, 0, 1, 0)),
            ((4, 0, true), (4, 0, 4, 0)),
            // With a rule that does not spend the rest on a denied charge: 7 used, then 9.
            ((5, 3, true), (5, 0, 2, 2)),
            ((5, 1, true), (5, 0, 4, 1)),
        ] {
            assert_eq!(hits(count, remaining, over), expected, "{count} {remaining} {over}");
        }
    }

    /// The reference's counter after 7 hits of a limit of 10, and after 5 more, twice.
    #[test]
    fn a_denied_charge_that_spends_what_was_left_counts_that_as_near() {
        for ((count, fitted), expected) in [
            ((5, 3), (5, 0, 2, 2)),
            ((5, 0), (5, 0, 5, 0)),
            ((15, 10), (15, 0, 5, 2)),
            ((u64::MAX, u64::MAX), (u64::MAX, 0, u64::MAX - 10, 2)),
        ] {
            assert_eq!(split(count, 0, fitted, true), expected, "{count} {fitted}");
        }
    }

    #[test]
    fn the_threshold_is_reckoned_in_32_bits() {
        for (limit, ratio, expected) in
            [(10, 0.8, 8), (20, 0.8, 16), (4, 0.8, 3), (1, 0.8, 0), (7, 0.0, 0), (7, 1.0, 7)]
        {
            assert_eq!(threshold(limit, ratio), expected, "{limit} {ratio}");
        }
        assert_eq!(threshold(u64::from(u32::MAX), 1.0), 1 << 32, "one above, as there");
        assert_eq!(threshold((1 << 53) - 1, 1.0), (1 << 53) - 1, "larger than there");
    }
}

mod series {
    use super::super::*;

    #[test]
    fn labels_are_what_the_reference_s_mapper_makes_of_a_stats_key() {
        let keys = |key: &str| {
            let Keys { domain, key1, key2 } = Keys::of(key);
            (domain.into_string(), key1.into_string(), key2.map(String::from))
        };
        let owned = |domain: &str, key1: &str, key2: Option<&str>| {
            (domain.to_owned(), key1.to_owned(), key2.map(str::to_owned))
        };
        for (key, expected) in [
            ("d.k", owned("d", "k", None)),
            ("d.k_v.k2", owned("d", "k_v", Some("k2"))),
            ("d.k.k2.k3.k4", owned("d", "k", Some("k2"))),
            ("shop.example.k", owned("shop", "example", Some("k"))),
        ] {
            assert_eq!(keys(key), expected, "{key}");
        }
    }

    #[test]
    fn every_way_to_decide_has_counters_of_its_own() {
        let meter = RuleMeter::folded();
        let hits = Hits { total: 2, within: 2, over: 0, near: 1, shadow: 0 };
        SOURCES.into_iter().for_each(|how| meter.note(how, Code::Ok, hits));
        let over = Hits { total: 5, within: 0, over: 3, near: 2, shadow: 0 };
        meter.note(DecisionSource::Leased, Code::OverLimit, over);
        meter.note(DecisionSource::Leased, Code::Ok, Hits { shadow: 3, ..over });
        let sums = meter.sums();
        assert_eq!(sums.decisions, [[1, 0], [2, 1], [1, 0], [1, 0], [1, 0], [1, 0]]);
        assert_eq!(sums.by_verdict(), [7, 1]);
        let expected = Hits { total: 22, within: 12, over: 6, near: 10, shadow: 3 };
        assert_eq!(sums.hits, expected);
    }
}

mod registry {
    use super::super::Hits;
    use super::super::Keys;
    use super::super::*;
    use ratelease_engine::verdict::{Code, DecisionSource};

    fn meter(registry: &Registry, path: &str) -> Arc<RuleMeter> {
        registry.meter(path, || RuleMeter::new(path, "d", Keys::of(path), Box::default()))
    }

    fn note(meter: &RuleMeter) {
        meter.note(DecisionSource::Local, Code::Ok, Hits::default());
    }

    #[test]
    fn a_path_keeps_its_meter_and_one_above_the_maximum_is_folded() {
        let registry = Registry::new(2);
        let (a, b) = (meter(&registry, "d.a"), meter(&registry, "d.b"));
        assert!(Arc::ptr_eq(&a, &meter(&registry, "d.a")));
        let (c, d) = (meter(&registry, "d.c"), meter(&registry, "d.d"));
        assert!(registry.is_folded(&c) && registry.is_folded(&d));
        assert!(!registry.is_folded(&a) && !registry.is_folded(&b));
        let paths =
            registry.meters().iter().map(|meter| meter.path.to_string()).collect::<Vec<_>>();
        assert_eq!(paths, ["d.a", "d.b", "folded"]);
    }

    #[test]
    fn a_removed_rule_is_replaced_and_its_counts_are_kept() {
        let registry = Registry::new(2);
        let (a, b) = (meter(&registry, "d.a"), meter(&registry, "d.b"));
        note(&b);
        drop(b);
        let c = meter(&registry, "d.c");
        assert!(!registry.is_folded(&c), "it has b's place");
        assert_eq!(registry.sums().by_verdict(), [1, 0]);
        note(&a);
        drop((a, c));
        let again = meter(&registry, "d.a");
        assert_eq!(again.sums().by_verdict(), [1, 0], "a rule that comes back counts on");
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn all_meters_are_read_in_batches() {
        let registry = Registry::new(3 * READ_BATCH + 1);
        for at in 0..=3 * READ_BATCH {
            meter(&registry, &format!("d.{at}"));
        }
        assert_eq!(registry.meters().len(), 3 * READ_BATCH + 2);
    }
}

mod by_domain {
    use super::super::*;

    #[test]
    fn what_a_counter_gained_is_never_negative_and_never_contradicts_itself() {
        let of = |total, denied, shadow| DomainHits { total, denied, shadow, left_out: 0 };
        assert_eq!(of(10, 3, 2).since(&of(4, 1, 1)), of(6, 2, 1));
        assert_eq!(of(4, 1, 1).since(&of(10, 3, 2)), of(0, 0, 0), "the rule was replaced");
        assert_eq!(of(5, 9, 9).since(&of(4, 1, 1)), of(1, 1, 0));
    }
}

#[test]
fn hits_are_kept_by_whole_stats_keys_if_asked_for_and_the_labels_stay_the_same() {
    const DEEP: &str = "
domain: d
descriptors:
  - key: plan
    descriptors:
      - key: path
        descriptors:
          - key: user
            value_to_metric: true
            rate_limit: {unit: minute, requests_per_unit: 10}
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 10}
";
    let source = Source { name: "d.yaml".into(), text: DEEP.into() };
    let load =
        || rules::load(std::slice::from_ref(&source), rules::Options::default()).unwrap().rules;
    let families = [false, true].map(|by_stats_key| {
        let rules = load();
        let meters = Meters::new(Options { by_stats_key, ..Options::default() });
        for user in ["a", "b", "b"] {
            note(&meters, &rules, &[("plan", "x"), ("path", "y"), ("user", user)], 9, false);
        }
        note(&meters, &rules, &[("plain", "x")], 9, false);
        let counts = meters.reference_counts();
        let keys: Vec<_> =
            counts.by_stats_key.iter().map(|(key, hits)| (&**key, hits.total)).collect();
        if by_stats_key {
            let expected = [("d.plain", 1), ("d.plan.path.user_a", 1), ("d.plan.path.user_b", 2)];
            assert_eq!(keys, expected);
        } else {
            assert_eq!(keys, []);
        }
        assert_eq!((counts.requests, counts.service_errors, counts.store_errors), (4, 0, 0));
        let mut families = meters.families(Some(&rules));
        families.retain(|family| family.name.starts_with("ratelimit_service_rate_limit"));
        families
    });
    assert_eq!(families[0], families[1]);
    assert!(!families[0].is_empty());
}

#[test]
fn each_reason_of_a_failed_handshake_has_a_counter_that_names_it() {
    for reason in HandshakeFailure::ALL {
        let counter = Counter::failed(reason);
        assert_eq!(counter.name(), format!("tls_handshakes_{}", reason.name()));
        assert_eq!(counter.metric().unwrap().label, Some(("reason", reason.name())));
    }
}
