//! `ratelease-injector inject` as a process: its output and its exit status.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: envoy, image: envoy}]
";

/// Runs the binary with an empty environment and this standard input.
fn run(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratelease-injector"));
    let piped = command.args(args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    // A program that ends without reading closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const DEFAULTS: [&str; 5] =
    ["inject", "--default", "redis=redis:6379", "--default", "rules=shop-rules"];

#[test]
fn manifests_go_from_standard_input_to_standard_output() {
    let ran = run(&DEFAULTS, POD);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let out = text(&ran.stdout);
    let image = concat!("    image: ratelease:", env!("CARGO_PKG_VERSION"), "\n");
    assert!(out.contains(image), "{out}");
    assert!(out.contains("restartPolicy: Always\n"), "{out}");
    assert_eq!(text(&ran.stderr), "");
    let again = run(&DEFAULTS, &out);
    assert_eq!((text(&again.stdout), again.status.code()), (out, Some(0)));
    let old = run(&[&DEFAULTS[..], &["--kubernetes-version", "1.28"]].concat(), POD);
    assert!(!text(&old.stdout).contains("restartPolicy"));
}

#[test]
fn files_follow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    std::fs::write(&first, "kind: Service").unwrap();
    std::fs::write(&second, POD).unwrap();
    let files = [first.to_str().unwrap(), second.to_str().unwrap()];
    let ran = run(&[&DEFAULTS[..], &files].concat(), "");
    assert!(text(&ran.stdout).starts_with("kind: Service\n---\napiVersion: v1\n"));
    let missing = run(&[&DEFAULTS[..], &files, &["/nowhere", "/neither"]].concat(), "");
    assert_eq!((missing.status.code(), text(&missing.stdout)), (Some(2), String::new()));
    let errors = text(&missing.stderr);
    assert!(errors.contains("/nowhere: cannot be read") && errors.contains("/neither"), "{errors}");
}

#[test]
fn a_faulty_pod_is_printed_as_it_is_and_ends_with_1() {
    let ran = run(&["inject"], POD);
    assert_eq!((ran.status.code(), text(&ran.stdout)), (Some(1), POD.to_owned()));
    assert_eq!(
        text(&ran.stderr),
        "-:1: Pod web: not injected: ratelease.io/rules: missing; set the annotation, the name of \
         a ConfigMap, or a default of the injector\n\
         -:1: Pod web: not injected: ratelease.io/redis: missing; set the annotation, host:port, \
         or embedded for counts in each pod apart, or a default of the injector\n"
    );
    let json = run(&["inject", "--json"], POD);
    let line: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&line["verdict"], line["faults"].as_array().unwrap().len()),
        (&"refused".into(), 2)
    );
}

#[test]
fn what_cannot_be_used_ends_with_2() {
    for (args, input, expected) in [
        (&["inject", "--default", "rediss=x"][..], POD, "--default rediss: unknown name; did you"),
        (
            &["inject", "--default", "rediss=x", "--default", "y", "--default", "http-port=x"],
            POD,
            "--default http-port: expected a port from 1 to 65535, found \"x\"",
        ),
        (
            &["inject", "--default", "listen=x", "--default", "cpu-limit=1mm"],
            POD,
            "--default listen: expected a port from 1 to 65535, or uds, found \"x\"; correct \
             default listen, or remove it\n--default cpu-limit: expected a quantity",
        ),
        (&["inject", "--kubernetes-version", "new"], POD, "expected a version such as 1.31"),
        (&["inject"], "kind: Pod\na: [\n", "-:"),
        (&["serve"], "", "--namespace: not set, and the certificate is in a Secret"),
        (
            &["serve", "--certificates", "/nowhere", "--kubernetes-version", "1.31"],
            "",
            "the webhook has no certificate: the file /nowhere/tls.crt cannot be read",
        ),
    ] {
        let ran = run(args, input);
        let errors = text(&ran.stderr);
        assert_eq!((ran.status.code(), text(&ran.stdout)), (Some(2), String::new()), "{errors}");
        assert!(errors.contains(expected), "{expected}: {errors}");
    }
    assert_eq!(run(&["--help"], "").status.code(), Some(0));
}
