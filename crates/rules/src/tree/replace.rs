//! Changes of a finished branch. A copy of a branch shares with it all that does not change.

use std::sync::Arc;

use super::{Branch, Node};

// === impl Branch ===

impl Branch {
    /// Returns the keys and values (empty: the key alone) with their nodes, in the order of the
    /// file.
    pub(crate) fn in_order(&self) -> Vec<(&str, &str, &Node)> {
        let keys = self.index.keys.iter();
        let written = keys.flat_map(|(key, key_nodes)| key_nodes.nodes(key));
        let mut written: Vec<(u32, &str, &str)> = written.collect();
        written.sort_unstable();
        let node = |(index, key, value)| Some((key, value, self.nodes.get(index)?));
        written.into_iter().filter_map(node).collect()
    }

    /// Whether there is a node for `key` and `value`.
    pub(crate) fn has(&self, key: &str, value: &str) -> bool {
        self.place_of(key, value).is_some()
    }

    fn place_of(&self, key: &str, value: &str) -> Option<u32> {
        let key_nodes = self.index.keys.get(key)?;
        match value {
            "" => key_nodes.key_only,
            _ => key_nodes.values.get(value).copied(),
        }
    }

    /// Number of places of nodes, of which some may be empty.
    pub(crate) fn places(&self) -> usize {
        self.nodes.len()
    }

    /// Puts another node in the place of that of `key` and `value`; `None` if there is none.
    pub(crate) fn replace(&mut self, key: &str, value: &str, node: Node) -> Option<Node> {
        self.nodes.replace(self.place_of(key, value)?, node)
    }

    /// Adds a node; `None` if `key` and `value` have one already, or are a pattern: patterns are
    /// tried in the order of the file.
    pub(crate) fn add(&mut self, key: &str, value: &str, node: Node) -> Option<()> {
        if is_pattern(key, value) {
            return None;
        }
        let index = self.reserve(key, value)?;
        self.nodes.push(node);
        debug_assert_eq!(self.nodes.len(), index as usize + 1);
        Some(())
    }

    /// Removes the node of `key` and `value`, whose place stays empty; `None` if there is none, or
    /// if it is a pattern.
    pub(crate) fn remove(&mut self, key: &str, value: &str) -> Option<Node> {
        if is_pattern(key, value) {
            return None;
        }
        let index = Arc::make_mut(&mut self.index);
        let key_nodes = index.keys.get_mut(key)?;
        let place = match value {
            "" => key_nodes.key_only.take()?,
            _ => key_nodes.values.remove(value)?,
        };
        if key_nodes.values.is_empty() && key_nodes.key_only.is_none() {
            index.keys.remove(key);
        }
        self.nodes.replace(place, Node::default())
    }
}

/// Whether this key and value match others than themselves.
pub(crate) fn is_pattern(key: &str, value: &str) -> bool {
    key.contains('*') || value.contains('*')
}
