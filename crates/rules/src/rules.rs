//! All rules of one version, and the lookup of the rule for a descriptor.

use std::sync::Arc;

use memchr::memchr_iter;

use crate::request::Entry;
use crate::rule::Rule;
use crate::small_map::SmallMap;
use crate::store::{StoreId, StoreNames};
use crate::tree::{Branch, Trace};

/// All rules of one version. Lookups do not allocate, except among many patterns.
#[derive(Debug, Default)]
pub struct Rules {
    version: u64,
    domains: SmallMap<DomainRules>,
    len: usize,
    /// Boxed, since only overrides and pages read it.
    stores: Box<StoreNames>,
}

/// The rules of one domain.
#[derive(Debug)]
pub(crate) struct DomainRules {
    pub(crate) branch: Branch,
    /// In order of their paths, each of which begins with the domain and a dot.
    pub(crate) rules: Vec<Arc<Rule>>,
    /// The store of every limit of the domain that names none, and of overrides.
    pub(crate) store: StoreId,
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
    /// The paths of all rules of `domains` must differ.
    pub(crate) fn new(version: u64, domains: SmallMap<DomainRules>, stores: StoreNames) -> Self {
        let len = domains.iter().map(|(_, domain)| domain.rules.len()).sum();
        Self { version, domains, len, stores: Box::new(stores) }
    }

    /// Returns the names of the stores that the rules may name.
    pub fn stores(&self) -> &StoreNames {
        &self.stores
    }

    /// Returns the store that counts the overrides of `domain` for which there is no rule.
    pub fn store_of_domain(&self, domain: &str) -> StoreId {
        self.domains.get(domain).map_or(StoreId::DEFAULT, |domain| domain.store)
    }

    /// Returns the rule for `entries` of `domain`.
    ///
    /// At each level the entry's value is tried first, then the level's wildcards in the order of
    /// the files, then the key alone; there is no backtracking. A rule applies only if it is at the
    /// node of the last entry.
    #[inline]
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Lookup<'_> {
        let Some(domain) = self.domains.get(domain) else { return Lookup::UnknownDomain };
        match domain.branch.find(entries).and_then(|node| node.rule.as_ref()) {
            Some(rule) => Lookup::Rule(rule),
            None => Lookup::NoRule,
        }
    }

    /// Returns the candidates that [`Rules::find`] considers, level by level; `None` if no rule
    /// file configures the domain. It allocates and tries every pattern of a level, so it is for
    /// tools, not for requests.
    pub fn trace(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Trace<'_>> {
        Some(self.domains.get(domain)?.branch.trace(entries))
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
        let mut rules = self.domains.get(domain)?.branch.reachable(entries);
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        Some(rules)
    }

    /// Returns the patterns of each level that has any, in the order in which they are tried, with
    /// the path of the level: `domain`, `domain.key_value`. Levels are in order of their paths.
    pub fn patterns(&self) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        for (name, domain) in self.domains.iter() {
            domain.branch.patterns(name, &mut found);
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
        let mut domains: Vec<_> = self.domains.iter().collect();
        domains.sort_by(|(a, _), (b, _)| dotted(a).cmp(dotted(b)));
        // The paths of `a.b` may lie between those of `a`.
        let is_nested =
            |(name, _): &(&str, _)| prefixes(name).any(|it| self.domains.get(it).is_some());
        let has_nested = domains.iter().any(is_nested);
        let mut sorted = Vec::new();
        if has_nested {
            sorted.extend(domains.drain(..).flat_map(|(_, domain)| &domain.rules));
            sorted.sort_by(|a, b| a.path.cmp(&b.path));
        }
        sorted.into_iter().chain(domains.into_iter().flat_map(|(_, domain)| &domain.rules))
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no rule; there may still be domains.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the rule of this path.
    pub fn by_path(&self, path: &str) -> Option<&Arc<Rule>> {
        prefixes(path).find_map(|domain| {
            let rules = &self.domains.get(domain)?.rules;
            rules.get(rules.binary_search_by(|rule| (*rule.path).cmp(path)).ok()?)
        })
    }

    /// Returns the domains, in order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = self.domains.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.into_iter()
    }
}

/// What the paths of the rules of a domain begin with.
fn dotted(domain: &str) -> impl Iterator<Item = u8> {
    domain.bytes().chain([b'.'])
}

/// The parts of `path` that end before a dot, which may be its domain.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    memchr_iter(b'.', path.as_bytes()).filter_map(|at| path.get(..at))
}
