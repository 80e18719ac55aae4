//! `scripts/demo --control` and `--llm`, as a person runs them; the first is ended with Ctrl-C.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::control;
use crate::support::process::undisturbed;
use crate::support::ratelease::BINARY;

/// The last line, after which the demo stays up.
const UP: &str = "Ctrl-C ends it all.";

/// Status of a script that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// The processes whose command lines name this directory.
fn processes_in(dir: &Path) -> Vec<String> {
    let name = dir.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(name)).collect()
}

#[test]
fn the_demo_of_the_control_plane_shows_changes_and_leaves_nothing_behind() {
    // Alone, as below: the script looks for ports before it uses them.
    let _alone = crate::stand::MACHINE.blocking_write();
    let dir = TempDir::new().unwrap();
    // The user that PostgreSQL runs as has to pass.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/demo");
    let mut demo = undisturbed(script);
    demo.arg("--control").env("TMPDIR", dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    demo.env("RATELEASE_BIN", BINARY).env("RATELEASE_CONTROL_BIN", control::binary());
    let mut demo = demo.spawn().unwrap();
    let mut shown = Vec::new();
    for line in BufReader::new(demo.stdout.take().unwrap()).lines() {
        shown.push(line.unwrap());
        if shown.last().is_some_and(|line| line == UP) {
            break;
        }
    }
    let during = processes_in(dir.path());
    let _ = kill_process(Pid::from_child(&demo), Signal::INT);
    let status = demo.wait().unwrap();
    let text = shown.join("\n");
    assert_eq!(status.code(), Some(INTERRUPTED), "{text}");
    let words = |line: &&String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = shown.iter().map(|line| words(&line)).collect();
    // Sent, passed, limited, limit: those of config/rules/demo.yaml.
    assert!(
        rows.iter().any(|row| row.starts_with(&["/hello", "30", "5", "25", "5"].map(Into::into)))
    );
    for change in ["PUT the limit 15 of /hello", "roll back to version"] {
        let row = shown.iter().find(|line| line.starts_with(change));
        assert!(row.is_some_and(|row| row.ends_with("ms later")), "{change}: {text}");
    }
    assert!(during.iter().any(|line| line.contains("postgres")), "{during:?}");
    assert_eq!(processes_in(dir.path()), [""; 0], "still running");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "files are left");
}

#[test]
fn the_demo_of_tokens_uses_no_more_than_the_limit_where_they_are_held() {
    // Alone, since another test may take a port between the script's look for it and its use.
    let _alone = crate::stand::MACHINE.blocking_write();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/demo");
    let mut demo = undisturbed(script);
    demo.args(["--llm", "--once"]).env("RATELEASE_BIN", BINARY).env_remove("RATELIMIT_BIN");
    let ran = demo.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    // What the provider has made: looks let answers under way exceed the limit, holds do not.
    let used = |name: &str| -> u64 {
        let row = text.lines().find(|line| line.starts_with(name)).unwrap();
        row.split_whitespace().nth(6).unwrap().parse().unwrap()
    };
    assert!(used("looks") >= 10_000, "{text}");
    assert!((8_000..=10_000).contains(&used("holds")), "{text}");
}
