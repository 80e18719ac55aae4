//! Rules that load but may not do what their author meant.

use super::*;

#[track_caller]
fn warns(text: &str, expected: &[&str]) {
    let found: Vec<_> = compile(text).warnings.iter().map(ToString::to_string).collect();
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(&format!("a.yaml:{expected}")), "{found}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn a_known_key_where_it_means_nothing() {
    warns(
        "domain: a
unit: day
descriptors:
  - key: k
    unlimited: true
    rate_limit:
      unit: day
      requests_per_unit: 1
      shadow_mode: true
      metadata: {any: thing}
",
        &[
            "2:1: 'unit' has no effect here; it belongs to 'rate_limit'",
            "5:5: 'unlimited' has no effect here; it belongs to 'rate_limit'",
            "9:7: 'shadow_mode' has no effect here; it belongs to a descriptor",
            "10:7: 'metadata' has no effect here; it belongs to a descriptor",
        ],
    );
}

#[test]
fn the_content_of_a_misplaced_key_is_checked() {
    let text = "domain: a
rate_limit: {units: day, value: 1.5, replaces: [x]}
";
    let found = refusal(&[source(text)], NO_MERGE);
    assert!(found[0].starts_with("a.yaml:2:14: unknown key 'units'"), "{found:#?}");
    assert!(found[1].starts_with("a.yaml:2:33: error checking config"), "{found:#?}");
    assert!(
        found[2].starts_with("a.yaml:2:49: yaml file contains list of type other"),
        "{found:#?}"
    );
}

#[test]
fn a_flag_on_a_descriptor_without_limit() {
    warns(
        "domain: a
descriptors:
  - {key: k, shadow_mode: true, quota_mode: off, metadata: {a: b}}
",
        &["3:27: 'shadow_mode' has no effect", "3:60: 'metadata' has no effect"],
    );
}

#[test]
fn a_duplicate_key_of_which_the_last_counts() {
    let text = "domain: b
domain: a
descriptors:
  - key: k
    rate_limit: {unit: day, unit: hour, requests_per_unit: 1}
    metadata: {a: 1, a: 2}
";
    warns(
        text,
        &[
            "2:1: duplicate key 'domain'; it replaces the one of line 1",
            "5:29: duplicate key 'unit'",
            "6:22: duplicate key 'a'",
        ],
    );
    let rules = compile(text).rules;
    assert_eq!(allowed(&rules, "a", "k=1"), "1 HOUR");
    assert_eq!(find(&rules, "a", "k=1").unwrap().metadata.as_ref().unwrap()["a"], 2);
}

#[test]
fn a_merge_key_that_replaces_an_earlier_key() {
    let text = "domain: a
descriptors:
  - &base {key: k, rate_limit: &limit {unit: day, requests_per_unit: 1}}
  - key: l
    rate_limit: {unit: hour, <<: *limit}
  - {key: m, rate_limit: {<<: *limit, unit: hour}}
";
    warns(text, &["5:18: the '<<' below replaces this 'unit'; put '<<' first in its map"]);
    let rules = compile(text).rules;
    assert_eq!(allowed(&rules, "a", "l=1"), "1 DAY"); // as yaml.v2 has it
    assert_eq!(allowed(&rules, "a", "m=1"), "1 HOUR");
}

#[test]
fn limits_that_look_like_slips() {
    warns(
        r#"domain: a
descriptors:
  - {key: k, rate_limit: {unit: day}}
  - {key: l, rate_limit: {unlimited: true, unit: foo}}
  - {key: m, rate_limit: {unit: day, requests_per_unit: 0, name: 'a"b\c'}}
"#,
        &[
            "3:26: no 'requests_per_unit': every request is denied; write 0 to mean that",
            "4:50: unit 'foo' has no effect with 'unlimited'",
            "5:66: name 'a\"b\\c' has a quote or backslash",
        ],
    );
}

#[test]
fn the_sample_rules_load_without_a_warning() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/rules");
    let loaded =
        load(&read_directory(&dir, Dotfiles::Skip, Endings::Yaml).unwrap().sources, NO_MERGE)
            .unwrap();
    assert_eq!(loaded.warnings, []);
    let table = [
        ("demo", "generic_key=demo", "1000 SECOND"),
        ("demo", "generic_key=demo remote_address=10.0.0.1", "100 MINUTE"),
        ("demo", "generic_key=hello", "5 MINUTE"),
        ("demo", "path=/limited", "10 MINUTE"),
        ("demo", "path=/", "none"),
        ("demo", "remote_address=10.0.0.1", "600 MINUTE"),
        ("shop", "user_id=7", "100 MINUTE"),
        ("shop", "user_id=monitoring", "unlimited"),
        ("shop", "path=/api/v1/search", "20 SECOND"),
        ("shop", "path=/doc/a.pdf", "1000 HOUR"),
        ("shop", "plan=free", "none"),
        ("shop", "plan=free user_id=7", "1000 DAY"),
        ("shop", "campaign=summer", "500 SECOND"),
        ("payments", "user_id=7", "100 MINUTE"),
        ("payments", "card=7", "10 HOUR"),
        ("payments", "upstream=bank", "10 SECOND"),
        ("payments", "generic_key=checkout", "50000 SECOND"),
    ];
    for (domain, descriptor, expected) in table {
        assert_eq!(allowed(&loaded.rules, domain, descriptor), expected, "{descriptor}");
    }
}
