//! The tree that descriptors are matched against.
//!
//! One branch holds the children of a node: for each key, a map from value to child, the patterns
//! in the order of the file, and the child for the key alone. Keys and values are looked up one
//! after the other and never joined, so a lookup allocates nothing, takes as long among ten
//! children as among a million, and no two pairs of key and value can be taken for one another.

mod trace;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::Rule;
use super::handful::Handful;
use super::wildcard::Pattern;
use crate::request::Entry;
pub use trace::{Candidate, Fit, Step, Trace};

/// A map from text, hashed with a seed of its own process.
pub(super) type TextMap<T> = HashMap<Box<str>, T, RandomState>;

/// One configured level: where a descriptor's entry leads.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// What applies to descriptors that end here.
    pub(super) rule: Option<Arc<Rule>>,
    /// Where their next entry leads.
    pub(super) children: Option<Box<Branch>>,
}

/// The children of a node, or of a domain.
#[derive(Debug, Default)]
pub(super) struct Branch {
    keys: Handful<Slot>,
    /// Keys with a `*` in them: patterns over the text `key_value`.
    wild_keys: Vec<Wild>,
    /// In the order of the file, so that of two wildcards the one with the smaller index wins.
    nodes: Vec<Node>,
}

/// The children of one key.
#[derive(Debug, Default)]
struct Slot {
    values: TextMap<u32>,
    wild_values: Vec<Wild>,
    alone: Option<u32>,
}

#[derive(Debug)]
struct Wild {
    pattern: Pattern,
    node: u32,
}

// === impl Branch ===

impl Branch {
    /// The node that `entries`, which must not be empty, lead to.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<&Node> {
        let (last, path) = entries.split_last()?;
        let mut branch = self;
        for entry in path {
            branch = branch.child(entry)?.children.as_deref()?;
        }
        branch.child(last)
    }

    fn child(&self, entry: &Entry<'_>) -> Option<&Node> {
        self.nodes.get(self.choose(entry)? as usize)
    }

    /// The value itself, else the first wildcard that matches, else the key alone.
    fn choose(&self, entry: &Entry<'_>) -> Option<u32> {
        let slot = self.keys.get(entry.key);
        slot.and_then(|slot| slot.values.get(entry.value).copied())
            .or_else(|| self.first_wild(slot, entry))
            .or_else(|| slot?.alone)
    }

    fn first_wild(&self, slot: Option<&Slot>, entry: &Entry<'_>) -> Option<u32> {
        let by_value = slot
            .and_then(|slot| slot.wild_values.iter().find(|w| w.pattern.matches(entry.value)))
            .map(|wild| wild.node);
        let by_key = self
            .wild_keys
            .iter()
            .find(|wild| wild.pattern.matches_joined(entry.key, entry.value))
            .map(|wild| wild.node);
        match (by_value, by_key) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The branch without the room that it grew into, since nothing more comes; `None` if it has no
    /// nodes.
    pub(super) fn finish(mut self) -> Option<Box<Branch>> {
        self.keys.shrink();
        self.nodes.shrink_to_fit();
        (!self.nodes.is_empty()).then(|| Box::new(self))
    }

    /// Adds a node for `key` and `value` (empty: the key alone); `None` if there is one already.
    pub(super) fn insert(&mut self, key: &str, value: &str) -> Option<&mut Node> {
        // `DESCRIPTORS_MAX` keeps this far from failing.
        let index = u32::try_from(self.nodes.len()).ok()?;
        if self.keys.get(key).is_none() {
            self.keys.insert(key.into(), Slot::default());
        }
        let slot = self.keys.get_mut(key)?;
        match value {
            "" if slot.alone.is_some() => return None,
            "" => slot.alone = Some(index),
            _ if slot.values.contains_key(value) => return None,
            _ => drop(slot.values.insert(value.into(), index)),
        }
        if key.contains('*') {
            let pattern = Pattern::parse(&composite(key, value));
            self.wild_keys.extend(pattern.map(|pattern| Wild { pattern, node: index }));
        } else if let Some(pattern) = Pattern::parse(value) {
            slot.wild_values.push(Wild { pattern, node: index });
        }
        self.nodes.push(Node::default());
        self.nodes.last_mut()
    }
}

/// Key and value as the reference writes them in one: `key_value`, or `key` alone.
pub(super) fn composite(key: &str, value: &str) -> String {
    match value {
        "" => key.to_owned(),
        _ => format!("{key}_{value}"),
    }
}
