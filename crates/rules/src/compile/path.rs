//! The paths of rules: extends them level by level, and makes each unique.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::memory::{Memory, table_bytes};
use crate::options::Descriptor;
use crate::rule::{Level, Rule};
use crate::small_map::TextMap;

/// The levels from the domain down to the descriptor being compiled.
pub(super) struct RulePath {
    pub(super) path: String,
    pub(super) levels: Vec<Level>,
}

/// The set of paths that are taken.
#[derive(Default)]
pub(super) struct Paths {
    taken: HashSet<ByPath, RandomState>,
    /// For each path that more than one rule wanted: how many rules wanted it.
    wanted: TextMap<u32>,
}

/// Bytes of what makes a path unique.
const SUFFIX_BYTES: usize = 8;

/// A rule that is compared and hashed by its path.
struct ByPath(Arc<Rule>);

// === impl RulePath ===

impl RulePath {
    /// Adds `descriptor` to the path and returns the byte at which its text starts.
    pub(super) fn push(&mut self, descriptor: &Descriptor<'_>) -> u32 {
        self.path.push('.');
        // `PATH_BYTES_MAX` keeps paths of rules far below 4 GiB.
        let start = u32::try_from(self.path.len()).unwrap_or(u32::MAX);
        let value = descriptor.value.text();
        self.path.push_str(descriptor.key.text());
        if !value.is_empty() {
            self.path.push('_');
            self.path.push_str(value);
        }
        start
    }
}

// === impl Paths ===

impl Paths {
    /// Returns `path`, with a numeric suffix if it is taken. Keys and values may contain `_` and
    /// `.`, so two rules can have the same path; the second, in order of the files, gets `#2`.
    pub(super) fn unique(&mut self, path: &str) -> Box<str> {
        if !self.taken.contains(path) {
            return path.into();
        }
        let mut wanted = self.wanted.get(path).copied().unwrap_or(1);
        let other = loop {
            wanted += 1;
            let other = format!("{path}#{wanted}");
            if !self.taken.contains(other.as_str()) {
                break other;
            }
        };
        // Stored so that a thousand rules with one path do not try a thousand suffixes each.
        self.wanted.insert(path.into(), wanted);
        other.into()
    }

    /// Takes the memory of a path that is to be made unique and taken.
    pub(super) fn take_room(&self, path: &str, memory: &Memory) -> Option<()> {
        let size = (self.taken.len(), self.taken.capacity());
        memory.take_table(size, size_of::<ByPath>(), 1)?;
        memory.take_box(path.len() + SUFFIX_BYTES)?;
        if self.taken.contains(path) {
            let size = (self.wanted.len(), self.wanted.capacity());
            memory.take_table(size, size_of::<(Box<str>, u32)>(), 1)?;
            memory.take_box(path.len())?;
        }
        Some(())
    }

    /// What it took besides the paths of rules.
    pub(super) fn bytes(&self) -> usize {
        table_bytes(self.taken.capacity(), size_of::<ByPath>())
    }

    /// Whether several rules wanted one path.
    pub(super) fn has_repeats(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Marks the path of `rule` as taken.
    pub(super) fn take(&mut self, rule: Arc<Rule>) {
        self.taken.insert(ByPath(rule));
    }
}

// === impl ByPath ===

impl Borrow<str> for ByPath {
    fn borrow(&self) -> &str {
        &self.0.path
    }
}

impl Hash for ByPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.path.hash(state);
    }
}

impl PartialEq for ByPath {
    fn eq(&self, other: &Self) -> bool {
        self.0.path == other.0.path
    }
}

impl Eq for ByPath {}
