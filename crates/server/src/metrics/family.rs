//! Metrics at one moment, as plain values for the code that writes or sends them.

use std::borrow::Cow;

use ratelease_engine::buckets::Buckets;

use super::bounded;

/// All series of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// In `snake_case`, with its unit; that of a counter ends in `_total`.
    pub name: Cow<'static, str>,
    /// The meaning, in a sentence or two.
    pub help: Cow<'static, str>,
    /// How the values behave.
    pub kind: Kind,
    /// One for each series.
    pub samples: Vec<Sample>,
}

/// How the values of a family behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Values only grow, from 0 at the start of the process.
    Counter,
    /// Like [`Kind::Counter`], under a name from the reference implementation, which lacks the
    /// suffix of counters.
    Unsuffixed,
    /// Values go up and down.
    Gauge,
    /// Each value is a distribution of durations; the name ends in `_seconds`.
    Histogram,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values, in the same order as in the family's other series.
    pub labels: Labels,
    /// The present value.
    pub value: Value,
}

/// Labels of a series.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The value of a counter, or of a gauge that counts.
    Count(u64),
    /// The value of a gauge, or of a counter of seconds; finite.
    Number(f64),
    /// The value of a histogram.
    Buckets(Buckets),
}

// === impl Family ===

impl Family {
    /// Creates a family without series.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        help: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name: name.into(), help: help.into(), kind, samples: Vec::new() }
    }

    /// Creates a family of one series without labels.
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

    /// Adds a series. Label values longer than 256 bytes are cut, and end in a hash.
    pub fn push(&mut self, mut labels: Labels, value: Value) {
        for (_, shown) in &mut labels {
            if let Cow::Owned(cut) = bounded(shown) {
                *shown = Cow::Owned(cut);
            }
        }
        self.samples.push(Sample { labels, value });
    }
}
