//! The settings that the reference does not have: their meaning, and how a file's `defaults` fill
//! them in.

mod calendar;
mod faults;
mod stores;

use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

use super::*;

const DAY: Limit = Limit::fixed_window(10_000, Unit::Day);
const SECOND: Duration = Duration::from_secs(1);

/// Loads the rule of `domain: a`, `key: k`. Its `rate_limit` has `beside` in addition to 10 000 a
/// day, and `top` holds lines at the top of its file.
#[track_caller]
fn with_defaults(top: &str, beside: &str) -> Rule {
    let text = format!(
        "{top}\ndomain: a\ndescriptors:\n  - key: k\n    rate_limit: {{unit: day, \
         requests_per_unit: 10000, {beside}}}\n"
    );
    let loaded = compile(&text);
    assert_eq!(loaded.warnings, [], "{text}");
    find(&loaded.rules, "a", "k=1").unwrap().as_ref().clone()
}

#[track_caller]
fn rule(beside: &str) -> Rule {
    with_defaults("", beside)
}

#[track_caller]
fn limit(beside: &str) -> Limit {
    match rule(beside).allowance {
        Allowance::Limited(limit) => limit,
        Allowance::Unlimited => panic!("unlimited"),
    }
}

fn algorithm(rule: &Rule) -> Algorithm {
    match rule.allowance {
        Allowance::Limited(limit) => limit.algorithm,
        Allowance::Unlimited => panic!("unlimited"),
    }
}

fn terms(fraction: f32, max: u64, ttl: Option<Duration>) -> Leasing {
    Leasing::On(LeaseTerms { fraction, max, ttl })
}

#[test]
fn a_rule_that_says_nothing_counts_as_the_reference_does() {
    let rule = rule("");
    assert_eq!(rule.allowance, Allowance::Limited(DAY));
    assert_eq!((rule.leasing, rule.shards.get()), (Leasing::default(), 1));
    assert!(rule.flags.charge_denied);
    let nulls = "unit_multiplier: ~, algorithm: ~, burst: ~, max_delay: ~, lease: ~, shards: ~, \
                 charge_denied: ~, failure_mode: ~";
    assert_eq!(self::rule(nulls), rule);
    assert_eq!(self::rule("lease: {}"), rule);
    assert_eq!(self::rule("lease: {fraction: ~, max: ~, ttl: ~}"), rule);
    assert_eq!(with_defaults("defaults:", ""), rule);
    assert_eq!(with_defaults("defaults: {}", ""), rule);
}

#[test]
fn algorithms_and_windows_as_they_may_be_written() {
    let table = [
        ("algorithm: fixed_window", Algorithm::FixedWindow),
        ("algorithm: 'Fixed_Window'", Algorithm::FixedWindow),
        ("algorithm: token_bucket", Algorithm::token_bucket(10_000)),
        ("algorithm: TOKEN_BUCKET, burst: 0x10", Algorithm::token_bucket(16)),
        ("burst: 1_000_000, algorithm: token_bucket", Algorithm::token_bucket(1_000_000)),
        ("algorithm: sliding_window", Algorithm::SlidingWindow),
        ("algorithm: sliding_log", Algorithm::SlidingLog),
        ("algorithm: leaky_bucket", Algorithm::LeakyBucket { max_delay_us: 0 }),
        ("algorithm: leaky_bucket, max_delay: 0", Algorithm::LeakyBucket { max_delay_us: 0 }),
        (
            "algorithm: leaky_bucket, max_delay: 1.5ms",
            Algorithm::LeakyBucket { max_delay_us: 1_500 },
        ),
        (
            "algorithm: leaky_bucket, max_delay: '1m'",
            Algorithm::LeakyBucket { max_delay_us: 60_000_000 },
        ),
    ];
    for (beside, algorithm) in table {
        assert_eq!(limit(beside), Limit { algorithm, ..DAY }, "{beside}");
    }
    for (beside, units) in
        [("unit_multiplier: 1", 1), ("unit_multiplier: 0b101", 5), ("unit_multiplier: 3650", 3650)]
    {
        let unit_multiplier = NonZeroU32::new(units).unwrap();
        assert_eq!(limit(beside), Limit { unit_multiplier, ..DAY }, "{beside}");
    }
}

