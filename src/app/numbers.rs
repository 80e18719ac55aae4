//! What observers count, as the debug port tells it.

use std::time::Duration;

use crate::control::status::numbers::{Decisions, HotKeys, Numbers, RuleCounts};

/// What was counted of decisions.
pub(super) struct Counted {}

impl Numbers for Counted {
    fn decisions(&self) -> Decisions {
        Decisions::default()
    }

    fn rules(&self, _max: usize) -> Vec<RuleCounts> {
        Vec::new()
    }

    fn hot_keys(&self, _max: usize) -> HotKeys {
        HotKeys::default()
    }

    fn hot_key_of(&self, _shard: usize) -> Option<(String, f64)> {
        None
    }

    fn rules_age(&self) -> Option<Duration> {
        None
    }
}
