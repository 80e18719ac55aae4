//! All rules of one version, and the lookup of the rule for a descriptor.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use memchr::memchr_iter;
use smallvec::SmallVec;

use crate::limit::Limit;
use crate::memory::Memory;
use crate::request::{Descriptor, Entry};
use crate::rule::Rule;
use crate::small_map::{SmallMap, TextMap};
use crate::store::{StoreId, StoreNames};
use crate::wildcard::Patterns;

/// All rules of one version. Lookups do not allocate, except among many patterns.
#[derive(Debug, Default)]
pub struct Rules {
    version: u64,
    domains: SmallMap<Arc<DomainRules>>,
    len: usize,
    /// Boxed, since only overrides and pages read it.
    stores: Box<StoreNames>,
    /// Whether a month of a fixed window is one of the calendar.
    calendar_months: bool,
    /// The domain of the candidate rules of each domain that has some; `None` if none has.
    pub(crate) candidates: Option<Box<SmallMap<Box<str>>>>,
}

/// The rules of one domain.
#[derive(Debug)]
pub(crate) struct DomainRules {
    pub(crate) branch: Branch,
    /// In order of their paths, each of which begins with the domain and a dot.
    pub(crate) rules: Vec<Arc<Rule>>,
    /// The store of every limit of the domain that names none, and of overrides.
    pub(crate) store: StoreId,
    /// The hash of the domain's own rules, once a fingerprint was asked for. Versions share the
    /// rules that do not change, and so the hash.
    pub(crate) fingerprint: OnceLock<u64>,
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

/// The key of the entry that marks a settlement. It is the last entry of a descriptor whose hits
/// are the real cost of something used already.
pub const SETTLE_KEY: &str = "ratelease.settle";

/// Suffix of the name of a domain of candidate rules: `shop@candidate` has the candidates for
/// `shop`. They are tried on the requests of `shop` beside the rules in force, and decide nothing.
pub const CANDIDATE_SUFFIX: &str = "@candidate";

/// Returns the name of the domain of the candidate rules of `domain`.
pub fn candidate_of(domain: &str) -> String {
    format!("{domain}{CANDIDATE_SUFFIX}")
}

/// Returns the domain whose candidate rules the domain of this name has; `None` if it has none.
pub fn domain_of_candidate(name: &str) -> Option<&str> {
    name.strip_suffix(CANDIDATE_SUFFIX).filter(|domain| !domain.is_empty())
}

/// The charge of a descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Charged<'r, 'e> {
    /// The rule for the entries.
    pub lookup: Lookup<'r>,
    /// The entries that find the rule and name the count: the entries of the descriptor, without
    /// the [`SETTLE_KEY`] of a settlement.
    pub entries: &'e [Entry<'e>],
    /// Whether the hits are a settlement: the cost of something used already, which is never
    /// refused.
    pub settles: bool,
}

// === impl Rules ===

impl Rules {
    /// The paths of all rules of `domains` must differ.
    pub(crate) fn new(
        version: u64,
        domains: SmallMap<Arc<DomainRules>>,
        stores: StoreNames,
        calendar_months: bool,
    ) -> Self {
        let len = domains.iter().map(|(_, domain)| domain.rules.len()).sum();
        let candidates = domains.keys().filter_map(|it| Some((domain_of_candidate(it)?, it)));
        let candidates: Vec<_> = candidates.collect();
        let candidates = (!candidates.is_empty()).then(|| {
            let pairs = candidates.into_iter().map(|(of, name)| (of.into(), name.into()));
            Box::new(pairs.collect())
        });
        Self { version, domains, len, stores: Box::new(stores), calendar_months, candidates }
    }

    /// Returns the name and the rules of the only domain; `None` if there is none, or several.
    pub(crate) fn only_domain(&self) -> Option<(&str, Arc<DomainRules>)> {
        let mut domains = self.domains.iter();
        let (name, rules) = domains.next()?;
        domains.next().is_none().then(|| (name, Arc::clone(rules)))
    }

    /// Returns the domain of the candidate rules of `domain`, if there are some.
    #[inline]
    pub fn candidate_of(&self, domain: &str) -> Option<&str> {
        self.candidates.as_ref()?.get(domain).map(AsRef::as_ref)
    }

