//! All rules of one version, and the lookup of the rule for a descriptor.

use std::sync::Arc;

use crate::request::Entry;
use crate::rule::Rule;
use crate::small_map::SmallMap;
use crate::store::{StoreNames, StoreRef};
use crate::tree::{Branch, Trace};

/// All rules of one version. Lookups do not allocate, except among many patterns.
#[derive(Debug, Default)]
pub struct Rules {
    version: u64,
    domains: SmallMap<Branch>,
    /// In order of their paths.
    rules: Vec<Arc<Rule>>,
    /// Boxed, since only overrides and pages read it.
    stores: Box<StoresOfDomains>,
}

/// The stores that the rules may name, and those that domains name.
#[derive(Debug, Default)]
pub(crate) struct StoresOfDomains {
    pub(crate) names: StoreNames,
    /// Domains that name another store than the default one.
    pub(crate) by_domain: SmallMap<StoreRef>,
}

/// The result of looking up one descriptor.
#[derive(Debug, Clone, Copy)]
pub enum Lookup<'r> {
    /// No rule file configures the domain; an override is ignored.
    UnknownDomain,
    /// The domain is known, but the node of the last entry has no rule, or there is no such node.
    NoRule,
    /// The rule at the node of the last entry.
    Rule(&'r Arc<Rule>),
}

// === impl Rules ===

impl Rules {
    /// `rules` must be in order of their paths; `domains` holds the tree of each domain.
    pub(crate) fn new(
        version: u64,
        domains: SmallMap<Branch>,
        rules: Vec<Arc<Rule>>,
        stores: StoresOfDomains,
    ) -> Self {
        Self { version, domains, rules, stores: Box::new(stores) }
    }

    /// Returns the names of the stores that the rules may name.
    pub fn stores(&self) -> &StoreNames {
        &self.stores.names
    }

    /// Returns the store that counts the overrides of `domain` for which there is no rule.
    pub fn store_of_domain(&self, domain: &str) -> StoreRef {
        self.stores.by_domain.get(domain).copied().unwrap_or(StoreRef::DEFAULT)
    }

    /// Returns the rule for `entries` of `domain`.
    ///
    /// At each level the entry's value is tried first, then the level's wildcards in the order of
    /// the files, then the key alone; there is no backtracking. A rule applies only if it is at the
    /// node of the last entry.
    #[inline]
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Lookup<'_> {
        let Some(branch) = self.domains.get(domain) else { return Lookup::UnknownDomain };
        match branch.find(entries).and_then(|node| node.rule.as_ref()) {
            Some(rule) => Lookup::Rule(rule),
            None => Lookup::NoRule,
        }
    }

    /// Returns the candidates that [`Rules::find`] considers, level by level; `None` if no rule
    /// file configures the domain. It allocates and tries every pattern of a level, so it is for
    /// tools, not for requests.
    pub fn trace(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Trace<'_>> {
        Some(self.domains.get(domain)?.trace(entries))
    }

    /// Returns the rules that entries with these keys may find, in order of their paths, when the
    /// value of an entry is known or may be any (`None`); `None` if no rule file configures the
    /// domain. It visits all nodes of a key, so it is for tools, not for requests.
    ///
    /// Below a pattern for keys it may return a rule that no value finds.
    pub fn reachable(
        &self,
        domain: &str,
        entries: &[(&str, Option<&str>)],
    ) -> Option<Vec<&Arc<Rule>>> {
        let mut rules = self.domains.get(domain)?.reachable(entries);
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        Some(rules)
    }

    /// Returns the patterns of each level that has any, in the order in which they are tried, with
    /// the path of the level: `domain`, `domain.key_value`. Levels are in order of their paths.
    pub fn patterns(&self) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        for (domain, branch) in self.domains.iter() {
            branch.patterns(domain, &mut found);
        }
        found.sort();
        found
    }

    /// Returns a hash of the sources, which identifies this set of rules and is equal on all pods
    /// that read the same sources.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the rules in order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether there is no rule; there may still be domains.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the rule of this path.
    pub fn by_path(&self, path: &str) -> Option<&Arc<Rule>> {
        let index = self.rules.binary_search_by(|rule| (*rule.path).cmp(path)).ok()?;
        self.rules.get(index)
    }

    /// Returns the domains, in order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = self.domains.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.into_iter()
    }
}
