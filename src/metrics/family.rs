//! What is measured, at one moment: plain values, for whoever writes or sends them.

use std::borrow::Cow;

use ratelease_engine::buckets::Buckets;

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
