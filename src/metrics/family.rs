//! What is measured, at one moment: plain values, for whoever writes or sends them.

use std::borrow::Cow;
use std::time::Duration;

use super::label::bounded;

/// All series of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// In `snake_case`, with its unit; that of a counter ends in `_total`.
    pub name: Cow<'static, str>,
    /// What it means: a sentence or two.
    pub help: Cow<'static, str>,
    /// How its values move.
    pub kind: Kind,
    /// One a series.
    pub samples: Vec<Sample>,
}

/// How the values of a family move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They only grow, from 0 at the start of the process.
    Counter,
    /// As [`Kind::Counter`], under a name of the reference's, which no counter should have.
    Unsuffixed,
    /// They go up and down.
    Gauge,
    /// Each is a distribution of durations; the name ends in `_seconds`.
    Histogram,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values, in the order of the name's other series.
    pub labels: Labels,
    /// What it is now.
    pub value: Value,
}

/// Labels of a series.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of a counter, or of a gauge that counts.
    Count(u64),
    /// Of a gauge, or of a counter of seconds; finite.
    Number(f64),
    /// Of a histogram.
    Buckets(Buckets),
}

/// A distribution of durations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets {
    /// Upper bounds, growing; each bucket holds what is above the bound before and not above its
    /// own.
    pub bounds: Vec<Duration>,
    /// How many fell into each bucket; one more than there are bounds, for those above the last.
    pub counts: Vec<u64>,
    /// All durations together.
    pub sum: Duration,
}

// === impl Family ===

impl Family {
    /// A family without series yet.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        help: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name: name.into(), help: help.into(), kind, samples: Vec::new() }
    }

    /// A family of one series without labels.
    pub fn single(
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        help: impl Into<Cow<'static, str>>,
        value: Value,
    ) -> Self {
        let mut family = Self::new(name, kind, help);
        family.push(Vec::new(), value);
        family
    }

    /// Adds a series. Values of labels longer than 256 bytes are cut, and end in a hash.
    pub fn push(&mut self, mut labels: Labels, value: Value) {
        for (_, shown) in &mut labels {
            if let Cow::Owned(cut) = bounded(shown) {
                *shown = Cow::Owned(cut);
            }
        }
        self.samples.push(Sample { labels, value });
    }
}

// === impl Buckets ===

impl Buckets {
    /// How many durations there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The duration that this share (0 to 1) of all does not exceed, taken to lie evenly within its
    /// bucket; the last bound if it lies above that. `None` if there were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        let rank = share.clamp(0.0, 1.0) * all as f64;
        let (mut below, mut least) = (0.0, Duration::ZERO);
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
