//! Reports the estimate, as text and as JSON.

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_engine::limiter::Options;
use serde_json::{Value, json};

use super::model::{Estimate, Fleet};

const MIB: f64 = (1 << 20) as f64;

/// Returns the settings that need other values than the defaults for this fleet.
pub(super) fn notes(fleet: &Fleet, estimate: &Estimate) -> Vec<String> {
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
pub(super) fn text(
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
    let (pods, calls) = (f64::from(fleet.pods), fleet.calls_per_shard);
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
pub(super) fn json(fleet: &Fleet, estimate: &Estimate, notes: &[String]) -> Value {
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
