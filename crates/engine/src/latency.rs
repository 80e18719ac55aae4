//! Distributions of durations, counted in buckets.

use std::time::Duration;

use crate::striped::Striped;

/// Upper bounds in microseconds. A decision from tokens that are held takes a few microseconds; one
/// that waits for a lease takes a round trip to the store, at most 5 ms by default.
const BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000,
];

/// Index of the first bound that is shown: the finer ones are for [`Latency::fine`] alone.
const SHOWN_FROM: usize = 4;

/// The number of counters: one more bucket than bounds, and the sum in nanoseconds.
const COUNTERS: usize = BOUNDS_US.len() + 2;

/// The index of the sum.
const SUM: usize = COUNTERS - 1;

const _: () = assert!(BOUNDS_US[SHOWN_FROM] == 25);

/// A distribution that all cores add to.
#[derive(Debug, Default)]
pub struct Latency {
    counters: Striped<COUNTERS>,
}

/// A distribution of durations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Upper bounds, ascending; each bucket counts the durations above the previous bound and up to
    /// its own.
    pub bounds: Vec<Duration>,
    /// Number of durations in each bucket, and one more bucket for those above the last bound.
    pub counts: Vec<u64>,
    /// The sum of all durations.
    pub sum: Duration,
}

// === impl Latency ===

impl Latency {
    /// Records one duration.
    #[inline]
    pub fn note(&self, took: Duration) {
        self.note_all(took, 1);
    }

    /// Records the same duration `count` times.
    #[inline]
    pub fn note_all(&self, took: Duration, count: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let stripe = self.counters.mine();
        stripe.add(bucket(nanos), count);
        stripe.add(SUM, nanos.saturating_mul(count));
    }

    /// The distribution in buckets from 25 us to 1 s, as metrics show it.
    pub fn shown(&self) -> Buckets {
        let Buckets { mut bounds, mut counts, sum } = self.fine();
        let least = counts.drain(..SHOWN_FROM).sum::<u64>();
        bounds.drain(..SHOWN_FROM);
        if let Some(first) = counts.first_mut() {
            *first += least;
        }
        Buckets { bounds, counts, sum }
    }

    /// The distribution in buckets from 1 us: for the quantiles of mostly fast operations.
    pub fn fine(&self) -> Buckets {
        let sums = self.counters.sums();
        Buckets {
            bounds: BOUNDS_US.map(Duration::from_micros).to_vec(),
            counts: sums[..SUM].to_vec(),
            sum: Duration::from_nanos(sums[SUM]),
        }
    }
}

/// Searches linearly from the start, since most durations lie in the first few buckets.
#[inline]
fn bucket(nanos: u64) -> usize {
    BOUNDS_US.iter().position(|bound| nanos <= bound * 1000).unwrap_or(BOUNDS_US.len())
}

// === impl Buckets ===

impl Buckets {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The duration that this share (0 to 1) of all durations does not exceed, assuming that they
    /// are evenly spread within each bucket; the last bound if it lies above that. `None` if there
    /// were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        let rank = share.clamp(0.0, 1.0) * all as f64;
        let mut below = 0.0;
        let mut least = Duration::ZERO;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                let part = ((rank - below) / count).clamp(0.0, 1.0);
                return Some(least + bound.saturating_sub(least).mul_f64(part));
            }
            below += count;
            least = *bound;
        }
        Some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_bucket_whose_bound_it_does_not_exceed() {
        for (nanos, expected) in [
            (0, 0),
            (1_000, 0),
            (1_001, 1),
            (25_000, 4),
            (25_001, 5),
            (1_000_000_000, 18),
            (1_000_000_001, 19),
            (u64::MAX, 19),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos} ns");
        }
    }

    #[test]
    fn what_is_shown_begins_at_25_us_and_loses_nothing() {
        let latency = Latency::default();
        let micros = Duration::from_micros;
        [1, 2, 20, 25, 26].into_iter().for_each(|us| latency.note(micros(us)));
        latency.note_all(Duration::from_secs(2), 3);
        let (shown, fine) = (latency.shown(), latency.fine());
        assert_eq!(shown.bounds.first(), Some(&micros(25)));
        assert_eq!(shown.bounds.last(), Some(&Duration::from_secs(1)));
        assert_eq!(shown.counts.len(), shown.bounds.len() + 1);
        assert_eq!((shown.counts[0], shown.counts[1], shown.counts[15]), (4, 1, 3));
        assert_eq!((shown.count(), fine.count()), (8, 8));
        assert_eq!((shown.sum, fine.sum), (micros(6_000_074), micros(6_000_074)));
        assert_eq!(fine.counts[..6], [1, 1, 0, 0, 2, 1]);
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let millis = Duration::from_millis;
        let bounds = vec![millis(10), millis(20), millis(40)];
        let of = |counts: [u64; 4]| Buckets {
            bounds: bounds.clone(),
            counts: counts.into(),
            sum: Duration::ZERO,
        };
        for (counts, share, expected) in [
            ([0, 0, 0, 0], 0.5, None),
            ([10, 0, 0, 0], 0.5, Some(millis(5))),
            ([10, 0, 0, 0], 1.0, Some(millis(10))),
            ([1, 0, 1, 0], 0.5, Some(millis(10))),
            ([1, 0, 1, 0], 0.75, Some(millis(30))),
            ([0, 0, 0, 3], 0.5, Some(millis(40))),
        ] {
            assert_eq!(of(counts).quantile(share), expected, "{counts:?} at {share}");
        }
    }
}
