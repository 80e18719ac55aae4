//! Former rules, kept until no answer is computed under them any more.
//!
//! Who lets go of a version last frees it, and freeing a million rules takes a good part of a
//! second. So the watcher keeps hold of what it has replaced: it has the time, and a thread that
//! answers requests has not.

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::Rules;

/// Former versions that are kept hold of. An answer takes milliseconds and a load longer, so there
/// are more only where something holds on to them; the oldest is then left to whoever that is.
const RETIRED_MAX: usize = 4;

/// How often is looked whether they are still used.
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

    /// Frees those that nobody else holds: nobody can come to hold them again.
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
