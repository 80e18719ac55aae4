//! Puts load on a rate limit server and measures its answers. `scripts/bench` runs it.
//!
//! ```text
//! cargo run --release --example load -- --target 127.0.0.1:8081
//! cargo run --release --example load -- --help
//! ```
//!
//! Sends `ShouldRateLimit` to any server of Envoy's protocol, ours or another, over HTTP/2:
//! requests are encoded before the run, one task drives a connection with all its streams, and only
//! the status and the overall code of an answer are read. So the load generator costs less than the
//! cheapest server, and one machine can run both.
//!
//! Exits with 0 if every request was answered with a verdict, 1 if some were not, 2 if the run
//! could
//! not begin, and 128 plus the signal's number if a signal ended it.

#![forbid(unsafe_code)]

mod load {
    pub(crate) mod client;
    pub(crate) mod flags;
    pub(crate) mod report;
    pub(crate) mod requests;
    pub(crate) mod run;
    pub(crate) mod schedule;
    #[cfg(test)]
    mod tests;
}

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use clap::Parser;
use ratelease_cli::out::{CliError, CliResult, Interrupt, Out, finish};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use load::flags::LoadFlags;

/// The allocator of the servers that it measures.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut out = Out::stdout();
    let result = run(LoadFlags::parse(), &mut out);
    finish("load", out, result)
}

fn run(flags: LoadFlags, out: &mut Out) -> CliResult {
    let json = flags.json;
    let stop = signals().map_err(CliError::new)?;
    let report =
        flags.plan().and_then(|plan| load::run::run(plan, &stop)).map_err(CliError::new)?;
    if json {
        out.line(report.json())?;
    } else {
        out.line(&report)?;
    }
    Ok(report.outcome())
}

/// The first signal that asks the process to stop, when it arrives. A second one ends the process.
fn signals() -> io::Result<Receiver<Interrupt>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    drop(context);
    let (first, stop) = sync_channel(1);
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let kind = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                };
                let received = Interrupt::of(kind);
                #[allow(clippy::disallowed_methods, reason = "a second signal ends at once")]
                if first.try_send(received).is_err() {
                    std::process::exit(received.status().into());
                }
            }
        });
    });
    Ok(stop)
}
