//! Rules whose series are told before they have counted anything.
//!
//! A series that begins with its first hit hides that hit from `rate()` and `increase()`, which see
//! growth between two samples alone.

use std::collections::{BTreeMap, HashSet};

use ratelease_rules::{Allowance, Rule, Rules};

use super::series::{HitSums, Keys, RuleMeter};

/// Rules whose series are told at 0 at most; where more are in force, none is. Each rule has nine
/// such series, some 1 KB of a scrape, and most of so many are never hit.
pub(super) const TOLD_MAX: usize = 1000;

/// The rules in force, if their series are told at 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told<'r>(Option<&'r Rules>);

/// The series of the reference, by their labels: what they came to, and whether they are told at 0.
pub(super) type HitSeries = BTreeMap<Keys, (HitSums, bool)>;

// === impl Told ===

impl<'r> Told<'r> {
    /// Where no more than `series_max` rules are counted apart, one that is told may be folded
    /// when it is hit.
    pub(super) fn of(rules: Option<&'r Rules>, series_max: usize) -> Self {
        Self(rules.filter(|rules| rules.len() <= TOLD_MAX.min(series_max)))
    }

    /// Whether the rule of this path is one of them.
    pub(super) fn has(self, path: &str) -> bool {
        self.0.and_then(|rules| rules.by_path(path)).is_some_and(|rule| counts(rule))
    }

    /// Those that have no meter among `meters`.
    pub(super) fn without<'a>(
        self,
        meters: impl Iterator<Item = &'a RuleMeter>,
    ) -> impl Iterator<Item = &'r Rule> {
        let hit: HashSet<&str> = meters.map(|meter| &*meter.path).collect();
        let unhit: Vec<_> = self.rules().filter(|rule| !hit.contains(&*rule.path)).collect();
        unhit.into_iter()
    }

    /// Marks the series of the reference's names.
    pub(super) fn mark(self, series: &mut HitSeries) {
        for keys in self.rules().filter_map(Keys::beforehand) {
            series.entry(keys).or_default().1 = true;
        }
    }

    fn rules(self) -> impl Iterator<Item = &'r Rule> {
        let rules = self.0.into_iter().flat_map(Rules::iter).map(AsRef::as_ref);
        rules.filter(|rule| counts(rule))
    }
}

fn counts(rule: &Rule) -> bool {
    rule.allowance != Allowance::Unlimited
}
