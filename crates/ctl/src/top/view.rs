//! The state that `top` shows: the last status, and rates computed from earlier ones.

use std::collections::VecDeque;

use serde::Serialize;

use crate::status_client::{BusyRule, PodStatus};

/// Number of rates that are kept: ten minutes at one a second, more than the width of a terminal.
const RATES_MAX: usize = 600;

/// Everything on the screen.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// Address of the pod.
    pub(super) server: String,
    /// Its last status.
    pub(super) pod: PodStatus,
    /// The error of the last attempt, if it failed.
    pub(super) error: Option<String>,
    /// Oldest first.
    pub(super) rates: VecDeque<Rate>,
    /// Busiest first.
    pub(super) rules: Vec<RuleRate>,
}

/// Requests a second between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rate {
    pub(super) passed: f64,
    pub(super) denied: f64,
    pub(super) errors: f64,
}

/// A rule's requests a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RuleRate {
    pub(super) rule: String,
    pub(super) passed: f64,
    pub(super) denied: f64,
}

// === impl View ===

impl View {
    pub(super) fn new(server: String) -> Self {
        Self { server, ..Self::default() }
    }

    /// Takes a new status. Rates are computed from the previous one, unless the process has
    /// restarted since.
    pub(super) fn update(&mut self, pod: PodStatus) {
        let span = pod.uptime.checked_sub(self.pod.uptime).filter(|span| !span.is_zero());
        let seconds = span.map_or(0.0, |span| span.as_secs_f64());
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        match (&pod.decisions, &self.pod.decisions) {
            (Some(now), Some(before)) if seconds > 0.0 => {
                if self.rates.len() == RATES_MAX {
                    self.rates.pop_front();
                }
                self.rates.push_back(Rate {
                    passed: per_second(now.ok, before.ok),
                    denied: per_second(now.over_limit, before.over_limit),
                    errors: per_second(now.errors, before.errors),
                });
            }
            // The process has restarted, so earlier counts cannot be compared with new ones.
            _ => self.rates.clear(),
        }
        self.rules = pod
            .rules_busiest
            .iter()
            .map(|now| {
                let mut known = self.pod.rules_busiest.iter();
                let before = known.find(|before| before.rule == now.rule);
                let zero = BusyRule::default();
                let (before, is_known) = (before.unwrap_or(&zero), before.is_some());
                let rate = |now, before| {
                    if seconds > 0.0 && is_known { per_second(now, before) } else { 0.0 }
                };
                RuleRate {
                    rule: now.rule.clone(),
                    passed: rate(now.ok, before.ok),
                    denied: rate(now.over_limit, before.over_limit),
                }
            })
            .collect();
        self.rules.sort_by(|a, b| (b.passed + b.denied).total_cmp(&(a.passed + a.denied)));
        self.pod = pod;
        self.error = None;
    }

    /// Records that the pod could not be asked.
    pub(super) fn set_error(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Returns the newest rates; `None` before the second sample.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.rates.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::status_client::Decisions;

    fn pod(uptime: u64, ok: u64, over_limit: u64) -> PodStatus {
        let decisions = Some(Decisions { ok, over_limit, ..Decisions::default() });
        let rule = |rule: &str, ok| BusyRule { rule: rule.into(), ok, ..BusyRule::default() };
        let rules_busiest = vec![rule("few", 5), rule("many", ok)];
        PodStatus {
            uptime: Duration::from_secs(uptime),
            decisions,
            rules_busiest,
            ..PodStatus::default()
        }
    }

    #[test]
    fn rates_follow_from_two_looks() {
        let mut view = View::default();
        view.update(pod(10, 100, 7));
        assert_eq!(view.rate(), None);
        view.update(pod(12, 300, 8));
        assert_eq!(view.rate(), Some(Rate { passed: 100.0, denied: 0.5, errors: 0.0 }));
        let rules: Vec<_> = view.rules.iter().map(|of| (of.rule.as_str(), of.passed)).collect();
        assert_eq!(rules, [("many", 100.0), ("few", 0.0)]);
    }

    #[test]
    fn a_restarted_pod_has_no_rates_yet() {
        let mut view = View::default();
        for (at, ok) in [(10, 1000), (11, 2000), (1, 10)] {
            view.update(pod(at, ok, 0));
        }
        assert_eq!(view.rates.len(), 0);
        assert_eq!(view.rules[0].passed, 0.0);
        view.update(pod(2, 30, 0));
        assert_eq!(view.rate().map(|rate| rate.passed), Some(20.0));
    }

    #[test]
    fn a_pod_without_decisions_has_no_rates() {
        let mut view = View::default();
        view.update(PodStatus { uptime: Duration::from_secs(1), ..PodStatus::default() });
        view.update(PodStatus { uptime: Duration::from_secs(2), ..PodStatus::default() });
        assert_eq!(view.rates.len(), 0);
    }

    #[test]
    fn old_rates_give_way() {
        let mut view = View::default();
        (0..2 * RATES_MAX as u64).for_each(|at| view.update(pod(at + 1, at, 0)));
        assert_eq!(view.rates.len(), RATES_MAX);
    }

    #[test]
    fn the_last_status_stays_while_the_pod_is_unreachable() {
        let mut view = View::new("a:1".into());
        view.update(pod(1, 1, 0));
        view.set_error("cannot be reached".into());
        assert!(view.error.is_some() && view.pod.decisions.is_some());
        view.update(pod(2, 1, 0));
        assert_eq!(view.error, None);
    }
}
