//! Decisions a second over HTTP: `/shouldAllow` and `/api/v1/rate_limit` beside `/json`.
//!
//! ```text
//! cargo bench --bench http                                  five rounds of 2 s
//! RATELEASE_BIN=target/dist/ratelease cargo bench --bench http
//! ```
//!
//! Each client keeps its connection (HTTP/1.1) and waits for one answer after another. The routes
//! take turns, in the other order in every second round.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub, reason = "`pub` means for the other modules here")]

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use futures_util::future::join_all;

use support::files::dir_of;
use support::http::Client;
use support::now;
use support::process::cpu_time;
use support::ratelease::Ratelease;

/// Limits that no run reaches.
const RULES: &str = "
domain: default
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 4000000000}
    descriptors:
      - {key: api, rate_limit: {unit: day, requests_per_unit: 4000000000}}
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 4000000000}}
  - {key: tier, rate_limit: {unit: day, requests_per_unit: 4000000000}}
";

/// Load before each measurement.
const WARM: Duration = Duration::from_millis(500);

/// Measures decisions over HTTP.
#[derive(Debug, Parser)]
#[command(name = "http", max_term_width = 100)]
struct Args {
    /// Rounds, in each of which every route is loaded
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Seconds of each load
    #[arg(long, value_name = "N", default_value_t = 2)]
    seconds: u64,
    /// Clients, each with a connection
    #[arg(long, value_name = "N", default_value_t = 8)]
    clients: usize,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// A request that is repeated.
struct Row {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    body: &'static str,
}

/// The result of one load.
#[derive(Clone, Copy)]
struct Figures {
    /// Decisions a second.
    rate: f64,
    /// CPU time of the pod for each, in microseconds.
    cpu_us: f64,
}

const ROWS: [Row; 4] = [
    Row {
        name: "`/json`, 2 descriptors",
        method: "POST",
        path: "/json",
        body: r#"{"domain":"default","descriptors":[{"entries":[{"key":"user","value":"a"},
            {"key":"api","value":"/"}]},{"entries":[{"key":"user","value":"a"}]}]}"#,
    },
    Row {
        name: "`/shouldAllow`, 2 limits",
        method: "POST",
        path: "/shouldAllow",
        body: r#"{"scope":"user","scope_value":"a","api":"/"}"#,
    },
    Row {
        name: "`/api/v1/rate_limit`, 2 limits",
        method: "GET",
        path: "/api/v1/rate_limit?user_id=a&endpoint=/",
        body: "",
    },
    Row {
        name: "`/api/v1/rate_limit`, 4 limits of 8 looked for",
        method: "GET",
        path: "/api/v1/rate_limit?user_id=a&ip=192.0.2.7&tier=free&endpoint=/",
        body: "",
    },
];

fn main() -> ExitCode {
    let args = Args::parse();
    if args.rounds == 0 || args.seconds == 0 || args.clients == 0 {
        eprintln!("http: --rounds, --seconds and --clients are at least 1");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(&args));
    ExitCode::SUCCESS
}

async fn run(args: &Args) {
    let rules = dir_of(&[("default.yaml", RULES)]);
    let pod = Ratelease::start(rules.path(), &[], &[]).await;
    let mut taken: [Vec<Figures>; ROWS.len()] = Default::default();
    for round in 0..args.rounds {
        let mut order: Vec<_> = (0..ROWS.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            taken[at].push(measure(&pod, &ROWS[at], args).await);
        }
    }
    let Args { rounds, seconds, clients, .. } = args;
    println!("{clients} clients; medians of {rounds} rounds of {seconds} s");
    println!("| request | decisions/s | CPU µs |\n|---|--:|--:|");
    for (row, figures) in ROWS.iter().zip(&taken) {
        let of = |figure: fn(&Figures) -> f64| median(figures.iter().map(figure));
        println!("| {} | {:.0} | {:.1} |", row.name, of(|it| it.rate), of(|it| it.cpu_us));
    }
}

/// Loads one route.
async fn measure(pod: &Ratelease, row: &'static Row, args: &Args) -> Figures {
    load(pod.http, row, args.clients, now() + WARM).await;
    let (start, cpu) = (now(), cpu_time(pod.process.pid()));
    let end = start + Duration::from_secs(args.seconds);
    let decided = load(pod.http, row, args.clients, end).await as f64;
    let (elapsed, cpu) = (start.elapsed(), cpu_time(pod.process.pid()) - cpu);
    Figures { rate: decided / elapsed.as_secs_f64(), cpu_us: cpu.as_secs_f64() * 1e6 / decided }
}

/// Returns the number of requests, all of which were allowed.
async fn load(addr: SocketAddr, row: &'static Row, clients: usize, end: Instant) -> u64 {
    let client = |_| {
        tokio::spawn(async move {
            let mut client = Client::connect(addr).await.expect("a connection");
            let mut decided = 0;
            while now() < end {
                let answer = client.send(row.method, row.path, &[], row.body).await;
                assert_eq!(answer.expect("an answer").status, 200);
                decided += 1;
            }
            decided
        })
    };
    let ended = join_all((0..clients).map(client)).await;
    ended.into_iter().map(|ended| ended.expect("a client does not panic")).sum()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
