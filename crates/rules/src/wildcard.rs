//! The patterns of one level: finds the first, in the order of the file, that matches a text.
//!
//! A few patterns are tried one after the other. More patterns have an index, so that a lookup
//! makes one pass over the text, however many patterns there are: the prefix index selects the
//! patterns whose text before the first `*` starts the value, and one automaton searches for the
//! pieces of all of them at once.

mod pattern;
mod pieces;
mod prefixes;

use smallvec::SmallVec;

use crate::memory::Memory;

use pattern::Pattern;
use pieces::Pieces;
use prefixes::Prefixes;

/// Patterns in the order of the file, each with its node. Call [`Patterns::index`] after the last
/// pattern has been added and before the first lookup.
#[derive(Debug, Default, Clone)]
pub(crate) struct Patterns {
    patterns: Vec<Pattern>,
    /// The node of each pattern, in the same order, and increasing.
    nodes: Vec<u32>,
    /// Number of patterns that are searched: those with text after their first `*`.
    searched: usize,
    /// Bytes of the pieces between the `*` of all patterns.
    piece_bytes: usize,
    index: Option<Box<Index>>,
}

#[derive(Debug, Clone)]
struct Index {
    prefixes: Prefixes,
    /// `None` if no pattern has pieces.
    pieces: Option<Pieces>,
}

/// Numbers of patterns that may match a text.
type Candidates = SmallVec<[u32; FEW_MAX]>;

/// Maximum number of patterns of a level with text after their first `*`. A search looks at each of
/// them once, and once more for each of its pieces that the value has.
pub(crate) const SEARCHED_MAX: usize = 16_384;

/// Maximum bytes of the pieces of a level: each costs some 16 bytes in the automaton.
pub(crate) const PIECE_BYTES_MAX: usize = 1 << 20;

/// Bytes of a piece of a pattern besides its text, and of an end.
const PIECE_BYTES: usize = 32;

/// Up to this many patterns are tried one after the other: searching a text for a piece is some
/// thirty times faster than a step of the automaton for each byte of the text.
const FEW_MAX: usize = 16;

// === impl Patterns ===

impl Patterns {
    /// Adds the pattern `text` with its node; does nothing if `text` has no `*`.
    pub(crate) fn push(&mut self, text: &str, node: u32) {
        if let Some(pattern) = Pattern::parse(text) {
            self.searched += usize::from(pattern.is_searched());
            self.piece_bytes += pattern.middle().iter().map(|piece| piece.len()).sum::<usize>();
            self.patterns.push(pattern);
            self.nodes.push(node);
        }
    }

    /// Takes the memory of the pattern `text` that is to be added.
    pub(crate) fn take_room(&self, text: &str, memory: &Memory) -> Option<()> {
        let stars = text.bytes().filter(|byte| *byte == b'*').count();
        if stars == 0 {
            return Some(());
        }
        memory.take_growth(&self.patterns)?;
        memory.take_growth(&self.nodes)?;
        memory.take(text.len() + (stars + 1) * PIECE_BYTES)
    }

    /// Prepares for lookups once all patterns have been added, and releases unused capacity. There
    /// is no index if it exceeds the memory of the load, which is refused then.
    pub(crate) fn index(&mut self, memory: &Memory) {
        let spare = |it: &Self| {
            (it.patterns.capacity() - it.patterns.len()) * size_of::<Pattern>()
                + (it.nodes.capacity() - it.nodes.len()) * size_of::<u32>()
        };
        let before = spare(self);
        self.patterns.shrink_to_fit();
        self.nodes.shrink_to_fit();
        memory.give_back(before - spare(self));
        self.index = self.new_index(memory);
    }

    fn new_index(&self, memory: &Memory) -> Option<Box<Index>> {
        if self.patterns.len() <= FEW_MAX {
            return None;
        }
        memory.take(size_of::<Index>())?;
        let prefixes = Prefixes::new(&self.patterns, memory)?;
        let pieces = Pieces::new(&self.patterns, memory);
        (!memory.is_exceeded()).then(|| Box::new(Index { prefixes, pieces }))
    }

    /// Whether a level may have one more pattern: a search may look at each of those that have text
    /// after their first `*`, and passes each byte of a value through an automaton of all pieces.
    pub(crate) fn has_room(&self) -> bool {
        self.searched < SEARCHED_MAX && self.piece_bytes < PIECE_BYTES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the node of the first pattern that matches `text`.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        let number = match &self.index {
            None => self.patterns.iter().position(|pattern| pattern.matches(text)),
            Some(index) => index.find(&self.patterns, text),
        };
        self.nodes.get(number?).copied()
    }

    /// Returns each pattern's node, and whether the pattern matches `text`. Tries all patterns.
    pub(crate) fn matches(&self, text: &[u8]) -> impl Iterator<Item = (u32, bool)> {
        let fits = self.patterns.iter().map(|pattern| pattern.matches(text));
        self.nodes.iter().copied().zip(fits)
    }
}

// === impl Index ===

impl Index {
    /// Returns the number of the first of `patterns` that matches `text`.
    fn find(&self, patterns: &[Pattern], text: &[u8]) -> Option<usize> {
        let mut candidates = Candidates::new();
        // The first pattern that has nothing between its ends, and so matches.
        let mut sure = None;
        for group in self.prefixes.groups(patterns, text) {
            for number in group {
                if sure.is_some_and(|sure| sure < *number) {
                    break;
                }
                let Some(pattern) = patterns.get(*number as usize) else { continue };
                if !pattern.ends_fit(text) {
                    continue;
                }
                if pattern.middle().is_empty() {
                    sure = Some(*number);
                    break;
                }
                candidates.push(*number);
            }
        }
        candidates.retain(|number| sure.is_none_or(|sure| *number < sure));
        candidates.sort_unstable();
        let found = match &self.pieces {
            Some(pieces) if candidates.len() > FEW_MAX => pieces.find(patterns, &candidates, text),
            _ => candidates.iter().copied().find(|number| {
                patterns.get(*number as usize).is_some_and(|pattern| pattern.matches(text))
            }),
        };
        found.or(sure).map(|number| number as usize)
    }
}

#[cfg(test)]
mod tests;
