//! Where the numbers of `/status` and the live page come from.

use ratelease_engine::lease::ShardTally;

use crate::hot::{OfRule, Top};
use crate::metrics::{Calls, RuleTotals};

/// What is counted of decisions and leases.
pub trait Numbers: Send + Sync {
    /// Every call since the process began; `None` where decisions are not counted. Asked once a
    /// second, whether or not somebody watches; the others only when somebody does.
    fn calls(&self) -> Option<Calls>;

    /// Descriptors, by how they were decided.
    fn by_how(&self) -> Vec<(&'static str, u64)>;

    /// The rules that decided most, busiest first, `max` at most.
    fn rules(&self, max: usize) -> Vec<RuleTotals>;

    /// The hottest keys of late, `max` of each kind at most.
    fn hot_keys(&self, max: usize) -> Top;

    /// And those of each of the busiest rules.
    fn hot_keys_by_rule(&self, max: usize) -> Vec<OfRule>;

    /// What the asks of each shard have come to.
    fn leases(&self) -> Vec<ShardTally>;
}
