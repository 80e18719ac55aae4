//! `ratectl plan`: estimates the load that a fleet puts on Redis, and the resources it needs. Uses
//! the formulas of `docs/capacity.md`; connects to nothing.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clap::Args;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_engine::lease::size::UNSPENT_ALLOWANCE;
use ratelease_engine::limiter::Options;
use ratelease_engine::store::PODS_MAX;
use ratelease_rules::parse_duration;
use ratelease_rules::{AMOUNT_MAX, LeaseTerms, Unit, WINDOW_SECONDS_MAX};
use serde_json::{Value, json};

/// Maximum number of distinct keys; above it `f64` no longer counts exactly.
const KEYS_MAX: u64 = 1_000_000_000_000;

/// Maximum number of decisions a second, and of calls of one shard a second.
const RATE_MAX: f64 = 1e12;

/// Maximum round trip.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

/// Half of the measured capacity of one Redis core (`docs/capacity.md`).
const CALLS_PER_SHARD: &str = "50000";

pub const NOTES: &str = "\
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
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=AMOUNT_MAX))]
    limit: u64,
    /// The window: second, minute, hour, day, week, month or year, or a duration such as 5m
    #[arg(long, value_name = "WINDOW", value_parser = window)]
    per: Duration,
    /// Decisions a second of all pods together
    #[arg(long, value_name = "COUNT", value_parser = rate)]
    rate: f64,
    /// Skew of the demand: the k-th key has weight 1/k^S; with 0 all are equal
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = parse)]
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
pub fn run(flags: &PlanFlags, out: &mut Out) -> CliResult {
    let fleet = flags.fleet();
    let estimate = Estimate::of(&fleet);
    let notes = notes(&fleet, &estimate);
    if flags.out.json {
        out.json(&json(&fleet, &estimate, &notes))?;
    } else {
        text(&fleet, &estimate, &notes, out)?;
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

// === Key ===
//
// One key in one window, under a steady demand that is spread evenly over the pods: how often the
// fleet asks for it, and how many requests wait for these asks. Leases have the sizes that
// `lease::size` computes; `docs/capacity.md` derives the formulas.

/// φ: the rules of a plan have the default terms.
const FRACTION: f64 = LeaseTerms::FRACTION as f64;

/// The intended duration of a lease for each range of the limit: each range reaches down to the
/// given remaining part.
const SPANS: [(f64, f64); 3] = [(0.5, 2.0), (0.2, 0.25), (0.0, 0.05)];

/// Minimum use of a key, in hits a second, for which a pod asks ahead. A key below it is idle
/// between two hits, and its pod holds at most the number of tokens that may stay unspent.
const WARM: f64 = 5.0;

/// The whole fleet probes a denied key once in this part of its window.
const PROBES: f64 = 100.0;

/// Bounds of that interval in seconds.
const PROBE_SECONDS: (f64, f64) = (0.05, 1.0);

/// Number of terms of a sum that are added one by one; an integral approximates the rest.
const TERMS: u32 = 1_000;

/// The demand for a key, and its limit.
#[derive(Debug, Clone, Copy)]
struct Demand {
    /// Hits per window, of all pods.
    offered: f64,
    /// Tokens per window.
    limit: f64,
    /// Length of the window in seconds.
    window: f64,
    pods: f64,
}

/// The cost of one key in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    admitted: f64,
    /// Number of asks of all pods.
    asks: f64,
    /// Number of requests that wait for an answer of Redis.
    waits: f64,
    /// Number of pods that see the key at all.
    holders: f64,
}

impl Demand {
    fn cost(self) -> Cost {
        let Self { offered, limit, .. } = self;
        let holders = self.holders_after(self.window);
        let admitted = offered.min(limit);
        let denied = offered - admitted;
        // Each holder asks at least once.
        let least = holders.min(admitted);
        let lent = self.lent(holders.max(1.0), admitted).clamp(least, admitted.max(least));
        let refused = if denied > 0.0 { (holders + self.probes(denied)).min(denied) } else { 0.0 };
        let waits = if self.is_warm() {
            (holders + near_end(limit, admitted, holders)).min(lent)
        } else {
            lent
        };
        Cost { admitted, asks: lent + refused, waits: waits + refused, holders }
    }

    /// Returns the number of pods that see the key within `seconds`: hits reach pods at random.
    fn holders_after(self, seconds: f64) -> f64 {
        let hits = self.offered * seconds / self.window;
        -self.pods * (-hits / self.pods).exp_m1()
    }

    /// Returns the hits a second of one pod.
    fn rate(self) -> f64 {
        self.offered / self.window / self.pods
    }

    fn is_warm(self) -> bool {
        self.rate() >= WARM
    }

    /// Returns the number of asks that lease `tokens` out of a full window.
    fn lent(self, holders: f64, tokens: f64) -> f64 {
        let last = self.limit - tokens;
        let mut from = self.limit;
        let mut asks = 0.0;
        for (above, span) in SPANS {
            let to = last.max(above * self.limit);
            if to < from {
                let demand =
                    if self.is_warm() { self.rate() * span.min(self.window / 4.0) } else { 0.0 };
                let most = demand.max(UNSPENT_ALLOWANCE * self.limit / holders).floor().max(1.0);
                asks += draws(from, to, most, holders / FRACTION);
                from = to;
            }
        }
        asks
    }

    /// Returns the number of asks for a key while it is used up.
    fn probes(self, denied: f64) -> f64 {
        let (least, most) = PROBE_SECONDS;
        let each = (self.window / PROBES).clamp(least, most);
        self.window * denied / self.offered / each
    }
}

/// Returns the number of asks that reduce the remaining tokens from `from` to `to`, each for ⌊left
/// / `parts`⌋ tokens, from 1 to `most`.
fn draws(from: f64, to: f64, most: f64, parts: f64) -> f64 {
    // First asks for `most` tokens each while enough are left, then for fewer and fewer.
    let enough = most * parts;
    let full = (from - to.max(enough)).max(0.0) / most;
    let from = from.min(enough);
    let to = to.min(enough);
    let mut asks = full;
    // Asks for one token, below 2 · parts.
    asks += (from.min(2.0 * parts) - to.min(2.0 * parts)) * 1.0;
    let mut size = 2.0;
    while size < most && size * parts < from && size <= f64::from(TERMS) {
        let low = (size * parts).max(to);
        let high = ((size + 1.0) * parts).min(from);
        asks += (high - low).max(0.0) / size;
        size += 1.0;
    }
    let low = (size * parts).max(to);
    if size < most && low < from {
        asks += parts * (from / low).ln();
    }
    asks
}

/// Returns the number of tokens that are not leased ahead of a request: the last ones, when a pod's
/// part of the remaining tokens is below one.
fn near_end(limit: f64, admitted: f64, holders: f64) -> f64 {
    (limit.min(holders / FRACTION) - (limit - admitted)).max(0.0)
}

// === Ranks ===
//
// The keys of a fleet by their part of the demand: Zipf's law, in groups of similar keys.

/// A group of similar keys.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Group {
    keys: f64,
    /// The part of the whole demand for each of them.
    weight: f64,
}

