//! The tools of the command line as people run them: what they print, and their exit status.

mod cases;
mod check;
mod check_envoy;
mod control_settings;
mod diff;
mod docs;
mod explain;
mod key;
mod manual;
mod migrate;
mod plan;
mod schema;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::ratectl::program_of;
use crate::support::ratelease::{BINARY, inherited};

/// The output and status of a tool that has ended.
struct Ran {
    status: i32,
    out: String,
    err: String,
}

/// Runs the binary in `dir` with only `env` in its environment.
fn run_in(dir: &Path, args: &[impl AsRef<OsStr>], env: &[(&str, &str)]) -> Ran {
    ran(&mut command(dir, args, env))
}

/// Runs the binary in `dir` with one of its files on standard input.
fn run_reading(dir: &Path, args: &[&str], file: &str) -> Ran {
    let input = fs::File::open(dir.join(file)).expect("the file is there");
    ran(command(dir, args, &[]).stdin(input))
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("it starts");
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let status = status.code().expect("it was not ended by a signal");
    Ran { status, out: text(stdout), err: text(stderr) }
}

fn command(dir: &Path, args: &[impl AsRef<OsStr>], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program_of(args));
    command.args(args).current_dir(dir).env_clear().envs(inherited()).envs(env.iter().copied());
    command.stdin(Stdio::null());
    command
}

/// Creates a directory with these files.
fn files(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// The root of the repository, which contains `config/rules`.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

// === impl Ran ===

impl Ran {
    /// Standard output as JSON: one line.
    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}{}", self.out, self.err);
        serde_json::from_str(&self.out).expect("JSON")
    }

    #[track_caller]
    fn ended(&self, status: i32) -> &Self {
        assert_eq!(self.status, status, "{}{}", self.out, self.err);
        self
    }
}

#[test]
fn a_wrong_flag_ends_with_2_and_names_it() {
    for tool in ["check", "explain", "diff", "test", "migrate", "plan", "completions", "man"] {
        let ran = run_in(root(), &[tool, "--nonsense"], &[]);
        assert!(ran.ended(2).err.contains("'--nonsense'"), "{}", ran.err);
        assert_eq!(ran.out, "");
    }
}

#[test]
fn a_reader_that_closes_its_pipe_is_no_error() {
    // More than a pipe holds, so that a write reaches the closed end.
    let faults = "  - {kee: a}\n".repeat(20_000);
    let dir = files(&[("a.yaml", &format!("domain: d\ndescriptors:\n{faults}"))]);
    let mut command = command(dir.path(), &["check", "a.yaml"], &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_result_that_cannot_be_written_ends_with_status_2() {
    for args in [&["check"][..], &["--help"], &["check", "--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = ran(command(root(), args, &[]).stdout(full));
        assert!(ran.ended(2).err.contains(": cannot write the result: "), "{}", ran.err);
    }
}

#[test]
fn no_colour_goes_where_there_is_no_terminal() {
    let dir = files(&[("a.yaml", "domain: d\nx: y\n")]);
    for args in [&["check", "a.yaml"][..], &["explain", "--domain", "d", "a=b"]] {
        let ran = run_in(dir.path(), args, &[("TERM", "xterm-256color")]);
        assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{}", ran.out);
    }
}

#[test]
fn what_is_a_tool_of_ratectl_ends_with_2_and_one_line_that_names_it() {
    for (args, name) in [
        (&["explain", "--domain", "d", "a=b"][..], "explain"),
        (&["help", "replay"], "replay"),
        (&["test"], "test"),
    ] {
        let mut command = Command::new(BINARY);
        let ran = ran(command.args(args).current_dir(root()).env_clear().envs(inherited()));
        let reported =
            format!("ratelease: {name} is a subcommand of ratectl: run ratectl {name}\n");
        assert_eq!((ran.ended(2).err.as_str(), ran.out.as_str()), (reported.as_str(), ""));
    }
}