#[test]
fn leases_and_shards_as_they_may_be_written() {
    let on = Leasing::default();
    let table = [
        ("lease: off", Leasing::Off),
        ("lease: 'off'", Leasing::Off),
        ("lease: false", Leasing::Off),
        ("lease: NO", Leasing::Off),
        ("lease: on", on),
        ("lease: \"on\"", on),
        ("lease: true", on),
        ("lease: {fraction: 1}", terms(1.0, AMOUNT_MAX, None)),
        ("lease: {fraction: 1e-3}", terms(0.001, AMOUNT_MAX, None)),
        ("lease: {max: 1}", terms(0.25, 1, None)),
        ("lease: {ttl: 100ms}", terms(0.25, AMOUNT_MAX, Some(SECOND / 10))),
        (
            "lease: {ttl: 1m, max: 9007199254740991, fraction: .5}",
            terms(0.5, AMOUNT_MAX, Some(SECOND * 60)),
        ),
        ("lease: off, algorithm: sliding_log", Leasing::Off),
        ("algorithm: sliding_log", Leasing::Off),
    ];
    for (beside, leasing) in table {
        assert_eq!(rule(beside).leasing, leasing, "{beside}");
    }
    for (beside, shards) in [
        ("shards: 1", 1),
        ("shards: 64", 64),
        ("shards: 1, algorithm: leaky_bucket", 1),
        ("shards: 2, algorithm: sliding_log", 2),
    ] {
        assert_eq!(rule(beside).shards, NonZeroU8::new(shards).unwrap(), "{beside}");
    }
}

#[test]
fn a_limit_of_what_is_in_progress_has_no_window_and_shows_none() {
    let text = "domain: a
defaults: {lease: {max: 5}, shards: 4, max_delay: 2s}
descriptors:
  - {key: k, rate_limit: {algorithm: Concurrency, requests_per_unit: 4294967295, lease: ~, hold: {for: 5m}}}
";
    let loaded = compile(text);
    assert_eq!(loaded.warnings, []);
    let rule = find(&loaded.rules, "a", "k=1").unwrap();
    let Allowance::Limited(limit) = rule.allowance else { panic!("unlimited") };
    assert_eq!(
        (limit.requests_per_unit, limit.algorithm),
        (u64::from(u32::MAX), Algorithm::Concurrency)
    );
    assert_eq!((limit.window_unit(), limit.capacity()), (None, u64::from(u32::MAX)));
    assert_eq!((rule.leasing, rule.pools()), (Leasing::default(), 0));
    assert_eq!(rule.hold.map(|hold| hold.unless_settled), Some(UnlessSettled::Release));
    let options = rule.options(loaded.rules.stores());
    let shown = |name| options.iter().any(|option| option.name == name);
    assert!(shown("requests_per_unit") && shown("algorithm") && shown("failure_mode"));
    for name in ["unit", "unit_multiplier", "lease", "shards", "burst", "max_delay"] {
        assert!(!shown(name), "{name}");
    }
}

#[test]
fn a_limit_at_its_ceiling_loads_and_nothing_denies_everything() {
    let text = "domain: a
descriptors:
  - {key: log, rate_limit: {unit: day, requests_per_unit: 10000, algorithm: sliding_log}}
  - key: window
    rate_limit: {unit: day, requests_per_unit: 9007199254740991, algorithm: sliding_window}
  - key: slow
    rate_limit: {unit: year, requests_per_unit: 1, algorithm: token_bucket, burst: 100}
  - key: huge
    rate_limit:
      unit: second
      unit_multiplier: 315360000
      requests_per_unit: 9007199254740991
      algorithm: token_bucket
      burst: 9007199254740991
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0, algorithm: token_bucket}}
";
    let loaded = compile(text);
    assert_eq!(loaded.warnings, []);
    let rule = |key: &str| find(&loaded.rules, "a", key).unwrap();
    assert_eq!(algorithm(rule("slow=1")), Algorithm::token_bucket(100));
    assert_eq!(algorithm(rule("none=1")), Algorithm::token_bucket(0));
    let Allowance::Limited(huge) = rule("huge=1").allowance else { panic!("unlimited") };
    assert_eq!(huge.window_seconds(), WINDOW_SECONDS_MAX);
}

