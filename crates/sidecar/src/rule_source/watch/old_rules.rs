//! Former rules, kept until no answer uses them any more.
//!
//! The last holder of a version frees it, and freeing a million rules takes a good part of a
//! second. The watcher therefore holds the versions that it has replaced: it has the time for that,
//! and a thread that answers requests has not.

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::Rules;

/// Maximum number of former versions held. An answer takes milliseconds and a load takes longer, so
/// there are more only if some other part keeps one; the oldest is then left to its other holder.
const RETIRED_MAX: usize = 4;

/// Interval between checks whether they are still used.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Former versions that may still be in use, oldest first.
#[derive(Debug, Default)]
pub(super) struct OldRules(Vec<Arc<Rules>>);

// === impl OldRules ===

impl OldRules {
    pub(super) fn add(&mut self, rules: Option<Arc<Rules>>) {
        self.0.extend(rules);
        if self.0.len() > RETIRED_MAX {
            self.0.remove(0);
        }
    }

    /// Frees the versions that have no other holder: no new holder can appear.
    pub(super) fn free_unused(&mut self) {
        self.0.retain(|rules| Arc::strong_count(rules) > 1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_rules_are_freed_by_the_watcher() {
        let mut old_rules = OldRules::default();
        let used = Arc::new(Rules::default());
        let seen = Arc::downgrade(&used);
        old_rules.add(Some(Arc::clone(&used)));
        old_rules.free_unused();
        assert!(!old_rules.is_empty(), "an answer is still computed under them");
        drop(used);
        assert!(seen.upgrade().is_some(), "the reader has not freed them");
        old_rules.free_unused();
        assert!(seen.upgrade().is_none() && old_rules.is_empty());
    }

    #[test]
    fn only_a_few_old_rules_are_held() {
        let mut old_rules = OldRules::default();
        let used: Vec<_> = (0..=RETIRED_MAX).map(|_| Arc::new(Rules::default())).collect();
        used.iter().for_each(|rules| old_rules.add(Some(Arc::clone(rules))));
        let held: Vec<_> = used.iter().map(|rules| Arc::strong_count(rules) > 1).collect();
        assert_eq!(held, [false, true, true, true, true]);
        old_rules.add(None);
        assert_eq!(old_rules.0.len(), RETIRED_MAX);
    }
}
