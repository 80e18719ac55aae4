//! What is counted of decisions, as `/status` and the live page see it.

use std::time::Duration;

/// Where the numbers come from. What is told counts from the start of the process.
pub trait Numbers: Send + Sync {
    /// Every decision. Asked once a second.
    fn decisions(&self) -> Decisions;

    /// The rules that decided most, busiest first, `max` at most.
    fn rules(&self, max: usize) -> Vec<RuleCounts>;

    /// The hottest keys, `max` of each kind at most.
    fn hot_keys(&self, max: usize) -> HotKeys;

    /// The key that takes more of a shard's asks than one key should, and its share of them.
    fn hot_key_of(&self, shard: usize) -> Option<(String, f64)>;

    /// Since the rules in force were loaded.
    fn rules_age(&self) -> Option<Duration>;
}

/// How many requests were decided, and how.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decisions {
    /// That passed.
    pub ok: u64,
    /// That were denied.
    pub over_limit: u64,
    /// That got no verdict.
    pub errors: u64,
    /// Descriptors that were counted, by [`crate::verdict::How`]'s names.
    pub by_how: Vec<(&'static str, u64)>,
    /// How long decisions took.
    pub took: Took,
}

/// What one rule decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCounts {
    /// [`crate::rules::Rule::path`], or what stands for it where there is no rule.
    pub path: String,
    /// Within the limit.
    pub ok: u64,
    /// Over it.
    pub over_limit: u64,
    /// Passed, in shadow mode, though over the limit.
    pub shadow: u64,
}

/// The keys that were asked for most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HotKeys {
    /// By requests, hottest first.
    pub requested: Vec<HotKey>,
    /// By denials, hottest first.
    pub denied: Vec<HotKey>,
}

/// A key that is asked for often.
#[derive(Debug, Clone, PartialEq)]
pub struct HotKey {
    /// Its hash.
    pub key: String,
    /// The path of its rule.
    pub rule: String,
    /// How often, about.
    pub count: u64,
    /// Of all that its list counts, 0 to 1.
    pub share: f64,
    /// What was on the request, where that may be shown.
    pub values: Option<String>,
}

/// How many took how long: counts by upper bounds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Took {
    /// Upper bound in microseconds, the last infinite, and how many are below it and not below the
    /// one before.
    buckets: Vec<(f64, u64)>,
}

// === impl Took ===

impl Took {
    /// From upper bounds in microseconds, ascending, with the count between each and the one before
    /// it.
    pub fn new(buckets: impl IntoIterator<Item = (f64, u64)>) -> Self {
        Self { buckets: buckets.into_iter().collect() }
    }

    /// Those that came after `earlier` was taken.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at| earlier.buckets.get(at).map_or(0, |bucket: &(f64, u64)| bucket.1);
        let buckets = self.buckets.iter().enumerate();
        Self::new(buckets.map(|(at, (bound, count))| (*bound, count.saturating_sub(before(at)))))
    }

    /// Adds `other`, which has the same bounds.
    pub fn add(&mut self, other: &Self) {
        for (at, bucket) in other.buckets.iter().enumerate() {
            match self.buckets.get_mut(at) {
                Some((_, count)) => *count = count.saturating_add(bucket.1),
                None => self.buckets.push(*bucket),
            }
        }
    }

    /// What a share of them, 0 to 1, did not exceed, in microseconds: within its bucket, as if all
    /// were spread evenly there; above the last bound, that bound. `None` if there were none.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let total: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let mut left = share * total as f64;
        let mut low = 0.0;
        for &(high, count) in self.buckets.iter().filter(|_| total > 0) {
            #[allow(clippy::cast_precision_loss, reason = "an estimate")]
            let count = count as f64;
            if count >= left && count > 0.0 {
                let inside = if high.is_finite() { (high - low) * left / count } else { 0.0 };
                return Some(low + inside);
            }
            left -= count;
            low = high;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(counts: [u64; 4]) -> Took {
        Took::new([25.0, 50.0, 100.0, f64::INFINITY].into_iter().zip(counts))
    }

    #[test]
    fn quantiles_are_read_off_within_a_bucket() {
        for (counts, share, expected) in [
            ([0, 0, 0, 0], 0.5, None),
            ([100, 0, 0, 0], 0.5, Some(12.5)),
            ([50, 50, 0, 0], 0.5, Some(25.0)),
            ([0, 100, 0, 0], 0.99, Some(49.75)),
            ([90, 0, 10, 0], 0.99, Some(95.0)),
            ([0, 0, 0, 7], 0.5, Some(100.0)),
            ([1, 0, 0, 0], 1.0, Some(25.0)),
        ] {
            assert_eq!(took(counts).quantile_us(share), expected, "{counts:?} {share}");
        }
        assert_eq!(Took::default().quantile_us(0.5), None);
    }

    #[test]
    fn a_difference_added_again_is_the_whole() {
        let (earlier, later) = (took([1, 2, 3, 4]), took([1, 4, 3, 9]));
        let mut sum = earlier.clone();
        sum.add(&later.since(&earlier));
        assert_eq!(sum, later);
        let mut sum = Took::default();
        sum.add(&later);
        assert_eq!((sum, later.since(&Took::default())), (later.clone(), later));
    }
}
