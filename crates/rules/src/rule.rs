//! One rule: its limit, and how its answers look.

use std::num::NonZeroU8;
use std::sync::Arc;

use crate::attachment::Attachment;
use crate::failure::FailureMode;
use crate::lease::Leasing;
use crate::limit::Limit;
use crate::store::StoreId;

/// The rule at one node of the tree: its limit, and how its answers look.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Domain and configured keys and values, joined as the reference's stats key
    /// (`domain.key_value.key2`); unique among the rules of one version.
    pub path: Box<str>,
    /// `rate_limit.name`: appears in `current_limit`, and is what `replaces` refers to. Often
    /// empty.
    pub name: Box<str>,
    /// The limit, or none.
    pub allowance: Allowance,
    /// Names of rules that do not apply to a request that this rule matches too.
    pub replaces: Box<[Box<str>]>,
    /// The rule counts and reports as usual but never denies.
    pub shadow_mode: bool,
    /// The rule denies only if every other quota rule that the request matches denies too.
    pub quota_mode: bool,
    /// The stats key contains the keys and values of the request.
    pub detailed_metric: bool,
    /// Whether a denied charge spends the remaining tokens of its own key, as in the reference.
    /// Default true.
    pub charge_denied: bool,
    /// Whether and how its tokens are leased.
    pub leasing: Leasing,
    /// The answer while the store is unavailable.
    pub failure_mode: FailureMode,
    /// Number of pools for each of its keys, 1 to [`POOLS_MAX`](crate::POOLS_MAX); with 1 a key has
    /// only its own count.
    pub shards: NonZeroU8,
    /// Returned as dynamic metadata with requests that pass.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// One item for each level of the path, in order. Neighbouring rules share the list.
    pub levels: Arc<[Level]>,
    /// The meter that counts its decisions.
    pub meter: Attachment,
}

/// The properties of one level of a rule's path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Level {
    /// `share_threshold`: all values that match this pattern count as one, under the pattern's
    /// text.
    pub shared: Option<Box<str>>,
    /// `value_to_metric`: the stats key contains the value of the request.
    pub value_to_metric: bool,
    /// How the level was configured, which determines how the stats key shows it.
    pub matched: LevelMatch,
    /// Where the level's text begins in the rule's path, in bytes.
    pub start: u32,
}

/// How a level of a rule's path was configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LevelMatch {
    /// By its key only.
    #[default]
    Key,
    /// By key and value.
    Value,
    /// By a pattern over `key_value`; the field holds the pattern.
    Wildcard(Box<str>),
}

/// What a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// At most this limit.
    Limited(Limit),
    /// No limit; nothing is counted.
    Unlimited,
}

// === impl Rule ===

impl Rule {
    /// The domain, with which the path begins.
    pub fn domain(&self) -> Option<&str> {
        let start = usize::try_from(self.levels.first()?.start).ok()?;
        self.path.get(..start.checked_sub(1)?)
    }

    /// The store that counts the rule; `None` if nothing is counted.
    pub fn store(&self) -> Option<StoreId> {
        match self.allowance {
            Allowance::Limited(limit) => Some(limit.store),
            Allowance::Unlimited => None,
        }
    }

    /// Number of pools of each key: 0 if the keys are not split, because a key's own count holds
    /// the whole limit.
    pub fn pools(&self) -> u8 {
        if self.shards.get() > 1 { self.shards.get() } else { 0 }
    }

    /// Returns the parts of the path: the domain, then each level. Any part may contain dots.
    pub fn path_parts(&self) -> impl Iterator<Item = &str> {
        let starts = self.levels.iter().map(|level| level.start as usize);
        let ends = starts.clone().map(|start| start.saturating_sub(1)).chain([self.path.len()]);
        let steps = std::iter::once(0).chain(starts).zip(ends);
        steps.map(|(start, end)| self.path.get(start..end).unwrap_or_default())
    }
}
