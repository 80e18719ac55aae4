//! `ratelease check`.

use std::process::Command;

use serde_json::json;

use super::{files, root, run_in, run_reading};
use crate::support::ratectl::ratectl;

const BAD: &str = "\
domain: d
descriptors:
  - key: a
    rate_limits: {unit: hour, requests_per_unit: 5}
  - key: b
    rate_limit: {unit: fortnight, requests_per_unit: 5}
  - key: c
    shadow_mode: true
";

#[test]
fn good_rules_are_counted() {
    let ran = run_in(root(), &["check"], &[]);
    let out = "4 files: 22 rules in 4 domains, 0 faults, 0 warnings\n";
    assert_eq!((ran.status, &*ran.out, &*ran.err), (0, out, ""));
    let ran = run_in(root(), &["check", "config/rules/demo.yaml"], &[]);
    assert_eq!(ran.out, "1 file: 5 rules in 1 domain, 0 faults, 0 warnings\n");
}

#[test]
fn rule_files_given_to_the_check_of_envoys_are_sent_to_the_other_program() {
    let check = |args: &[&str]| {
        let ran = Command::new(ratectl()).arg("check").args(args).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    for args in [&["config/rules"][..], &["--rules", "config/rules"], &["--rules=config/rules"]] {
        let (code, err) = check(args);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("to check rule files: ratelease check config/rules"), "{err}");
    }
    for args in [&["--rules", "--help"][..], &["--rules="], &["--json"]] {
        let (_, err) = check(args);
        assert!(!err.contains("ratelease check"), "{args:?}: {err}");
    }
}

#[test]
fn the_directory_is_the_one_that_serve_would_take() {
    let dir = files(&[("data/sub/config/a.yaml", "domain: d\n")]);
    let env = [("RUNTIME_ROOT", "data"), ("RUNTIME_SUBDIRECTORY", "sub")];
    let ran = run_in(dir.path(), &["check"], &env);
    assert_eq!(ran.ended(0).out, "1 file: 0 rules in 1 domain, 0 faults, 0 warnings\n");
}

#[test]
fn every_fault_has_its_line_and_a_caret_under_its_place() {
    let dir = files(&[("bad.yaml", BAD), ("worse.yaml", "domain: [\n")]);
    let ran = run_in(dir.path(), &["check", "bad.yaml", "worse.yaml"], &[]);
    let lines: Vec<&str> = ran.ended(1).out.lines().collect();
    assert!(lines[0].starts_with("bad.yaml:4:5: error: "), "{}", ran.out);
    assert!(lines[0].contains("rate_limits") && lines[0].contains("did you mean"), "{}", ran.out);
    assert_eq!(lines[1], "     4 |     rate_limits: {unit: hour, requests_per_unit: 5}");
    assert_eq!(lines[2], "       |     ^");
    assert!(lines[3].starts_with("bad.yaml:6:24: error: invalid rate limit unit"), "{}", ran.out);
    assert_eq!(lines[5].find('^').unwrap(), lines[4].find("fortnight").unwrap());
    assert!(lines[6].starts_with("bad.yaml:8:18: warning: "), "{}", ran.out);
    assert!(lines[9].starts_with("worse.yaml:"), "{}", ran.out);
    let last = "2 files: 3 faults, 1 warning; none of the rules would load";
    assert_eq!(lines.last(), Some(&last));
}

#[test]
fn json_and_annotations_say_the_same() {
    let dir = files(&[("a,b%.yaml", BAD)]);
    for args in [&["check", "--json", "."][..], &["check", "--format", "json", "."]] {
        let report = run_in(dir.path(), args, &[]).ended(1).json();
        assert_eq!((&report["errors"], &report["warnings"]), (&json!(2), &json!(1)));
        assert_eq!(report["loads"], false);
        let finding = &report["findings"][1];
        assert_eq!((&finding["line"], &finding["column"]), (&json!(6), &json!(24)));
        assert_eq!(finding["file"], "./a,b%.yaml");
    }
    let ran = run_in(dir.path(), &["check", "--format", "github", "."], &[]);
    let lines: Vec<&str> = ran.ended(1).out.lines().collect();
    assert!(lines[0].starts_with("::error file=a%2Cb%25.yaml,line=4,col=5::"), "{}", ran.out);
    assert!(lines[2].starts_with("::warning file=a%2Cb%25.yaml,line=8,col=18::"), "{}", ran.out);
}

