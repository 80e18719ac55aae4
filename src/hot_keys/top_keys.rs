//! The counts of one kind, requests or denials: of all keys together, and of each of the busiest
//! rules.

use std::sync::Arc;

use ratelease_rules::Rule;

use super::Seen;
use super::keys::Keys;
use super::per_rule::Places;

/// Number of sets of the sketch of all keys: 256 counters.
const SETS: usize = 32;

/// Counts keys, either of requests or of denials.
pub(super) struct Board {
    all: Keys,
    /// The rule of the key that has each counter; `None` for overrides.
    rules: Box<[Option<Arc<Rule>>]>,
    by_rule: Places,
    /// Whether texts are kept.
    values: bool,
}

// === impl Board ===

impl Board {
    /// Upper bound of the memory of one board in bytes, except for a few words.
    pub(super) const fn bytes_max(values: bool) -> usize {
        let rules = SETS * ratelease_engine::sketch::WAYS * size_of::<Option<Arc<Rule>>>();
        Keys::bytes_max(SETS, values) + rules + Places::bytes_max(values)
    }

    pub(super) fn new(values: bool) -> Self {
        let all = Keys::new(SETS, values);
        let rules = vec![None; all.len()].into();
        Self { all, rules, by_rule: Places::default(), values }
    }

    pub(super) fn note(&mut self, seen: &Seen<'_, '_>) {
        let taken_over = self.all.note(seen);
        if let Some(rule) = taken_over.and_then(|counter| self.rules.get_mut(counter)) {
            *rule = seen.rule.cloned();
        }
        self.by_rule.note(seen, self.values);
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

    pub(super) fn by_rule(&self) -> &Places {
        &self.by_rule
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.all.bytes() + size_of_val(&*self.rules) + self.by_rule.bytes()
    }
}
