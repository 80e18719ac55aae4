//! `ratectl test`.

use std::ffi::OsString;
use std::fs;

use serde_json::json;

use super::{files, root, run_in, run_reading};

const RULES: &str = "\
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 2}}
";

const CASES: &str = "\
rules: rules
domain: d
cases:
  - name: two an hour
    steps:
      - request: {descriptors: [{k: a}]}
        times: 2
        expect: {code: ok, rule: d.k, remaining: 0}
      - at: 59m59s
        request: {descriptors: [{k: a}]}
        expect: {code: over_limit}
      - at: 1h
        request: {descriptors: [{k: a}]}
        expect: {code: ok, remaining: 1}
";

#[test]
fn the_cases_of_the_repository_hold() {
    let files = fs::read_dir(root().join("tests/rules/cases")).unwrap();
    let mut args = vec![OsString::from("test")];
    args.extend(files.map(|file| file.unwrap().path().into_os_string()));
    assert!(args.len() > 1, "no file of cases");
    let ran = run_in(root(), &args, &[]);
    assert!(ran.ended(0).out.ends_with(": 0 failed\n"), "{}", ran.out);
}

#[test]
fn rules_are_found_from_the_file_of_cases() {
    let dir = files(&[("x/rules/d.yaml", RULES), ("x/cases.yaml", CASES)]);
    let ran = run_in(dir.path(), &["test", "x/cases.yaml"], &[]);
    assert_eq!((&*ran.out, ran.status), ("1 case in 1 file: 0 failed\n", 0));
}

#[test]
fn from_standard_input_rules_are_found_from_here() {
    let dir = files(&[("rules/d.yaml", RULES), ("x/cases.yaml", CASES)]);
    let ran = run_reading(dir.path(), &["test", "-"], "x/cases.yaml");
    assert_eq!(ran.ended(0).out, "1 case in 1 file: 0 failed\n");
}

#[test]
fn each_failed_expectation_is_reported_with_its_place() {
    let wrong = CASES.replace("59m59s", "1h").replace("remaining: 0", "remaining: 1");
    let dir = files(&[("rules/d.yaml", RULES), ("cases.yaml", &wrong)]);
    let ran = run_in(dir.path(), &["test", "cases.yaml"], &[]);
    let expected = "\
cases.yaml:8:50: failed: two an hour, time 2: expected remaining 1, got 0
cases.yaml:11:24: failed: two an hour: expected code over_limit, got ok
cases.yaml:14:39: failed: two an hour: expected remaining 1, got 0
1 case in 1 file: 1 failed
";
    assert_eq!(ran.ended(1).out, expected);
    let report = run_in(dir.path(), &["test", "--json", "cases.yaml"], &[]).ended(1).json();
    let failure = &report["files"][0]["failures"][1];
    assert_eq!((&failure["line"], &failure["got"]), (&json!(11), &json!("ok")));
    assert_eq!(report["passed"], false);
}

#[test]
fn a_faulty_file_of_cases_or_rules_ends_with_2_and_all_its_places() {
    let wrong = CASES.replace("times:", "tims:").replace("code: ok, rule", "cod: ok, rule");
    let dir = files(&[
        ("rules/d.yaml", RULES),
        ("cases.yaml", &wrong),
        ("bad/d.yaml", "domain: d\nx: y\n"),
        ("norules.yaml", &CASES.replace("rules: rules", "rules: bad")),
        ("good.yaml", CASES),
    ]);
    let ran = run_in(dir.path(), &["test", "cases.yaml", "good.yaml"], &[]);
    assert!(
        ran.ended(2).err.contains("cases.yaml:7:9: a step has no 'tims'; did you mean 'times'?")
    );
    assert!(ran.err.contains("cases.yaml:8:18: an expectation has no 'cod'"), "{}", ran.err);
    assert_eq!(ran.out, "1 case in 1 file: 0 failed\n", "the other file was played");
    let report = run_in(dir.path(), &["test", "cases.yaml", "good.yaml", "--json"], &[]).json();
    assert_eq!(
        (&report["passed"], &report["files"][0]["file"]),
        (&json!(false), &json!("good.yaml"))
    );
    assert!(report["troubles"][0].as_str().is_some_and(|text| text.contains("cases.yaml:7:9: ")));
    let ran = run_in(dir.path(), &["test", "norules.yaml"], &[]);
    assert!(ran.ended(2).err.contains("norules.yaml: the rules are faulty"), "{}", ran.err);
    assert_eq!(run_in(dir.path(), &["test", "gone.yaml"], &[]).ended(2).out, "");
    run_in(dir.path(), &["test", "rules"], &[]).ended(2);
    run_in(dir.path(), &["test"], &[]).ended(2);
}

#[test]
fn the_largest_amounts_are_counted_to_the_hit() {
    let rules = RULES.replace("requests_per_unit: 2", "requests_per_unit: 9007199254740991");
    let cases = CASES
        .replace("[{k: a}]}\n        times: 2", "[{k: a}], hits: 9007199254740989}")
        .replace("remaining: 0", "remaining: 2")
        .replace(
            "[{k: a}]}\n        expect: {code: over_limit}",
            "[{k: a}], hits: 3}\n        expect: {code: over_limit}",
        )
        .replace("remaining: 1", "remaining: 9007199254740990");
    let dir = files(&[("rules/d.yaml", &rules), ("cases.yaml", &cases)]);
    let ran = run_in(dir.path(), &["test", "cases.yaml"], &[]);
    assert_eq!((&*ran.out, ran.status), ("1 case in 1 file: 0 failed\n", 0));
    let ran = run_in(dir.path(), &["explain", "--domain", "d", "k=a", "--rules", "rules"], &[]);
    let allows = "allows      9007199254740991 requests in each window of one hour";
    assert!(ran.ended(0).out.contains(allows), "{}", ran.out);
}
