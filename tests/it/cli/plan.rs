//! `ratectl plan`.

use super::{root, run_in};

const HOT: [&str; 11] = [
    "plan", "--pods", "20", "--keys", "50", "--limit", "1000000", "--per", "minute", "--rate",
    "100000",
];

#[test]
fn an_estimate_is_printed_for_people_and_as_json() {
    let ran = run_in(root(), &HOT, &[]);
    assert!(ran.ended(0).out.starts_with("100000 decisions/s by 20 pods, 50 keys (zipf 0), "));
    for line in
        ["  answered locally ", "  Redis shards          1, ", "  p95 of decisions      local"]
    {
        assert!(ran.out.contains(line), "{line:?} in {}", ran.out);
    }
    let report = run_in(root(), &[&HOT[..], &["--json"]].concat(), &[]).json();
    assert_eq!(report["p95"], "local");
    assert_eq!(report["fleet"]["window_seconds"], 60.0);
    assert_eq!(report["shards"], 1.0);
    assert!(report["local_share"].as_f64().is_some_and(|share| share > 0.99), "{report}");
}

#[test]
fn a_window_may_be_a_unit_or_a_duration() {
    let of = |window: &str| {
        let mut args = HOT;
        args[8] = window;
        run_in(root(), &args, &[]).ended(0).out.clone()
    };
    assert_eq!(of("minute"), of("60s"));
    assert_eq!(of("HOUR"), of("1h"));
}

#[test]
fn a_setting_that_has_to_be_changed_is_a_finding() {
    let more = ["--calls-per-shard", "5"];
    let ran = run_in(root(), &[&HOT[..], &more].concat(), &[]);
    assert!(ran.ended(1).out.contains("note: one key needs "), "{}", ran.out);
    let keys = [
        "plan", "--pods", "4", "--keys", "10000000", "--limit", "100", "--per", "day", "--rate",
        "100000",
    ];
    let ran = run_in(root(), &keys, &[]);
    assert!(ran.ended(1).out.contains("note: a pod's keys need more than the default of BUFFER_"));
}

#[test]
fn what_cannot_be_planned_is_refused_with_its_range() {
    for (at, value, expected) in [
        (2, "0", "expected a whole number from 1 to 10000"),
        (2, "10001", "expected a whole number from 1 to 10000"),
        (4, "0", "1..=1000000000000"),
        (6, "0", "1..=9007199254740991"),
        (8, "fortnight", "expected second, minute, hour"),
        (8, "10ms", "a duration from 1s to ten years"),
        (10, "0", "expected a number above 0"),
        (10, "inf", "expected a number above 0"),
        (10, "NaN", "expected a number above 0"),
    ] {
        let mut args = HOT;
        args[at] = value;
        let ran = run_in(root(), &args, &[]);
        assert!(ran.ended(2).err.contains(expected), "{value}: {}", ran.err);
    }
    for more in [["--zipf", "-1"], ["--zipf", "11"], ["--round-trip", "0"], ["--per", "1m"]] {
        let more = [more[0].to_owned() + "=" + more[1]];
        let args: Vec<String> = HOT.iter().map(ToString::to_string).chain(more).collect();
        run_in(root(), &args, &[]).ended(2);
    }
}
