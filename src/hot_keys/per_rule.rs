//! The busiest rules, each with a sketch of its own, so that the keys of a quiet rule show beside
//! those of a busy one.

use std::sync::Arc;

use ratelease_rules::Rule;

use super::Seen;
use super::keys::{Keys, takes_over};

/// Maximum number of rules with a place, by requests, and separately by denials; in each stripe and
/// age.
pub const RULES_MAX: usize = 32;

/// Number of sets of each rule's sketch: 32 counters.
const SETS: usize = 4;

/// The places of the busiest rules.
///
/// A rule gets a free place if there is one. Otherwise it takes that of the rule with the lowest
/// rank r, with probability 1 / (r + 1), and continues from that rank: a rule that is busier than
/// one of those soon has a place, whenever it appears, and a thousand quiet rules do not take the
/// places of the busy ones. A rank (`standing`) is the number of notes of the present rule in the
/// place, plus the rank of the rule before it.
#[derive(Default)]
pub(super) struct Places {
    /// Separate from the places, because each note searches them.
    heads: Vec<Head>,
    /// In the order of the heads, and never fewer. Allocated when first needed, and kept.
    places: Vec<Place>,
}

/// The rule that has a place.
#[derive(Clone, Copy)]
struct Head {
    rule_hash: u64,
    standing: u32,
}

/// The data kept of a rule.
pub(super) struct Place {
    /// `None` for overrides.
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) keys: Keys,
}

// === impl Places ===

impl Places {
    /// Upper bound of the heap memory in bytes, except for a few words.
    pub(super) const fn bytes_max(values: bool) -> usize {
        RULES_MAX * (size_of::<Head>() + size_of::<Place>() + Keys::bytes_max(SETS, values))
    }

    /// Counts the key in `seen` among those of its rule.
    pub(super) fn note(&mut self, seen: &Seen<'_, '_>, values: bool) {
        let Some(at) = self.held(seen.rule_hash).or_else(|| self.take(seen, values)) else {
            return;
        };
        if let Some(place) = self.places.get_mut(at) {
            place.keys.note(seen);
        }
    }

    /// Frees all places.
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.places.iter_mut().for_each(Place::clear);
    }

    /// The occupied places, each with the hash of its rule.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Place)> {
        self.heads.iter().map(|head| head.rule_hash).zip(&self.places)
    }

    fn held(&mut self, rule_hash: u64) -> Option<usize> {
        let at = self.heads.iter().position(|head| head.rule_hash == rule_hash)?;
        let head = self.heads.get_mut(at)?;
        head.standing = head.standing.saturating_add(1);
        Some(at)
    }

    /// Assigns a place to a rule that has none.
    #[inline(never)]
    fn take(&mut self, seen: &Seen<'_, '_>, values: bool) -> Option<usize> {
        let Seen { rule, rule_hash, .. } = *seen;
        let at = if self.heads.len() < RULES_MAX {
            self.heads.push(Head { rule_hash, standing: 1 });
            self.heads.len() - 1
        } else {
            let (at, lowest) =
                self.heads.iter_mut().enumerate().min_by_key(|(_, head)| head.standing)?;
            if !takes_over(lowest.standing) {
                return None;
            }
            *lowest = Head { rule_hash, standing: lowest.standing.saturating_add(1) };
            at
        };
        if at == self.places.len() {
            self.places.push(Place { rule: None, keys: Keys::new(SETS, values) });
        }
        let place = self.places.get_mut(at)?;
        place.clear();
        place.rule = rule.cloned();
        Some(at)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let of = |place: &Place| size_of::<Head>() + size_of::<Place>() + place.keys.bytes();
        self.places.iter().map(of).sum()
    }
}

// === impl Place ===

impl Place {
    fn clear(&mut self) {
        self.rule = None;
        self.keys.clear();
    }
}
