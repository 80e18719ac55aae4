//! The tree that descriptors are matched against.
//!
//! A branch holds the children of a node: for each key, a map from value to child, the patterns in
//! the order of the file, and the child for the key alone. Keys and values are looked up one after
//! the other and never joined. So a lookup takes as long among ten children as among a million, and
//! two different pairs of key and value are never confused. A lookup allocates only for the search
//! among many patterns, and for a long value if a key is a pattern.

mod nodes;
mod reach;
mod replace;
mod trace;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::memory::{ARC, Memory};
use crate::request::Entry;
use crate::rule::Rule;
use crate::small_map::{SmallMap, TextMap};
use crate::wildcard::Patterns;
use nodes::Nodes;
pub(crate) use replace::is_pattern;
pub use trace::{Candidate, MatchKind, Step, Trace};

/// The node that one level of a rule file configures, to which an entry leads.
#[derive(Debug, Default, Clone)]
pub(crate) struct Node {
    /// The rule for descriptors that end here.
    pub(crate) rule: Option<Arc<Rule>>,
    /// The nodes for the next entry.
    pub(crate) children: Option<Arc<Branch>>,
}

/// The children of a node, or of a domain.
#[derive(Debug, Default, Clone)]
pub(crate) struct Branch {
    index: Arc<Index>,
    /// In the order of the file: of two wildcards the one with the smaller index takes precedence.
    nodes: Nodes,
}

/// The index of each child, by what leads to it.
#[derive(Debug, Default, Clone)]
struct Index {
    keys: SmallMap<KeyNodes>,
    /// Keys with a `*` in them: patterns over the text `key_value`.
    wild_keys: Patterns,
}

/// The children of one key.
#[derive(Debug, Default, Clone)]
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
        self.nodes.get(self.choose(entry)?)
    }

    /// Returns the node for the value itself, else for the first wildcard that matches, else for
    /// the key alone.
    #[inline]
    fn choose(&self, entry: &Entry<'_>) -> Option<u32> {
        let Index { keys, wild_keys } = &*self.index;
        let key_nodes = keys.get(entry.key);
        key_nodes
            .and_then(|key_nodes| key_nodes.values.get(entry.value).copied())
            .or_else(|| first_wild(wild_keys, key_nodes, entry))
            .or_else(|| key_nodes?.key_only)
    }

    /// Prepares for lookups once all nodes have been inserted, and releases unused capacity.
    pub(crate) fn finish(mut self, memory: &Memory) -> Branch {
        let Index { keys, wild_keys } = Arc::make_mut(&mut self.index);
        keys.shrink();
        keys.values_mut().for_each(|key_nodes| key_nodes.wild_values.index(memory));
        wild_keys.index(memory);
        self.nodes.finish(memory);
        self
    }

    /// Whether the level may have one more pattern, if `key` and `value` are one.
    pub(crate) fn has_room_for_pattern(&self, key: &str, value: &str) -> bool {
        let Index { keys, wild_keys } = &*self.index;
        match key.contains('*') {
            true => wild_keys.has_room(),
            false => {
                !value.contains('*') || keys.get(key).is_none_or(|it| it.wild_values.has_room())
            }
        }
    }

    /// Takes the memory of the node that is to be inserted for `key` and `value`; of the branch
    /// itself with its first one.
    pub(crate) fn take_room(&self, key: &str, value: &str, memory: &Memory) -> Option<()> {
        let Index { keys, wild_keys } = &*self.index;
        if self.is_empty() {
            memory.take(2 * ARC + size_of::<Branch>() + size_of::<Index>())?;
        }
        self.nodes.take_room(memory)?;
        let key_nodes = keys.get(key);
        if key_nodes.is_none() {
            keys.take_room(key, memory)?;
        }
        if !value.is_empty() {
            let size = key_nodes.map_or((0, 0), |it| (it.values.len(), it.values.capacity()));
            memory.take_table(size, size_of::<(Box<str>, u32)>(), 1)?;
            memory.take_box(value.len())?;
        }
        match (key.contains('*'), key_nodes) {
            (true, _) => wild_keys.take_room(&composite(key, value), memory),
            (false, Some(key_nodes)) => key_nodes.wild_values.take_room(value, memory),
            (false, None) => Patterns::default().take_room(value, memory),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }

    /// Adds a node for `key` and `value` (empty: the key alone) and returns it; `None` if it exists
    /// already. Not for a finished branch.
    pub(crate) fn insert(&mut self, key: &str, value: &str) -> Option<&mut Node> {
        self.reserve(key, value)?;
        self.nodes.push(Node::default());
        self.nodes.last_mut()
    }

    /// Gives the next index to `key` and `value`; `None` if they have one already.
    fn reserve(&mut self, key: &str, value: &str) -> Option<u32> {
        // `DESCRIPTORS_MAX` keeps this far from failing.
        let index = u32::try_from(self.nodes.len()).ok()?;
        let Index { keys, wild_keys } = Arc::make_mut(&mut self.index);
        if keys.get(key).is_none() {
            keys.insert(key.into(), KeyNodes::default());
        }
        let key_nodes = keys.get_mut(key)?;
        match value {
            "" if key_nodes.key_only.is_some() => return None,
            "" => key_nodes.key_only = Some(index),
            _ if key_nodes.values.contains_key(value) => return None,
            _ => drop(key_nodes.values.insert(value.into(), index)),
        }
        if key.contains('*') {
            wild_keys.push(&composite(key, value), index);
        } else {
            key_nodes.wild_values.push(value, index);
        }
        Some(index)
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
