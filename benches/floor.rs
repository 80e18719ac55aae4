//! Servers that decide nothing, which show the cost of answering `ShouldRateLimit` without any
//! limit. `scripts/bench` compares ratelease with them.
//!
//! ```text
//! cargo bench --bench floor -- tonic --port 0     as a server on tonic does it
//! cargo bench --bench floor -- h2 --port 0        straight on HTTP/2
//! ```
//!
//! Prints its address, and serves until its standard input ends or a signal arrives.

mod floor {
    pub(crate) mod h2;
    pub(crate) mod tonic;
}

use std::io::Read;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tokio::net::TcpListener;

/// A server that answers OK to every request.
#[derive(Debug, Parser)]
struct Args {
    /// What to build on; nothing is served without
    on: Option<On>,
    /// Port on 127.0.0.1; 0 takes any free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Threads; as many as cores by default, as `ratelease serve` has them
    #[arg(long)]
    threads: Option<usize>,
    /// `cargo bench` says this to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum On {
    Tonic,
    H2,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Some(on) = args.on else {
        println!("floor: nothing to measure by itself; scripts/bench runs it beside ratelease");
        return ExitCode::SUCCESS;
    };
    match serve(&args, on) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: cannot serve on port {}: {error}", args.port);
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args, on: On) -> std::io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = args.threads {
        builder.worker_threads(threads.max(1));
    }
    builder.enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", args.port)).await?;
        println!("{}", listener.local_addr()?);
        let serving = async {
            match on {
                On::Tonic => floor::tonic::serve(listener).await,
                On::H2 => floor::h2::serve(listener).await,
            }
        };
        let input = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        tokio::select! {
            served = serving => served,
            _ = input => Ok(()),
        }
    })
}
