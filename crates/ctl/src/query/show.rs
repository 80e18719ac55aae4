//! Prints an answer as text.

use std::fmt::Write;
use std::time::Duration;

use ratelease_cli::out::{Painter, Style};
use ratelease_cli::safe::Safe;

use super::OVER_LIMIT;
use super::wire::{DescriptorReply, Reply};
use crate::descriptor::DescriptorArg;

/// Formats one of several calls on one line.
pub(super) fn brief(number: u32, reply: &Reply, painter: Painter) -> String {
    let statuses = reply.statuses.iter().map(|status| match &status.limit {
        Some(_) => status.remaining.to_string(),
        None => "-".to_owned(),
    });
    let remaining = statuses.collect::<Vec<_>>().join(", ");
    format!("{number}: {}, remaining {remaining}", painted(&reply.code, painter))
}

/// Formats the whole answer.
pub(super) fn full(
    descriptors: &[DescriptorArg],
    reply: &Reply,
    took: Duration,
    painter: Painter,
) -> String {
    let mut text =
        format!("{}  in {:.1} ms", painted(&reply.code, painter), took.as_secs_f64() * 1e3);
    for (at, status) in reply.statuses.iter().enumerate() {
        let of = descriptors.get(at).map_or_else(|| "?".to_owned(), name);
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {of}: {}", status_line(status, painter));
    }
    if reply.statuses.len() != descriptors.len() {
        let (got, sent) = (reply.statuses.len(), descriptors.len());
        let _ = write!(text, "\n  {got} statuses for {sent} descriptors");
    }
    for (what, headers) in
        [("response", &reply.response_headers), ("request", &reply.request_headers)]
    {
        for (name, value) in headers {
            let _ = write!(text, "\n  {what} header {}: {}", Safe(name), Safe(value));
        }
    }
    if let Some(metadata) = &reply.metadata {
        let _ = write!(text, "\n  metadata {}", Safe(metadata));
    }
    if !reply.body.is_empty() {
        let _ = write!(text, "\n  body {:?}", reply.body);
    }
    text
}

fn name(typed: &DescriptorArg) -> String {
    let entries = typed.descriptor().entries;
    let entries: Vec<_> = entries.iter().map(|e| format!("{}={}", e.key, e.value)).collect();
    entries.join(",")
}

fn status_line(status: &DescriptorReply, painter: Painter) -> String {
    let code = painted(&status.code, painter);
    let Some(limit) = &status.limit else {
        return match status.remaining {
            u32::MAX => format!("{code}, unlimited"),
            _ => format!("{code}, no limit"),
        };
    };
    let (requests, unit) = (limit.requests_per_unit, limit.unit.to_lowercase());
    let mut text = format!("{code}, {} of {requests} per {unit} left", status.remaining);
    if let Some(reset) = status.reset_seconds {
        let _ = write!(text, ", resets in {reset} s");
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
