//! Tests the binary as a process: its name and its exit status. Because this test exists, the
//! binary is built by `cargo test --workspace` too; the tests of the sidecar run it beside a pod.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Output};

/// Runs the binary with an empty environment.
fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ratectl")).args(args).env_clear().output().expect("it runs")
}

#[test]
fn its_help_names_every_tool_by_its_own_name() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Usage: ratectl <COMMAND>"), "{help}");
    for tool in [
        "check",
        "explain",
        "diff",
        "test",
        "query",
        "status",
        "top",
        "replay",
        "migrate",
        "compare",
        "plan",
        "schema",
        "completions",
        "man",
    ] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(tool)), "{tool} in {help}");
    }
}

#[test]
fn what_it_does_not_know_ends_with_2() {
    let ran = run(&["serve"]);
    assert_eq!(ran.status.code(), Some(2));
    let reported = String::from_utf8(ran.stderr).unwrap();
    assert!(reported.contains("unrecognized subcommand 'serve'"), "{reported}");
}
