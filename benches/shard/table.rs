//! The table, for people and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::args::Args;
use crate::kind::LOG_ENTRIES;
use crate::run::Row;

const HEAD: [&str; 8] = [
    "algorithm",
    "calls/s",
    "calls/s, more under way",
    "CPU µs/call",
    "calls/s a core",
    "p50 µs",
    "p99 µs",
    "bytes/key",
];

/// The table, with an explanation of its columns.
pub fn text(args: &Args, rows: &[Row]) -> String {
    let fields: Vec<_> = rows.iter().map(fields).collect();
    let mut widths = HEAD.map(|word| word.chars().count());
    for row in &fields {
        for (width, field) in widths.iter_mut().zip(row) {
            *width = (*width).max(field.chars().count());
        }
    }
    let mut text = String::new();
    line(&mut text, &HEAD.map(ToOwned::to_owned), &widths);
    fields.iter().for_each(|row| line(&mut text, row, &widths));
    let version = rows.first().map_or("", |row| &row.version);
    let Args { connections, in_flight, seconds, keys, .. } = args;
    let _ = writeln!(
        text,
        "\nRedis {version}, {connections} connections, {in_flight:?} calls under way, {seconds} s \
         each, {keys} keys.\n\
         p50 and p99: of calls sent at half of the higher rate, from sending to the reply.\n\
         calls/s a core: 1 s over the CPU that a call takes, with the lower number under way.\n\
         sliding_log: {} keys of {LOG_ENTRIES} entries each.",
        keys / 100,
    );
    text
}

/// The measurements of every algorithm, in one line.
pub fn json(args: &Args, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let served = row.served.iter().zip(&args.in_flight).map(|(served, in_flight)| {
            json!({
                "in_flight": in_flight,
                "calls_per_second": served.per_second(),
                "cpu_us_per_call": served.cpu_us(),
                "redis_cores": served.cores(),
            })
        });
        json!({
            "algorithm": row.kind.name,
            "served": served.collect::<Vec<_>>(),
            "paced_calls_per_second": row.rate,
            "p50_us": row.took.value_at_quantile(0.5),
            "p99_us": row.took.value_at_quantile(0.99),
            "keys": row.keys,
            "bytes": row.bytes,
            "bytes_per_key": row.bytes as f64 / row.keys as f64,
        })
    };
    json!({
        "redis": rows.first().map(|row| &row.version),
        "connections": args.connections,
        "seconds": args.seconds,
        "log_entries": LOG_ENTRIES,
        "algorithms": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn fields(row: &Row) -> [String; HEAD.len()] {
    let rate = |at: usize| row.served.get(at).map_or(0.0, |served| served.per_second());
    let cpu = row.served.first().map_or(0.0, |served| served.cpu_us());
    [
        row.kind.name.to_owned(),
        format!("{:.0}", rate(0)),
        format!("{:.0}", rate(1)),
        format!("{cpu:.1}"),
        format!("{:.0}", 1e6 / cpu),
        row.took.value_at_quantile(0.5).to_string(),
        row.took.value_at_quantile(0.99).to_string(),
        format!("{:.1}", row.bytes as f64 / row.keys as f64),
    ]
}

/// Words are aligned left, figures right.
fn line(text: &mut String, row: &[String; HEAD.len()], widths: &[usize; HEAD.len()]) {
    let cells = row.iter().zip(widths).enumerate().map(|(at, (field, &width))| {
        if at == 0 { format!("{field:<width$}") } else { format!("{field:>width$}") }
    });
    let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
}
