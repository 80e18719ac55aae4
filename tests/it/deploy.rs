//! Tests of `deploy/`: rules that promtool accepts and tests, a runbook for each alert, generated
//! files that are up to date, and a dashboard whose every query a real Prometheus answers from a
//! real pod.

mod board;
mod control;
mod defaults;
mod images;
mod live;
mod prometheus;
mod scene;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const RULES: &str = "deploy/prometheus/rules.yaml";
const RULE_TESTS: &str = "deploy/prometheus/tests.yaml";
const DASHBOARD: &str = "deploy/grafana/ratelease.json";

/// The host of the runbooks in [`RULES`]. No real name can end like this (RFC 2606).
const PLACEHOLDER: &str = "https://ratelease.invalid/docs/runbooks.md#";

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a tool at the root of the sources, and fails the test unless it succeeds.
#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    let run = command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = run.unwrap_or_else(|error| panic!("{program}: {error}: scripts/test installs it"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&said));
}

#[test]
fn promtool_finds_no_fault_in_the_rules_and_the_configuration() {
    run("promtool", &["check", "rules", "--lint-fatal", RULES]);
    run("promtool", &["check", "config", "--lint-fatal", "deploy/prometheus/prometheus.yml"]);
}

#[test]
fn each_alert_does_as_its_tests_say() {
    run("promtool", &["test", "rules", RULE_TESTS]);
}

#[test]
fn what_is_made_of_other_files_is_not_stale() {
    run("python3", &["deploy/generate", "--check"]);
}

/// The alerts of [`RULES`], each with its text.
fn alerts(rules: &str) -> Vec<(&str, &str)> {
    let blocks = rules.split("- alert: ").skip(1);
    blocks.filter_map(|block| block.split_once('\n')).collect()
}

#[test]
fn each_alert_says_what_it_is_and_where_to_read_on() {
    let (rules, runbooks) = (read(RULES), read("docs/runbooks.md"));
    let headings: BTreeSet<_> =
        runbooks.lines().filter_map(|line| line.strip_prefix("## Ratelease")).collect();
    let alerts = alerts(&rules);
    assert!(alerts.len() > 15, "{alerts:?}");
    for (alert, text) in &alerts {
        let link = format!("runbook_url: {PLACEHOLDER}{}\n", alert.to_lowercase());
        for part in ["severity: ", "summary: ", "description: ", &link] {
            assert!(text.contains(part), "{alert} has no {part}");
        }
        let name = alert.strip_prefix("Ratelease").expect("alerts begin with our name");
        assert!(headings.contains(name), "docs/runbooks.md has no `## {alert}`");
    }
    assert_eq!(headings.len(), alerts.len(), "a runbook of no alert: {headings:?}");
}

#[test]
fn each_panel_says_what_it_shows_and_in_what_unit_and_asks_the_chosen_source() {
    let board: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = board["panels"].as_array().expect("panels");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = &panel["title"];
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{title}");
        let (unit, axis) = (&panel["fieldConfig"]["defaults"]["unit"], &panel["options"]["yAxis"]);
        assert!(unit.is_string() || axis["unit"].is_string(), "{title} has no unit");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title} asks nothing");
        for asked in targets.iter().chain([panel]) {
            assert_eq!(asked["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

/// In the runbooks, panels are in double quotes, and nothing else is.
#[test]
fn the_runbooks_name_panels_of_the_dashboard() {
    let (runbooks, board) = (read("docs/runbooks.md"), read(DASHBOARD));
    let named: Vec<_> = runbooks.split('"').skip(1).step_by(2).collect();
    assert!(named.len() > 5, "{named:?}");
    for title in named {
        assert!(board.contains(&format!("\"title\": \"{title}\"")), "there is no panel {title:?}");
    }
}

#[test]
fn each_alert_is_tested_to_fire_and_not_to_fire() {
    let (rules, tests) = (read(RULES), read(RULE_TESTS));
    for (alert, _) in alerts(&rules) {
        let cases: Vec<_> = tests
            .split("- alertname: ")
            .filter(|case| case.lines().next() == Some(alert))
            .map(|case| case.contains("exp_alerts: []"))
            .collect();
        assert!(cases.contains(&true), "{alert} is never tested not to fire");
        assert!(cases.contains(&false), "{alert} is never tested to fire");
    }
}
