//! Where the numbers of `/status` and the live page come from.

use std::time::Duration;

use crate::hot::Top;
use crate::metrics::{RuleTotals, Totals};

/// What is counted of decisions.
pub trait Numbers: Send + Sync {
    /// Every decision since the process began. Asked once a second.
    fn decisions(&self) -> Totals;

    /// The rules that decided most, busiest first, `max` at most.
    fn rules(&self, max: usize) -> Vec<RuleTotals>;

    /// The hottest keys of late, `max` of each kind at most.
    fn hot_keys(&self, max: usize) -> Top;

    /// Since the rules in force were loaded.
    fn rules_age(&self) -> Option<Duration>;
}
