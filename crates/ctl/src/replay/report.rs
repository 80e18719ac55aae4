//! Reports the result of a replay, as text and as JSON.

use std::time::Duration;

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe;
use ratelease_replay::{ReplayCounts, RuleCounts, show_time};
use serde_json::{Value, json};

/// The rules and keys to show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) counts: &'a ReplayCounts,
    /// Maximum number of each.
    pub(super) top: usize,
    /// Whether a signal arrived before the end of the logs.
    pub(super) is_interrupted: bool,
}

// === impl Report ===

impl Report<'_> {
    pub(super) fn json(&self) -> Value {
        let Self { counts, top, is_interrupted } = self;
        let mut report = json!(counts);
        let rules = counts.rules();
        let rules = rules.iter().take(*top).map(|(path, counts)| {
            let RuleCounts { ok, over_limit, shadow } = counts;
            json!({"rule": path, "ok": ok, "over_limit": over_limit, "shadow": shadow})
        });
        report["rules"] = rules.collect();
        report["keys"] = json!(counts.keys(*top));
        report["interrupted"] = (*is_interrupted).into();
        report["from"] = counts.span.map(|(from, _)| show_time(from)).into();
        report["to"] = counts.span.map(|(_, to)| show_time(to)).into();
        report
    }

    pub(super) fn print(&self, out: &mut Out) -> Result<(), CliError> {
        self.print_totals(out)?;
        self.print_doubts(out)?;
        self.print_rules(out)?;
        self.print_keys(out)
    }

    fn print_totals(&self, out: &mut Out) -> Result<(), CliError> {
        let counts = self.counts;
        if self.is_interrupted {
            let line = "interrupted: this covers the lines that were read before";
            out.line(out.painter().paint(Style::Doubtful, line))?;
        }
        if let Some((from, to)) = counts.span {
            let (span, from, to) = (to - from, show_time(from), show_time(to));
            let span = Duration::from_secs(span / 1_000_000);
            out.line(format_args!("from {from} to {to}, {span:?}"))?;
        }
        out.line(format_args!("lines         {:>10}", counts.lines))?;
        out.line(format_args!("requests      {:>10}", counts.requests))?;
        out.line(format_args!(
            "  passed      {:>10}{}",
            counts.ok,
            share(counts.ok, counts.requests)
        ))?;
        let (denied, of_all) = (counts.over_limit, share(counts.over_limit, counts.requests));
        let style = if denied > 0 { Style::Bad } else { Style::Good };
        let denied = format!("  denied      {denied:>10}{of_all}");
        out.line(out.painter().paint(style, denied))?;
        let (free, of_all) = (counts.unlimited, share(counts.unlimited, counts.requests));
        out.line(format_args!("  no rule     {free:>10}{of_all}"))
    }

    /// Prints everything that makes the totals less certain.
    fn print_doubts(&self, out: &mut Out) -> Result<(), CliError> {
        let counts = self.counts;
        if counts.without_descriptor > 0 {
            let (count, why) = (counts.without_descriptor, "a field of each was missing");
            out.line(format_args!("no descriptor {count:>10}  {why}"))?;
        }
        if counts.out_of_order > 0 {
            let (count, late) = (counts.out_of_order, Duration::from_micros(counts.late_us_max));
            out.line(format_args!(
                "out of order  {count:>10}  at most {late:?} late; decided at the newest so far"
            ))?;
        }
        if counts.uncounted > 0 {
            let (count, why) = (counts.uncounted, "passed: too many keys at once to count more");
            out.line(format_args!("uncounted     {count:>10}  {why}"))?;
        }
        if counts.unreadable > 0 {
            let line = format!("unreadable    {:>10}", counts.unreadable);
            out.line(out.painter().paint(Style::Doubtful, line))?;
        }
        for unreadable in &counts.first_unreadable {
            let (file, line, why) = (&unreadable.file, unreadable.line, &unreadable.why);
            out.line(format_args!("  {}:{line}: {}", safe::line(file), safe::line(why)))?;
        }
        Ok(())
    }

    fn print_rules(&self, out: &mut Out) -> Result<(), CliError> {
        let rules = self.counts.rules();
        if rules.is_empty() {
            return Ok(());
        }
        let heading = format!("\n{:>10} {:>10} {:>10}  rule", "denied", "shadow", "passed");
        out.line(out.painter().paint(Style::Strong, heading))?;
        for (path, RuleCounts { ok, over_limit, shadow }) in rules.iter().take(self.top) {
            let path = safe::line(path);
            out.line(format_args!("{over_limit:>10} {shadow:>10} {ok:>10}  {path}"))?;
        }
        self.print_rest(out, rules.len(), "rules")
    }

    fn print_keys(&self, out: &mut Out) -> Result<(), CliError> {
        let keys = self.counts.keys(usize::MAX);
        if keys.is_empty() {
            return Ok(());
        }
        let heading = format!("\n{:>10}  key", "denied");
        out.line(out.painter().paint(Style::Strong, heading))?;
        for key in keys.iter().take(self.top) {
            let (count, entries, rule) =
                (key.over_limit, safe::line(&key.entries), safe::line(&key.rule));
            out.line(format_args!("{count:>10}  {entries}  ({rule})"))?;
        }
        if self.counts.key_counts_low_by > 0 {
            let by = self.counts.key_counts_low_by;
            out.line(format_args!("too many keys for all: counts may be low by {by}"))?;
        }
        self.print_rest(out, keys.len(), "keys")
    }

    fn print_rest(&self, out: &mut Out, count: usize, what: &str) -> Result<(), CliError> {
        match count.saturating_sub(self.top) {
            0 => Ok(()),
            rest => out.line(format_args!("and {rest} more {what}; --top shows more")),
        }
    }
}

/// Formats `part` of `all` in per cent, after two spaces; empty if `all` is 0.
fn share(part: u64, all: u64) -> String {
    match all {
        0 => String::new(),
        all => format!("  {:.1} %", part as f64 / all as f64 * 100.0),
    }
}
