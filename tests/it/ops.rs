//! The subcommands that call a server or read a log, as people run them: their output and exit
//! status.

mod compare;
mod health;
mod interrupt;
mod moved;
mod query;
mod replay;
mod secrets;
mod status;
mod tls;
mod top;

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::files::dir_of;
use crate::support::ports::free_port;
use crate::support::ratectl::program_of;
use crate::support::ratelease::{Ratelease, inherited};

/// Limit for a command that takes milliseconds, on a machine that also compiles.
const RUN_MAX: Duration = Duration::from_secs(60);

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per_user, unit: year, requests_per_unit: 3}
  - key: path
    value: /free
    rate_limit: {unlimited: true}
";

/// The output and status of a command that has ended.
#[derive(Debug)]
struct Ran {
    status: Option<i32>,
    out: String,
    err: String,
}

// === impl Ran ===

impl Ran {
    /// Fails the test unless the exit status is `status`.
    #[track_caller]
    fn ended(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "{self:?}");
        self
    }

    /// Its output, as lines of JSON.
    #[track_caller]
    fn json(&self) -> Vec<Value> {
        let lines = self.out.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Runs the program with empty standard input.
async fn run(args: &[&str]) -> Ran {
    run_with(args, &[], "").await
}

/// Runs the program with these variables, and `input` on standard input.
async fn run_with(args: &[&str], env: &[(&str, &str)], input: &str) -> Ran {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("input");
    fs::write(&path, input).unwrap();
    let mut command = Command::new(program_of(args));
    command.args(args).env_clear().envs(inherited()).envs(env.iter().copied());
    command.stdin(fs::File::open(path).unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(RUN_MAX, output).await.expect("it ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Ran { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Creates a directory with these rules.
fn rules(text: &str) -> TempDir {
    dir_of(&[("shop.yaml", text)])
}

/// A pod on its embedded store that waits for each lease even on a busy machine, so that the
/// remaining tokens are exact.
async fn pod(rules: &TempDir) -> Ratelease {
    let env = [("DRAIN_TIMEOUT", "200ms"), ("LEASE_MAX_WAIT", "5s")];
    Ratelease::start(rules.path(), &[], &env).await
}

/// An address without a listener.
fn nowhere() -> String {
    SocketAddr::from(([127, 0, 0, 1], free_port())).to_string()
}
