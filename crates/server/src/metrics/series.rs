//! The counters of one rule, and of one of the values that a rule sees.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use ratelease_engine::striped::Striped;
use ratelease_engine::verdict::{Code, DecisionSource, OVERRIDE};
use ratelease_rules::{FailureMode, Level, LevelMatch, Rule};

use super::family::Labels;
use super::hits::Hits;
use super::label::bounded;

/// The name of the series of rules that found no room.
pub(super) const FOLDED: &str = "folded";

/// Ways of deciding that lead to a verdict, in the order of their counters.
pub(super) const SOURCES: [DecisionSource; 6] = [
    DecisionSource::Local,
    DecisionSource::Leased,
    DecisionSource::Failure(FailureMode::Local),
    DecisionSource::Failure(FailureMode::Allow),
    DecisionSource::Failure(FailureMode::Deny),
    DecisionSource::Shed,
];

/// Number of counters of decisions: for each of [`SOURCES`] those allowed, then those over the
/// limit.
const DECISION_COUNTERS: usize = 2 * SOURCES.len();
const HIT_COUNTERS: usize = 5;

/// Whether a rule only counts, and allows what is over its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shadow {
    Off,
    On,
}

/// The counters of one rule.
#[derive(Debug)]
pub(super) struct RuleMeter {
    /// `Rule::path`.
    pub(super) path: Box<str>,
    pub(super) domain: Box<str>,
    pub(super) keys: Keys,
    /// Its hits are reported by the values on the requests, and not here.
    is_split: AtomicBool,
    counters: Striped<{ DECISION_COUNTERS + HIT_COUNTERS }>,
}

/// The counters of some of the values that a rule sees.
#[derive(Debug)]
pub(super) struct ValueMeter {
    pub(super) keys: Keys,
    counters: Striped<HIT_COUNTERS>,
}

/// Labels of the reference implementation's series: its mapper derives them from a stats key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keys {
    pub(super) domain: Box<str>,
    pub(super) key1: Box<str>,
    pub(super) key2: Option<Box<str>>,
}

/// The totals of one rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RuleSums {
    pub(super) decisions: Decisions,
    pub(super) hits: HitSums,
}

/// Indexed like [`SOURCES`]: allowed, and over the limit.
pub(super) type Decisions = [[u64; 2]; SOURCES.len()];

/// The counts that the reference implementation has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HitSums {
    pub(super) total: u64,
    pub(super) within: u64,
    pub(super) over: u64,
    pub(super) near: u64,
    pub(super) shadow: u64,
}

// === impl Shadow ===

impl Shadow {
    /// The shadow mode of `rule`.
    pub(super) fn of(rule: &Rule) -> Self {
        if rule.shadow_mode { Self::On } else { Self::Off }
    }
}

// === impl RuleMeter ===

impl RuleMeter {
    pub(super) fn new(path: &str, domain: &str, keys: Keys) -> Self {
        let is_split = AtomicBool::new(false);
        Self { path: path.into(), domain: domain.into(), keys, is_split, counters: Striped::new() }
    }

    /// Creates the meter of rules that find no room.
    pub(super) fn folded() -> Self {
        Self::new(FOLDED, FOLDED, Keys::folded())
    }

    /// Records a decision. `code` is the verdict after shadow mode.
    #[inline]
    pub(super) fn note(&self, how: DecisionSource, code: Code, hits: Hits, shadow: Shadow) {
        let stripe = self.counters.mine();
        stripe.add(2 * index(how) + usize::from(code == Code::OverLimit), 1);
        note_hits(hits, shadow, |at, more| stripe.add(DECISION_COUNTERS + at, more));
    }

    /// Records the hits of a charge without a decision.
    pub(super) fn note_hits(&self, hits: Hits) {
        let stripe = self.counters.mine();
        note_hits(hits, Shadow::Off, |at, more| stripe.add(DECISION_COUNTERS + at, more));
    }

    pub(super) fn set_split(&self, is_split: bool) {
        self.is_split.store(is_split, Ordering::Relaxed);
    }

    pub(super) fn is_split(&self) -> bool {
        self.is_split.load(Ordering::Relaxed)
    }

    pub(super) fn sums(&self) -> RuleSums {
        let sums = self.counters.sums();
        let (decisions, hits) = sums.split_at(DECISION_COUNTERS);
        let mut sums_of_rule = RuleSums { hits: HitSums::of(hits), ..RuleSums::default() };
        for (pair, counts) in sums_of_rule.decisions.iter_mut().zip(decisions.chunks_exact(2)) {
            pair.copy_from_slice(counts);
        }
        sums_of_rule
    }
}

// === impl ValueMeter ===

impl ValueMeter {
    pub(super) fn new(keys: Keys) -> Self {
        Self { keys, counters: Striped::new() }
    }

    #[inline]
    pub(super) fn note(&self, hits: Hits, shadow: Shadow) {
        let stripe = self.counters.mine();
        note_hits(hits, shadow, |at, more| stripe.add(at, more));
    }

    pub(super) fn sums(&self) -> HitSums {
        HitSums::of(&self.counters.sums())
    }
}

/// Whether hits of `rule` are reported by the values on the requests. Deeper levels have no label.
pub(super) fn is_split(rule: &Rule) -> bool {
    rule.varies_at(0) || rule.varies_at(1)
}

/// Total hits have no counter of their own: they are those within, those over, and those of a
/// denied charge that still fitted, which are few.
#[inline]
fn note_hits(hits: Hits, shadow: Shadow, add: impl Fn(usize, u64)) {
    let Hits { total, within, over, near } = hits;
    let fitted = total.saturating_sub(within).saturating_sub(over);
    let shadow = if shadow == Shadow::On { over } else { 0 };
    for (at, more) in [within, over, near, shadow, fitted].into_iter().enumerate() {
        if more > 0 {
            add(at, more);
        }
    }
}

