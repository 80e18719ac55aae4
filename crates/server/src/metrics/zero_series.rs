//! Selects the rules whose series are reported before they have counted anything.
//!
//! A series that begins with its first hit hides that hit from `rate()` and `increase()`, which see
//! only growth between two samples.

use std::collections::{BTreeMap, HashSet};

use ratelease_rules::{Allowance, Rule, Rules};

use super::series::{HitSums, Keys, RuleMeter};

/// Maximum number of rules whose series are reported at 0; if more are in force, none is. Each rule
/// has nine such series, some 1 KB of a scrape, and most of so many are never hit.
pub(super) const RULES_MAX: usize = 1000;

/// The rules in force, if their series are reported at 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZeroSeries<'r>(Option<&'r Rules>);

/// The reference implementation's series, by label.
pub(super) type HitSeries = BTreeMap<Keys, ReportedHits>;

/// The totals of one of these series.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReportedHits {
    pub(super) sums: HitSums,
    /// Whether the series is reported even if its value is 0.
    pub(super) even_at_zero: bool,
}

// === impl ZeroSeries ===

impl<'r> ZeroSeries<'r> {
    /// Returns the rules to report at 0: none if there are more than `series_max` rules. Only so
    /// many are counted separately, and a rule reported at 0 might be folded when it is hit.
    pub(super) fn of(rules: Option<&'r Rules>, series_max: usize) -> Self {
        Self(rules.filter(|rules| rules.len() <= RULES_MAX.min(series_max)))
    }

    /// Whether the rule at this path is one of them.
    pub(super) fn contains(self, path: &str) -> bool {
        self.0.and_then(|rules| rules.by_path(path)).is_some_and(|rule| is_counted(rule))
    }

    /// The rules that have no meter among `meters`.
    pub(super) fn rules_without_meter<'a>(
        self,
        meters: impl Iterator<Item = &'a RuleMeter>,
    ) -> impl Iterator<Item = &'r Rule> {
        let hit: HashSet<&str> = meters.map(|meter| &*meter.path).collect();
        let unhit: Vec<_> = self.rules().filter(|rule| !hit.contains(&*rule.path)).collect();
        unhit.into_iter()
    }

    /// Marks the reference implementation's series that are reported at 0.
    pub(super) fn mark(self, series: &mut HitSeries) {
        for keys in self.rules().filter_map(Keys::beforehand) {
            series.entry(keys).or_default().even_at_zero = true;
        }
    }

    fn rules(self) -> impl Iterator<Item = &'r Rule> {
        let rules = self.0.into_iter().flat_map(Rules::iter).map(AsRef::as_ref);
        rules.filter(|rule| is_counted(rule))
    }
}

fn is_counted(rule: &Rule) -> bool {
    rule.allowance != Allowance::Unlimited
}