/// The first ranks form a group each.
const ALONE: u64 = 1_000;

/// In other groups, this ratio bounds the last rank relative to the first.
const GROWTH: f64 = 1.01;

/// Groups `keys` keys, of which the k-th has weight 1/k^`skew`, hottest first. The weights add up
/// to 1.
fn groups(keys: u64, skew: f64) -> Vec<Group> {
    if skew == 0.0 {
        let keys = keys as f64;
        return vec![Group { keys, weight: 1.0 / keys }];
    }
    let mut groups = Vec::new();
    let mut first = 1;
    while first <= keys {
        let last = if first < ALONE { first } else { after(first).min(keys) };
        groups.push(group(first, last, skew));
        first = last + 1;
    }
    let total: f64 = groups.iter().map(|group| group.keys * group.weight).sum();
    groups.into_iter().map(|group| Group { weight: group.weight / total, ..group }).collect()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
fn after(first: u64) -> u64 {
    (first as f64 * GROWTH) as u64
}

/// Groups the ranks `first` to `last`; their weight is the mean, computed as an integral.
fn group(first: u64, last: u64, skew: f64) -> Group {
    let keys = (last - first + 1) as f64;
    if first == last {
        return Group { keys, weight: (first as f64).powf(-skew) };
    }
    let low = first as f64 - 0.5;
    let high = last as f64 + 0.5;
    let sum = if skew == 1.0 {
        (high / low).ln()
    } else {
        (high.powf(1.0 - skew) - low.powf(1.0 - skew)) / (1.0 - skew)
    };
    Group { keys, weight: sum / keys }
}

// === Model ===
//
// The estimate for a whole fleet: the sum over its keys. Pure functions.

/// Bytes per key in Redis just after its tables have grown (`docs/capacity.md`).
const REDIS_KEY_BYTES: f64 = 147.0;

/// Bytes per key in a pod (`docs/performance.md`).
const POD_KEY_BYTES: f64 = 106.8;

/// A quantile is local if this part of the decisions is.
const P95: f64 = 0.95;

/// The fleet to plan.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fleet {
    pods: u32,
    keys: u64,
    limit: u64,
    window: Duration,
    /// Decisions a second over all pods.
    rate: f64,
    zipf: f64,
    calls_per_shard: f64,
    round_trip: Duration,
}

