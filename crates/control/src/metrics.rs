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
    // From the version that a pod was sent and has not answered: further ones wait for the answer.
    // A pod that connects later is late from then on.
    let late = rows.iter().filter(|row| row.refused > 0 || row.accepted < set.version);
    let since = late.map(|row| match row.unanswered_at {
        0 => row.connected_at.max(set.at),
        at => row.connected_at.max(at),
    });
    let since = since.min();
    let age = since.map(|since| Timestamp::now().as_millisecond().saturating_sub(since));
    let waiting = number(age.unwrap_or_default().max(0)) / 1000.0;
    gauge(
        "ratelease_control_push_lag_seconds",
        "Time for which a connected pod has not run the version; 0 if all run it.",
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

    #[test]
    fn a_pod_that_has_just_come_is_not_late_by_the_age_of_the_version() {
        let set = PublishedSet { version: 3, at: 0, ..PublishedSet::default() };
        let connected_at = Timestamp::now().as_millisecond() - 2000;
        let row = PodRow { connected_at, ..PodRow::default() };
        let text = render(&set, &[row], &Lag::default(), true);
        assert!((2.0..60.0).contains(&lag_of(&text)), "{text}");
    }

    #[test]
    fn a_pod_that_answers_nothing_is_late_however_new_the_last_version_is() {
        let at = Timestamp::now().as_millisecond();
        let set = PublishedSet { version: 9, at, ..PublishedSet::default() };
        let row = PodRow { unanswered_at: at - 5000, accepted: 2, ..PodRow::default() };
        let text = render(&set, &[row], &Lag::default(), true);
        assert!((5.0..60.0).contains(&lag_of(&text)), "{text}");
    }

    /// The lag of a page, in seconds.
    fn lag_of(text: &str) -> f64 {
        let name = "ratelease_control_push_lag_seconds ";
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.parse().unwrap()
    }
}
