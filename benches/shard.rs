//! The capacity of one Redis shard: calls of the lease scripts a second, their latency, and the
//! memory of keys. `docs/capacity.md` describes the measurements.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub, reason = "`pub` means for the other modules here")]

#[path = "../tests/it/support/mod.rs"]
mod support;

/// The command line flags.
#[path = "shard/args.rs"]
mod args;
/// Asks of one algorithm.
#[path = "shard/kind.rs"]
mod kind;
/// Sends asks, in a closed loop or at a rate.
#[path = "shard/load.rs"]
mod load;
/// The Redis server and the stores that ask it.
#[path = "shard/rig.rs"]
mod rig;
/// The measurements of one algorithm.
#[path = "shard/run.rs"]
mod run;
/// The table, for people and as JSON.
#[path = "shard/table.rs"]
mod table;

use std::process::ExitCode;

use clap::Parser;

use args::Args;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("shard: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    args.check()?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let rows = runtime.block_on(run::run(args));
    if args.json {
        println!("{}", table::json(args, &rows));
    } else {
        print!("{}", table::text(args, &rows));
    }
    Ok(())
}