    pub(crate) fn domain(&self, name: &str) -> Option<&DomainRules> {
        self.domains.get(name).map(AsRef::as_ref)
    }

    /// Whether the month of an override is one of the calendar.
    pub(crate) fn has_calendar_months(&self) -> bool {
        self.calendar_months
    }

    /// Returns the names of the stores that the rules may name.
    pub fn stores(&self) -> &StoreNames {
        &self.stores
    }

    /// Returns the limit of an override: a month may be one of the calendar, as in a rule.
    #[inline]
    pub fn of_override(&self, limit: Limit) -> Limit {
        if self.calendar_months { limit.with_calendar_month() } else { limit }
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

    /// Returns the charge of `descriptor`. A descriptor whose last entry has the [`SETTLE_KEY`] is
    /// a settlement if no rule matches it as it stands. It settles the charge of the entries before
    /// the last one, if their rule has a `hold` or `settle`: no other limit can be charged beyond
    /// its remaining tokens.
    #[inline]
    pub fn charged<'e>(&self, domain: &str, descriptor: &'e Descriptor<'_>) -> Charged<'_, 'e> {
        let entries = &descriptor.entries[..];
        match entries {
            [before @ .., last] if last.key == SETTLE_KEY => {
                self.marked(domain, descriptor, before, last)
            }
            _ => Charged { lookup: self.find(domain, entries), entries, settles: false },
        }
    }

    /// Returns the charge of `descriptor`, which ends with `last`, the mark of a settlement.
    fn marked<'e>(
        &self,
        domain: &str,
        descriptor: &'e Descriptor<'_>,
        before: &'e [Entry<'e>],
        last: &Entry<'_>,
    ) -> Charged<'_, 'e> {
        let whole = |lookup| Charged { lookup, entries: &descriptor.entries, settles: false };
        let Some(domain) = self.domains.get(domain) else { return whole(Lookup::UnknownDomain) };
        let node = domain.branch.find(before);
        let below = match (before, node) {
            ([], _) => Some(&domain.branch),
            (_, node) => node.and_then(|node| node.children.as_deref()),
        };
        let own = below.and_then(|branch| branch.child(last)?.rule.as_ref());
        match (own, node.and_then(|node| node.rule.as_ref())) {
            (Some(rule), _) => whole(Lookup::Rule(rule)),
            (None, Some(rule)) if rule.hold.is_some() || rule.flags.settle => {
                Charged { lookup: Lookup::Rule(rule), entries: before, settles: true }
            }
            (None, None) if descriptor.limit.is_some() => {
                Charged { lookup: Lookup::NoRule, entries: before, settles: true }
            }
            (None, _) => whole(Lookup::NoRule),
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
    /// domain. It visits all nodes of a key, so it is for tools, not for requests. As in
    /// [`Rules::charged`], a settlement finds the rules of the entries before [`SETTLE_KEY`].
    ///
    /// Below a pattern for keys it may return a rule that no value finds.
    pub fn reachable(
        &self,
        domain: &str,
        entries: &[(&str, Option<&str>)],
    ) -> Option<Vec<&Arc<Rule>>> {
        let branch = &self.domains.get(domain)?.branch;
        let mut rules = branch.reachable(entries);
        if let ([before @ .., (SETTLE_KEY, _)], true) = (entries, rules.is_empty()) {
            rules = branch.reachable(before);
        }
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
        // The paths of `a.b` may lie between the paths of `a`.
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

/// Returns the prefix of the paths of the rules of a domain.
fn dotted(domain: &str) -> impl Iterator<Item = u8> {
    domain.bytes().chain([b'.'])
}

/// The parts of `path` that end before a dot, which may be its domain.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    memchr_iter(b'.', path.as_bytes()).filter_map(|at| path.get(..at))
}

// The tree that descriptors are matched against.
//
// A branch holds the children of a node: for each key, a map from value to child, the patterns in
// the order of the file, and the child for the key alone. Keys and values are looked up one after
// the other and never joined. So a lookup takes as long among ten children as among a million, and
// two different pairs of key and value are never confused. A lookup allocates only for the search
// among many patterns, and for a long value if a key is a pattern.

/// The node that one level of a rule file configures, to which an entry leads.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// The rule for descriptors that end here.
    pub(crate) rule: Option<Arc<Rule>>,
    /// The nodes for the next entry.
    pub(crate) children: Option<Box<Branch>>,
}

/// The children of a node, or of a domain: the index of each, by what leads to it.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    keys: SmallMap<KeyNodes>,
    /// Keys with a `*` in them: patterns over the text `key_value`.
    wild_keys: Patterns,
    /// In the order of the file: of two wildcards the one with the smaller index takes precedence.
    nodes: Vec<Node>,
}

