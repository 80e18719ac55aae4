//! Tests with cases and rules, both as text.

use ratelease_rules::{Options, Source, load};

use super::*;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: k, value: free, rate_limit: {unlimited: true}}
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 60, burst: 2, algorithm: token_bucket}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}}
  - {key: slide, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}}
  - key: leak
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, max_delay: 150ms}
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
";

fn read(text: &str) -> Result<Suite, Vec<String>> {
    let source = Source { name: "cases.yaml".into(), text: text.into() };
    let shown = |fault: &Fault| fault.to_string();
    suite(&source).map_err(|faults| faults.iter().map(shown).collect())
}

/// Returns the failures of one case with these steps, one line each in flow style.
fn play(steps: &str) -> Vec<String> {
    let sources = [Source { name: "d.yaml".into(), text: RULES.into() }];
    let rules = load(&sources, Options::default()).expect("good rules").rules;
    let steps: String =
        steps.trim().lines().map(|step| format!("      - {{{}}}\n", step.trim())).collect();
    let text = format!("rules: x\ndomain: d\ncases:\n  - name: c\n    steps:\n{steps}");
    let suite = read(&text).unwrap_or_else(|faults| panic!("{text}\n{faults:?}"));
    let failures = suite.cases.iter().flat_map(|case| run_case(&rules, case));
    let shown = |f: Failure| {
        let time = f.time.map(|time| format!(" at time {time}")).unwrap_or_default();
        format!("{}: {} {} {}{time}", f.place.line - 5, f.what, f.expected, f.got)
    };
    failures.map(shown).collect()
}

#[track_caller]
fn holds(steps: &str) {
    assert_eq!(play(steps), [""; 0]);
}

#[test]
fn a_window_is_used_up_and_the_next_one_is_new() {
    holds(
        "request: {descriptors: [{k: a}]}, times: 3, expect: {code: ok, rule: d.k, remaining: 0}
         at: 59.999s, request: {descriptors: [{k: a}]}, expect: {code: over_limit, remaining: 0}
         request: {descriptors: [{k: b}]}, expect: {code: ok, remaining: 2}
         at: 60s, request: {descriptors: [{k: a}], hits: 2}, expect: {code: ok, remaining: 1}
         request: {descriptors: [{k: a}], hits: 0}, expect: {code: ok, remaining: 1}
         request: {descriptors: [{k: a}], hits: 2}, expect: {code: over_limit, remaining: 0}
         at: 240h, request: {descriptors: [{k: a}]}, expect: {code: ok, remaining: 2}",
    );
}

#[test]
fn each_algorithm_counts_as_its_own_arithmetic_does() {
    holds(
        "request: {descriptors: [{bucket: a}]}, times: 2, expect: {code: ok, rule: d.bucket}
         request: {descriptors: [{bucket: a}]}, expect: {code: over_limit}
         request: {descriptors: [{log: a}]}, expect: {code: ok, remaining: 1}
         at: 1s, request: {descriptors: [{leak: a}]}, times: 2, expect: {code: ok}
         at: 1s, request: {descriptors: [{leak: a}]}, times: 1, expect: {code: over_limit}
         at: 3s, request: {descriptors: [{bucket: a}]}, times: 2, expect: {code: ok}
         at: 30s, request: {descriptors: [{log: a}]}, expect: {code: ok, remaining: 0}
         at: 59s, request: {descriptors: [{log: a}]}, expect: {code: over_limit}
         request: {descriptors: [{slide: a}]}, times: 10, expect: {code: ok}
         at: 61s, request: {descriptors: [{slide: a}]}, expect: {code: over_limit}
         at: 90s, request: {descriptors: [{slide: a}]}, expect: {code: ok, remaining: 4}",
    );
}

#[test]
fn a_denied_request_spends_nothing_of_its_other_rules() {
    holds(
        "request: {descriptors: [{one: a}]}, expect: {code: ok, remaining: 0}
         request: {descriptors: [{k: a}, {one: a}]}, times: 5, expect: {code: over_limit, \
         descriptors: [{code: ok, remaining: 3}, {code: over_limit, rule: d.one}]}
         request: {descriptors: [{leak: a}, {one: a}]}, times: 50, expect: {code: over_limit}
         request: {descriptors: [{leak: a}]}, expect: {code: ok}
         request: {descriptors: [{k: a}]}, times: 3, expect: {code: ok}",
    );
}

#[test]
fn modes_and_the_lack_of_rules_are_seen() {
    holds(
        "request: {descriptors: [{shadow: a}]}, times: 9, expect: {code: ok, rule: d.shadow}
         request: {descriptors: [{nope: a}]}, expect: {code: ok, rule: none}
         request: {descriptors: [{nope: a}]}, expect: {rule: ~}
         request: {domain: other, descriptors: [{k: a}]}, expect: {code: ok, rule: none}
         request: {descriptors: [{k: free}]}, times: 99, expect: {code: ok, rule: d.k_free}",
    );
}

#[test]
fn an_unexpected_answer_is_reported_once_with_its_line() {
    let failures = play(
        "request: {descriptors: [{k: a}]}, times: 5, expect: {code: ok, rule: d.j, remaining: 1}
         request: {descriptors: [{k: b}, {one: a}]}, expect: {descriptors: [{}, {remaining: 7}]}",
    );
    let expected = [
        "1: rule d.j d.k at time 1",
        "1: code ok over_limit at time 4",
        "1: remaining 1 0 at time 5",
        "2: remaining of descriptor 2 7 0",
    ];
    assert_eq!(failures, expected);
}

#[test]
fn every_fault_of_a_file_is_reported_with_its_place() {
    let text = "
rule: x
domain: d
cases:
  - name: a
    steps:
      - {at: 5s, request: {descriptors: [{k: v}]}, expect: {code: fine}}
      - {at: 1s, request: {descriptors: [{k: v}]}, expect: {}}
      - {at: soon, request: {descriptors: []}, expext: {code: ok}}
      - {times: 0, request: {descriptors: [x], hits: -1}, expect: {code: ok}}
      - {request: {descriptors: [{k: v}, {k: w}]}, expect: {rule: d.k}}
      - {request: {descriptors: [{k: v}]}, expect: {descriptors: [{}, {}]}}
      - 7
  - steps: []
";
    let faults = read(text).unwrap_err();
    let table = [
        (2, "no 'rules'; add 'rules: …'"),
        (2, "a file of cases has no 'rule'; did you mean 'rules'?"),
        (7, "'code' is ok or over_limit, found 'fine'"),
        (8, "'at' is before the previous step"),
        (8, "nothing is expected"),
        (9, "'at' must be a duration such as 1m30s, found 'soon'"),
        (9, "'descriptors' is empty"),
        (9, "a step has no 'expext'; did you mean 'expect'?"),
        (9, "no 'expect'; add"),
        (10, "'times' must be from 1 to 1000000"),
        (10, "'hits' must be a whole number, found '-1'"),
        (11, "the request has several descriptors"),
        (12, "the request has 1 descriptors; expected as many, found 2"),
        (13, "a step is a map with at, request, times, expect; found '7'"),
        (14, "'steps' is empty"),
    ];
    for (line, what) in table {
        let starts = format!("cases.yaml:{line}:");
        let reported =
            faults.iter().any(|fault| fault.starts_with(&starts) && fault.contains(what));
        assert!(reported, "line {line}: {what} not in {faults:#?}");
    }
    assert_eq!(read("").unwrap_err().len(), 1);
}
