//! The source of the stats of `/status` and the live page.

use ratelease_engine::lease::ShardCounters;

use ratelease_server::hot_keys::{HottestKeys, RuleHotKeys};
use ratelease_server::metrics::{Calls, RuleTotals};

/// Counts of decisions and leases.
pub trait Stats: Send + Sync {
    /// Every call since the process began; `None` if decisions are not counted. Called once a
    /// second, even while no client watches; the other methods are called only while one does.
    fn calls(&self) -> Option<Calls>;

    /// Descriptors, by how they were decided.
    fn by_how(&self) -> Vec<(&'static str, u64)>;

    /// The rules that decided most, busiest first, at most `max`.
    fn rules(&self, max: usize) -> Vec<RuleTotals>;

    /// The hottest keys of the last one to two minutes, at most `max` of each kind.
    fn hot_keys(&self, max: usize) -> HottestKeys;

    /// The hottest keys of each of the busiest rules.
    fn hot_keys_by_rule(&self, max: usize) -> Vec<RuleHotKeys>;

    /// The results of the asks of each shard.
    fn leases(&self) -> Vec<ShardCounters>;
}
