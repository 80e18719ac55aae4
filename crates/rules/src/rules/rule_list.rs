//! Rules in order of their paths, in pieces that versions share.

use std::sync::Arc;

use crate::memory::Memory;
use crate::rule::Rule;

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
