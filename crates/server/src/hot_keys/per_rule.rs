//! The busiest rules, each with a sketch of its own, so that the keys of a quiet rule show beside
//! those of a busy one.

use std::sync::Arc;

use ratelease_rules::Rule;

use super::keys::{Keys, takes_over};
use super::{CountedKey, Texts};

/// Maximum number of rules with a sketch, by requests, and separately by denials; in each stripe
/// and period.
pub const RULES_MAX: usize = 32;

/// Number of sets of each rule's sketch: 32 counters.
const SETS: usize = 4;

/// The sketches of the busiest rules.
///
/// A rule gets a free sketch if there is one. Otherwise it takes that of the rule with the lowest
/// rank r, with probability 1 / (r + 1), and continues from that rank: a rule that is busier than
/// one of those soon has a sketch, whenever it appears, and a thousand quiet rules do not take the
/// sketches of the busy ones. A rank is the number of notes of the present rule in the sketch, plus
/// the rank of the rule before it.
#[derive(Default)]
pub(super) struct RuleSketches {
    /// Separate from the sketches, because each note searches them.
    ranks: Vec<RuleRank>,
    /// In the order of the ranks, and never fewer. Allocated when first needed, and kept.
    sketches: Vec<RuleSketch>,
}

/// The rule that has a sketch, and its rank.
#[derive(Clone, Copy)]
struct RuleRank {
    rule_hash: u64,
    rank: u32,
}

/// The data kept of a rule.
pub(super) struct RuleSketch {
    /// `None` for overrides.
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) keys: Keys,
}

// === impl RuleSketches ===

impl RuleSketches {
    /// Upper bound of the heap memory in bytes, except for a few words.
    pub(super) const fn bytes_max(texts: Texts) -> usize {
        RULES_MAX * (size_of::<RuleRank>() + size_of::<RuleSketch>() + Keys::bytes_max(SETS, texts))
    }

    /// Counts the key in `counted` among those of its rule.
    pub(super) fn note(&mut self, counted: &CountedKey<'_, '_>, texts: Texts) {
        let Some(at) = self.find(counted.rule_hash).or_else(|| self.claim(counted, texts)) else {
            return;
        };
        if let Some(sketch) = self.sketches.get_mut(at) {
            sketch.keys.note(counted);
        }
    }

    /// Frees all sketches.
    pub(super) fn clear(&mut self) {
        self.ranks.clear();
        self.sketches.iter_mut().for_each(RuleSketch::clear);
    }

    /// The sketches in use, each with the hash of its rule.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &RuleSketch)> {
        self.ranks.iter().map(|rank| rank.rule_hash).zip(&self.sketches)
    }

    fn find(&mut self, rule_hash: u64) -> Option<usize> {
        let at = self.ranks.iter().position(|rank| rank.rule_hash == rule_hash)?;
        let rank = self.ranks.get_mut(at)?;
        rank.rank = rank.rank.saturating_add(1);
        Some(at)
    }

    /// Assigns a sketch to a rule that has none.
    #[inline(never)]
    fn claim(&mut self, counted: &CountedKey<'_, '_>, texts: Texts) -> Option<usize> {
        let CountedKey { rule, rule_hash, .. } = *counted;
        let at = if self.ranks.len() < RULES_MAX {
            self.ranks.push(RuleRank { rule_hash, rank: 1 });
            self.ranks.len() - 1
        } else {
            let (at, lowest) =
                self.ranks.iter_mut().enumerate().min_by_key(|(_, rank)| rank.rank)?;
            if !takes_over(lowest.rank) {
                return None;
            }
            *lowest = RuleRank { rule_hash, rank: lowest.rank.saturating_add(1) };
            at
        };
        if at == self.sketches.len() {
            self.sketches.push(RuleSketch { rule: None, keys: Keys::new(SETS, texts) });
        }
        let sketch = self.sketches.get_mut(at)?;
        sketch.clear();
        sketch.rule = rule.cloned();
        Some(at)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let of = |sketch: &RuleSketch| {
            size_of::<RuleRank>() + size_of::<RuleSketch>() + sketch.keys.bytes()
        };
        self.sketches.iter().map(of).sum()
    }
}

// === impl RuleSketch ===

impl RuleSketch {
    fn clear(&mut self) {
        self.rule = None;
        self.keys.clear();
    }
}
