//! The table, for people and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cell::{Algorithm, Mode};
use crate::run::{Outcome, Row};

const HEAD: [&str; 11] = [
    "limit",
    "demand",
    "offered",
    "mode",
    "of limit",
    "of exact",
    "falsely denied",
    "commands/1000",
    "p50 µs",
    "p99 µs",
    "no answer",
];

/// Columns of words, which are aligned left. Columns of figures are aligned right.
const LEFT: [usize; 2] = [1, 3];

/// The table, grouped by algorithm, with an explanation of its columns.
pub fn text(outcome: &Outcome) -> String {
    let rows: Vec<_> = outcome.rows.iter().map(|row| (row.cell.algorithm, fields(row))).collect();
    let mut widths = HEAD.map(|word| word.chars().count());
    for (width, field) in rows.iter().flat_map(|(_, row)| widths_of(row)) {
        widths[field] = widths[field].max(width);
    }
    let mut text = String::new();
    for algorithm in Algorithm::ALL {
        let of_it: Vec<_> = rows.iter().filter(|(of, _)| *of == algorithm).collect();
        if !of_it.is_empty() {
            let _ = writeln!(text, "{}", algorithm.name());
            line(&mut text, &HEAD.map(ToOwned::to_owned), &widths);
            of_it.iter().for_each(|(_, row)| line(&mut text, row, &widths));
            text.push('\n');
        }
    }
    text + &summary(outcome) + &footer(outcome)
}

fn widths_of(row: &[String; HEAD.len()]) -> impl Iterator<Item = (usize, usize)> {
    row.iter().enumerate().map(|(field, text)| (text.chars().count(), field))
}

fn fields(row: &Row) -> [String; HEAD.len()] {
    let failed = 100.0 * row.failed as f64 / row.offered as f64;
    let micros = |span: std::time::Duration| format!("{:.1}", span.as_secs_f64() * 1e6);
    [
        format!("{}/{}s", row.cell.limit, row.cell.window().as_secs()),
        row.cell.spread.name().to_owned(),
        format!("{}", row.cell.offered),
        row.cell.mode.name().to_owned(),
        format!("{:.4}", row.of_limit()),
        format!("{:.4}", row.of_exact()),
        format!("{:.2} %", 100.0 * row.falsely_denied()),
        format!("{:.2}", row.cost()),
        micros(row.median),
        micros(row.p99),
        if row.failed == 0 { "-".to_owned() } else { format!("{failed:.2} %") },
    ]
}

fn line(text: &mut String, fields: &[String; HEAD.len()], widths: &[usize; HEAD.len()]) {
    let mut all = String::new();
    for (at, (field, width)) in fields.iter().zip(widths).enumerate() {
        let _ = match LEFT.contains(&at) {
            true => write!(all, "  {field:<width$}"),
            false => write!(all, "  {field:>width$}"),
        };
    }
    let _ = writeln!(text, "{}", all.trim_end());
}

/// One line for each mode: the range of its cells.
fn summary(outcome: &Outcome) -> String {
    let mut text = String::from("admitted of what an exact server admits, over all cells\n");
    for mode in Mode::ALL {
        let rows = || outcome.rows.iter().filter(|row| row.cell.mode == mode);
        let ends = |of: fn(&Row) -> f64| {
            rows().map(of).fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(it), high.max(it)))
        };
        if rows().next().is_some() {
            let ((low, high), (few, many)) = (ends(Row::of_exact), ends(Row::cost));
            let denied = 100.0 * ends(Row::falsely_denied).1;
            let _ = writeln!(
                text,
                "  {:<12}  {low:.4} to {high:.4}, falsely denied at most {denied:.2} %, \
                 commands/1000 {few:.2} to {many:.1}",
                mode.name()
            );
        }
    }
    text + "\n"
}

fn footer(outcome: &Outcome) -> String {
    format!(
        "of limit: admitted / (limit x windows). of exact: admitted / what one exact server admits \
         of the same requests.\nfalsely denied: max(0, exact - admitted) / offered. \
         commands/1000: script calls (EVALSHA) or INCRBY for 1000 decisions.\n\
         Seed {}, {} s; asks that left the pods: {}; script calls by Redis's own count: {}, signs \
         of life among them.\n",
        outcome.seed,
        outcome.length.as_secs(),
        outcome.asks,
        outcome.scripts,
    )
}

/// All measurements, for programs.
pub fn json(outcome: &Outcome) -> String {
    let rows: Vec<Value> = outcome.rows.iter().map(row_json).collect();
    let all = json!({
        "seed": outcome.seed,
        "seconds": outcome.length.as_secs(),
        "asks": outcome.asks,
        "script_calls": outcome.scripts,
        "rows": rows,
    });
    format!("{all:#}\n")
}

fn row_json(row: &Row) -> Value {
    let micros = |span: std::time::Duration| span.as_secs_f64() * 1e6;
    json!({
        "algorithm": row.cell.algorithm.name(),
        "limit": row.cell.limit,
        "window_seconds": row.cell.window().as_secs(),
        "windows": row.cell.windows(),
        "demand": row.cell.spread.name(),
        "offered_of_limit": row.cell.offered,
        "mode": row.cell.mode.name(),
        "offered": row.offered,
        "admitted": row.admitted,
        "exact": row.exact,
        "failed": row.failed,
        "commands": row.commands,
        "admitted_of_limit": row.of_limit(),
        "admitted_of_exact": row.of_exact(),
        "falsely_denied": row.falsely_denied(),
        "commands_per_1000": row.cost(),
        "p50_micros": micros(row.median),
        "p99_micros": micros(row.p99),
        "decisions_per_second_beside": row.beside,
    })
}
