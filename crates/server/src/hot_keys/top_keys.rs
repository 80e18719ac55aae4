//! The counts of one kind, requests or denials: of all keys together, and of each of the busiest
//! rules.

use std::sync::Arc;

use ratelease_rules::Rule;

use super::keys::Keys;
use super::per_rule::RuleSketches;
use super::{CountedKey, Texts};

/// Number of sets of the sketch of all keys: 256 counters.
const SETS: usize = 32;

/// Counts keys, either of requests or of denials.
pub(super) struct TopKeys {
    all: Keys,
    /// The rule of the key that has each counter; `None` for overrides.
    rules: Box<[Option<Arc<Rule>>]>,
    by_rule: RuleSketches,
    /// Whether texts are kept.
    texts: Texts,
}

// === impl TopKeys ===

impl TopKeys {
    /// Upper bound of the memory of one value in bytes, except for a few words.
    pub(super) const fn bytes_max(texts: Texts) -> usize {
        let rules = SETS * ratelease_engine::sketch::WAYS * size_of::<Option<Arc<Rule>>>();
        Keys::bytes_max(SETS, texts) + rules + RuleSketches::bytes_max(texts)
    }

    pub(super) fn new(texts: Texts) -> Self {
        let all = Keys::new(SETS, texts);
        let rules = vec![None; all.len()].into();
        Self { all, rules, by_rule: RuleSketches::default(), texts }
    }

    pub(super) fn note(&mut self, counted: &CountedKey<'_, '_>) {
        let taken_over = self.all.note(counted);
        if let Some(rule) = taken_over.and_then(|counter| self.rules.get_mut(counter)) {
            *rule = counted.rule.cloned();
        }
        self.by_rule.note(counted, self.texts);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.rules.fill(None);
        self.by_rule.clear();
    }

    pub(super) fn all(&self) -> &Keys {
        &self.all
    }

    /// The rule of the key that has this counter in the sketch of all keys.
    pub(super) fn rule_of(&self, counter: usize) -> Option<&Arc<Rule>> {
        self.rules.get(counter)?.as_ref()
    }

    pub(super) fn by_rule(&self) -> &RuleSketches {
        &self.by_rule
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.all.bytes() + size_of_val(&*self.rules) + self.by_rule.bytes()
    }
}
