//! Metrics at one moment, as plain values for the code that sends them, and as the text that
//! Prometheus reads.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use ratelease_engine::latency::Buckets;

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

// === Prometheus's text format, version 0.0.4, which every scraper reads ===
//
// Its successor, OpenMetrics, requires that every counter's name ends in `_total`; some of the
// reference implementation's do not (docs/design.md).

/// The content type of the text, for the header of a response.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text of `families`, in their order.
pub fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let Family { name, help, kind, samples } = family;
        // Here and below: writing to a string cannot fail.
        let _ = write!(text, "# HELP {name} ");
        escape(&mut text, help, Position::Help);
        let _ = writeln!(text, "\n# TYPE {name} {}", kind.word());
        for sample in samples {
            match &sample.value {
                Value::Count(count) => line(&mut text, name, "", &sample.labels, None, count),
                Value::Number(number) => line(&mut text, name, "", &sample.labels, None, number),
                Value::Buckets(buckets) => histogram(&mut text, name, &sample.labels, buckets),
            }
        }
    }
    text
}

/// Each bucket counts all values up to its bound, as Prometheus requires.
fn histogram(text: &mut String, name: &str, labels: &Labels, buckets: &Buckets) {
    let mut count = 0_u64;
    let ends = buckets.bounds.iter().map(|bound| bound.as_secs_f64().to_string());
    let ends = ends.chain(std::iter::once("+Inf".to_owned()));
    for (end, more) in ends.zip(&buckets.counts) {
        count = count.saturating_add(*more);
        line(text, name, "_bucket", labels, Some(&end), &count);
    }
    line(text, name, "_sum", labels, None, &Duration::as_secs_f64(&buckets.sum));
    line(text, name, "_count", labels, None, &count);
}

fn line(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &Labels,
    end: Option<&str>,
    value: &dyn std::fmt::Display,
) {
    let _ = write!(text, "{name}{suffix}");
    let labels = labels.iter().map(|(name, value)| (*name, value.as_ref()));
    let mut before = '{';
    for (label, value) in labels.chain(end.map(|end| ("le", end))) {
        let _ = write!(text, "{before}{label}=\"");
        escape(text, value, Position::LabelValue);
        text.push('"');
        before = ',';
    }
    if before == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {value}");
}

/// Where a text is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// To the end of a line.
    Help,
    /// Within quotes.
    LabelValue,
}

/// Line ends and backslashes would break the line; within quotes, so would quotes.
fn escape(text: &mut String, value: &str, position: Position) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '\n', '"']) {
        let (plain, marked) = rest.split_at(at);
        text.push_str(plain);
        let (mark, after) = marked.split_at(1); // each is one byte
        text.push_str(match mark {
            "\\" => "\\\\",
            "\n" => "\\n",
            _ if position == Position::LabelValue => "\\\"",
            _ => mark,
        });
        rest = after;
    }
    text.push_str(rest);
}

// === impl Kind ===

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Unsuffixed => "untyped",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_as_prometheus_reads_them() {
        let mut hits = Family::new("hits", Kind::Unsuffixed, "Hits,\nof \\ all");
        hits.push(vec![("a", "1".into()), ("b", "\"\\\n".into())], Value::Count(7));
        let age = Family::single("age_seconds", Kind::Gauge, "Age.", Value::Number(0.5));
        let buckets = Buckets {
            bounds: vec![Duration::from_micros(25), Duration::from_secs(1)],
            counts: vec![1, 2, 3],
            sum: Duration::from_millis(1500),
        };
        let mut took = Family::new("took_seconds", Kind::Histogram, "Took.");
        took.push(vec![("shard", "0".into())], Value::Buckets(buckets));
        let none = Family::new("none_total", Kind::Counter, "None.");
        let expected = "# HELP hits Hits,\\nof \\\\ all\n# TYPE hits untyped\n\
             hits{a=\"1\",b=\"\\\"\\\\\\n\"} 7\n\
             # HELP age_seconds Age.\n# TYPE age_seconds gauge\nage_seconds 0.5\n\
             # HELP took_seconds Took.\n# TYPE took_seconds histogram\n\
             took_seconds_bucket{shard=\"0\",le=\"0.000025\"} 1\n\
             took_seconds_bucket{shard=\"0\",le=\"1\"} 3\n\
             took_seconds_bucket{shard=\"0\",le=\"+Inf\"} 6\n\
             took_seconds_sum{shard=\"0\"} 1.5\ntook_seconds_count{shard=\"0\"} 6\n\
             # HELP none_total None.\n# TYPE none_total counter\n";
        assert_eq!(text(&[hits, age, took, none]), expected);
    }
}
