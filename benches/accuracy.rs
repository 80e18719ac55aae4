//! How near a fleet of pods comes to one exact server, and at what price: leased tokens beside a
//! trip for each decision and beside report-after, on a Redis Cluster that this starts itself.
//!
//! `docs/accuracy.md` says what is measured and how. The parts that send requests and the oracle
//! are those of the acceptance tests in `tests/it/accuracy/`.

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

/// What can be asked for on the command line.
#[path = "accuracy/args.rs"]
mod args;
/// One row of the table: what is limited, how, and what is offered.
#[path = "accuracy/cell.rs"]
mod cell;
/// Which cells run beside one another, and when.
#[path = "accuracy/plan.rs"]
mod plan;
/// The picture.
#[path = "accuracy/plot.rs"]
mod plot;
/// How far it has come, on stderr.
#[path = "accuracy/progress.rs"]
mod progress;
/// The other end of the trade: count locally, report every 100 ms.
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