/// The estimate; rates are per second unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    /// The part of the decisions that do not wait for Redis.
    local: f64,
    /// The part of the decisions that are denied.
    denied: f64,
    asks: f64,
    /// Asks in the first second of a window, in which all keys start with new windows.
    asks_at_start: f64,
    /// Asks for the key with the most asks.
    asks_of_hottest: f64,
    /// Shards needed for the mean, and for the first second of a window.
    shards: f64,
    shards_at_start: f64,
    /// Keys in Redis at the end of a window, and their bytes.
    redis_keys: f64,
    redis_bytes: f64,
    /// Keys in each pod at the end of a window, and their bytes.
    pod_keys: f64,
    pod_bytes: f64,
    /// Whether 95 of 100 decisions are local.
    is_p95_local: bool,
}

/// Sums over keys, for one window.
#[derive(Debug, Default)]
struct Sums {
    offered: f64,
    admitted: f64,
    asks: f64,
    waits: f64,
    at_start: f64,
    hottest: f64,
    redis_keys: f64,
    holders: f64,
}

// === impl Estimate ===

impl Estimate {
    /// Makes the estimate for `fleet`.
    fn of(fleet: &Fleet) -> Self {
        let window = fleet.window.as_secs_f64();
        let mut sums = Sums::default();
        for group in groups(fleet.keys, fleet.zipf) {
            let offered = fleet.rate * window * group.weight;
            let limit = fleet.limit as f64;
            let pods = f64::from(fleet.pods);
            sums.add(Demand { offered, limit, window, pods }, group.keys);
        }
        let asks = sums.asks / window;
        let asks_at_start = sums.at_start.max(asks);
        let shards = |asks: f64| (asks / fleet.calls_per_shard).ceil().max(1.0);
        let local = 1.0 - sums.waits / sums.offered;
        let pod_keys = sums.holders / f64::from(fleet.pods);
        Self {
            local,
            denied: 1.0 - sums.admitted / sums.offered,
            asks,
            asks_at_start,
            asks_of_hottest: sums.hottest / window,
            shards: shards(asks),
            shards_at_start: shards(asks_at_start),
            redis_keys: sums.redis_keys,
            redis_bytes: sums.redis_keys * REDIS_KEY_BYTES,
            pod_keys,
            pod_bytes: pod_keys * POD_KEY_BYTES,
            is_p95_local: local >= P95,
        }
    }
}

// === impl Sums ===

impl Sums {
    fn add(&mut self, demand: Demand, keys: f64) {
        let Cost { admitted, asks, waits, holders } = demand.cost();
        self.offered += keys * demand.offered;
        self.admitted += keys * admitted;
        self.asks += keys * asks;
        self.waits += keys * waits;
        self.at_start += keys * demand.holders_after(1.0);
        self.hottest = self.hottest.max(asks);
        self.redis_keys += keys * -(-demand.offered).exp_m1();
        self.holders += keys * holders;
    }
}

// === Report ===
//
// Reports the estimate, as text and as JSON.

const MIB: f64 = (1 << 20) as f64;

/// Returns the settings that need other values than the defaults for this fleet.
fn notes(fleet: &Fleet, estimate: &Estimate) -> Vec<String> {
    let mut notes = Vec::new();
    let hottest = estimate.asks_of_hottest / fleet.calls_per_shard;
    if hottest > 1.0 {
        notes.push(format!(
            "one key needs {:.0} asks/s, more than a shard serves; set `shards: {:.0}` in its rule",
            estimate.asks_of_hottest,
            hottest.ceil()
        ));
    }
    if estimate.pod_bytes > Options::default().buffer_bytes_max as f64 {
        notes.push(format!(
            "a pod's keys need more than the default of BUFFER_MEMORY; set {:.0}MiB, or idle keys \
             give way and are asked for again",
            (estimate.pod_bytes / MIB * 1.1).ceil()
        ));
    }
    notes
}

