//! A lookup that records its candidates. The choice is made by the same code as in `find`; the
//! other candidates are only listed.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Branch, KeyNodes, composite, joined};
use crate::request::Entry;
use crate::rule::Rule;

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
        let texts = self.index.keys.iter().flat_map(|(key, key_nodes)| key_nodes.nodes(key));
        let mut texts: Vec<(u32, &str, &str)> = texts.collect();
        texts.sort_unstable();
        let is_pattern =
            |(_, key, value): &&(u32, &str, &str)| (*key).contains('*') || value.contains('*');
        let patterns = texts.iter().filter(is_pattern).map(|(_, key, value)| composite(key, value));
        let patterns: Vec<String> = patterns.collect();
        if !patterns.is_empty() {
            found.push((path.to_owned(), patterns));
        }
        for (index, key, value) in texts {
            let node = self.nodes.get(index);
            if let Some(children) = node.and_then(|node| node.children.as_deref()) {
                children.patterns(&format!("{path}.{}", composite(key, value)), found);
            }
        }
    }

    fn step(&self, entry: &Entry<'_>) -> Step<'_> {
        let chosen = self.choose(entry);
        let node = chosen.and_then(|index| self.nodes.get(index));
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
            keys: first_of(self.index.keys.keys()),
            values: self.index.keys.get(entry.key).map_or_else(Default::default, KeyNodes::shown),
            rule: node.and_then(|node| node.rule.as_ref()),
            has_children: node.is_some_and(|node| node.children.is_some()),
        }
    }

    /// Returns every node that could match, with its index, in the order in which they are tried.
    fn listed(&self, entry: &Entry<'_>) -> Vec<(u32, Candidate<'_>)> {
        let key_nodes = self.index.keys.iter().find(|(key, _)| *key == entry.key);
        let exact = key_nodes.and_then(|(key, key_nodes)| {
            let (value, index) = key_nodes.values.get_key_value(entry.value)?;
            Some((*index, Candidate { key, value, kind: MatchKind::Value, matches_entry: true }))
        });
        let wild_values = key_nodes.into_iter().map(|(_, key_nodes)| &key_nodes.wild_values);
        let by_value = wild_values.flat_map(|wild| wild.matches(entry.value.as_bytes()));
        let text = joined(entry);
        let by_key = self.index.wild_keys.matches(&text);
        // Wildcards are tried in the order of the files, which is the order of their indices.
        let wild_keys_nodes = self.index.keys.iter().filter(|(key, _)| key.contains('*'));
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
    pub(super) fn nodes<'b>(
        &'b self,
        key: &'b str,
    ) -> impl Iterator<Item = (u32, &'b str, &'b str)> {
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
