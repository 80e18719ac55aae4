//! The hold of a rule: its terms, the level that is the id, and the settlement.

use std::time::Duration;

use super::*;
use crate::request::Descriptor;

/// A rule file with a limit whose `rate_limit` ends with this, below a level `user`.
fn below_user(level: &str, more: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: user\n  descriptors:\n  - {{{level}, rate_limit: {{unit: \
         minute, requests_per_unit: 9, {more}}}}}\n"
    )
}

fn rule(level: &str, more: &str) -> Rule {
    let loaded = compile(&below_user(level, more));
    (**loaded.rules.iter().next().unwrap()).clone()
}

/// The message of the only fault.
#[track_caller]
fn fault(level: &str, more: &str) -> String {
    let faults = refusal(&[source(&below_user(level, more))], NO_MERGE);
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults[0].clone()
}

#[test]
fn a_hold_says_its_level_how_long_it_lasts_and_what_becomes_of_it() {
    let cases = [
        ("hold: {for: 2m}", (1, 120, UnlessSettled::Keep)),
        ("hold: {for: 1s, unless_settled: Release}", (1, 1, UnlessSettled::Release)),
        ("hold: {by: id, for: 24h, unless_settled: keep}", (1, 86_400, UnlessSettled::Keep)),
        ("hold: {by: user, for: 1m30s}", (0, 90, UnlessSettled::Keep)),
    ];
    for (more, (level, seconds, unless_settled)) in cases {
        let hold = Hold::new(level, Duration::from_secs(seconds), unless_settled);
        assert_eq!(rule("key: id", more).hold, Some(hold), "{more}");
        assert_eq!(hold.lasts(), Duration::from_secs(seconds));
    }
    assert_eq!(rule("key: id", "").hold, None);
}

#[test]
fn each_fault_of_a_hold_names_its_place_and_a_remedy() {
    let cases = [
        ("key: id", "hold: {}", "'hold' has no 'for'; add how long a request may last"),
        ("key: id", "hold: {for: 0s}", "'for' must be from 1s to 24h, found 0ns"),
        ("key: id", "hold: {for: 8760h}", "'for' must be from 1s to 24h, found 31536000s"),
        ("key: id", "hold: {for: 5}", "'for' must be a duration with its unit, such as 2m"),
        ("key: id", "hold: 2m", "'hold' must be a map such as {for: 2m}, found the text '2m'"),
        ("key: id", "hold: {fore: 2m, for: 2m}", "unknown key 'fore'; expected one of by, for,"),
        (
            "key: id",
            "hold: {by: usr, for: 2m}",
            "no level of this rule has the key 'usr'; did you mean 'user'?",
        ),
        (
            "key: id",
            "hold: {for: 2m, unless_settled: keeps}",
            "unknown end of a hold 'keeps'; expected one of keep, release; did you mean 'keep'?",
        ),
        ("key: id, value: a", "hold: {for: 2m}", "cannot be the id of a request: it has a value"),
        ("key: id, value: a", "hold: {by: id, for: 2m}", "the level 'id_a' cannot be the id"),
        ("key: id, value: a*", "hold: {for: 2m}", "it has a wildcard; name a level that"),
        ("key: i*", "hold: {for: 2m}", "it has a wildcard"),
        (
            "key: id, value: a*, share_threshold: true",
            "hold: {for: 2m}",
            "cannot be the id of a request: it has a wildcard",
        ),
        ("key: id, value_to_metric: true", "hold: {for: 2m}", "it has 'value_to_metric'"),
        (
            "key: id",
            "algorithm: leaky_bucket, hold: {for: 2m}",
            "'hold' cannot be used with leaky_bucket, which hands out slots, which end before a \
             request does; remove it, or use one of fixed_window, token_bucket, sliding_window",
        ),
        ("key: id", "algorithm: sliding_log, hold: {for: 2m}", "which keeps the time of each"),
        ("key: id", "hold: {for: 2m}, settle: true", "'settle' has no effect with 'hold', whose"),
    ];
    for (level, more, expected) in cases {
        let fault = fault(level, more);
        assert!(fault.starts_with("a.yaml:5:"), "{fault}");
        assert!(fault.contains(expected), "{more}: {fault}");
    }
}

#[test]
fn all_faults_of_a_hold_are_told_at_once() {
    let more = "algorithm: sliding_log, hold: {by: ip, for: 0s, unless_settled: lose}";
    let faults = refusal(&[source(&below_user("key: id", more))], NO_MERGE);
    assert_eq!(faults.len(), 4, "{faults:#?}");
}

#[test]
fn defaults_that_settle_do_not_change_what_is_held() {
    let text = below_user("key: id", "hold: {for: 2m}").replace(
        "descriptors:\n- key: user",
        "defaults: {settle: true}\ndescriptors:\n- key: user",
    );
    let loaded = compile(&text);
    let rule = loaded.rules.iter().next().unwrap();
    assert!(rule.hold.is_some() && !rule.flags.settle);
}

#[test]
fn a_hold_is_of_one_rule_and_not_of_the_defaults() {
    let text = "domain: d\ndefaults: {hold: {for: 2m}}\n";
    let found = refusal(&[source(text)], NO_MERGE);
    assert_eq!(found, ["a.yaml:2:12: 'hold' cannot stand here; it belongs to 'rate_limit'"]);
}

