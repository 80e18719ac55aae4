//! Tests of the differences between two texts of rules.

use ratelease_rules::{Options, Source, StoreNames, load};
use serde_json::json;

use super::*;

fn rules(descriptors: &str) -> Rules {
    let text = format!("domain: d\ndescriptors:\n{descriptors}").into_bytes();
    load(&[Source { name: "d.yaml".into(), text }], Options::default()).expect("good rules").rules
}

/// Returns the one change between `key: k` with these two limits.
#[track_caller]
fn change(old: &str, new: &str) -> (Vec<String>, CountChange) {
    let rule = |limit: &str| rules(&format!("  - {{key: k, rate_limit: {{{limit}}}}}\n"));
    let old = rule(old);
    let new = rule(new);
    let diff = compare(&old, &new);
    let [change] = diff.changed.as_slice() else { panic!("{diff:?}") };
    let shown = |(name, from, to): &(&str, Value, Value)| format!("{name}: {from} {to}");
    (change.settings.iter().map(shown).collect(), change.counts)
}

#[test]
fn amounts_keep_the_counts_and_windows_and_algorithms_restart_them() {
    let ten = "unit: minute, requests_per_unit: 10";
    for (new, settings, counts) in [
        (
            "unit: minute, requests_per_unit: 20",
            &["requests_per_unit: 10 20"][..],
            CountChange::Kept,
        ),
        ("unit: hour, requests_per_unit: 10", &["unit: \"minute\" \"hour\""], CountChange::Restart),
        (
            "unit: minute, unit_multiplier: 5, requests_per_unit: 10",
            &["unit_multiplier: 1 5"],
            CountChange::Restart,
        ),
        (
            "unit: minute, requests_per_unit: 10, algorithm: token_bucket",
            &["algorithm: \"fixed_window\" \"token_bucket\"", "burst: null 10"],
            CountChange::Restart,
        ),
        ("unit: minute, requests_per_unit: 10, shards: 4", &["shards: 1 4"], CountChange::Kept),
        (
            "unit: minute, requests_per_unit: 10, failure_mode: deny",
            &["failure_mode: \"local\" \"deny\""],
            CountChange::Kept,
        ),
    ] {
        let (found, kept) = change(ten, new);
        assert_eq!((found.as_slice(), kept), (&settings.map_to_owned()[..], counts), "{new}");
    }
    // 60 seconds are a minute: the window is the same, whichever unit it is written in.
    let seconds = "unit: second, unit_multiplier: 60, requests_per_unit: 10";
    assert_eq!(change(ten, seconds).1, CountChange::Kept);
    assert_eq!(change(ten, "unlimited: true").1, CountChange::End);
    assert_eq!(change("unlimited: true", ten).1, CountChange::Begin);
}

#[test]
fn a_change_of_shards_keeps_the_counts_and_says_how_many_pools_go() {
    let rule = |shards: u8| format!("unit: minute, requests_per_unit: 100, shards: {shards}");
    for (old, new, expected) in [
        (1, 4, CountChange::Kept),
        (4, 8, CountChange::Kept),
        (8, 3, CountChange::KeptWithoutPools(5)),
        (4, 1, CountChange::KeptWithoutPools(4)),
    ] {
        assert_eq!(change(&rule(old), &rule(new)).1, expected, "{old} to {new}");
    }
}

/// Lets tables hold literals.
trait MapToOwned {
    fn map_to_owned(&self) -> Vec<String>;
}

impl MapToOwned for &[&str] {
    fn map_to_owned(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[test]
fn sharing_a_count_restarts_it() {
    let rule = |more: &str| {
        rules(&format!(
            "  - {{key: k, value: \"a*\", {more}rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
        ))
    };
    let old = rule("");
    let new = rule("share_threshold: true, ");
    let diff = compare(&old, &new);
    assert_eq!(diff.changed[0].counts, CountChange::Restart);
    assert_eq!(diff.changed[0].settings[0].0, "share_threshold");
}

#[test]
fn another_store_restarts_the_counts() {
    let with = |store: &str| {
        let text = format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 1, \
             store: {store}}}}}]\n"
        );
        let source = Source { name: "d.yaml".into(), text: text.into_bytes() };
        let stores = StoreNames::parse("premium").expect("a name");
        load(&[source], Options { stores, ..Options::default() }).expect("good rules").rules
    };
    let old = with("default");
    let new = with("premium");
    let diff = compare(&old, &new);
    assert_eq!(diff.changed[0].counts, CountChange::Restart);
    assert_eq!(diff.changed[0].settings, [("store", json!("default"), json!("premium"))]);
}

#[test]
fn rules_come_and_go_by_their_paths() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let old = rules(&format!("  - {{key: a, {limit}}}\n  - {{key: b, {limit}}}\n"));
    let new = rules(&format!("  - {{key: b, {limit}}}\n  - {{key: c, {limit}}}\n"));
    let diff = compare(&old, &new);
    let paths =
        |rules: &[&Rule]| rules.iter().map(|rule| rule.path.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (paths(&diff.removed), paths(&diff.added)),
        (vec!["d.a".into()], vec!["d.c".into()])
    );
    assert_eq!((diff.changed.len(), diff.same), (0, 1));
    assert!(compare(&old, &old).is_empty());
}

#[test]
fn the_order_of_patterns_is_a_difference_and_that_of_other_nodes_is_none() {
    let write = |values: &[&str]| {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        let node = |value: &&str| format!("  - {{key: k, value: \"{value}\", {limit}}}\n");
        rules(&values.iter().map(node).collect::<String>())
    };
    let old = write(&["a*", "*b", "x", "y"]);
    assert!(compare(&old, &write(&["y", "a*", "x", "*b"])).is_empty());
    let new = write(&["*b", "new*", "a*", "x", "y"]);
    let diff = compare(&old, &new);
    assert_eq!(diff.reordered, [("d".to_owned(), vec!["k_*b".to_owned(), "k_a*".to_owned()])]);
    assert_eq!(diff.added.len(), 1);
}