/// The children of one key.
#[derive(Debug, Default)]
struct KeyNodes {
    values: TextMap<u32>,
    wild_values: Patterns,
    key_only: Option<u32>,
}

/// `key_value` joined to one text.
type Joined = SmallVec<[u8; JOINED_INLINE]>;

/// Bytes of a joined key and value that need no allocation.
const JOINED_INLINE: usize = 256;

// === impl Branch ===

impl Branch {
    /// Returns the node to which `entries`, which must not be empty, lead.
    #[inline]
    pub(crate) fn find(&self, entries: &[Entry<'_>]) -> Option<&Node> {
        let (last, path) = entries.split_last()?;
        let mut branch = self;
        for entry in path {
            branch = branch.child(entry)?.children.as_deref()?;
        }
        branch.child(last)
    }

    #[inline]
    fn child(&self, entry: &Entry<'_>) -> Option<&Node> {
        self.node(self.choose(entry)?)
    }

    /// Returns the nodes as index, key and value, in no order.
    pub(crate) fn written(&self) -> impl Iterator<Item = (u32, &str, &str)> {
        self.keys.iter().flat_map(|(key, key_nodes)| key_nodes.nodes(key))
    }

    #[inline]
    pub(crate) fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    /// Returns the node for the value itself, else for the first wildcard that matches, else for
    /// the key alone.
    #[inline]
    fn choose(&self, entry: &Entry<'_>) -> Option<u32> {
        let key_nodes = self.keys.get(entry.key);
        key_nodes
            .and_then(|key_nodes| key_nodes.values.get(entry.value).copied())
            .or_else(|| first_wild(&self.wild_keys, key_nodes, entry))
            .or_else(|| key_nodes?.key_only)
    }

    /// Prepares for lookups once all nodes have been inserted, and releases unused capacity.
    pub(crate) fn finish(mut self, memory: &Memory) -> Branch {
        self.keys.shrink();
        self.keys.values_mut().for_each(|key_nodes| key_nodes.wild_values.index(memory));
        self.wild_keys.index(memory);
        memory.shrink(&mut self.nodes);
        self
    }

    /// Whether the level may have one more pattern, if `key` and `value` are one.
    pub(crate) fn has_room_for_pattern(&self, key: &str, value: &str) -> bool {
        match key.contains('*') {
            true => self.wild_keys.has_room(),
            false => {
                let of_key = self.keys.get(key);
                !value.contains('*') || of_key.is_none_or(|it| it.wild_values.has_room())
            }
        }
    }

    /// Whether patterns of the level would cost a search too much together, as
    /// [`Patterns::nests_too_deep`] says.
    pub(crate) fn nests_too_deep(&self, memory: &Memory) -> bool {
        let of_keys = self.keys.iter().map(|(_, key_nodes)| &key_nodes.wild_values);
        of_keys.chain([&self.wild_keys]).any(|patterns| patterns.nests_too_deep(memory))
    }

    /// Takes the memory of the node that is to be inserted for `key` and `value`; of the branch
    /// itself with its first one.
    pub(crate) fn take_room(&self, key: &str, value: &str, memory: &Memory) -> Option<()> {
        if self.is_empty() {
            memory.take_box(size_of::<Branch>())?;
        }
        memory.take_growth(&self.nodes)?;
        let key_nodes = self.keys.get(key);
        if key_nodes.is_none() {
            self.keys.take_room(key, memory)?;
        }
        if !value.is_empty() {
            let size = key_nodes.map_or((0, 0), |it| (it.values.len(), it.values.capacity()));
            memory.take_table(size, size_of::<(Box<str>, u32)>(), 1)?;
            memory.take_box(value.len())?;
        }
        match (key.contains('*'), key_nodes) {
            (true, _) => self.wild_keys.take_room(&composite(key, value), memory),
            (false, Some(key_nodes)) => key_nodes.wild_values.take_room(value, memory),
            (false, None) => Patterns::default().take_room(value, memory),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a node for `key` and `value` (empty: the key alone) and returns it; `None` if it exists
    /// already. Not for a finished branch.
    pub(crate) fn insert(&mut self, key: &str, value: &str) -> Option<&mut Node> {
        // `DESCRIPTORS_MAX` keeps this far from failing.
        let index = u32::try_from(self.nodes.len()).ok()?;
        if self.keys.get(key).is_none() {
            self.keys.insert(key.into(), KeyNodes::default());
        }
        let key_nodes = self.keys.get_mut(key)?;
        match value {
            "" if key_nodes.key_only.is_some() => return None,
            "" => key_nodes.key_only = Some(index),
            _ if key_nodes.values.contains_key(value) => return None,
            _ => drop(key_nodes.values.insert(value.into(), index)),
        }
        if key.contains('*') {
            self.wild_keys.push(&composite(key, value), index);
        } else {
            key_nodes.wild_values.push(value, index);
        }
        self.nodes.push(Node::default());
        self.nodes.last_mut()
    }
}

fn first_wild(
    wild_keys: &Patterns,
    key_nodes: Option<&KeyNodes>,
    entry: &Entry<'_>,
) -> Option<u32> {
    let by_value =
        key_nodes.and_then(|key_nodes| key_nodes.wild_values.find(entry.value.as_bytes()));
    let by_key = match wild_keys.is_empty() {
        true => None,
        false => wild_keys.find(&joined(entry)),
    };
    match (by_value, by_key) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Returns the text against which a pattern over key and value is matched; it contains the `_` even
/// without a value.
fn joined(entry: &Entry<'_>) -> Joined {
    let mut text = Joined::with_capacity(entry.key.len() + 1 + entry.value.len());
    text.extend_from_slice(entry.key.as_bytes());
    text.push(b'_');
    text.extend_from_slice(entry.value.as_bytes());
    text
}

/// Joins key and value as the reference does: `key_value`, or `key` alone.
pub(crate) fn composite(key: &str, value: &str) -> String {
    match value {
        "" => key.to_owned(),
        _ => format!("{key}_{value}"),
    }
}

// A lookup that records its candidates. The choice is made by the same code as in `find`; the
// other candidates are only listed.

/// The path of one descriptor through the tree.
#[derive(Debug, Clone)]
pub struct Trace<'r> {
    /// One step for each entry, up to the first entry for which no node was chosen or below whose
    /// node there is nothing.
    pub steps: Vec<Step<'r>>,
    /// The rule at the node of the last entry, if that node was reached and has a rule.
    pub rule: Option<&'r Arc<Rule>>,
}

/// The nodes of one level that an entry could lead to.
#[derive(Debug, Clone)]
pub struct Step<'r> {
    /// The nodes that the entry could lead to, in the order in which they are tried. Of patterns
    /// that do not match, only the first [`Step::SHOWN_MAX`] are listed.
    pub candidates: Vec<Candidate<'r>>,
    /// The index in `candidates` of the node that was chosen.
    pub chosen: Option<usize>,
    /// Number of patterns that do not match and are not among the candidates.
    pub unlisted: usize,
    /// The keys of the level in order, at most [`Step::SHOWN_MAX`], and their total number.
    pub keys: (Vec<&'r str>, usize),
    /// The values that the entry's key has at this level, likewise.
    pub values: (Vec<&'r str>, usize),
    /// The rule at the node that was chosen.
    pub rule: Option<&'r Arc<Rule>>,
    /// Whether that node has children.
    pub has_children: bool,
}

/// A node that an entry could lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'r> {
    /// Key, as in the file.
    pub key: &'r str,
    /// Value, as in the file; empty for the key alone.
    pub value: &'r str,
    /// How the node would match.
    pub kind: MatchKind,
    /// Whether it matches the entry.
    pub matches_entry: bool,
}

/// How a node matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchKind {
    /// By the value itself.
    Value,
    /// By a pattern.
    Pattern,
    /// By the key, with any value.
    Key,
}

// === impl Step ===

impl Step<'_> {
    /// Maximum number of names of each kind that a step lists: enough to notice a misspelling.
    pub const SHOWN_MAX: usize = 8;
}

// === impl Branch ===

impl Branch {
    /// Records the path that `find` takes.
    pub(crate) fn trace(&self, entries: &[Entry<'_>]) -> Trace<'_> {
        let mut steps = Vec::with_capacity(entries.len());
        let mut branch = Some(self);
        for entry in entries {
            let Some(here) = branch else { break };
            steps.push(here.step(entry));
            branch = here.child(entry).and_then(|node| node.children.as_deref());
        }
        let arrived = steps.len() == entries.len();
        let rule = steps.last().filter(|_| arrived).and_then(|step| step.rule);
        Trace { steps, rule }
    }

    /// Adds the patterns of this level, whose path is `path`, and of the levels below. The
    /// recursion is at most as deep as a file.
    pub(crate) fn patterns(&self, path: &str, found: &mut Vec<(String, Vec<String>)>) {
        let mut texts: Vec<(u32, &str, &str)> = self.written().collect();
        texts.sort_unstable();
        let is_pattern =
            |(_, key, value): &&(u32, &str, &str)| (*key).contains('*') || value.contains('*');
        let patterns = texts.iter().filter(is_pattern).map(|(_, key, value)| composite(key, value));
        let patterns: Vec<String> = patterns.collect();
        if !patterns.is_empty() {
            found.push((path.to_owned(), patterns));
        }
        for (index, key, value) in texts {
            let node = self.node(index);
            if let Some(children) = node.and_then(|node| node.children.as_deref()) {
                children.patterns(&format!("{path}.{}", composite(key, value)), found);
            }
        }
    }

    fn step(&self, entry: &Entry<'_>) -> Step<'_> {
        let chosen = self.choose(entry);
        let node = chosen.and_then(|index| self.node(index));
        let mut listed = self.listed(entry);
        let mut unlisted = 0;
        let mut misses = 0;
        listed.retain(|(_, candidate)| {
            misses += usize::from(!candidate.matches_entry);
            let keep = candidate.matches_entry || misses <= Step::SHOWN_MAX;
            unlisted += usize::from(!keep);
            keep
        });
        Step {
            chosen: listed.iter().position(|(index, _)| Some(*index) == chosen),
            candidates: listed.into_iter().map(|(_, candidate)| candidate).collect(),
            unlisted,
            keys: first_of(self.keys.keys()),
            values: self.keys.get(entry.key).map_or_else(Default::default, KeyNodes::shown),
            rule: node.and_then(|node| node.rule.as_ref()),
            has_children: node.is_some_and(|node| node.children.is_some()),
        }
    }

    /// Returns every node that could match, with its index, in the order in which they are tried.
    fn listed(&self, entry: &Entry<'_>) -> Vec<(u32, Candidate<'_>)> {
        let key_nodes = self.keys.iter().find(|(key, _)| *key == entry.key);
        let exact = key_nodes.and_then(|(key, key_nodes)| {
            let (value, index) = key_nodes.values.get_key_value(entry.value)?;
            Some((*index, Candidate { key, value, kind: MatchKind::Value, matches_entry: true }))
        });
        let wild_values = key_nodes.into_iter().map(|(_, key_nodes)| &key_nodes.wild_values);
        let by_value = wild_values.flat_map(|wild| wild.matches(entry.value.as_bytes()));
        let text = joined(entry);
        let by_key = self.wild_keys.matches(&text);
        // Wildcards are tried in the order of the files, which is the order of their indices.
        let wild_keys_nodes = self.keys.iter().filter(|(key, _)| key.contains('*'));
        let nodes = key_nodes
            .into_iter()
            .chain(wild_keys_nodes)
            .flat_map(|(key, key_nodes)| key_nodes.nodes(key));
        let written: HashMap<u32, (&str, &str)> =
            nodes.map(|(index, key, value)| (index, (key, value))).collect();
        let by_value_or_key = by_value.chain(by_key).filter_map(|(node, matches_entry)| {
            let (key, value) = *written.get(&node)?;
            Some((node, Candidate { key, value, kind: MatchKind::Pattern, matches_entry }))
        });
        let mut patterns: Vec<_> = by_value_or_key.collect();
        patterns.sort_by_key(|(index, _)| *index);
        // A value that equals a pattern's text was already listed as an exact match.
        patterns.retain(|(index, _)| exact.is_none_or(|(exact, _)| exact != *index));
        let key_only = key_nodes.and_then(|(key, key_nodes)| {
            Some((
                key_nodes.key_only?,
                Candidate { key, value: "", kind: MatchKind::Key, matches_entry: true },
            ))
        });
        // A key with a `*` is also a pattern, which was tried before; if it matched, do not list it
        // again.
        let is_met = |key_only: &(u32, _)| {
            patterns.iter().any(|(index, p)| p.matches_entry && *index == key_only.0)
        };
        let key_only = key_only.filter(|key_only| !is_met(key_only));
        patterns.retain(|(index, _)| key_only.is_none_or(|(key_only, _)| key_only != *index));
        exact.into_iter().chain(patterns).chain(key_only).collect()
    }
}

// === impl KeyNodes ===

impl KeyNodes {
    /// Returns its nodes as index, `key` and value.
    fn nodes<'b>(&'b self, key: &'b str) -> impl Iterator<Item = (u32, &'b str, &'b str)> {
        let values = self.values.iter().map(move |(value, index)| (*index, key, &**value));
        values.chain(self.key_only.map(|index| (index, key, "")))
    }

    fn shown(&self) -> (Vec<&str>, usize) {
        first_of(self.values.keys().map(AsRef::as_ref))
    }
}

/// Returns the first names in order, and their total number.
fn first_of<'r>(names: impl Iterator<Item = &'r str>) -> (Vec<&'r str>, usize) {
    let mut names: Vec<&str> = names.collect();
    let count = names.len();
    names.sort_unstable();
    names.truncate(Step::SHOWN_MAX);
    (names, count)
}

// Lookups of entries whose values are not all known.

// === impl Branch ===

impl Branch {
    /// Returns the rules at the nodes that `entries` may lead to; a value of `None` may be any.
    pub(crate) fn reachable(&self, entries: &[(&str, Option<&str>)]) -> Vec<&Arc<Rule>> {
        let Some((last, path)) = entries.split_last() else { return Vec::new() };
        let mut branches = vec![self];
        for entry in path {
            let below = branches.iter().flat_map(|branch| branch.possible(entry));
            branches = below.filter_map(|node| node.children.as_deref()).collect();
        }
        let nodes = branches.iter().flat_map(|branch| branch.possible(last));
        nodes.filter_map(|node| node.rule.as_ref()).collect()
    }

    fn possible(&self, &(key, value): &(&str, Option<&str>)) -> Vec<&Node> {
        let Some(value) = value else { return self.of_any_value(key) };
        self.child(&Entry { key, value }).into_iter().collect()
    }

    /// The nodes for `key` and any value. A pattern over the key and the value may match if one of
    /// `key_` and its text before the first `*` begins with the other.
    fn of_any_value(&self, key: &str) -> Vec<&Node> {
        let beginning = format!("{key}_");
        let may_match = |pattern: &str| {
            let fixed = pattern.split('*').next().unwrap_or_default();
            beginning.starts_with(fixed) || fixed.starts_with(&beginning)
        };
        let keys = self
            .keys
            .iter()
            .filter(|(other, _)| *other == key || other.contains('*') && may_match(other));
        let nodes = keys.flat_map(|(key, key_nodes): (&str, &KeyNodes)| key_nodes.nodes(key));
        nodes.filter_map(|(index, _, _)| self.node(index)).collect()
    }
}
