//! All rules of one version, and the lookup of the rule for a descriptor.

use std::sync::Arc;

use memchr::memchr_iter;

use crate::memory::Memory;
use crate::request::Entry;
use crate::rule::Rule;
use crate::small_map::SmallMap;
use crate::store::{StoreId, StoreNames};
use crate::tree::{Branch, Trace};

/// All rules of one version. Lookups do not allocate, except among many patterns.
#[derive(Debug, Default)]
pub struct Rules {
    version: u64,
    domains: SmallMap<Arc<DomainRules>>,
    /// The domains in order of the paths of their rules, of which each begins with its domain and a
    /// dot.
    in_order: Vec<Arc<DomainRules>>,
    /// Whether the paths of one domain may lie between those of another, as those of `a.b` lie
    /// between those of `a`.
    has_nested: bool,
    len: usize,
    /// Boxed, since only overrides and pages read it.
    stores: Box<StoreNames>,
}

/// The rules of one domain. Versions share those that did not change.
#[derive(Debug, Clone)]
pub(crate) struct DomainRules {
    pub(crate) name: Box<str>,
    pub(crate) branch: Branch,
    pub(crate) rules: RuleList,
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
    /// The names of `domains` must differ, and the paths of all their rules.
    pub(crate) fn new(version: u64, domains: Vec<Arc<DomainRules>>, stores: StoreNames) -> Self {
        let len = domains.iter().map(|domain| domain.rules.len()).sum();
        let named = domains.iter().map(|domain| (domain.name.clone(), Arc::clone(domain)));
        let domains_by_name = named.collect::<SmallMap<_>>();
        let has_nested = domains.iter().any(|domain| {
            let outer = |name| domains_by_name.get(name).is_some();
            prefixes(&domain.name).any(outer)
        });
        let mut in_order = domains;
        in_order.sort_by(|a, b| dotted(&a.name).cmp(dotted(&b.name)));
        let (domains, stores) = (domains_by_name, Box::new(stores));
        Self { version, domains, in_order, has_nested, len, stores }
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
        for domain in &self.in_order {
            domain.branch.patterns(&domain.name, &mut found);
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
        let rules = || self.in_order.iter().flat_map(|domain| domain.rules.iter());
        let mut sorted: Vec<_> = rules().filter(|_| self.has_nested).collect();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        let in_order = (!self.has_nested).then(rules);
        sorted.into_iter().chain(in_order.into_iter().flatten())
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
        prefixes(path).find_map(|domain| self.domains.get(domain)?.rules.find(path))
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

// Rules in order of their paths, in pieces that versions share.

/// Rules in order of their paths, which differ. A copy shares all pieces but those that are changed
/// later.
#[derive(Debug, Default, Clone)]
pub(crate) struct RuleList {
    /// None of them is empty.
    pieces: Vec<Arc<Vec<Arc<Rule>>>>,
    len: usize,
}

/// Rules of a new piece. A piece of more than twice as many is divided.
const PIECE: usize = 256;

/// Bytes of a piece besides its rules.
const PIECE_BYTES: usize = 64;

// === impl RuleList ===

impl RuleList {
    /// Makes a list of rules in any order, whose paths differ.
    pub(crate) fn new(mut rules: Vec<Arc<Rule>>, memory: &Memory) -> Self {
        let kept = rules.len() * size_of::<Arc<Rule>>() + rules.len().div_ceil(PIECE) * PIECE_BYTES;
        // Sorting takes as much again.
        if memory.take(kept).and_then(|()| memory.pass(kept)).is_none() {
            return Self::default(); // the load is refused
        }
        memory.give_back(rules.capacity() * size_of::<Arc<Rule>>());
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        let pieces = rules.chunks(PIECE).map(|piece| Arc::new(piece.to_vec())).collect();
        Self { pieces, len: rules.len() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The rules in order of their paths.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }

    /// Returns the rule of this path.
    pub(crate) fn find(&self, path: &str) -> Option<&Arc<Rule>> {
        let piece = self.pieces.get(self.piece_of(path)?)?;
        piece.get(position(piece, path).ok()?)
    }

    /// Removes the rule of this path, and returns it.
    pub(crate) fn remove(&mut self, path: &str) -> Option<Arc<Rule>> {
        let number = self.piece_of(path)?;
        let piece = self.pieces.get_mut(number)?;
        let at = position(piece, path).ok()?;
        let piece = Arc::make_mut(piece);
        let removed = piece.remove(at);
        if piece.is_empty() {
            self.pieces.remove(number);
        }
        self.len -= 1;
        Some(removed)
    }

    /// Adds a rule; `None` if its path is taken.
    pub(crate) fn insert(&mut self, rule: Arc<Rule>) -> Option<()> {
        let number = self.piece_of(&rule.path).unwrap_or_default();
        let Some(piece) = self.pieces.get_mut(number) else {
            self.pieces.push(Arc::new(vec![rule]));
            self.len += 1;
            return Some(());
        };
        let at = position(piece, &rule.path).err()?;
        let piece = Arc::make_mut(piece);
        piece.insert(at, rule);
        if piece.len() > 2 * PIECE {
            let rest = piece.split_off(PIECE);
            self.pieces.insert(number + 1, Arc::new(rest));
        }
        self.len += 1;
        Some(())
    }

    /// The piece that has the rule of this path, if there is one; `None` if the path is before
    /// those of all rules.
    fn piece_of(&self, path: &str) -> Option<usize> {
        let begins_before =
            |piece: &Arc<Vec<Arc<Rule>>>| piece.first().is_some_and(|first| *first.path <= *path);
        self.pieces.partition_point(begins_before).checked_sub(1)
    }
}

fn position(piece: &[Arc<Rule>], path: &str) -> Result<usize, usize> {
    piece.binary_search_by(|rule| (*rule.path).cmp(path))
}