/// A failure mode of `error` gives no verdict.
fn index(how: DecisionSource) -> usize {
    match how {
        DecisionSource::Local => 0,
        DecisionSource::Leased => 1,
        DecisionSource::Failure(FailureMode::Local) => 2,
        DecisionSource::Failure(FailureMode::Allow) => 3,
        DecisionSource::Failure(FailureMode::Deny | FailureMode::Error) => 4,
        DecisionSource::Shed => 5,
    }
}

// === impl Keys ===

impl Keys {
    /// The labels that the reference implementation's default mapper derives from a stats key: the
    /// first three parts between dots. Dots in a domain shift the parts, in the reference and here.
    /// Long parts are cut, because they are kept in memory.
    pub(super) fn of(stats_key: &str) -> Self {
        let mut parts = stats_key.split('.');
        let domain = bounded(parts.next().unwrap_or_default()).into();
        let key1 = bounded(parts.next().unwrap_or_default()).into();
        Self { domain, key1, key2: parts.next().map(|part| bounded(part).into()) }
    }

    /// The labels of a rule that was not hit yet; `None` if they contain text from requests, such
    /// as the key that matched a pattern.
    pub(super) fn beforehand(rule: &Rule) -> Option<Self> {
        let is_pattern = |level: &Level| matches!(level.matched, LevelMatch::Wildcard(_));
        let varies = is_split(rule) || rule.levels.iter().take(2).any(is_pattern);
        (!varies).then(|| Self::of(&rule.stats_name()))
    }

    /// The labels for overrides; the reference implementation makes a series for each of their
    /// values.
    pub(super) fn overrides(domain: &str) -> Self {
        Self { domain: bounded(domain).into(), key1: OVERRIDE.into(), key2: None }
    }

    pub(super) fn folded() -> Self {
        Self { domain: FOLDED.into(), key1: FOLDED.into(), key2: None }
    }

    pub(super) fn labels(&self) -> Labels {
        let mut labels: Labels = vec![
            ("domain", Cow::Owned(self.domain.to_string())),
            ("key1", Cow::Owned(self.key1.to_string())),
        ];
        labels.extend(self.key2.as_ref().map(|key| ("key2", Cow::Owned(key.to_string()))));
        labels
    }
}

// === impl RuleSums ===

impl RuleSums {
    /// Number of decisions in total.
    pub(super) fn count(&self) -> u64 {
        self.by_verdict().iter().sum()
    }

    /// Decisions: allowed, and over the limit.
    pub(super) fn by_verdict(&self) -> [u64; 2] {
        let column = |at: usize| self.decisions.iter().map(|pair| pair[at]).sum();
        [column(0), column(1)]
    }

    pub(super) fn add(&mut self, other: &Self) {
        let pairs = self.decisions.as_flattened_mut().iter_mut();
        pairs.zip(other.decisions.as_flattened()).for_each(|(sum, more)| *sum += more);
        self.hits.add(&other.hits);
    }
}

// === impl HitSums ===

impl HitSums {
    fn of(counters: &[u64]) -> Self {
        let [within, over, near, shadow, fitted] = *counters else { return Self::default() };
        let total = within.wrapping_add(over).wrapping_add(fitted);
        Self { total, within, over, near, shadow }
    }

    /// Clients choose the number of hits: the sum wraps around, since an overflow must not end the
    /// scrape.
    pub(super) fn add(&mut self, other: &Self) {
        self.total = self.total.wrapping_add(other.total);
        self.within = self.within.wrapping_add(other.within);
        self.over = self.over.wrapping_add(other.over);
        self.near = self.near.wrapping_add(other.near);
        self.shadow = self.shadow.wrapping_add(other.shadow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_what_the_reference_s_mapper_makes_of_a_stats_key() {
        let keys = |key: &str| {
            let Keys { domain, key1, key2 } = Keys::of(key);
            (domain.into_string(), key1.into_string(), key2.map(String::from))
        };
        let owned = |domain: &str, key1: &str, key2: Option<&str>| {
            (domain.to_owned(), key1.to_owned(), key2.map(str::to_owned))
        };
        for (key, expected) in [
            ("d.k", owned("d", "k", None)),
            ("d.k_v.k2", owned("d", "k_v", Some("k2"))),
            ("d.k.k2.k3.k4", owned("d", "k", Some("k2"))),
            ("shop.example.k", owned("shop", "example", Some("k"))),
        ] {
            assert_eq!(keys(key), expected, "{key}");
        }
    }

    #[test]
    fn every_way_to_decide_has_counters_of_its_own() {
        let meter = RuleMeter::folded();
        let hits = Hits { total: 2, within: 2, over: 0, near: 1 };
        SOURCES.into_iter().for_each(|how| meter.note(how, Code::Ok, hits, Shadow::Off));
        let over = Hits { total: 5, within: 0, over: 3, near: 2 };
        meter.note(DecisionSource::Leased, Code::OverLimit, over, Shadow::Off);
        meter.note(DecisionSource::Leased, Code::Ok, over, Shadow::On);
        let sums = meter.sums();
        assert_eq!(sums.decisions, [[1, 0], [2, 1], [1, 0], [1, 0], [1, 0], [1, 0]]);
        assert_eq!(sums.by_verdict(), [7, 1]);
        let expected = HitSums { total: 22, within: 12, over: 6, near: 10, shadow: 3 };
        assert_eq!(sums.hits, expected);
    }
}