#[test]
fn defaults_apply_where_a_rule_sets_nothing() {
    let defaults = "defaults: {algorithm: leaky_bucket, max_delay: 2s, lease: {max: 5, ttl: 1s}, \
                    shards: 4, charge_denied: false}";
    let table = [
        ("", Algorithm::LeakyBucket { max_delay_us: 2_000_000 }, 1),
        ("max_delay: 1ms", Algorithm::LeakyBucket { max_delay_us: 1_000 }, 1),
        // Settings that do not fit the rule's own algorithm are not applied to it.
        ("algorithm: fixed_window", Algorithm::FixedWindow, 4),
        ("algorithm: token_bucket, burst: 9, shards: 2", Algorithm::token_bucket(9), 2),
        ("algorithm: sliding_window, max_delay: ~", Algorithm::SlidingWindow, 4),
    ];
    for (beside, expected, shards) in table {
        let rule = with_defaults(defaults, beside);
        assert_eq!((algorithm(&rule), rule.shards.get()), (expected, shards), "{beside}");
        assert_eq!(rule.leasing, terms(0.25, 5, Some(SECOND)), "{beside}");
        assert!(!rule.flags.charge_denied, "{beside}");
    }
    let log = with_defaults(defaults, "algorithm: sliding_log, charge_denied: true");
    assert_eq!((log.leasing, log.flags.charge_denied), (Leasing::Off, true));
}

#[test]
fn a_failure_mode_is_the_rules_own_or_its_files_or_local() {
    assert_eq!(rule("").failure_mode, FailureMode::Local);
    for mode in FailureMode::ALL {
        let own = format!("failure_mode: {}", mode.name());
        assert_eq!(rule(&own).failure_mode, mode);
        assert_eq!(rule(&own.to_uppercase().replace("FAILURE_MODE", "failure_mode")), rule(&own));
        let top = format!("defaults: {{{own}}}");
        assert_eq!(with_defaults(&top, "").failure_mode, mode);
        let kept = with_defaults("defaults: {failure_mode: allow}", &own);
        assert_eq!(kept.failure_mode, mode);
    }
}

#[test]
fn the_terms_of_a_lease_are_filled_in_one_by_one() {
    let some = "defaults: {lease: {max: 5, ttl: 1s}}";
    let table = [
        (some, "lease: {ttl: 2s}", terms(0.25, 5, Some(SECOND * 2))),
        (some, "lease: on", terms(0.25, 5, Some(SECOND))),
        (some, "lease: off", Leasing::Off),
        ("defaults: {lease: off}", "", Leasing::Off),
        ("defaults: {lease: off}", "lease: on", Leasing::default()),
        ("defaults: {lease: off}", "lease: {max: 7}", terms(0.25, 7, None)),
        ("defaults: {lease: on}", "", Leasing::default()),
    ];
    for (defaults, beside, leasing) in table {
        assert_eq!(with_defaults(defaults, beside).leasing, leasing, "{defaults} {beside}");
    }
}

#[test]
fn defaults_may_stand_below_the_rules_and_hold_for_nested_ones() {
    let text = "domain: a
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
      - {key: l, rate_limit: {unit: day, requests_per_unit: 1}}
defaults: {algorithm: sliding_log}
";
    let rules = compile(text).rules;
    for descriptor in ["k=1", "k=1 l=1"] {
        assert_eq!(algorithm(find(&rules, "a", descriptor).unwrap()), Algorithm::SlidingLog);
    }
}

#[test]
fn each_file_of_a_merged_domain_keeps_its_own_defaults() {
    let file = |name: &str, defaults: &str| Source {
        name: format!("{name}.yaml"),
        text: format!(
            "domain: a\n{defaults}\ndescriptors:\n  - key: {name}\n    rate_limit: {{unit: day, \
             requests_per_unit: 1}}\n"
        )
        .into_bytes(),
    };
    let files = [
        file("x", "defaults: {algorithm: sliding_log}"),
        file("y", ""),
        file("z", "defaults: {algorithm: sliding_window}"),
    ];
    let rules = load(&files, MERGE).unwrap().rules;
    let of = |descriptor| algorithm(find(&rules, "a", descriptor).unwrap());
    assert_eq!(of("x=1"), Algorithm::SlidingLog);
    assert_eq!(of("y=1"), Algorithm::FixedWindow);
    assert_eq!(of("z=1"), Algorithm::SlidingWindow);
}

