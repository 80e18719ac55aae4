//! Tests of the places of rules.

use super::*;

/// Returns the place of each rule of `texts`, which are files `a.yaml`, `b.yaml` and so on.
fn places(texts: &[&str]) -> Vec<(String, String)> {
    let sources: Vec<Source> = ('a'..)
        .zip(texts)
        .map(|(name, text)| Source { name: format!("{name}.yaml"), text: text.as_bytes().into() })
        .collect();
    let (loaded, places) = load_with_locations(&sources, MERGE).unwrap();
    let place = |rule: &Arc<Rule>| {
        let written = places.of(&rule.path).expect("every rule is written somewhere");
        (rule.path.to_string(), written.to_string())
    };
    loaded.rules.iter().map(place).collect()
}

#[track_caller]
fn check(texts: &[&str], expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(path, at)| ((*path).into(), (*at).into())).collect();
    assert_eq!(places(texts), expected);
}

#[test]
fn a_rule_is_where_its_descriptor_begins() {
    let text = "\
domain: d
descriptors:
  - value: free   # the order of keys is no matter
    key: plan
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
  - {key: x, rate_limit: {unlimited: true}}
  -
    # a remark
    key: y
    rate_limit: {unlimited: true}
";
    let expected =
        [("d.plan_free.user", "a.yaml:6:9"), ("d.x", "a.yaml:8:5"), ("d.y", "a.yaml:11:5")];
    check(&[text], &expected);
}

#[test]
fn files_that_add_up_to_one_domain_keep_their_names() {
    let text = |key: &str| {
        format!("domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unlimited: true}}}}]\n")
    };
    let (a, b) = (text("x"), format!("# b\n{}", text("y")));
    check(&[&a, &b], &[("d.x", "a.yaml:2:15"), ("d.y", "b.yaml:3:15")]);
}

#[test]
fn two_rules_with_one_path_get_different_paths() {
    let text = "\
domain: d
descriptors:
  - {key: a, value: b_c, rate_limit: {unlimited: true}}
  - {key: a_b, value: c, rate_limit: {unlimited: true}}
";
    check(&[text], &[("d.a_b_c", "a.yaml:3:5"), ("d.a_b_c#2", "a.yaml:4:5")]);
}

#[test]
fn a_rule_by_merge_key_is_where_it_merges_and_one_by_alias_where_that_leads() {
    let text = "\
domain: d
descriptors:
  - &base {key: a, value: x, rate_limit: {unlimited: true}}
  - <<: *base
    value: y
  - key: b
    descriptors: [*base]
";
    let expected = [("d.a_x", "a.yaml:3:5"), ("d.a_y", "a.yaml:4:5"), ("d.b.a_x", "a.yaml:3:5")];
    check(&[text], &expected);
    assert!(load_with_locations(&[], MERGE).unwrap().1.of("d.a_x").is_none());
}
