//! The response headers that describe the limits of a verdict.
//!
//! Headers for one limit describe the tightest ([`Verdict::tightest`]). Lists have one item for
//! each policy name: rules with the same name are one policy, described by the tightest of them.

use std::fmt::Write;

use ratelease_cli::settings::Headers;
use ratelease_engine::verdict::{AppliedLimit, Code, OVERRIDE, Status, Verdict};

/// Maximum size in bytes of a header's value: Envoy refuses responses whose headers exceed 60 KiB
/// in total. Items that do not fit are left out.
const VALUE_BYTES_MAX: usize = 4096;

/// Maximum size in bytes of a policy's name in a header, without its quotes; longer names are cut.
const NAME_BYTES_MAX: usize = 128;

/// The item of a list for one limit.
struct Item<'a> {
    status: &'a Status<'a>,
    applied: AppliedLimit<'a>,
    /// The name in quotes.
    name: String,
}

/// The headers for `verdict`; empty if no limit applies.
pub(super) fn of(headers: &Headers, verdict: &Verdict<'_>) -> Vec<(String, String)> {
    let mut written = Vec::new();
    let Some((status, applied)) = verdict.tightest_limit() else { return written };
    let requests = applied.limit.requests_per_unit;
    let reset = status.reset_seconds().unwrap_or_default();
    let mut write = |name: &str, value: String| written.push((name.to_owned(), value));
    if let Some(names) = &headers.reference {
        write(&names.limit, requests.to_string());
        write(&names.remaining, status.remaining.to_string());
        write(&names.reset, reset.to_string());
    }
    if headers.x_ratelimit {
        write("X-RateLimit-Limit", x_ratelimit_limit(requests, verdict));
        write("X-RateLimit-Remaining", status.remaining.to_string());
        write("X-RateLimit-Reset", reset.to_string());
    }
    if headers.ietf {
        let items = items(status, verdict);
        write("RateLimit-Policy", list(items.iter().map(Item::policy)));
        write("RateLimit", list(items.iter().map(Item::remaining)));
    }
    if headers.retry_after && verdict.code == Code::OverLimit {
        write("Retry-After", verdict.retry_after_seconds().to_string());
    }
    written
}

/// The value in Envoy's format: the limit that bounds, then each limit with its window and, if it
/// has one, its name. Envoy inserts the name unchanged; here it is escaped.
fn x_ratelimit_limit(requests: u32, verdict: &Verdict<'_>) -> String {
    let limits = verdict.statuses.iter().filter_map(|status| status.limit).map(|applied| {
        let (requests, window) = (applied.limit.requests_per_unit, applied.limit.window_seconds());
        match applied.rule.map(|rule| &*rule.name).filter(|name| !name.is_empty()) {
            Some(name) => format!("{requests};w={window};name={}", quoted(name)),
            None => format!("{requests};w={window}"),
        }
    });
    list(std::iter::once(requests.to_string()).chain(limits))
}

/// One item for each policy, the tightest first, then by remaining, fewest first.
fn items<'a>(tightest: &'a Status<'a>, verdict: &'a Verdict<'_>) -> Vec<Item<'a>> {
    let mut others: Vec<_> =
        verdict.statuses.iter().filter(|other| !std::ptr::eq(*other, tightest)).collect();
    others.sort_by_key(|status| status.remaining);
    let mut items = Vec::<Item<'_>>::new();
    for status in std::iter::once(tightest).chain(others) {
        let Some(applied) = status.limit else { continue };
        let name = quoted(policy(applied));
        if !items.iter().any(|item| item.name == name) {
            items.push(Item { status, applied, name });
        }
    }
    items
}

/// The rule's name or its path: never text that a client has sent.
fn policy(applied: AppliedLimit<'_>) -> &str {
    match applied.rule {
        Some(rule) if rule.name.is_empty() => &rule.path,
        Some(rule) => &rule.name,
        None => OVERRIDE,
    }
}

/// Joins items with commas, as many as fit.
fn list(items: impl Iterator<Item = String>) -> String {
    let mut list = String::new();
    for item in items {
        let comma = if list.is_empty() { "" } else { ", " };
        if list.len() + comma.len() + item.len() <= VALUE_BYTES_MAX {
            list += comma;
            list += &item;
        }
    }
    list
}

/// Formats `text` as a String of RFC 9651 §3.3.3, which allows only ASCII: other bytes are written
/// as in its Display Strings (§3.3.8), `%` and two hexadecimal digits a byte; `%` itself too, so
/// that different texts never have the same form. Cut to [`NAME_BYTES_MAX`].
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let before = quoted.len();
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' if c != '%' => quoted.push(c),
            _ => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a string cannot fail.
                    let _ = write!(quoted, "%{byte:02x}");
                }
            }
        }
        if quoted.len() > 1 + NAME_BYTES_MAX {
            quoted.truncate(before);
            break;
        }
    }
    quoted.push('"');
    quoted
}

// === impl Item ===

impl Item<'_> {
    /// Quota and window of the policy; the window is in seconds.
    fn policy(&self) -> String {
        let Self { name, applied: AppliedLimit { limit, .. }, .. } = self;
        format!("{name};q={};w={}", limit.requests_per_unit, limit.window_seconds())
    }

    /// The remaining quota, and the seconds until it is full again, if they are known.
    fn remaining(&self) -> String {
        let Self { name, status, .. } = self;
        match status.reset_seconds() {
            Some(seconds) => format!("{name};r={};t={seconds}", status.remaining),
            None => format!("{name};r={}", status.remaining),
        }
    }
}

#[cfg(test)]
mod tests;
