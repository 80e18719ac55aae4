//! **The tools**: the subcommands of `ratectl`, one module each.
//!
//! They may use the rules, the engine and the shared parts of the command line, but never the
//! sidecar: they query a pod through its public ports, and run the engine themselves on logs and
//! test cases. Only `main.rs` and the tests use this crate.
//!
//! All exit with one of three statuses: 0 success, 1 a finding, 2 a usage or I/O error; or, if a
//! signal ended the process, with 128 plus its number.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "all modules are private: `pub` is what another file uses")]

mod check;
mod compare;
mod descriptor;
mod diff;
mod explain;
mod key;
mod manual;
mod migrate;
mod plan;
mod progress_line;
mod query;
mod replay;
mod rule;
mod rule_tests;
mod signals;
mod status;
mod status_client;
mod top;
mod yaml_documents;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ratelease_cli::grammar::documented;
use ratelease_cli::out::{self, Out, eprint_line};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Role, SettingsError, process_env};
use ratelease_cli::{commands, grammar};

use check::CheckFlags;
use compare::CompareFlags;
use diff::DiffFlags;
use explain::ExplainFlags;
use key::KeyFlags;
use manual::{CompletionsFlags, ManFlags, SchemaFlags};
use migrate::MigrateFlags;
use plan::PlanFlags;
use query::QueryFlags;
use replay::ReplayFlags;
use rule_tests::TestFlags;
use status::StatusFlags;
use top::TopFlags;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "ratectl",
    version,
    about = "Tools for ratelease, and for other rate limit servers of Envoy",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    tool: Tool,
}

/// A subcommand, with its flags as they were typed.
#[derive(Debug, Subcommand)]
enum Tool {
    /// Compare the descriptors that an Envoy sends with the rules
    #[command(after_help = check::NOTES)]
    Check(Box<CheckFlags>),
    /// Explain how the rules match a request, and where it is counted
    #[command(after_help = explain::NOTES)]
    Explain(Box<ExplainFlags>),
    /// Show the count of one key, reset it, or block the key, on all pods
    #[command(after_help = key::NOTES)]
    Key(Box<KeyFlags>),
    /// Report what new rules change, and which counts they restart
    #[command(after_help = diff::NOTES)]
    Diff(Box<DiffFlags>),
    /// Run rule tests on a virtual clock
    #[command(after_help = rule_tests::NOTES)]
    Test(Box<TestFlags>),
    /// Send one request to a rate limit server, ratelease or another
    #[command(after_help = query::NOTES)]
    Query(Box<QueryFlags>),
    /// Print the status of a pod
    #[command(after_help = status::NOTES)]
    Status(StatusFlags),
    /// Show a pod live on the terminal: rates, rules, hot keys, shards
    #[command(after_help = top::NOTES)]
    Top(Box<TopFlags>),
    /// Report what rules would have denied of a log
    #[command(after_help = replay::NOTES)]
    Replay(Box<ReplayFlags>),
    /// Report what ratelease makes of a deployment of envoyproxy/ratelimit
    #[command(after_help = migrate::NOTES)]
    Migrate(Box<MigrateFlags>),
    /// Report where the answers of two rate limit servers differ
    #[command(after_help = compare::NOTES)]
    Compare(Box<CompareFlags>),
    /// Estimate the load of a fleet on Redis, and how much Redis it needs
    #[command(after_help = plan::NOTES)]
    Plan(Box<PlanFlags>),
    /// Print the JSON Schema of rule files
    #[command(after_help = manual::SCHEMA_NOTES)]
    Schema(SchemaFlags),
    /// Print shell completions
    #[command(after_help = manual::COMPLETIONS_NOTES)]
    Completions(CompletionsFlags),
    /// Print a manual page, in roff
    #[command(after_help = manual::MAN_NOTES)]
    Man(ManFlags),
}

/// The tools use the defaults of `ratelease`; the environment can change them.
const ROLE: Role = Role::Ratelease;

/// Runs the tool that `args` name; `args` begin with the program's name.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    match parse(args, &process_env) {
        Ok(tool) => run_tool(tool),
        Err(SettingsError::Help(text)) => commands::help("ratectl", &text),
        Err(error) => {
            eprint_line(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Parses the tool that `args` name; `env` supplies the values of flags that are not given.
fn parse(
    args: impl Iterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Tool, SettingsError> {
    let args: Vec<OsString> = std::iter::once("ratectl".into()).chain(args.skip(1)).collect();
    if let Some(path) = rules_to_check(&args) {
        let text = format!(
            "ratectl: check compares the configuration of Envoys (--envoy FILE) with the rules; to \
             check rule files: ratelease check {}",
            Safe(path)
        );
        return Err(SettingsError::Usage(text));
    }
    let (Cli { tool }, _) = grammar::read(ROLE, &args, env)?;
    Ok(tool)
}

/// The path that `check` was given without an Envoy, as `ratelease check` takes it.
fn rules_to_check(args: &[OsString]) -> Option<&str> {
    let [_, check, rest @ ..] = args else { return None };
    let rest: Vec<_> = rest.iter().filter_map(|arg| arg.to_str()).collect();
    let is_flag = |arg: &&&str| arg.starts_with('-');
    let names_envoy = rest.iter().filter(is_flag).any(|arg| arg.starts_with("--envoy"));
    let path = match rest.as_slice() {
        ["--rules", path] | [path, ..] if !path.starts_with('-') => *path,
        [flag] => flag.strip_prefix("--rules=").filter(|path| !path.is_empty())?,
        _ => return None,
    };
    (check == "check" && !names_envoy).then_some(path)
}

/// Runs `tool`. Results go to standard output, errors to standard error.
fn run_tool(tool: Tool) -> ExitCode {
    let mut out = Out::stdout();
    let (name, result) = match tool {
        Tool::Check(flags) => ("check", check::run(&flags, ROLE, &mut out)),
        Tool::Explain(flags) => ("explain", explain::run(&flags, ROLE, &mut out)),
        Tool::Key(flags) => ("key", key::run(&flags, ROLE, &mut out)),
        Tool::Diff(flags) => ("diff", diff::run(&flags, &mut out)),
        Tool::Test(flags) => ("test", rule_tests::run(&flags, &mut out)),
        Tool::Query(flags) => ("query", query::run(&flags, &mut out)),
        Tool::Status(flags) => ("status", status::run(&flags, &mut out)),
        Tool::Top(flags) => ("top", top::run(*flags, &mut out)),
        Tool::Replay(flags) => ("replay", replay::run(&flags, ROLE, &mut out)),
        Tool::Migrate(flags) => ("migrate", migrate::run(&flags, &mut out)),
        Tool::Compare(flags) => ("compare", compare::run(&flags, ROLE, &mut out)),
        Tool::Plan(flags) => ("plan", plan::run(&flags, &mut out)),
        Tool::Schema(flags) => ("schema", manual::schema(&flags, &mut out)),
        Tool::Completions(flags) => {
            ("completions", manual::completions(&flags, documented::<Cli>(), &mut out))
        }
        Tool::Man(flags) => ("man", manual::man(&flags, documented::<Cli>(), &mut out)),
    };
    out::finish(&format!("ratectl {name}"), out, result)
}
