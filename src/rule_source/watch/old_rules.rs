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
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// Former versions that may still be in use, oldest first.
#[derive(Debug, Default)]
pub(super) struct Retired(Vec<Arc<Rules>>);

// === impl Retired ===

impl Retired {
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
    fn former_rules_are_freed_here_and_not_by_the_last_who_used_them() {
        let mut retired = Retired::default();
        let used = Arc::new(Rules::default());
        let seen = Arc::downgrade(&used);
        retired.add(Some(Arc::clone(&used)));
        retired.free_unused();
        assert!(!retired.is_empty(), "an answer is still computed under them");
        drop(used);
        assert!(seen.upgrade().is_some(), "who answered has not freed them");
        retired.free_unused();
        assert!(seen.upgrade().is_none() && retired.is_empty());
    }

    #[test]
    fn no_more_than_a_few_are_kept_hold_of() {
        let mut retired = Retired::default();
        let used: Vec<_> = (0..=RETIRED_MAX).map(|_| Arc::new(Rules::default())).collect();
        used.iter().for_each(|rules| retired.add(Some(Arc::clone(rules))));
        let held: Vec<_> = used.iter().map(|rules| Arc::strong_count(rules) > 1).collect();
        assert_eq!(held, [false, true, true, true, true]);
        retired.add(None);
        assert_eq!(retired.0.len(), RETIRED_MAX);
    }
}
