//! `ratectl completions` and `ratectl man`.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{root, run_in};

/// A password in the environment, and a port that is not the default.
const ENV: [(&str, &str); 2] = [("REDIS_AUTH", "sesame"), ("PORT", "4711")];

#[test]
fn each_shell_gets_completions_of_every_command_and_flag() {
    for shell in ["bash", "zsh", "fish"] {
        for (program, names) in [
            ("ratectl", ["explain", "diff", "merge-domain-config", "redis-url"]),
            ("ratelease", ["serve", "check", "merge-domain-config", "redis-url"]),
        ] {
            let ran = run_in(root(), &["completions", shell, program], &ENV);
            for name in names {
                assert!(ran.ended(0).out.contains(name), "{shell}: {program} {name}");
            }
            assert!(!ran.out.contains("sesame") && !ran.out.contains("4711"), "{shell}");
        }
    }
    run_in(root(), &["completions", "tcsh"], &[]).ended(2);
}

#[test]
fn bash_takes_its_completions_and_offers_a_flag() {
    let script = run_in(root(), &["completions", "bash", "ratelease"], &[]).out;
    let ask = "
COMP_WORDS=(ratelease check --str) COMP_CWORD=2
_ratelease ratelease --str check && echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let mut bash = bash.args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let bash = bash.as_mut().expect("bash");
    let mut stdin = bash.stdin.take().unwrap();
    stdin.write_all(format!("{script}{ask}\n").as_bytes()).unwrap();
    drop(stdin);
    let mut out = String::new();
    std::io::Read::read_to_string(&mut bash.stdout.take().unwrap(), &mut out).unwrap();
    assert!(bash.wait().unwrap().success());
    assert_eq!(out.trim(), "--strict");
}

#[test]
fn the_manual_has_a_page_of_each_command_without_values_of_the_environment() {
    for (args, title) in [
        (&["man"][..], ".TH ratectl 1"),
        (&["man", "explain"], ".TH ratectl-explain 1"),
        (&["man", "ratelease"], ".TH ratelease 1"),
        (&["man", "ratelease", "serve"], ".TH ratelease-serve 1"),
    ] {
        let ran = run_in(root(), args, &ENV);
        assert!(ran.ended(0).out.lines().any(|line| line.starts_with(title)), "{args:?}");
        assert!(!ran.out.contains("sesame") && !ran.out.contains("4711"), "{args:?}");
    }
    let ran = run_in(root(), &["man", "nope"], &[]);
    assert!(ran.ended(2).err.contains("there is no subcommand \"nope\"; expected one of "));
}

#[test]
fn the_manual_of_both_programs_is_written_into_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    run_in(root(), &["man", "--directory", path], &ENV).ended(0);
    for (page, title) in [
        ("ratelease.1", ".TH ratelease 1"),
        ("ratelease-serve.1", ".TH ratelease-serve 1"),
        ("ratectl.1", ".TH ratectl 1"),
        ("ratectl-explain.1", ".TH ratectl-explain 1"),
    ] {
        let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(text.lines().any(|line| line.starts_with(title)), "{page}");
        assert!(!text.contains("sesame") && !text.contains("4711"), "{page}");
    }
    let ran = run_in(root(), &["man", "--directory", "/nonexistent/man"], &[]);
    assert!(ran.ended(2).err.contains("/nonexistent/man/ratelease.1: No such file or directory"));
}
