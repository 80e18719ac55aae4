//! TLS handshakes a second of the gRPC port, beside a server that does nothing else, which shows
//! what rustls itself costs. `docs/performance.md` has the figures.
//!
//! ```text
//! cargo bench --bench handshakes                                  five rounds of 3 s
//! RATELEASE_BIN=target/dist/ratelease cargo bench --bench handshakes
//! ```
//!
//! Each client opens one connection after another: connect, handshake, and end. The servers take
//! turns. Each ratio is the median of the ratios of all rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub, reason = "`pub` means for the other modules here")]

#[path = "../tests/it/support/mod.rs"]
mod support;

/// The server that only does handshakes.
#[path = "handshakes/floor.rs"]
mod floor;
/// The clients.
#[path = "handshakes/load.rs"]
mod load;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use load::{Figures, Server};
use support::papers::Papers;
use support::process::{Process, leashed};
use support::ratelease::Ratelease;
use support::tls_files::{TlsFiles, text};

/// The allocator of the binary `ratelease`, for the floor.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures TLS handshakes of ratelease beside those of a server that does nothing else.
#[derive(Debug, Parser)]
#[command(name = "handshakes", max_term_width = 100)]
struct Args {
    /// Rounds, in each of which both servers are loaded
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Seconds of each load
    #[arg(long, value_name = "N", default_value_t = 3)]
    seconds: u64,
    /// Clients, each of which opens one connection after another
    #[arg(long, value_name = "N", default_value_t = 16)]
    clients: usize,
    /// Serve as the floor, with this certificate and this key
    #[arg(long, hide = true, num_args = 2)]
    floor: Option<Vec<std::path::PathBuf>>,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some([certificate, key]) = args.floor.as_deref() {
        return floor::serve(certificate, key);
    }
    if args.rounds == 0 || args.seconds == 0 || args.clients == 0 {
        eprintln!("handshakes: --rounds, --seconds and --clients are at least 1");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(&args));
    ExitCode::SUCCESS
}

async fn run(args: &Args) {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let rules = tempfile::tempdir().expect("a directory for rules");
    let pod = Ratelease::start(rules.path(), &[], &files.env()).await;
    let mut command = leashed(std::env::current_exe().expect("this program"));
    command.arg("--floor").args([text(&files.server.0), text(&files.server.1)]);
    let floor = Process::spawn("floor", command);
    let addr = || floor.log().lines().find_map(|line| line.parse().ok());
    let addr = support::wait_for("the floor's address", Duration::from_secs(10), addr);
    let config = files.client(false);
    let floor = Server { name: "floor", addr, pid: floor.pid(), _process: Some(floor) };
    let ratelease =
        Server { name: "ratelease", addr: pod.grpc, pid: pod.process.pid(), _process: None };
    let mut servers = [floor, ratelease];
    let mut taken: [Vec<Figures>; 2] = Default::default();
    for _ in 0..args.rounds {
        for server in &servers {
            let figures = load::measure(server, &config, args.clients, args.seconds).await;
            taken[usize::from(server.name == "ratelease")].push(figures);
        }
        servers.reverse();
    }
    print(args, &taken);
}

/// Prints the medians over the rounds, and of the ratios within them.
fn print(args: &Args, [floor, ratelease]: &[Vec<Figures>; 2]) {
    let Args { rounds, seconds, clients, .. } = args;
    println!("{clients} clients; medians of {rounds} rounds of {seconds} s");
    println!("| server | handshakes/s | CPU µs | failed |\n|---|--:|--:|--:|");
    for (name, figures) in [("floor", floor), ("ratelease", ratelease)] {
        let of = |figure: fn(&Figures) -> f64| median(figures.iter().map(figure));
        let failed: u64 = figures.iter().map(|it| it.failed).sum();
        println!("| {name} | {:.0} | {:.0} | {failed} |", of(|it| it.rate), of(|it| it.cpu_us));
    }
    let ratio = |figure: fn(&Figures) -> f64| {
        median(ratelease.iter().zip(floor).map(|(mine, floor)| figure(mine) / figure(floor)))
    };
    println!("| ratelease / floor | {:.2} | {:.2} | |", ratio(|it| it.rate), ratio(|it| it.cpu_us));
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
