//! `ratectl plan`: estimates the load that a fleet puts on Redis, and the resources it needs. Uses
//! the formulas of `docs/capacity.md`; connects to nothing.

mod key;
mod model;
mod ranks;
mod report;
#[cfg(test)]
mod tests;

use std::time::Duration;

use clap::Args;
use ratelease_cli::out::{CliResult, Completion, Out, OutFlags};
use ratelease_engine::store::PODS_MAX;
use ratelease_rules::duration::parse_duration;
use ratelease_rules::{Unit, WINDOW_SECONDS_MAX};

use crate::skew;
use model::{Estimate, Fleet};

/// Maximum number of distinct keys; above it `f64` no longer counts exactly.
const KEYS_MAX: u64 = 1_000_000_000_000;

/// Maximum number of decisions a second, and of calls of one shard a second.
const RATE_MAX: f64 = 1e12;

/// Maximum round trip.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

/// Half of the measured capacity of one Redis core (`docs/capacity.md`).
const CALLS_PER_SHARD: &str = "50000";

pub(super) const NOTES: &str = "\
An estimate, for fixed windows with the default lease, an even spread of each key's requests over
the pods, and steady demand. docs/capacity.md has the formulas and what they leave out.

Exit status: 0 the defaults serve this, 1 a setting has to be changed for it (a note says which),
2 usage.

Examples:
  ratectl plan --pods 20 --keys 50000 --limit 100 --per minute --rate 20000
  ratectl plan --pods 1000 --keys 100000 --limit 10000 --per 1m --rate 500000 --zipf 1
  ratectl plan --pods 100 --keys 10000000 --limit 1000 --per hour --rate 1e6 --json";

/// Flags of `plan`.
#[derive(Debug, Args)]
pub struct PlanFlags {
    /// Number of pods that share the limits
    #[arg(long, value_name = "COUNT", value_parser = pods)]
    pods: u32,
    /// Number of distinct keys, such as users
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=KEYS_MAX))]
    keys: u64,
    /// Number of requests that each key is allowed in a window
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The window: second, minute, hour, day, week, month or year, or a duration such as 5m
    #[arg(long, value_name = "WINDOW", value_parser = window)]
    per: Duration,
    /// Decisions a second of all pods together
    #[arg(long, value_name = "COUNT", value_parser = rate)]
    rate: f64,
    /// Skew of the demand: the k-th key has weight 1/k^S; with 0 all are equal
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = skew::parse)]
    zipf: f64,
    /// Script calls a second for one Redis shard; scripts/bench-shard measures its maximum
    #[arg(long, value_name = "COUNT", default_value = CALLS_PER_SHARD, value_parser = rate)]
    calls_per_shard: f64,
    /// Round trip to Redis, a duration
    #[arg(long, value_name = "SPAN", default_value = "500us", value_parser = round_trip)]
    round_trip: Duration,
    #[command(flatten)]
    out: OutFlags,
}

/// Makes the estimate and prints it.
pub(super) fn run(flags: &PlanFlags, out: &mut Out) -> CliResult {
    let fleet = flags.fleet();
    let estimate = Estimate::of(&fleet);
    let notes = report::notes(&fleet, &estimate);
    if flags.out.json {
        out.json(&report::json(&fleet, &estimate, &notes))?;
    } else {
        report::text(&fleet, &estimate, &notes, out)?;
    }
    Ok(Completion::clean_if(notes.is_empty()))
}

// === impl PlanFlags ===

impl PlanFlags {
    fn fleet(&self) -> Fleet {
        let Self { pods, keys, limit, per: window, rate, zipf, .. } = *self;
        let Self { calls_per_shard, round_trip, .. } = *self;
        Fleet { pods, keys, limit, window, rate, zipf, calls_per_shard, round_trip }
    }
}

fn pods(text: &str) -> Result<u32, String> {
    let pods = text.parse().ok().filter(|pods: &u32| (1..=PODS_MAX).contains(&(*pods as usize)));
    pods.ok_or_else(|| format!("expected a whole number from 1 to {PODS_MAX}"))
}

fn window(text: &str) -> Result<Duration, String> {
    let named = Unit::parse(text).map(|unit| Duration::from_secs(unit.seconds()));
    let range = Duration::from_secs(1)..=Duration::from_secs(WINDOW_SECONDS_MAX);
    named.or_else(|| parse_duration(text)).filter(|window| range.contains(window)).ok_or_else(
        || {
            "expected second, minute, hour, day, week, month or year, or a duration from 1s to ten \
         years, such as 5m"
                .into()
        },
    )
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= RATE_MAX);
    rate.ok_or_else(|| format!("expected a number above 0, up to {RATE_MAX:e}"))
}

fn round_trip(text: &str) -> Result<Duration, String> {
    let range = Duration::from_micros(1)..=ROUND_TRIP_MAX;
    let span = parse_duration(text).filter(|span| range.contains(span));
    span.ok_or_else(|| "expected a duration from 1us to 10s, such as 500us".into())
}
