//! **Metrics** of the control plane, in Prometheus' text format.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::push::{LAG_BOUNDS, Lag, PublishedSet, RolloutCounts, StreamStates, Streams};
use crate::store::Stage;

/// The state of the objects of Kubernetes, as `/metrics` shows it.
#[derive(Debug, Default)]
pub struct ObjectCounts {
    /// Whether this process is to follow objects, once no other replica does.
    pub is_to_follow: AtomicBool,
    /// Whether this process follows the objects, and the API server answers.
    pub is_connected: AtomicBool,
    /// Objects that are accepted.
    pub accepted: AtomicU64,
    /// Objects that are not.
    pub refused: AtomicU64,
}

// === impl ObjectCounts ===

impl ObjectCounts {
    /// Notes that this process follows no objects.
    pub fn reset(&self) {
        self.is_connected.store(false, Ordering::Relaxed);
        self.accepted.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
    }
}

/// The page of `/metrics`. `streams` is what streams say of the version of `set` at the time `now`.
pub fn render(
    set: &PublishedSet,
    (streams, now): (StreamStates, i64),
    lag: &Lag,
    has_database: bool,
) -> String {
    let mut text = String::new();
    let name = "ratelease_control_version";
    family(&mut text, name, "gauge", "The version that is pushed.");
    sample(&mut text, name, "", set.version);
    let name = "ratelease_control_database_up";
    family(&mut text, name, "gauge", "Whether the database answers.");
    sample(&mut text, name, "", u8::from(has_database));
    let name = "ratelease_control_streams";
    family(&mut text, name, "gauge", "Streams of pods, by what they run.");
    sample(&mut text, name, "{state=\"current\"}", streams.current);
    sample(&mut text, name, "{state=\"behind\"}", streams.behind);
    sample(&mut text, name, "{state=\"refused\"}", streams.refused);
    let age = streams.late_since.map(|since| now.saturating_sub(since));
    let waiting = Duration::from_millis(age.unwrap_or_default().max(0).unsigned_abs());
    let name = "ratelease_control_push_lag_seconds";
    let help = "Time for which a connected pod has not run the version; 0 if all run it.";
    family(&mut text, name, "gauge", help);
    sample(&mut text, name, "", waiting.as_secs_f64());
    histogram(&mut text, lag);
    text
}

fn histogram(text: &mut String, lag: &Lag) {
    let name = "ratelease_control_push_seconds";
    let help = "Time from the commit of a version to its acceptance by a pod.";
    family(text, name, "histogram", help);
    let mut total = 0;
    for (count, bound) in lag.buckets.iter().zip(LAG_BOUNDS.iter().map(Some).chain([None])) {
        total += count;
        let bound = bound.map_or_else(|| "+Inf".to_owned(), f64::to_string);
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {total}");
    }
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {total}", lag.sum);
    let name = "ratelease_control_refusals_total";
    family(text, name, "counter", "Versions that pods refused.");
    sample(text, name, "", lag.refused);
}

// Metrics of the rollouts that are under way.

/// Adds the metrics of rollouts to the page.
pub fn render_rollout(
    text: &mut String,
    set: &PublishedSet,
    streams: &Streams,
    counts: &RolloutCounts,
) {
    let name = "ratelease_control_rollout_stage";
    family(text, name, "gauge", "Rollouts that are under way, by stage.");
    for stage in [Stage::Shadow, Stage::Enforced] {
        let count = set.rollouts.iter().filter(|it| it.stage == stage).count();
        sample(text, name, &format!("{{stage=\"{}\"}}", stage.name()), count);
    }
    let name = "ratelease_control_rollout_streams";
    family(text, name, "gauge", "Streams of pods, by whether a rollout chose the pod.");
    let chosen = streams.chosen();
    sample(text, name, "{chosen=\"true\"}", chosen);
    sample(text, name, "{chosen=\"false\"}", streams.count().saturating_sub(chosen));
    let name = "ratelease_control_load_reports_total";
    family(text, name, "counter", "Reports of pods that were counted for a rollout.");
    sample(text, name, "", counts.reports());
    let name = "ratelease_control_rollbacks_total";
    family(text, name, "counter", "Rollouts that this process rolled back by their bound.");
    sample(text, name, "", counts.rollbacks());
}

/// Adds the metrics of objects of Kubernetes to the page.
pub fn render_objects(text: &mut String, counts: &ObjectCounts) {
    let name = "ratelease_control_objects_followed";
    let help = "1 if this process is to follow objects of Kubernetes, once no other replica does.";
    family(text, name, "gauge", help);
    sample(text, name, "", u8::from(counts.is_to_follow.load(Ordering::Relaxed)));
    let name = "ratelease_control_objects_connected";
    let help = "1 in the replica that follows objects of Kubernetes, while the API server answers.";
    family(text, name, "gauge", help);
    sample(text, name, "", u8::from(counts.is_connected.load(Ordering::Relaxed)));
    let name = "ratelease_control_objects";
    family(text, name, "gauge", "Objects that this replica follows, by whether it accepts them.");
    for (state, count) in [("accepted", &counts.accepted), ("refused", &counts.refused)] {
        sample(text, name, &format!("{{state=\"{state}\"}}"), count.load(Ordering::Relaxed));
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(text: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = writeln!(text, "{name}{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::PodRow;

    const NOW: i64 = 1_000_000;

    fn page(set: &PublishedSet, rows: &[PodRow], lag: &Lag) -> String {
        render(set, (StreamStates::of(rows.iter(), set.version, set.at), NOW), lag, true)
    }

    #[test]
    fn a_pod_that_lags_is_seen() {
        let set = PublishedSet { version: 3, at: 0, ..PublishedSet::default() };
        let mut lag = Lag { refused: 1, sum: 0.7, ..Lag::default() };
        lag.buckets[5] = 1;
        let row = |accepted, refused| PodRow { accepted, refused, ..PodRow::default() };
        let text = page(&set, &[row(3, 0), row(2, 0), row(2, 3)], &lag);
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
        let text = page(&set, &[row(3, 0)], &lag);
        assert!(text.contains("push_lag_seconds 0\n"), "{text}");
    }

    #[test]
    fn a_pod_that_has_just_come_is_not_late_by_the_age_of_the_version() {
        let set = PublishedSet { version: 3, at: 0, ..PublishedSet::default() };
        let connected_at = NOW - 2000;
        let row = PodRow { connected_at, ..PodRow::default() };
        let text = page(&set, &[row], &Lag::default());
        assert_eq!(lag_of(&text).to_string(), "2", "{text}");
    }

    #[test]
    fn a_pod_that_answers_nothing_is_late_however_new_the_last_version_is() {
        let at = NOW;
        let set = PublishedSet { version: 9, at, ..PublishedSet::default() };
        let row = PodRow { unanswered_at: at - 5000, accepted: 2, ..PodRow::default() };
        let text = page(&set, &[row], &Lag::default());
        assert_eq!(lag_of(&text).to_string(), "5", "{text}");
    }

    /// The lag of a page, in seconds.
    fn lag_of(text: &str) -> f64 {
        let name = "ratelease_control_push_lag_seconds ";
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.parse().unwrap()
    }
}