#[test]
fn merge_keys_reach_into_limits_leases_and_defaults() {
    let text = "domain: a
descriptors:
  - key: base
    rate_limit: &limit
      {unit: day, requests_per_unit: 9, algorithm: token_bucket, lease: &lease {max: 5, ttl: 1s}}
  - {key: faster, rate_limit: {<<: *limit, burst: 3}}
  - {key: shorter, rate_limit: {<<: *limit, lease: {<<: *lease, ttl: 2s}}}
  - {key: added, rate_limit: {<<: *limit, lease: {ttl: 2s}}}
  - {key: other, rate_limit: {<<: *limit, algorithm: sliding_log, lease: off}}
  - {key: none, rate_limit: {<<: *limit, lease: ~}}
defaults: {<<: {shards: 2, max_delay: 1s}, shards: 3}
";
    let loaded = compile(text);
    assert_eq!(loaded.warnings, []);
    let rule = |key: &str| find(&loaded.rules, "a", key).unwrap();
    assert_eq!(algorithm(rule("faster=1")), Algorithm::token_bucket(3));
    assert_eq!(rule("shorter=1").leasing, terms(0.25, 5, Some(SECOND * 2)));
    assert_eq!(rule("added=1").leasing, terms(0.25, 5, Some(SECOND * 2)));
    assert_eq!(algorithm(rule("other=1")), Algorithm::SlidingLog);
    assert_eq!(rule("none=1").leasing, Leasing::default());
    assert_eq!(rule("base=1").shards.get(), 3);
}

#[test]
fn pools_are_no_more_than_the_tokens_of_the_limit() {
    let text = "domain: a
descriptors:
  - {key: few, rate_limit: {unit: day, requests_per_unit: 3, shards: 8}}
  - key: small
    rate_limit: {unit: day, requests_per_unit: 9, algorithm: token_bucket, burst: 2, shards: 8}
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
defaults: {shards: 4}
";
    let loaded = compile(text);
    let shards = |key: &str| find(&loaded.rules, "a", key).unwrap().shards.get();
    assert_eq!((shards("few=1"), shards("small=1"), shards("none=1")), (3, 2, 1));
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "a.yaml:3:70: 'shards' is more than the limit has tokens; 3 are used",
            "a.yaml:5:94: 'shards' is more than the limit has tokens; 2 are used"
        ]
    );
}

#[test]
fn beside_unlimited_they_have_no_effect() {
    let text = "domain: a
descriptors:
  - key: k
    rate_limit:
      unlimited: true
      unit_multiplier: 0
      algorithm: none
      burst: 0
      max_delay: 2m
      lease: {max: 0}
      shards: 0
      failure_mode: none
      charge_denied: false
";
    let loaded = compile(text);
    let found: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    let keys = [
        "6:24: 'unit_multiplier'",
        "7:18: 'algorithm'",
        "8:14: 'burst'",
        "9:18: 'max_delay'",
        "10:14: 'lease'",
        "11:15: 'shards'",
        "12:21: 'failure_mode'",
        "13:22: 'charge_denied'",
    ];
    assert_eq!(found, keys.map(|key| format!("a.yaml:{key} has no effect with 'unlimited'")));
    let silent =
        "domain: a\ndefaults: {algorithm: token_bucket, shards: 2, lease: off, charge_denied: off}
descriptors:
  - {key: k, rate_limit: {unlimited: true}}\n";
    let loaded = compile(silent);
    assert_eq!(loaded.warnings, []);
    let rule = find(&loaded.rules, "a", "k=1").unwrap();
    assert_eq!((rule.leasing, rule.flags.charge_denied), (Leasing::default(), true));
}

#[test]
fn a_path_is_taken_apart_wherever_its_dots_are() {
    let text = "domain: a.b\ndescriptors:\n- key: path\n  value: /x.pdf\n  descriptors:\n  - key: \
                user.id\n    rate_limit: {unit: day, requests_per_unit: 1}\n";
    let rules = compile(text).rules;
    let rule = rules.iter().next().unwrap();
    assert_eq!(&*rule.path, "a.b.path_/x.pdf.user.id");
    assert_eq!(rule.path_parts().collect::<Vec<_>>(), ["a.b", "path_/x.pdf", "user.id"]);
}
