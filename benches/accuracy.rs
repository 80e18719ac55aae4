//! The accuracy of a fleet of pods compared with one exact server, and its cost: leases, one round
//! trip per decision, and report-after, on a Redis Cluster that the bench starts itself.
//!
//! `docs/accuracy.md` describes the measurements. The acceptance tests in `tests/it/accuracy/` use
//! the same oracle and the same modules that send requests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub, reason = "`pub` means for the other modules here")]

#[path = "../tests/it/support/mod.rs"]
mod support;

#[path = "../tests/it/accuracy/demand.rs"]
mod demand;
#[path = "../tests/it/accuracy/drive.rs"]
mod drive;
#[path = "../tests/it/accuracy/fleet.rs"]
mod fleet;
#[path = "../tests/it/accuracy/oracle.rs"]
mod oracle;

/// The command line flags.
#[path = "accuracy/args.rs"]
mod args;
/// One row of the table: the limit, the mode, and the demand.
#[path = "accuracy/cell.rs"]
mod cell;
/// The schedule: which cells run at the same time, and when.
#[path = "accuracy/plan.rs"]
mod plan;
/// The picture.
#[path = "accuracy/plot.rs"]
mod plot;
/// The progress, on stderr.
#[path = "accuracy/progress.rs"]
mod progress;
/// The opposite trade-off: count locally, report every 100 ms.
#[path = "accuracy/report_after.rs"]
mod report_after;
/// Runs the plan.
#[path = "accuracy/run.rs"]
mod run;
/// The table, for people and as JSON.
#[path = "accuracy/table.rs"]
mod table;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    match args.check().and_then(|()| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("accuracy: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &args::Args) -> Result<(), String> {
    let seed = args.seed();
    let plan = plan::Plan::new(if args.quick { cell::quick() } else { cell::all() });
    eprintln!("accuracy: seed {seed}, {} cells, {:?}", plan.cells(), plan.length());
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let outcome = runtime.block_on(run::run(&plan, seed));
    print!("{}", table::text(&outcome));
    args.write(&args.json, || table::json(&outcome))?;
    args.write(&args.svg, || plot::svg(&outcome.rows))
}