#[test]
fn warnings_are_findings_on_request() {
    let dir = files(&[("a.yaml", "domain: d\ndescriptors:\n  - {key: a, shadow_mode: true}\n")]);
    run_in(dir.path(), &["check", "a.yaml"], &[]).ended(0);
    run_in(dir.path(), &["check", "--strict", "a.yaml"], &[]).ended(1);
}

#[test]
fn files_that_a_pod_leaves_out_are_findings_on_request() {
    let dir = files(&[("a.yaml", "domain: d\n"), ("b.json", "{\"domain\": \"e\"}")]);
    for (args, status) in [(&["check", "."][..], 0), (&["check", "--strict", "."], 1)] {
        let ran = run_in(dir.path(), args, &[]);
        assert!(ran.ended(status).out.contains("./b.json:1:1: warning: "), "{}", ran.out);
    }
}

#[test]
fn two_files_of_one_domain_are_a_fault_unless_they_may_add_up() {
    let dir = files(&[("a.yaml", "domain: d\n"), ("b.yaml", "domain: d\n")]);
    let ran = run_in(dir.path(), &["check", "."], &[]);
    assert!(ran.ended(1).out.contains("./b.yaml:1:9: error: duplicate domain 'd'"), "{}", ran.out);
    run_in(dir.path(), &["check", "."], &[("MERGE_DOMAIN_CONFIG", "true")]).ended(0);
    run_in(dir.path(), &["check", "--merge-domain-configs", "."], &[]).ended(0);
}

#[test]
fn standard_input_is_checked_too() {
    let dir = files(&[("bad.yaml", BAD), ("other.yaml", "domain: e\n")]);
    let ran = run_reading(dir.path(), &["check", "other.yaml", "-"], "bad.yaml");
    assert!(ran.ended(1).out.starts_with("standard input:4:5: error: "), "{}", ran.out);
    assert!(ran.out.contains("     4 |     rate_limits:"), "{}", ran.out);
    assert!(ran.out.contains("\n2 files: 2 faults, 1 warning"), "{}", ran.out);
}

#[test]
fn what_cannot_be_read_ends_with_2() {
    let dir = files(&[("a.txt", "domain: d\n")]);
    let ran = run_in(dir.path(), &["check", "gone.yaml"], &[]);
    assert!(ran.ended(2).err.starts_with("ratelease check: gone.yaml: does not exist"));
    let ran = run_in(dir.path(), &["check", "."], &[]);
    assert!(ran.ended(2).err.contains("no rule files; their names"), "{}", ran.err);
    let ran = run_in(dir.path(), &["check", "--merge-domain-config=perhaps", "a.txt"], &[]);
    assert!(ran.ended(2).err.contains("MERGE_DOMAIN_CONFIG: expected true or false"));
    run_in(dir.path(), &["check", "a.txt"], &[]).ended(0);
}

#[test]
fn a_hostile_file_steers_no_terminal() {
    let text = "domain: d\ndescriptors:\n  - key: \"\u{202e}a\u{200b}\"\n    kee: 1 # \u{9f}\n";
    let long = format!("domain: d\ndescriptors: [{}{{kee: b}}]\n", "{key: a},".repeat(100_000));
    let dir = files(&[("a\u{1b}[2J.yaml", text), ("long.yaml", &long)]);
    let ran = run_in(dir.path(), &["check", "."], &[]);
    let hostile = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{200b}');
    assert!(!ran.ended(1).out.contains(hostile), "{:?}", ran.out);
    assert!(ran.out.contains(r"a\u{1b}[2J.yaml:"), "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.chars().count() < 400), "a line was not cut");
}
