//! `ratelease bench`: load for a rate limit service, and what it made of it.
//!
//! `load` sends `ShouldRateLimit` to any server of Envoy's protocol, ours or another, straight on
//! HTTP/2: requests are encoded before the run, one task drives a connection with all its streams,
//! and of an answer only the status and the overall code are read. So the load costs less than
//! the cheapest server, and one machine can hold both.

mod call;
mod client;
mod draw;
mod flags;
mod link;
mod metronome;
mod progress;
mod report;
mod request;
mod run;
mod schedule;
mod tally;
#[cfg(test)]
mod tests;
mod trial;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Subcommand;

pub use flags::LoadFlags;

/// Errors were answered, or not every request was.
const EXIT_ERRORS: u8 = 1;

/// The run could not begin: a flag that cannot be, or nobody there.
const EXIT_USAGE: u8 = 2;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Load a rate limit server over gRPC, and report rates, codes and latencies
    #[command(after_help = flags::NOTES, next_line_help = true)]
    Load(Box<LoadFlags>),
}

/// Runs the bench and prints its report to standard output. The exit code is 0 where every request
/// was answered with a verdict, 1 where one was not, 2 where the run could not begin.
pub fn run(bench: Bench) -> ExitCode {
    let Bench::Load(flags) = bench;
    let json = flags.json;
    let report = match flags.plan().and_then(run::run) {
        Ok(report) => report,
        Err(reason) => {
            tell(io::stderr(), format_args!("ratelease bench: {reason}"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let text = if json { report.json() } else { report.to_string() };
    tell(io::stdout(), text);
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_ERRORS) }
}

/// Writes a line for people. One that cannot be written is lost, as in any pipe.
fn tell(mut to: impl Write, line: impl Display) {
    let _ = to.write_all(format!("{line}\n").as_bytes());
}
