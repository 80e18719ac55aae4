//! Distributions of durations in fixed buckets.

use std::time::Duration;

use crate::buckets::Buckets;
use crate::striped::Striped;

/// Upper bounds in microseconds. A decision from tokens that are held takes a few microseconds; one
/// that waits for a lease takes a round trip to the store, at most 5 ms by default.
const BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000,
];

/// Index of the first bound that is shown: the finer ones are for [`Latency::fine`] alone.
const SHOWN_FROM: usize = 4;

/// One more bucket than bounds, and the sum in nanoseconds.
const COUNTERS: usize = BOUNDS_US.len() + 2;
const SUM: usize = COUNTERS - 1;

const _: () = assert!(BOUNDS_US[SHOWN_FROM] == 25);

/// A distribution that all cores add to.
#[derive(Debug, Default)]
pub struct Latency {
    counters: Striped<COUNTERS>,
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
}
