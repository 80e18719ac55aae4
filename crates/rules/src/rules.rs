//! All rules of one version, and what they say of a descriptor.

use std::sync::Arc;

use crate::handful::Handful;
use crate::request::Entry;
use crate::rule::Rule;
use crate::tree::{Branch, Trace};

/// All rules of one version. Lookups do not allocate, but for those among many patterns.
#[derive(Debug, Default)]
pub struct Rules {
    version: u64,
    domains: Handful<Branch>,
    /// In order of their paths.
    rules: Vec<Arc<Rule>>,
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

// === impl Rules ===

impl Rules {
    /// `rules` in order of their paths, by the domains that lead to them.
    pub(crate) fn new(version: u64, domains: Handful<Branch>, rules: Vec<Arc<Rule>>) -> Self {
        Self { version, domains, rules }
    }

    /// The rule for `entries` of `domain`.
    ///
    /// At each level the entry's value is tried first, then the level's wildcards in the order of
    /// the files, then the key alone; what was chosen is never reconsidered. Only a rule at the
    /// node of the last entry applies.
    #[inline]
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
