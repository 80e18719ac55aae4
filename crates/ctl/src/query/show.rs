//! Prints an answer as text.

use std::fmt::Write;
use std::time::Duration;

use ratelease_cli::out::{Painter, Style};
use ratelease_cli::safe::Safe;

use super::OVER_LIMIT;
use super::wire::{Answered, Told};
use crate::descriptor::Typed;

/// Formats one of several calls on one line.
pub(super) fn brief(number: u32, answered: &Answered, painter: Painter) -> String {
    let statuses = answered.statuses.iter().map(|told| match &told.limit {
        Some(_) => told.remaining.to_string(),
        None => "-".to_owned(),
    });
    let remaining = statuses.collect::<Vec<_>>().join(", ");
    format!("{number}: {}, remaining {remaining}", painted(&answered.code, painter))
}

/// Formats the whole answer.
pub(super) fn full(
    descriptors: &[Typed],
    answered: &Answered,
    took: Duration,
    painter: Painter,
) -> String {
    let mut text =
        format!("{}  in {:.1} ms", painted(&answered.code, painter), took.as_secs_f64() * 1e3);
    for (at, told) in answered.statuses.iter().enumerate() {
        let of = descriptors.get(at).map_or_else(|| "?".to_owned(), name);
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {of}: {}", status(told, painter));
    }
    if answered.statuses.len() != descriptors.len() {
        let (got, sent) = (answered.statuses.len(), descriptors.len());
        let _ = write!(text, "\n  {got} statuses for {sent} descriptors");
    }
    for (what, headers) in
        [("response", &answered.response_headers), ("request", &answered.request_headers)]
    {
        for (name, value) in headers {
            let _ = write!(text, "\n  {what} header {}: {}", Safe(name), Safe(value));
        }
    }
    if let Some(metadata) = &answered.metadata {
        let _ = write!(text, "\n  metadata {}", Safe(metadata));
    }
    if !answered.body.is_empty() {
        let _ = write!(text, "\n  body {:?}", answered.body);
    }
    text
}

fn name(typed: &Typed) -> String {
    let entries = typed.descriptor().entries;
    let entries: Vec<_> = entries.iter().map(|e| format!("{}={}", e.key, e.value)).collect();
    entries.join(",")
}

fn status(told: &Told, painter: Painter) -> String {
    let code = painted(&told.code, painter);
    let Some(limit) = &told.limit else {
        return match told.remaining {
            u32::MAX => format!("{code}, unlimited"),
            _ => format!("{code}, no limit"),
        };
    };
    let (requests, unit) = (limit.requests_per_unit, limit.unit.to_lowercase());
    let mut text = format!("{code}, {} of {requests} per {unit} left", told.remaining);
    if let Some(reset) = told.reset_seconds {
        let _ = write!(text, ", as new in {reset} s");
    }
    if !limit.name.is_empty() {
        let _ = write!(text, " (rule {})", Safe(&limit.name));
    }
    text
}

fn painted(code: &str, painter: Painter) -> String {
    let style = match code {
        "OK" => Style::Good,
        OVER_LIMIT => Style::Bad,
        _ => Style::Doubtful,
    };
    painter.paint(style, code).to_string()
}
