//! `replay`, on logs made for the test.

use std::fmt::Write;
use std::fs;

use tempfile::TempDir;

use super::{Ran, run, run_with};

const RULES: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: path
    value: /slow
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 1}
";

const MAPPED: [&str; 6] = [
    "--domain",
    "shop",
    "--descriptor",
    "remote_address=%remote_address%",
    "--descriptor",
    "path=%path_without_query%",
];

/// Twelve requests in each of two minutes, by two clients in turn: each may send five a minute.
fn access_log() -> String {
    let mut log = String::new();
    for minute in 0..2 {
        for second in 0..12 {
            let (client, path) = (second % 2, if second < 6 { "/slow?x=1" } else { "/" });
            let _ = writeln!(
                log,
                "[2026-11-21T10:0{minute}:{second:02}.500Z] \"GET {path} HTTP/1.1\" 200 - 0 5 3 2 \
                 \"10.0.0.{client}\" \"curl\" \"id\" \"shop.test\" \"10.1.0.1:80\""
            );
        }
    }
    log
}

async fn replay(rules: &TempDir, log: &str, more: &[&str]) -> Ran {
    let rules = rules.path().to_str().unwrap();
    run_with(&[&["replay", "-", "--rules", rules], more].concat(), &[], log).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_log_is_decided_at_its_own_times() {
    let rules = super::rules(RULES);
    let ran = replay(&rules, &access_log(), &MAPPED).await.ended(1);
    for line in [
        "from 2026-11-21T10:00:00Z to 2026-11-21T10:01:11Z, 71s",
        "lines                 24",
        "  passed              20  83.3 %",
        "  denied               4  16.7 %",
        "         4          0         20  shop.remote_address",
        "         2  remote_address=10.0.0.0  (shop.remote_address)",
        "         2  remote_address=10.0.0.1  (shop.remote_address)",
    ] {
        assert!(ran.out.lines().any(|it| it == line), "{line}: {ran:?}");
    }
    assert_eq!(ran.err, "", "no progress without a terminal");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_reports_the_same_and_several_files_are_one_log() {
    let rules = super::rules(RULES);
    let log = access_log();
    let (first, second) = log.split_at(log.len() / 2);
    let dir = TempDir::new().unwrap();
    let paths = [("a.log", first), ("b.log", second)].map(|(name, text)| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).to_str().unwrap().to_owned()
    });
    let base = ["replay", &paths[0], &paths[1], "--rules", rules.path().to_str().unwrap()];
    let ran = run(&[&base[..], &MAPPED, &["--json", "--top", "1"]].concat()).await.ended(1);
    let report = &ran.json()[0];
    for (field, value) in [("lines", 24), ("requests", 24), ("ok", 20), ("over_limit", 4)] {
        assert_eq!(report[field], value, "{field} in {report}");
    }
    let rule = serde_json::json!(
        {"rule": "shop.remote_address", "ok": 20, "over_limit": 4, "shadow": 0});
    assert_eq!(report["rules"], serde_json::json!([rule]));
    assert_eq!(report["keys"].as_array().map(Vec::len), Some(1), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_lines_of_any_names_and_requests_are_read() {
    let rules = super::rules(RULES);
    let mut log = String::new();
    for _ in 0..4 {
        log.push_str("{\"http\": {\"client\": \"a\"}, \"at\": 1763719200}\n");
        log.push_str(
            "{\"time\": \"2025-11-21T10:00:00Z\", \"domain\": \"shop\", \"descriptors\": \
             [{\"entries\": [{\"key\": \"remote_address\", \"value\": \"a\"}]}]}\n",
        );
    }
    let flags = ["--domain", "shop", "--descriptor", "remote_address=%http.client%"];
    let ran = replay(&rules, &log, &[&flags[..], &["--time", "at", "--json"]].concat()).await;
    let report = &ran.ended(0).json()[0];
    // With --time, the other lines have no time.
    assert_eq!((&report["unreadable"], &report["requests"]), (&4.into(), &4.into()), "{report}");
    let timed = log.replace("\"at\": 1763719200", "\"ts\": 1763719200000");
    let report = &replay(&rules, &timed, &[&flags[..], &["--json"]].concat()).await.json()[0];
    assert_eq!((&report["over_limit"], &report["requests"]), (&3.into(), &8.into()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_and_late_lines_are_reported_and_the_rest_counts() {
    let rules = super::rules(RULES);
    let late = "[2026-11-21T09:59:00.000Z] \"GET / HTTP/1.1\" 200 - 0 5 3 2 \"10.0.0.9\" \"c\" \
                \"i\" \"a\" \"-\"\n";
    let log = format!("{}garbage\n\n{{\"a\":\n{late}", access_log());
    let ran = replay(&rules, &log, &MAPPED).await.ended(1);
    for part in [
        "unreadable             2",
        "  standard input:25: not Envoy's text format: ",
        "  standard input:27: not JSON: ",
        "out of order           1  at most 131.5s late",
        "requests              25",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_rules_and_lines_steer_no_terminal() {
    let rule = "{key: \"\\e[2J\", rate_limit: {unit: day, requests_per_unit: 0}}";
    let rules = super::rules(&format!("domain: shop\ndescriptors: [{rule}]\n"));
    let line = access_log().lines().next().unwrap().replace("curl", "\u{1b}[2J\u{9b}");
    let flags = ["--domain", "shop", "--descriptor", "\u{1b}[2J=%user_agent%"];
    let ran = replay(&rules, &format!("{line}\n\u{1b}[2J\n"), &flags).await.ended(1);
    let hostile = |c: char| c.is_control() && c != '\n';
    assert!(!ran.out.contains(hostile) && ran.out.contains("  shop.␛[2J\n"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_denied_is_good_and_shadow_mode_denies_nothing() {
    let rules = super::rules(RULES);
    let line = access_log().lines().next().unwrap().to_owned() + "\n";
    let flags = ["--domain", "shop", "--descriptor", "path=%path_without_query%"];
    let ran = replay(&rules, &line.repeat(3), &flags).await.ended(0);
    assert!(ran.out.contains("         0          2          1  shop.path_/slow\n"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replayed_says_what_to_say() {
    let rules = super::rules(RULES);
    let log = access_log();
    for (flags, reason) in [
        (&[][..], "standard input:1: is of an access log and needs a descriptor"),
        (&["--descriptor", "path=%path%"], "has no domain: set --domain"),
        (&["--descriptor", "path=%url%", "--domain", "shop"], "has no field url, but method, path"),
        (&["--descriptor", "path=%url", "--domain", "d"], "a % is left over"),
        (&["--descriptor", "path", "--domain", "d"], "expected KEY=VALUE"),
        (&["--top", "0"], "--top"),
        (
            &["--descriptor", "path=%path%", "--domain", "shpo"],
            "no rule file names it; they have shop",
        ),
        (
            &["--descriptor", "path=%route_name%", "--domain", "shop"],
            "no line has all the fields of a --descriptor, of 24 that can be read",
        ),
    ] {
        let ran = replay(&rules, &log, flags).await.ended(2);
        assert!(ran.err.contains(reason) && ran.out.is_empty(), "{reason}: {ran:?}");
    }
    let ran = replay(&rules, "x\ny\n", &MAPPED).await.ended(2);
    assert!(ran.err.contains("no line can be read; the first, standard input:1, is"), "{ran:?}");
    let ran = replay(&rules, "", &MAPPED).await.ended(2);
    assert!(ran.err.contains("there is no line to replay"), "{ran:?}");
    let ran = run(&[&["replay", "/nowhere.log"][..], &MAPPED].concat()).await.ended(2);
    assert!(ran.err.contains("/nowhere.log: cannot be read: No such file"), "{ran:?}");
    let bad = super::rules("domain: [");
    let ran = replay(&bad, &log, &MAPPED).await.ended(2);
    assert!(ran.err.contains("the rules are faulty"), "{ran:?}");
}
