//! Metrics of the rollout that is under way.

use std::fmt::Write;

use crate::push::{PublishedSet, RolloutCounts, Streams};
use crate::store::Stage;

/// Adds the metrics of rollouts to the page.
pub fn render_rollout(
    text: &mut String,
    set: &PublishedSet,
    streams: &Streams,
    counts: &RolloutCounts,
) {
    let rollout = set.rollout.as_deref();
    let name = "ratelease_control_rollout_stage";
    family(text, name, "gauge", "1 for the stage of the rollout that is under way.");
    for stage in [Stage::Shadow, Stage::Enforced] {
        let is_at = rollout.is_some_and(|it| it.stage == stage);
        sample(text, name, &format!("{{stage=\"{}\"}}", stage.name()), u64::from(is_at));
    }
    let name = "ratelease_control_rollout_streams";
    family(text, name, "gauge", "Streams of pods, by whether a rollout chose the pod.");
    let id = rollout.map_or(0, |it| it.id);
    // A row has the number 0 if no rollout chose its pod.
    let chosen = if id > 0 { streams.chosen_by(id) } else { 0 };
    sample(text, name, "{chosen=\"true\"}", chosen as u64);
    sample(text, name, "{chosen=\"false\"}", streams.count().saturating_sub(chosen) as u64);
    let name = "ratelease_control_load_reports_total";
    family(text, name, "counter", "Reports of pods that were counted for a rollout.");
    sample(text, name, "", counts.reports());
    let name = "ratelease_control_rollbacks_total";
    family(text, name, "counter", "Rollouts that this process rolled back by their bound.");
    sample(text, name, "", counts.rollbacks());
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(text: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(text, "{name}{labels} {value}");
}
