//! `ratectl bench`: puts load on a rate limit service and measures its answers.
//!
//! `load` sends `ShouldRateLimit` to any server of Envoy's protocol, ours or another, directly over
//! HTTP/2: requests are encoded before the run, one task drives a connection with all its streams,
//! and only the status and the overall code of an answer are read. So the load generator costs less
//! than the cheapest server, and one machine can run both.

mod call;
mod client;
mod counts;
mod draw;
mod flags;
mod link;
mod pacer;
mod progress;
mod report;
mod request;
mod run;
mod schedule;
#[cfg(test)]
mod tests;
mod trial;

use clap::Subcommand;
use ratelease_cli::out::{CliError, CliResult, Out};

pub use flags::LoadFlags;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Send load to a rate limit server over gRPC, and report rates, codes and latencies
    #[command(after_help = flags::NOTES, next_line_help = true)]
    Load(Box<LoadFlags>),
}

/// Runs the bench and prints its report. Returns `Good` if every request was answered with a
/// verdict, and an error if the run could not begin.
pub(super) fn run(bench: Bench, out: &mut Out) -> CliResult {
    let Bench::Load(flags) = bench;
    let json = flags.out.json;
    let report = flags.plan().and_then(run::run).map_err(CliError::new)?;
    if json {
        out.line(report.json())?;
    } else {
        out.line(&report)?;
    }
    Ok(report.outcome())
}
