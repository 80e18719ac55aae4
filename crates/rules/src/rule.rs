//! One rule: what it allows, and how it answers.

use std::num::NonZeroU8;
use std::sync::Arc;

use crate::attachment::Attachment;
use crate::failure::FailureMode;
use crate::lease::Leasing;
use crate::limit::Limit;

/// What one node of the tree allows, and how it answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Domain and configured keys and values, joined as the reference's stats key
    /// (`domain.key_value.key2`); unique among the rules of one version.
    pub path: Box<str>,
    /// `rate_limit.name`, echoed in `current_limit` and the target of `replaces`; often empty.
    pub name: Box<str>,
    /// What it allows.
    pub allowance: Allowance,
    /// Names of the rules that are set aside in a request that this one matches too.
    pub replaces: Box<[Box<str>]>,
    /// Counts and reports as usual but never denies.
    pub shadow_mode: bool,
    /// Denies only together with every other quota rule that the request matches.
    pub quota_mode: bool,
    /// The stats key carries the keys and values seen on the request.
    pub detailed_metric: bool,
    /// A denied charge spends what is left of its own key, as in the reference. Default true.
    pub charge_denied: bool,
    /// How its tokens are lent.
    pub leasing: Leasing,
    /// What is answered when the store cannot be asked.
    pub failure_mode: FailureMode,
    /// Pools that each of its keys has, 1 to [`POOLS_MAX`](crate::POOLS_MAX); 1 is none beside its
    /// own count.
    pub shards: NonZeroU8,
    /// Returned as dynamic metadata with passing requests.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// One a level of the path, in order. Rules side by side share theirs.
    pub levels: Arc<[Level]>,
    /// Where its decisions are counted.
    pub meter: Attachment,
}

/// What a rule holds about one level of its path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Level {
    /// `share_threshold`: all values that match this pattern count as one, under the pattern's
    /// text.
    pub shared: Option<Box<str>>,
    /// `value_to_metric`: the stats key carries the value seen on the request.
    pub value_to_metric: bool,
    /// How the level was configured, which decides how the stats key shows it.
    pub matched: Matched,
    /// Where the level's text begins in the rule's path, in bytes.
    pub start: u32,
}

/// How a level of a rule's path was configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Matched {
    /// By its key alone.
    #[default]
    Key,
    /// By key and value.
    Value,
    /// By a pattern over `key_value`, which is this.
    Wildcard(Box<str>),
}

/// What a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// So many in each window.
    Limited(Limit),
    /// Everything; nothing is counted.
    Unlimited,
}

// === impl Rule ===

impl Rule {
    /// The path taken apart: the domain, then each level. A dot may be a part of any of them.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        let starts = self.levels.iter().map(|level| level.start as usize);
        let ends = starts.clone().map(|start| start.saturating_sub(1)).chain([self.path.len()]);
        let steps = std::iter::once(0).chain(starts).zip(ends);
        steps.map(|(start, end)| self.path.get(start..end).unwrap_or_default())
    }
}