#[test]
fn a_denied_estimate_spends_nothing_unless_the_file_says_so() {
    let charges = |more: &str| rule("key: id", more).flags.charge_denied;
    assert!(charges(""));
    assert!(!charges("hold: {for: 2m}"));
    assert!(charges("hold: {for: 2m}, charge_denied: true"));
    let written = |more: &str| {
        let options = rule("key: id", more).options(&StoreNames::NONE);
        let option = options.into_iter().find(|it| it.name == "charge_denied").unwrap();
        (option.written, option.is_default)
    };
    assert_eq!(written("hold: {for: 2m}"), ("false".to_owned(), true));
    assert_eq!(written("hold: {for: 2m}, charge_denied: true"), ("true".to_owned(), false));
}

#[test]
fn a_hold_is_shown_as_a_rule_file_may_write_it() {
    let text = "hold: {by: id, for: 90s, unless_settled: release}";
    let held = rule("key: id", text);
    let options = held.options(&StoreNames::NONE);
    let option = options.into_iter().find(|it| it.name == "hold").unwrap();
    assert_eq!(option.written, r#"{by: "id", for: 90s, unless_settled: release}"#);
    assert_eq!(rule("key: id", &format!("hold: {}", option.written)).hold, held.hold);
}

/// The ids of requests would make a metric of each.
#[test]
fn the_id_is_no_part_of_a_stats_key() {
    for level in ["key: id", "key: id, detailed_metric: true"] {
        let rule = rule(level, "hold: {for: 2m}");
        let name = |id: &str| rule.stats_key("d", &entries(&format!("user=u id={id}")));
        assert_eq!(name("1"), name("2"), "{level}");
        assert!(!rule.varies_at(1));
        let settlement = entries("user=u id=1 ratelease.settle=1");
        assert_eq!(rule.stats_key("d", &settlement), name("1"), "a settlement has the same name");
    }
}

fn descriptor(text: &str) -> Descriptor<'_> {
    Descriptor { entries: entries(text).into_iter().collect(), ..Descriptor::default() }
}

#[test]
fn the_last_entry_settles_what_the_entries_before_it_charge() {
    let text = "domain: d\ndescriptors:\n- {key: plain, rate_limit: {unit: day, \
                requests_per_unit: 1, settle: true}}\n- {key: other, rate_limit: {unit: day, \
                requests_per_unit: 1}}\n- {key: own, descriptors: [{key: ratelease.settle, \
                rate_limit: {unit: day, requests_per_unit: 2}}], rate_limit: {unit: day, \
                requests_per_unit: 3}}\n- {key: path}\n";
    let rules = compile(text).rules;
    let charged = |text: &str| {
        let descriptor = descriptor(text);
        let Charged { lookup, entries, settles } = rules.charged("d", &descriptor);
        let path = match lookup {
            Lookup::Rule(rule) => rule.path.to_string(),
            _ => "none".to_owned(),
        };
        (path, entries.len(), settles)
    };
    assert_eq!(charged("plain=a"), ("d.plain".to_owned(), 1, false));
    assert_eq!(charged("plain=a ratelease.settle=1"), ("d.plain".to_owned(), 1, true));
    assert_eq!(charged("plain=a ratelease.settle="), ("d.plain".to_owned(), 1, true));
    assert_eq!(charged("other=a ratelease.settle=1"), ("none".to_owned(), 2, false));
    let own = "d.own.ratelease.settle".to_owned();
    assert_eq!(charged("own=a ratelease.settle=1"), (own, 2, false), "the file names the key");
    assert_eq!(charged("path=a ratelease.settle=1"), ("none".to_owned(), 2, false));
    assert_eq!(charged("ratelease.settle=1"), ("none".to_owned(), 1, false));
    assert_eq!(charged("ratelease.settle=1 plain=a"), ("none".to_owned(), 2, false));
    let twice = "plain=a ratelease.settle=1 ratelease.settle=1";
    assert_eq!(charged(twice), ("none".to_owned(), 3, false), "only one ends a descriptor");
}

#[test]
fn a_settlement_of_an_override_counts_where_its_start_did() {
    let rules = compile("domain: d\ndescriptors: [{key: path}]\n").rules;
    let limit = Some(Limit::fixed_window(5, Unit::Day));
    let descriptor = Descriptor { limit, ..descriptor("path=a ratelease.settle=1") };
    let Charged { entries, settles, .. } = rules.charged("d", &descriptor);
    assert_eq!((entries.len(), settles), (1, true));
    let Charged { entries, settles, .. } = rules.charged("other", &descriptor);
    assert_eq!((entries.len(), settles), (2, false), "an unknown domain has no limits");
}

#[test]
fn by_names_a_level_by_its_whole_key() {
    let yaml = "domain: d\ndescriptors:\n- key: user\n  descriptors:\n  - key: user_tier\n    rate_limit: \
                {unit: minute, requests_per_unit: 9, hold: {by: user, for: 2m}}\n";
    let loaded = compile(yaml);
    let rule = loaded.rules.iter().next().unwrap();
    let hold = Hold::new(0, Duration::from_secs(120), UnlessSettled::Keep);
    assert_eq!(rule.hold, Some(hold), "`user` is the first level, not `user_tier`");
}
