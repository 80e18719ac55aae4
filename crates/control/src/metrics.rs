//! **Metrics** of the control plane, in Prometheus' text format.

use std::fmt::Write;

use jiff::Timestamp;

use crate::push::{LAG_BOUNDS, Lag, PublishedSet};

/// The page of `/metrics`. `streams` are the numbers of those that run the version, run an earlier
/// one, and refused one.
pub fn render(set: &PublishedSet, streams: [usize; 3], lag: &Lag, has_database: bool) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, samples: &[(&str, f64)]| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let number = |value: i64| value as f64;
    gauge("ratelease_control_version", "The version that is pushed.", &[("", number(set.version))]);
    let database = if has_database { 1.0 } else { 0.0 };
    gauge("ratelease_control_database_up", "Whether the database answers.", &[("", database)]);
    let count = |streams: usize| number(i64::try_from(streams).unwrap_or(i64::MAX));
    let [current, behind, refused] = streams.map(count);
    gauge(
        "ratelease_control_streams",
        "Streams of pods, by what they run.",
        &[
            ("{state=\"current\"}", current),
            ("{state=\"behind\"}", behind),
            ("{state=\"refused\"}", refused),
        ],
    );
    let age = Timestamp::now().as_millisecond().saturating_sub(set.at).max(0);
    let waiting = if behind + refused > 0.0 { number(age) / 1000.0 } else { 0.0 };
    gauge(
        "ratelease_control_push_lag_seconds",
        "Age of the version that a connected pod does not run yet; 0 if all do.",
        &[("", waiting)],
    );
    histogram(&mut text, lag);
    text
}

fn histogram(text: &mut String, lag: &Lag) {
    let name = "ratelease_control_push_seconds";
    let help = "Time from the commit of a version to its acceptance by a pod.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
    let mut total = 0;
    for (count, bound) in lag.buckets.iter().zip(LAG_BOUNDS.iter().map(Some).chain([None])) {
        total += count;
        let bound = bound.map_or_else(|| "+Inf".to_owned(), f64::to_string);
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {total}");
    }
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {total}", lag.sum);
    let name = "ratelease_control_refusals_total";
    let help = "Versions that pods refused.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}", lag.refused);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_lags_is_seen() {
        let set = PublishedSet { version: 3, at: 0, ..PublishedSet::default() };
        let mut lag = Lag { refused: 1, sum: 0.7, ..Lag::default() };
        lag.buckets[5] = 1;
        let text = render(&set, [1, 1, 1], &lag, true);
        for line in [
            "ratelease_control_version 3",
            "ratelease_control_streams{state=\"current\"} 1",
            "ratelease_control_streams{state=\"behind\"} 1",
            "ratelease_control_streams{state=\"refused\"} 1",
            "ratelease_control_push_seconds_bucket{le=\"0.25\"} 0",
            "ratelease_control_push_seconds_bucket{le=\"0.5\"} 1",
            "ratelease_control_push_seconds_bucket{le=\"+Inf\"} 1",
            "ratelease_control_refusals_total 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("push_lag_seconds 0\n"), "{text}");
        let text = render(&set, [1, 0, 0], &lag, true);
        assert!(text.contains("push_lag_seconds 0\n"), "{text}");
    }
}
