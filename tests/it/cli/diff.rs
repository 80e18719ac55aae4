//! `ratectl diff`.

use serde_json::json;

use super::{files, root, run_in, run_reading};

const OLD: &str = "\
domain: d
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 10}}
";

const NEW: &str = "\
domain: d
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: e, rate_limit: {unit: minute, requests_per_unit: 10}}
";

#[test]
fn each_change_is_reported_with_its_effect_on_counts() {
    let dir = files(&[("old.yaml", OLD), ("new.yaml", NEW)]);
    let ran = run_in(dir.path(), &["diff", "old.yaml", "new.yaml"], &[]);
    let expected = "\
- d.c
    at old.yaml:5:5
    allowed 10 requests in each window of one minute, aligned to the Unix epoch
+ d.e
    at new.yaml:5:5
    allows 10 requests in each window of one minute, aligned to the Unix epoch
~ d.a
    at new.yaml:3:5, was at old.yaml:3:5
    requests_per_unit: 10 → 20
    counts are kept
~ d.b
    at new.yaml:4:5, was at old.yaml:4:5
    unit: minute → hour
    counts restart: up to twice the limit is admitted in the window of the change
1 removed, 1 added, 2 changed (1 restarts its counts), 0 the same
";
    assert_eq!(ran.ended(1).out, expected);
    let report = run_in(dir.path(), &["diff", "--json", "old.yaml", "new.yaml"], &[]).json();
    assert_eq!(report["changed"][1]["counts"], "restart");
    let setting = json!({ "name": "unit", "from": "minute", "to": "hour" });
    assert_eq!(report["changed"][1]["settings"], json!([setting]));
    let place = |file: &str| json!({ "file": file, "line": 4, "column": 5 });
    let places = json!({ "from": place("old.yaml"), "to": place("new.yaml") });
    assert_eq!(report["changed"][1]["place"], places);
    assert_eq!(report["removed"][0]["place"]["line"], 5);
    assert_eq!(report["equal"], false);
}

#[test]
fn one_side_may_be_standard_input() {
    let dir = files(&[("old.yaml", OLD), ("new.yaml", NEW)]);
    let ran = run_reading(dir.path(), &["diff", "-", "new.yaml"], "old.yaml");
    assert!(ran.ended(1).out.contains("    at new.yaml:4:5, was at standard input:4:5\n"));
    let ran = run_reading(dir.path(), &["diff", "-", "-"], "old.yaml");
    assert!(ran.ended(2).err.contains("OLD and NEW cannot both be standard input"), "{}", ran.err);
}

#[test]
fn the_same_rules_in_other_files_are_no_difference() {
    let copy = std::fs::read_to_string(root().join("config/rules/shop.yaml")).unwrap();
    let dir = files(&[("rules/other.yaml", &format!("# a remark\n{copy}"))]);
    let old = root().join("config/rules/shop.yaml");
    let args = ["diff".as_ref(), old.as_os_str(), "rules".as_ref()];
    let ran = run_in(dir.path(), &args, &[]);
    assert_eq!(ran.ended(0).out, "0 removed, 0 added, 0 changed, 9 the same\n");
}

#[test]
fn faulty_or_missing_rules_end_with_2() {
    let dir = files(&[("old.yaml", OLD), ("bad.yaml", "domain: d\nx: y\n")]);
    let ran = run_in(dir.path(), &["diff", "old.yaml", "bad.yaml"], &[]);
    assert!(ran.ended(2).err.contains("bad.yaml:2:1: "), "{}", ran.err);
    run_in(dir.path(), &["diff", "old.yaml", "gone.yaml"], &[]).ended(2);
    run_in(dir.path(), &["diff", "old.yaml"], &[]).ended(2);
}