/// Prints a line for each figure.
fn text(
    fleet: &Fleet,
    estimate: &Estimate,
    notes: &[String],
    out: &mut Out,
) -> Result<(), CliError> {
    let painter = out.painter();
    out.line(painter.paint(Style::Strong, headline(fleet)))?;
    for (name, figure) in figures(fleet, estimate) {
        out.line(format_args!("  {name:<22}{figure}"))?;
    }
    for note in notes {
        out.line(format_args!("{} {note}", painter.paint(Style::Doubtful, "note:")))?;
    }
    out.line(painter.paint(Style::Faint, "an estimate; docs/capacity.md has the formulas"))
}

fn headline(fleet: &Fleet) -> String {
    let Fleet { pods, keys, limit, window, rate, zipf, .. } = fleet;
    format!(
        "{rate:.0} decisions/s by {pods} pods, {keys} keys (zipf {zipf}), {limit} per {window:?} \
         and key"
    )
}

fn figures(fleet: &Fleet, estimate: &Estimate) -> Vec<(&'static str, String)> {
    let Estimate { local, denied, asks, asks_at_start, shards, shards_at_start, .. } = estimate;
    let pods = f64::from(fleet.pods);
    let calls = fleet.calls_per_shard;
    let p95 = if estimate.is_p95_local {
        "local: microseconds".to_owned()
    } else {
        format!("one round trip: {:?} and the wait for a batch", fleet.round_trip)
    };
    vec![
        ("answered locally", format!("{:.1} % of decisions; the rest wait", local * 100.0)),
        ("denied", format!("{:.1} %", denied * 100.0)),
        (
            "asks",
            format!(
                "{asks:.0}/s, {:.0}/s a pod, {:.0} for 1000 decisions",
                asks / pods,
                asks / fleet.rate * 1000.0
            ),
        ),
        ("asks, first second", format!("{asks_at_start:.0}/s, as every window begins")),
        (
            "Redis shards",
            format!("{shards:.0}, or {shards_at_start:.0} for the first second, of {calls:.0}/s"),
        ),
        (
            "Redis memory",
            format!("{:.1} MiB, {:.0} keys", estimate.redis_bytes / MIB, estimate.redis_keys),
        ),
        (
            "memory of a pod",
            format!("{:.1} MiB, {:.0} keys", estimate.pod_bytes / MIB, estimate.pod_keys),
        ),
        ("p95 of decisions", p95),
    ]
}

/// Returns all figures, with the parameters.
fn json(fleet: &Fleet, estimate: &Estimate, notes: &[String]) -> Value {
    json!({
        "fleet": {
            "pods": fleet.pods,
            "keys": fleet.keys,
            "limit": fleet.limit,
            "window_seconds": fleet.window.as_secs_f64(),
            "decisions_per_second": fleet.rate,
            "zipf": fleet.zipf,
            "calls_per_shard": fleet.calls_per_shard,
            "round_trip_us": fleet.round_trip.as_secs_f64() * 1e6,
        },
        "local_share": estimate.local,
        "denied_share": estimate.denied,
        "asks_per_second": estimate.asks,
        "asks_per_second_per_pod": estimate.asks / f64::from(fleet.pods),
        "asks_per_second_first_second": estimate.asks_at_start,
        "asks_per_second_of_hottest_key": estimate.asks_of_hottest,
        "shards": estimate.shards,
        "shards_first_second": estimate.shards_at_start,
        "redis_keys": estimate.redis_keys,
        "redis_bytes": estimate.redis_bytes,
        "pod_keys": estimate.pod_keys,
        "pod_bytes": estimate.pod_bytes,
        "p95": if estimate.is_p95_local { "local" } else { "round_trip" },
        "notes": notes,
    })
}

// === Skew ===
//
// The flag that says how skewed a demand is: the k-th key has weight 1/k^S.

/// Maximum skew: above it nearly every request is for the first key.
const SKEW_MAX: f64 = 10.0;

/// Parses the exponent S; 0 makes all keys alike.
fn parse(text: &str) -> Result<f64, String> {
    let skew = text.parse().ok().filter(|skew| (0.0..=SKEW_MAX).contains(skew));
    skew.ok_or_else(|| format!("expected a number from 0 to {SKEW_MAX}, as in 1.0"))
}
