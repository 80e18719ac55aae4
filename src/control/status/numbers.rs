//! Where the numbers of `/status` and the live page come from.

use crate::hot::{OfRule, Top};
use crate::lease::ShardTally;
use crate::metrics::{RuleTotals, Totals};

/// What is counted of decisions and leases.
pub trait Numbers: Send + Sync {
    /// Every decision since the process began. Asked once a second. `None` where decisions are not
    /// counted.
    fn decisions(&self) -> Option<Totals>;

    /// The rules that decided most, busiest first, `max` at most.
    fn rules(&self, max: usize) -> Vec<RuleTotals>;

    /// The hottest keys of late, `max` of each kind at most.
    fn hot_keys(&self, max: usize) -> Top;

    /// And those of each of the busiest rules.
    fn hot_keys_by_rule(&self, max: usize) -> Vec<OfRule>;

    /// What the asks of each shard have come to.
    fn leases(&self) -> Vec<ShardTally>;
}
