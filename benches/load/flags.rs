//! The command line, and the plan that results from it.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use ratelease_cli::client::{Target, TlsFlags};
use ratelease_rules::parse_duration;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX};
use ratelease_tls::ClientFiles;
use tokio_rustls::rustls::ClientConfig;

use super::requests::Shape;

/// Maximum of `--connections`, far above the number that one machine can use.
const CONNECTIONS_MAX: i64 = 1024;

/// Maximum of `--streams`, far above the number that one machine can use.
const STREAMS_MAX: i64 = 10_000;

/// Maximum of `--threads`, far above the number that one machine can use.
const THREADS_MAX: i64 = 64;

/// Maximum of `--keys`, far above the number that one machine can use.
const KEYS_MAX: i64 = 1_000_000;

/// Maximum of `--rate`, far above the rate that one machine can reach.
const RATE_MAX: i64 = 1_000_000;

/// Maximum skew: above it nearly every request is for the first key.
const SKEW_MAX: f64 = 10.0;

/// Maximum duration of a run; a longer measurement takes several runs.
const SPAN_MAX: Duration = Duration::from_secs(24 * 3600);

pub(crate) const NOTES: &str = "\
By default requests are for domain \"shop\" with one descriptor (plan, free)(user_id, user-0000042),
which config/rules/shop.yaml limits to 1000 a day for each user: the most frequent keys soon exceed
it. --entries 1 sends (user_id, …) alone, which has 100 a minute there. Further entries are inserted
between the two, (part_2, all), (part_3, all) and so on, and match no rule in that file.

Without --rate the loop is closed: a stream sends its next request when it has an answer, which
measures throughput. With --rate it is open: requests are due at even intervals whatever the server
does, and latency counts from when a request was due, so that a stall shows in every request that it
delayed.

A signal, such as Ctrl-C, ends the run early; the results so far are reported.

Exit status: 0 every request got a verdict, 1 some did not, 2 the run could not start, or 128 plus
the number of the signal that ended it.

Examples:
  cargo run --release --example load -- --target 127.0.0.1:8081
  cargo run --release --example load -- --rate 4000 --duration 30s --json \
    --target unix:/run/ratelease/rls.sock";

/// Sends load to a rate limit server over gRPC, and reports rates, codes and latencies.
#[derive(Debug, Parser)]
#[command(name = "load", after_help = NOTES, next_line_help = true)]
pub(crate) struct LoadFlags {
    /// gRPC address of the server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", value_parser = Target::parse)]
    target: Target,
    /// Number of HTTP/2 connections
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = count(CONNECTIONS_MAX))]
    connections: u32,
    /// Maximum number of requests in flight on a connection
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = count(STREAMS_MAX))]
    streams: u32,
    /// Total requests a second, in an open loop; without it the loop is closed
    #[arg(long, value_name = "COUNT", value_parser = count(RATE_MAX))]
    rate: Option<u32>,
    /// Number of threads, over which the connections are spread
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count(THREADS_MAX))]
    threads: u32,
    /// Number of distinct requests
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = count(KEYS_MAX))]
    keys: u32,
    /// Skew of the draw: the k-th key has weight 1/k^S; with 0 all are equally likely
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = skew)]
    zipf: f64,
    /// Number of descriptors in a request, each for another key
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count(DESCRIPTORS_MAX))]
    descriptors: u32,
    /// Number of entries in a descriptor
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = count(ENTRIES_MAX))]
    entries: u32,
    /// Domain of the requests
    #[arg(long, value_name = "NAME", default_value = "shop")]
    domain: String,
    /// Measured time, a duration
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span_above_zero)]
    duration: Duration,
    /// Time before it that is not measured, a duration
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = span)]
    warmup: Duration,
    /// Seed of the draw; two runs with the same seed draw the same keys
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tls: TlsFlags,
    /// Print the report as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A run whose flags have been checked.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    /// `None` for plaintext.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) connections: u32,
    /// Maximum number of requests in flight on each connection.
    pub(crate) streams: usize,
    /// Requests a second over all connections; `None` for a closed loop.
    pub(crate) rate: Option<u32>,
    /// Number of threads, at most the number of connections.
    pub(crate) threads: u32,
    pub(crate) shape: Shape,
    pub(crate) zipf: f64,
    pub(crate) duration: Duration,
    pub(crate) warmup: Duration,
    pub(crate) seed: u64,
}

fn count(most: impl TryInto<i64>) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most.try_into().unwrap_or(i64::MAX))
}

/// Parses the exponent of a draw; 0 makes all keys alike.
fn skew(text: &str) -> Result<f64, String> {
    let skew = text.parse().ok().filter(|skew| (0.0..=SKEW_MAX).contains(skew));
    skew.ok_or_else(|| format!("expected a number from 0 to {SKEW_MAX}, as in 1.0"))
}

fn span(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| *span <= SPAN_MAX);
    span.ok_or_else(|| "expected a duration of at most 24h with its unit, as in 10s".into())
}

fn span_above_zero(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("expected a duration above 0, as in 10s".into()),
        span => Ok(span),
    }
}

// === impl LoadFlags ===

impl LoadFlags {
    /// Checks the flags together and returns the plan.
    ///
    /// # Errors
    ///
    /// One line that says which flags cannot be combined, and what to set instead.
    pub(crate) fn plan(self) -> Result<Plan, String> {
        let Self { connections, threads, keys, descriptors, .. } = self;
        if threads > connections {
            return Err(format!(
                "{threads} threads cannot share {connections} connections; \
                 set --threads {connections} or --connections {threads}"
            ));
        }
        if descriptors > keys {
            return Err(format!(
                "{descriptors} descriptors are for as many keys, and there are {keys}; \
                 set --keys {descriptors}"
            ));
        }
        let files = self.tls.files().map_err(|error| error.to_string())?;
        let tls = files.as_ref().map(ClientFiles::load_http2).transpose();
        let tls = tls.map_err(|faults| faults.to_string())?;
        if tls.is_some() && matches!(self.target, Target::Unix(_)) {
            return Err("a Unix socket has no TLS; leave out the flags for it".to_owned());
        }
        let shape = Shape { domain: self.domain, keys, descriptors, entries: self.entries };
        Ok(Plan {
            target: self.target,
            tls,
            connections,
            streams: self.streams as usize,
            rate: self.rate,
            threads,
            shape,
            zipf: self.zipf,
            duration: self.duration,
            warmup: self.warmup,
            seed: self.seed,
        })
    }
}
