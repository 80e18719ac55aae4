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
    index: Option<Box<Index>>,
}

#[derive(Debug, Clone)]
struct Index {
    prefixes: Prefixes,
    /// `None` if no pattern has pieces, or if the pieces are too long to build an automaton.
    pieces: Option<Pieces>,
}

/// Numbers of patterns that may match a text.
type Candidates = SmallVec<[u32; FEW_MAX]>;

/// Up to this many patterns are tried one after the other: searching a text for a piece is some
/// thirty times faster than a step of the automaton for each byte of the text.
const FEW_MAX: usize = 16;

// === impl Patterns ===

impl Patterns {
    /// Adds the pattern `text` with its node; does nothing if `text` has no `*`.
    pub(crate) fn push(&mut self, text: &str, node: u32) {
        if let Some(pattern) = Pattern::parse(text) {
            self.patterns.push(pattern);
            self.nodes.push(node);
        }
    }

    /// Prepares for lookups once all patterns have been added, and releases unused capacity.
    pub(crate) fn index(&mut self) {
        self.patterns.shrink_to_fit();
        self.nodes.shrink_to_fit();
        self.index = (self.patterns.len() > FEW_MAX).then(|| {
            let prefixes = Prefixes::new(&self.patterns);
            Box::new(Index { prefixes, pieces: Pieces::new(&self.patterns) })
        });
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
