//! The rules: compiled from files, immutable, replaced whole.
//!
//! ```text
//! read_directory ─▶ Source ─▶ text ─▶ node ─▶ reader ─▶ file ─▶ compile ─▶ Rules (tree)
//!                             UTF-8   places   aliases   types   meaning    lookup
//! ```

mod attachment;
mod compile;
mod directory;
mod failure;
mod fault;
mod field;
mod file;
mod given;
mod handful;
mod lease;
mod letters;
mod limit;
mod metadata;
mod nearest;
mod node;
mod places;
mod reader;
mod scalar;
mod stats;
mod text;
mod tree;
mod wildcard;
pub(crate) mod yaml;

pub use attachment::Attachment;
pub use compile::load;
pub(crate) use compile::load_with_places;
pub use directory::{ReadError, read_directory, read_from, read_path};
pub use failure::FailureMode;
pub use fault::{Fault, Faults};
pub(crate) use fault::{Place, excerpt};
pub use lease::{Leasing, Terms};
pub use limit::{
    Algorithm, FILL_SECONDS_MAX, Limit, MAX_DELAY_MAX, POOLS_MAX, SLIDING_LOG_MAX,
    SLIDING_WINDOW_MAX, Unit, WINDOW_SECONDS_MAX,
};
pub(crate) use nearest::nearest;
pub(crate) use places::{Places, Written};

pub use tree::{Candidate, Fit, Step, Trace};

use std::num::NonZeroU8;
use std::sync::Arc;

use crate::request::Entry;

/// All rules of one version. Lookups do not allocate, but for those among many patterns.
#[derive(Debug, Default)]
pub struct Rules {
    version: u64,
    domains: handful::Handful<tree::Branch>,
    /// In order of their paths.
    rules: Vec<Arc<Rule>>,
}

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
    /// Pools that each of its keys has, 1 to [`POOLS_MAX`]; 1 is none beside its own count.
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

/// What the rules say of one descriptor.
#[derive(Debug, Clone, Copy)]
pub enum Lookup<'r> {
    /// No rule file names the domain; an override is ignored then.
    UnknownDomain,
    /// The domain is known; no rule sits where the last entry leads.
    NoRule,
    /// The rule at the node that the last entry reached.
    Rule(&'r Arc<Rule>),
}

/// The text of one rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// As faults show it, such as `shop.yaml`. Sources load in order of their names.
    pub name: String,
    /// The file's bytes; whatever they are, loading them is safe.
    pub text: Vec<u8>,
}

/// How sources become rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// `MERGE_DOMAIN_CONFIG`: several files may name one domain; the descriptors of a later one are
    /// added at its top level.
    pub merge_domains: bool,
}

/// What came of a load that was not refused.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The rules.
    pub rules: Rules,
    /// What loads, and may not do what its author meant; in order of file and place, at most 10
    /// 000.
    pub warnings: Vec<Fault>,
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

// === impl Rules ===

impl Rules {
    /// The rule for `entries` of `domain`.
    ///
    /// At each level the entry's value is tried first, then the level's wildcards in the order of
    /// the files, then the key alone; what was chosen is never reconsidered. Only a rule at the
    /// node of the last entry applies.
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Lookup<'_> {
        let Some(branch) = self.domains.get(domain) else { return Lookup::UnknownDomain };
        match branch.find(entries).and_then(|node| node.rule.as_ref()) {
            Some(rule) => Lookup::Rule(rule),
            None => Lookup::NoRule,
        }
    }

    /// What [`Rules::find`] met on its way, level by level; `None` if no rule file names the
    /// domain. Allocates, and looks at every pattern of a level: for people, not for requests.
    pub fn trace(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Trace<'_>> {
        Some(self.domains.get(domain)?.trace(entries))
    }

    /// The patterns of each level that has some, in the order in which they are tried, under the
    /// path of the level: `domain`, `domain.key_value`. Levels are in order of their paths.
    pub fn patterns(&self) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        for (domain, branch) in self.domains.iter() {
            branch.patterns(domain, &mut found);
        }
        found.sort();
        found
    }

    /// Tells two sets of rules apart: a hash of their sources, equal on every pod that reads the
    /// same.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The rules in order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is none; there may be domains still.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rule of this path.
    pub fn by_path(&self, path: &str) -> Option<&Arc<Rule>> {
        let index = self.rules.binary_search_by(|rule| (*rule.path).cmp(path)).ok()?;
        self.rules.get(index)
    }

    /// The domains, in order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = self.domains.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.into_iter()
    }
}

#[cfg(test)]
mod tests;
