//! One row of the attack table: printed as a line for `scripts/attack`, and the test fails if a
//! bound is broken.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::foe::Meter;
use crate::neighbour::{End, Sample, percentile};
use crate::probes::Ended;
use crate::support::table_row::TableRow;

pub const MIB: u64 = 1 << 20;

/// Maximum growth of resident memory while an attack lasts, and of what remains after it.
pub const DURING_MAX: u64 = 16 * MIB;
pub const AFTER_MAX: u64 = 4 * MIB;

/// Maximum number of bytes that an attacker may receive for each byte that it sends.
const AMPLIFICATION_MAX: u64 = 10;

/// A row under way, ended by [`Row::end`].
pub struct Row(TableRow);

// === impl Row ===

impl Row {
    /// `name` is that of the table, such as `V1a`; `attack` describes the attack.
    pub fn new(name: &str, attack: &str) -> Self {
        let line = json!({ "row": name, "attack": attack, "note": "" });
        Self(TableRow::new("ATTACK", "note", line))
    }

    /// Records the bytes that the attacker's connections carried.
    pub fn bytes(&mut self, meter: &Meter) {
        let read = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        let (sent, received) = (read(&meter.sent), read(&meter.received));
        self.line["sent"] = sent.into();
        self.line["received"] = received.into();
        self.line["opened"] = read(&meter.opened).into();
        self.line["refused"] = read(&meter.refused).into();
        let bounded = received <= AMPLIFICATION_MAX * sent;
        self.holds(bounded, &format!("{received} bytes received for {sent} sent"));
    }

    /// Records resident memory in bytes; the peak and the remainder each come with their maximum
    /// growth.
    pub fn memory(&mut self, before: u64, peak: (u64, u64), after: (u64, u64)) {
        let ((peak, peak_max), (after, after_max)) = (peak, after);
        self.line["rss_before"] = before.into();
        self.line["rss_peak"] = peak.into();
        self.line["rss_after"] = after.into();
        let mib = |from: u64| from.saturating_sub(before) as f64 / MIB as f64;
        let during = format!("memory grew by {:.1} MiB during the attack", mib(peak));
        self.holds(peak <= before + peak_max, &during);
        let left = format!("{:.1} MiB of memory stayed after it", mib(after));
        self.holds(after <= before + after_max, &left);
    }

    /// Records the neighbour's calls before the attack and during it.
    pub fn neighbour(&mut self, calm: &[Sample], attacked: &[Sample]) {
        self.line["calm_p50_us"] = percentile(calm, 50).into();
        self.line["calm_p99_us"] = percentile(calm, 99).into();
        self.line["p50_us"] = percentile(attacked, 50).into();
        self.line["p99_us"] = percentile(attacked, 99).into();
        self.line["calls"] = attacked.len().into();
        let (errors, failed) = failed(attacked);
        self.line["errors"] = errors.into();
        self.holds(errors == 0, &format!("{errors} honest calls failed: {failed:?}"));
        self.holds(!attacked.is_empty(), "no honest call was made");
        let (before, failed) = self::failed(calm);
        let calm = format!("{before} honest calls failed before the attack: {failed:?}");
        self.holds(before == 0, &calm);
    }

    /// Records probes and new connections during the attack.
    pub fn probes(&mut self, Ended { count, slowest, failed }: &Ended) {
        self.line["probes"] = (*count).into();
        self.line["probes_failed"] = failed.len().into();
        self.line["probe_max_ms"] = u64::try_from(slowest.as_millis()).unwrap_or(u64::MAX).into();
        let faults = format!("{} of {count} probes failed, after: {failed:?}", failed.len());
        self.holds(failed.is_empty(), &faults);
        self.holds(*count > 0, "no probe was made");
    }

    /// The streams and connections that the server refused to the attacker.
    pub fn refused(&self) -> u64 {
        self.line["refused"].as_u64().unwrap_or_default()
    }

    /// Prints the row, and fails the test if a bound is broken.
    pub fn end(self) {
        TableRow::end(vec![self.0]);
    }
}

impl Deref for Row {
    type Target = TableRow;

    fn deref(&self) -> &TableRow {
        &self.0
    }
}

impl DerefMut for Row {
    fn deref_mut(&mut self) -> &mut TableRow {
        &mut self.0
    }
}

/// Number of calls that failed, in all and by their end.
fn failed(samples: &[Sample]) -> (usize, BTreeMap<End, usize>) {
    let mut failed = BTreeMap::new();
    for sample in samples.iter().filter(|it| it.end != End::Passed) {
        *failed.entry(sample.end).or_default() += 1;
    }
    (failed.values().sum(), failed)
}
