//! Counts the results of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::call::{CallResult, Failure};

/// Range of the latency histogram: from 100 ns, with three digits, to a day; longer latencies count
/// as a day.
const NANOS_MIN: u64 = 100;
const NANOS_MAX: u64 = 24 * 3600 * 1_000_000_000;
const DIGITS: u8 = 3;

/// Counts of the measured requests.
#[derive(Debug, Clone)]
pub(super) struct CallCounts {
    pub(super) ok: u64,
    pub(super) over_limit: u64,
    pub(super) failures: BTreeMap<Failure, u64>,
    /// Connections that ended before the run.
    pub(super) lost: u64,
    /// Latency of every request, in nanoseconds; an unanswered request counts with the time that it
    /// waited.
    pub(super) latency: Histogram<u64>,
}

// === impl CallCounts ===

impl CallCounts {
    /// # Errors
    ///
    /// The histogram's bounds are invalid; they are constants that are valid.
    pub(super) fn new() -> Result<Self, String> {
        let latency = Histogram::new_with_bounds(NANOS_MIN, NANOS_MAX, DIGITS);
        Ok(Self {
            ok: 0,
            over_limit: 0,
            failures: BTreeMap::new(),
            lost: 0,
            latency: latency.map_err(|error| error.to_string())?,
        })
    }

    /// Adds a request with this outcome and latency.
    pub(super) fn add(&mut self, outcome: CallResult, latency: Duration) {
        match outcome {
            CallResult::Ok => self.ok += 1,
            CallResult::OverLimit => self.over_limit += 1,
            CallResult::Failed(failure) => *self.failures.entry(failure).or_default() += 1,
        }
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the counts of another connection.
    ///
    /// # Errors
    ///
    /// The histograms have different bounds; those of one run have the same.
    pub(super) fn merge(&mut self, other: &Self) -> Result<(), String> {
        self.ok += other.ok;
        self.over_limit += other.over_limit;
        self.lost += other.lost;
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.latency.add(&other.latency).map_err(|error| error.to_string())
    }

    /// Returns the number of requests without a verdict.
    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Returns the number of all requests.
    pub(super) fn requests(&self) -> u64 {
        self.ok + self.over_limit + self.failed()
    }
}
