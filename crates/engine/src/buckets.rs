//! A distribution of durations, counted in buckets.

use std::time::Duration;

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
