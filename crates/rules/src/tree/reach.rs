//! Lookups of entries whose values are not all known.

use std::sync::Arc;

use super::{Branch, KeyNodes};
use crate::request::Entry;
use crate::rule::Rule;

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

    fn possible(&self, &(key, value): &(&str, Option<&str>)) -> Vec<&super::Node> {
        let Some(value) = value else { return self.of_any_value(key) };
        self.child(&Entry { key, value }).into_iter().collect()
    }

    /// The nodes for `key` and any value. A pattern over the key and the value may match if one of
    /// `key_` and its text before the first `*` begins with the other.
    fn of_any_value(&self, key: &str) -> Vec<&super::Node> {
        let beginning = format!("{key}_");
        let may_match = |pattern: &str| {
            let fixed = pattern.split('*').next().unwrap_or_default();
            beginning.starts_with(fixed) || fixed.starts_with(&beginning)
        };
        let keys = self
            .index
            .keys
            .iter()
            .filter(|(other, _)| *other == key || other.contains('*') && may_match(other));
        let nodes = keys.flat_map(|(key, key_nodes): (&str, &KeyNodes)| key_nodes.nodes(key));
        nodes.filter_map(|(index, _, _)| self.nodes.get(index)).collect()
    }
}
