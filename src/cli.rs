//! What the program does beside serving: a subcommand a module.
//!
//! They all end with one of three statuses: 0 good, 1 a finding, 2 usage or input and output; or,
//! where a signal has ended them, with 128 and its number.

pub mod bench;
pub mod cases;
mod channel;
pub mod check;
mod descriptor;
pub mod diff;
pub mod explain;
mod fetch;
mod health;
mod manual;
mod meter;
mod out;
mod plan;
mod pod;
mod query;
pub(crate) mod replay;
mod rule;
mod safe;
mod signals;
mod source;
mod status;
mod target;
mod top;

use std::process::ExitCode;

use clap::Subcommand;

use crate::settings::Role;
use bench::Bench;
use cases::CasesFlags;
use check::CheckFlags;
use diff::DiffFlags;
use explain::ExplainFlags;
use health::HealthFlags;
use manual::{CompletionsFlags, ManFlags};
use out::Out;
use plan::PlanFlags;
use query::QueryFlags;
use replay::ReplayFlags;
use status::StatusFlags;
use top::TopFlags;

/// A subcommand that does not serve, with its flags as they were typed.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Find every fault of rule files
    #[command(after_help = check::NOTES)]
    Check(Box<CheckFlags>),
    /// Say what the rules make of a request, and where it is counted
    #[command(after_help = explain::NOTES)]
    Explain(Box<ExplainFlags>),
    /// Say what new rules change, and which counts they restart
    #[command(after_help = diff::NOTES)]
    Diff(Box<DiffFlags>),
    /// Hold rules to cases of requests over virtual time
    #[command(after_help = cases::NOTES)]
    Test(Box<CasesFlags>),
    /// Measure a rate limit server, this or another
    #[command(subcommand)]
    Bench(Bench),
    /// Ask a live rate limit server, this or another, once
    #[command(after_help = query::NOTES)]
    Query(Box<QueryFlags>),
    /// Print how a pod is doing
    #[command(after_help = status::NOTES)]
    Status(StatusFlags),
    /// Show a pod live on a terminal: rates, rules, hot keys, shards
    #[command(after_help = top::NOTES)]
    Top(Box<TopFlags>),
    /// Say whether a pod is healthy, for the probes of containers
    #[command(after_help = health::NOTES)]
    Health(Box<HealthFlags>),
    /// Find what rules would have denied of a log
    #[command(after_help = replay::NOTES)]
    Replay(Box<ReplayFlags>),
    /// Estimate what a fleet asks of Redis, and how much of it is needed
    #[command(after_help = plan::NOTES)]
    Plan(Box<PlanFlags>),
    /// Print the completions of a shell
    #[command(after_help = manual::COMPLETIONS_NOTES)]
    Completions(CompletionsFlags),
    /// Print a page of the manual, in roff
    #[command(after_help = manual::MAN_NOTES)]
    Man(ManFlags),
}

/// Prints the help or version text that was asked for.
pub fn help(text: &str) -> ExitCode {
    let mut out = Out::stdout();
    let ended = out.line(text.trim_end()).map(|()| out::Outcome::Good);
    out::end("help", out, ended)
}

/// Runs `tool` with the defaults of `role`. Results go to standard output, and why there are none
/// to standard error.
pub fn run(tool: Tool, role: Role) -> ExitCode {
    let mut out = Out::stdout();
    let (name, ended) = match tool {
        Tool::Check(flags) => ("check", check::run(&flags, role, &mut out)),
        Tool::Explain(flags) => ("explain", explain::run(&flags, role, &mut out)),
        Tool::Diff(flags) => ("diff", diff::run(&flags, &mut out)),
        Tool::Test(flags) => ("test", cases::run(&flags, &mut out)),
        Tool::Bench(bench) => ("bench", bench::run(bench, &mut out)),
        Tool::Query(flags) => ("query", query::run(&flags, &mut out)),
        Tool::Status(flags) => ("status", status::run(&flags, &mut out)),
        Tool::Top(flags) => ("top", top::run(*flags, &mut out)),
        Tool::Health(flags) => ("health", health::run(*flags, &mut out)),
        Tool::Replay(flags) => ("replay", replay::run(&flags, role, &mut out)),
        Tool::Plan(flags) => ("plan", plan::run(&flags, &mut out)),
        Tool::Completions(flags) => ("completions", manual::completions(&flags, &mut out)),
        Tool::Man(flags) => ("man", manual::man(&flags, &mut out)),
    };
    out::end(name, out, ended)
}
