//! Flags and variables: commands that end without starting the server.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use tempfile::TempDir;
use tokio::process::Command;

use super::SOON;
use crate::support::ratelease::{BINARY, inherited};

/// Runs `program`, which ends by itself, and returns its status, stdout and stderr.
async fn run(program: &Path, args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(inherited()).envs(env.iter().copied()).kill_on_drop(true);
    let output = tokio::time::timeout(SOON, command.output()).await;
    let Output { status, stdout, stderr } = output.expect("it ends").expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("no signal"), text(stdout), text(stderr))
}

#[tokio::test]
async fn help_and_version_go_to_stdout() {
    let ratelease = Path::new(BINARY);
    for (args, line) in [
        (&["--version"][..], concat!("ratelease ", env!("CARGO_PKG_VERSION"))),
        (&["--help"], "Usage: ratelease <COMMAND>"),
        (&["serve", "--help"], "Usage: ratelease serve [OPTIONS]"),
    ] {
        // A password in the environment must not appear in text that users paste into issues.
        let (status, out, err) = run(ratelease, args, &[("REDIS_AUTH", "sesame")]).await;
        assert_eq!((status, &*err), (0, ""), "{args:?}: {out}");
        assert!(out.lines().any(|it| it == line), "{args:?}: {out}");
        assert!(!out.contains("sesame"), "{args:?}: {out}");
    }
}

#[tokio::test]
async fn a_wrong_command_line_ends_with_status_2() {
    let dir = TempDir::new().unwrap();
    let ratelimit = dir.path().join("ratelimit");
    symlink(BINARY, &ratelimit).unwrap();
    let ratelease = Path::new(BINARY);
    for (program, args, why) in [
        (ratelease, &["serve", "--rulez", "x"][..], "unexpected argument '--rulez'"),
        (ratelease, &["serve", "extra"], "unexpected argument 'extra'"),
        (ratelease, &["server"], "unrecognized subcommand 'server'"),
        (ratelease, &["serve", "--port"], "a value is required for '--port <PORT>'"),
        (ratelease, &[], "Usage: ratelease <COMMAND>"),
        (&ratelimit, &["serve", "--rulez"], "unexpected argument '--rulez'"),
    ] {
        let (status, out, err) = run(program, args, &[]).await;
        assert_eq!((status, &*out), (2, ""), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
    }
}

#[tokio::test]
async fn all_faulty_settings_are_reported_together_with_status_2() {
    let env = [
        ("PORT", "65536"),
        ("GRPC_MAX_CONNECTION_AGE", "a day"),
        ("SHADOW_MODE", "perhaps"),
        ("REDIS_TYPE", "ring"),
        ("REDIS_URL", "redis:6379"),
        ("REDIS_AUTH", "user:"),
        ("LOG_FORMAT", "xml"),
        ("DRAIN_TIMEOUT", "-1s"),
        ("GRPC_SERVER_USE_TLS", "maybe"),
    ];
    let (status, out, err) = run(Path::new(BINARY), &["serve", "--buffer-memory", "0"], &env).await;
    assert_eq!((status, &*out), (2, ""), "{err}");
    assert!(err.starts_with("9 settings are faulty:\n"), "{err}");
    for line in [
        r#"PORT: expected a port from 0 to 65535, found "65536"; set PORT or --port, as in PORT="#,
        "BUFFER_MEMORY: expected a size from 64KiB to 64GiB, in bytes or with KiB, MiB or",
        r#"DRAIN_TIMEOUT: expected a duration from 0ns to 3600s with its unit, found "-1s"; set"#,
    ] {
        assert!(err.lines().any(|it| it.trim_start().starts_with(line)), "{line:?} not in {err}");
    }
    for (name, _) in env.iter().filter(|(name, _)| *name != "REDIS_URL") {
        let faults = err.lines().filter(|it| it.trim_start().starts_with(&format!("{name}: ")));
        assert_eq!(faults.count(), 1, "{name} in {err}");
    }
}
