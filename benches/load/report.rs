//! The report of a run, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ratelease_cli::client::GRPC_CODES;
use ratelease_cli::out::{Completion, Interrupt};
use serde::{Serialize, Serializer};

use super::client::{CallCounts, Failure};
use super::flags::Plan;

/// The results of a run, with its parameters. The JSON has a member for each field.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    target: String,
    /// Requests a second, as asked for; null for a closed loop.
    rate: Option<u32>,
    connections: u32,
    streams: usize,
    threads: u32,
    keys: u32,
    zipf: f64,
    domain: String,
    descriptors: u32,
    entries: u32,
    seed: u64,
    warmup_seconds: f64,
    /// Measured time: shorter than asked for if a signal stopped the run.
    seconds: f64,
    #[serde(serialize_with = "as_flag")]
    interrupted: Option<Interrupt>,
    requests: u64,
    /// Requests with a verdict per second.
    requests_per_second: f64,
    ok: u64,
    over_limit: u64,
    /// Requests without a verdict, by gRPC code or by the event that ended them.
    errors: BTreeMap<String, u64>,
    connections_lost: u64,
    latency_us: Latency,
}

/// Microseconds to the whole answer: in an open loop from when a request was due, in a closed loop
/// from when it was sent.
#[derive(Debug, Clone, Serialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    max: f64,
}

fn as_flag<S: Serializer>(interrupted: &Option<Interrupt>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bool(interrupted.is_some())
}

// === impl Report ===

impl Report {
    /// Makes the report of a run that counted `counts` during `measured`; `interrupted` if a signal
    /// stopped it.
    pub(crate) fn new(
        plan: &Plan,
        counts: &CallCounts,
        measured: Duration,
        interrupted: Option<Interrupt>,
    ) -> Self {
        let micros = |quantile| counts.latency.value_at_quantile(quantile) as f64 / 1e3;
        let verdicts = counts.ok + counts.over_limit;
        let named = counts.failures.iter().map(|(failure, count)| (failure.to_string(), *count));
        Self {
            target: plan.target.to_string(),
            rate: plan.rate,
            connections: plan.connections,
            streams: plan.streams,
            threads: plan.threads,
            keys: plan.shape.keys,
            zipf: plan.zipf,
            domain: plan.shape.domain.clone(),
            descriptors: plan.shape.descriptors,
            entries: plan.shape.entries,
            seed: plan.seed,
            warmup_seconds: plan.warmup.as_secs_f64(),
            seconds: measured.as_secs_f64(),
            interrupted,
            requests: counts.requests(),
            // If the warm-up is interrupted, nothing was measured.
            requests_per_second: verdicts as f64
                / measured.max(Duration::from_nanos(1)).as_secs_f64(),
            ok: counts.ok,
            over_limit: counts.over_limit,
            errors: named.collect(),
            connections_lost: counts.lost,
            latency_us: Latency {
                mean: (counts.latency.mean() / 1e3 * 10.0).round() / 10.0,
                p50: micros(0.5),
                p90: micros(0.9),
                p99: micros(0.99),
                p99_9: micros(0.999),
                max: counts.latency.max() as f64 / 1e3,
            },
        }
    }

    /// Returns `Good` if every request got a verdict and there was at least one.
    pub(crate) fn outcome(&self) -> Completion {
        let is_good = self.requests > 0 && self.errors.is_empty() && self.connections_lost == 0;
        self.interrupted.map_or(Completion::clean_if(is_good), Completion::Interrupted)
    }

    /// Returns the report as one line of JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, streams, threads, keys, zipf, descriptors, entries, .. } = self;
        let load = match self.rate {
            None => "closed loop".to_owned(),
            Some(rate) => format!("open loop at {rate}/s"),
        };
        let cut = if self.interrupted.is_some() { ", then interrupted" } else { "" };
        writeln!(f, "{}: {load}, {:.1} s measured{cut}", self.target, self.seconds)?;
        writeln!(
            f,
            "  connections {connections} × streams {streams} on threads {threads}; keys {keys}, \
             Zipf {zipf}; descriptors {descriptors} of entries {entries}; seed {}",
            self.seed
        )?;
        writeln!(f, "requests    {:>12}  {:>12.1}/s", self.requests, self.requests_per_second)?;
        writeln!(f, "ok          {:>12}", self.ok)?;
        writeln!(f, "over limit  {:>12}", self.over_limit)?;
        writeln!(f, "errors      {:>12}", self.errors.values().sum::<u64>())?;
        for (name, count) in &self.errors {
            writeln!(f, "  {name:<10}{count:>12}")?;
        }
        if self.connections_lost > 0 {
            writeln!(f, "connections lost {:>7}", self.connections_lost)?;
        }
        let Latency { mean, p50, p90, p99, p99_9, max } = &self.latency_us;
        write!(
            f,
            "latency     mean {mean:.0}  p50 {p50:.0}  p90 {p90:.0}  p99 {p99:.0}  \
             p99.9 {p99_9:.0}  max {max:.0} µs"
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grpc(code) => match GRPC_CODES.get(usize::from(*code)) {
                Some(name) => f.write_str(name),
                None => write!(f, "gRPC code {code}"),
            },
            Self::NotGrpc(status) => write!(f, "HTTP {status}, not gRPC"),
            Self::NoVerdict => f.write_str("no verdict in the answer"),
            Self::Reset => f.write_str("stream reset"),
            Self::Lost => f.write_str("connection lost"),
            Self::Unanswered => f.write_str("unanswered at the end"),
            Self::Unsent => f.write_str("not sent for want of streams"),
        }
    }
}
