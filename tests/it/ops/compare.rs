//! `compare`, between two pods with the same rules and with others.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{RULES, nowhere, pod, rules, run, run_with};
use crate::support::process::{Process, leashed};
use crate::support::ratectl::ratectl;
use crate::support::ratelease::{Ratelease, inherited};

/// Limit for what takes milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// A pod, and another whose users have five in place of three.
async fn pods() -> (TempDir, Ratelease, TempDir, Ratelease) {
    let (one, other) = (rules(RULES), rules(&RULES.replace("per_unit: 3", "per_unit: 5")));
    let (target, against) = (pod(&one).await, pod(&other).await);
    (one, target, other, against)
}

/// The flags that name two pods and the rules.
fn between(target: &Ratelease, against: &str, rules: &TempDir) -> Vec<String> {
    let rules = rules.path().to_str().unwrap();
    let target = target.grpc.to_string();
    ["compare", "--target", &target, "--against", against, "--rules", rules]
        .map(str::to_owned)
        .into()
}

fn with<'a>(flags: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    flags.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

fn difference<'r>(report: &'r Value, rule: &str, field: &str) -> &'r Value {
    let mut all = report["differences"].as_array().expect("differences").iter();
    all.find(|it| it["rule"] == rule && it["field"] == field)
        .unwrap_or_else(|| panic!("no {field} of {rule} in {report}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_with_the_same_rules_do_not_differ() {
    let dir = rules(RULES);
    let (target, against) = (pod(&dir).await, pod(&dir).await);
    let flags = between(&target, &against.grpc.to_string(), &dir);
    let ran = run(&with(&flags, &["--generate", "8"])).await.ended(0);
    assert!(
        ran.out.contains("\nrequests              16\n  same                16  100.0 %\n"),
        "{ran:?}"
    );
    let ran = run(&with(&flags, &["--generate", "8", "--json"])).await.ended(0);
    let report = &ran.json()[0];
    assert_eq!(report["descriptors_by_rule"]["shop.user"], 8, "{report}");
    assert_eq!(report["differences"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_limit_is_found_for_its_rule_with_an_example() {
    let (dir, target, _other, against) = pods().await;
    let flags = between(&target, &against.grpc.to_string(), &dir);
    let ran = run(&with(&flags, &["--generate", "6", "--json"])).await.ended(1);
    let report = &ran.json()[0];
    // The limit differs each time; the fourth and fifth request are denied by one of the two.
    let limit = difference(report, "shop.user", "limit");
    assert_eq!(limit["count"]["unexplained"], 6, "{report}");
    let example = &limit["examples"][0];
    assert_eq!(example["target"], "3 per year (per_user)");
    assert_eq!(example["against"], "5 per year (per_user)");
    assert!(example["request"].as_str().unwrap().starts_with("shop user=ratectl-"), "{example}");
    assert_eq!(difference(report, "shop.user", "code")["count"]["unexplained"], 2, "{report}");
    assert_eq!((&report["requests"], &report["same"]), (&12.into(), &6.into()), "{report}");
    let ran = run(&with(&flags, &["--generate", "6"])).await.ended(1);
    let row = "          6        0          0  shop.user: limit";
    assert!(ran.out.lines().any(|line| line == row), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_log_are_sent_with_their_hits_and_lines_without_one_are_counted() {
    let (dir, target, _other, against) = pods().await;
    let flags = between(&target, &against.grpc.to_string(), &dir);
    let log = "{\"domain\": \"shop\", \"hitsAddend\": 4, \"descriptors\": [{\"entries\": \
               [{\"key\": \"user\", \"value\": \"alice\"}]}]}\nnothing\n\n";
    let ran = run_with(&with(&flags, &["-", "--json"]), &[], log).await.ended(1);
    let report = &ran.json()[0];
    assert_eq!((&report["requests"], &report["lines_without_request"]), (&1.into(), &1.into()));
    // Four hits are too many for the one and not for the other.
    let code = &difference(report, "shop.user", "code")["examples"][0];
    assert_eq!(
        (&code["target"], &code["against"]),
        (&"OVER_LIMIT".into(), &"OK".into()),
        "{report}"
    );
    let ran = run_with(&with(&flags, &["-"]), &[], "nothing\n").await.ended(2);
    assert!(ran.err.contains("none of 1 lines has a request"), "{ran:?}");
}

/// A mirror, and the address at which it listens.
async fn mirror(flags: &[String], more: &[&str]) -> (Process, String) {
    let mut command = leashed(ratectl());
    command.args(with(flags, &["--listen", "127.0.0.1:0", "--json"])).args(more);
    command.env_clear().envs(inherited());
    let mirror = Process::spawn("ratectl compare", command);
    let listening = "listening on ";
    mirror.until("listening", SOON, async || mirror.log().contains(listening)).await;
    let log = mirror.log();
    let (_, address) = log.split_once(listening).expect("its address");
    (mirror, address.lines().next().expect("its address").to_owned())
}

/// Ends a mirror, and returns its report.
async fn ended(mirror: &Process) -> Value {
    mirror.signal("TERM");
    assert_eq!(mirror.exit(SOON).await, 143, "{}", mirror.log());
    let log = mirror.log();
    let report = log.lines().find(|line| line.starts_with('{')).expect("a report");
    serde_json::from_str(report).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_answers_from_one_server_and_reports_how_the_other_differs() {
    for (from, passed) in [("target", 3), ("against", 5)] {
        let (dir, target, _other, against) = pods().await;
        let flags = between(&target, &against.grpc.to_string(), &dir);
        let (mirror, address) = mirror(&flags, &["--answer-from", from]).await;
        let user = format!("user={from}");
        let query = ["query", "--target", &address, "--domain", "shop", &user, "--repeat", "6"];
        let ran = run(&query).await.ended(1);
        assert!(ran.out.contains(&format!("{passed} passed, {} denied", 6 - passed)), "{ran:?}");
        // Health checks go to the server that answers.
        run(&["health", &format!("--grpc={address}")]).await.ended(0);
        let report = ended(&mirror).await;
        assert_eq!(report["requests"], 6, "{report}");
        assert_eq!(
            difference(&report, "shop.user", "limit")["count"]["unexplained"],
            6,
            "{report}"
        );
        assert_eq!(report["interrupted"], true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_does_not_delay_the_answers_of_the_other() {
    let dir = rules(RULES);
    let target = pod(&dir).await;
    // It accepts connections, in its backlog, and reads nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let against = silent.local_addr().unwrap().to_string();
    let flags = between(&target, &against, &dir);
    let (mirror, address) = mirror(&flags, &["--timeout", "30s"]).await;
    // Below the timeout of the mirror's own calls.
    let query =
        ["query", "--target", &address, "--domain", "shop", "path=/free", "--timeout", "10s"];
    let ran = run(&[&query[..], &["--repeat", "200"]].concat()).await.ended(0);
    assert!(ran.out.contains("200 passed, 0 denied"), "{ran:?}");
    mirror.signal("TERM");
    assert_eq!(mirror.exit(SOON).await, 143, "{}", mirror.log());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_begin_ends_with_2_and_the_reason() {
    let dir = rules(RULES);
    let target = pod(&dir).await;
    let flags = between(&target, &nowhere(), &dir);
    for (more, reason) in [
        (&["--generate", "1"][..], "cannot be reached: "),
        (&[], "no requests: name a LOG, or set --generate COUNT or --listen ADDRESS"),
        (&["--generate", "0"], "--generate"),
        (&["--generate", "1", "--listen", "127.0.0.1:0"], "cannot be used with"),
        (&["--generate", "1", "--edge", "2"], "expected a duration of at most 60s"),
    ] {
        let ran = run(&with(&flags, more)).await.ended(2);
        assert!(ran.err.contains(reason), "{reason}: {ran:?}");
    }
}
