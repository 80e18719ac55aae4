//! What observers count, as the debug port tells it.

use std::time::Duration;

use crate::control::status::numbers::Numbers;
use crate::hot::{HotKeys, Top};
use crate::metrics::{Meters, RuleTotals, Totals};
use crate::observe::Observers;

/// What is counted of decisions.
pub(super) struct Counted {
    meters: Meters,
    hot_keys: HotKeys,
}

// === impl Counted ===

impl Counted {
    /// What `observers` count.
    pub(super) fn by(observers: &Observers) -> Self {
        let meters = observers.meters().cloned().unwrap_or_default();
        Self { meters, hot_keys: observers.hot_keys.clone() }
    }
}

impl Numbers for Counted {
    fn decisions(&self) -> Totals {
        self.meters.totals()
    }

    fn rules(&self, max: usize) -> Vec<RuleTotals> {
        self.meters.by_rule(max)
    }

    fn hot_keys(&self, max: usize) -> Top {
        self.hot_keys.top(max)
    }

    fn rules_age(&self) -> Option<Duration> {
        None
    }
}
