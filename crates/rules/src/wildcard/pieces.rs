//! Searches for the pieces between the `*` of many patterns in one pass over a text.
//!
//! An Aho-Corasick automaton reports every place at which any piece ends. Each pattern waits for
//! its first piece, then for the next, in a list of the patterns that wait for the same piece. So
//! the cost at a place is the number of patterns that advance there, and no pattern advances more
//! often than it has pieces.

use std::collections::HashMap;

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};

use super::pattern::Pattern;
use crate::memory::{Memory, table_bytes};

/// The pieces of all patterns of a level.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    /// Finds the distinct pieces.
    automaton: NFA,
    /// The pieces of all patterns, one pattern after the other, as the automaton numbers them.
    ids: Box<[PatternID]>,
    /// The index in `ids` at which each pattern begins, followed by the end of the last pattern.
    starts: Box<[u32]>,
}

/// Bytes for each byte of pieces, and for each piece, while the automaton is built.
const BUILD_BYTES: usize = 90;

/// One search.
struct Search<'s> {
    pieces: &'s Pieces,
    runs: Vec<Run>,
    /// For each piece, the first run that waits for it.
    waiting: Vec<Option<u32>>,
    /// Number of runs that may still match.
    alive: usize,
    found: Option<u32>,
    /// Number of times a run was looked at: the cost of a search besides one step for each byte.
    #[cfg(test)]
    looks: usize,
}

/// The progress of one pattern.
struct Run {
    number: u32,
    /// Its next piece, as an index into `Pieces::ids`. `end` is the index after its last piece.
    piece: u32,
    end: u32,
    /// The range of the text in which its remaining pieces may be.
    from: usize,
    to: usize,
    /// The next run that waits for the same piece.
    next: Option<u32>,
}

// === impl Pieces ===

impl Pieces {
    /// Returns `None` if there are no pieces, or no memory for them.
    pub(super) fn new(patterns: &[Pattern], memory: &Memory) -> Option<Self> {
        let all: usize = patterns.iter().map(|pattern| pattern.middle().len()).sum();
        let known_bytes = table_bytes(all + 1, size_of::<(&[u8], PatternID)>());
        let lists = (all + patterns.len() + 1) * size_of::<u32>();
        // Vectors and tables that double while they grow.
        memory.take(3 * (known_bytes + lists))?;
        let mut known: HashMap<&[u8], PatternID> = HashMap::new();
        let mut different: Vec<&[u8]> = Vec::new();
        let (mut ids, mut starts, mut bytes) = (Vec::new(), vec![0], 0);
        for pattern in patterns {
            for piece in pattern.middle() {
                let id = match known.get(&**piece) {
                    Some(id) => *id,
                    None => PatternID::new(different.len()).ok()?,
                };
                if known.insert(piece, id).is_none() {
                    different.push(piece);
                    bytes += piece.len();
                }
                ids.push(id);
            }
            starts.push(u32::try_from(ids.len()).ok()?);
        }
        if different.is_empty() {
            return None;
        }
        let size = bytes + different.len();
        memory.pass(size * BUILD_BYTES)?;
        let automaton = NFA::builder().prefilter(false).build(&different).ok()?;
        memory.take(automaton.memory_usage())?;
        memory.give_back(3 * known_bytes + 2 * lists);
        Some(Self { automaton, ids: ids.into(), starts: starts.into() })
    }

    /// Returns the first of `candidates`, which must be in order, whose pieces occur in `text` one
    /// after the other. The ends of each candidate must already match.
    pub(super) fn find(
        &self,
        patterns: &[Pattern],
        candidates: &[u32],
        text: &[u8],
    ) -> Option<u32> {
        self.search(patterns, candidates, text)?.found
    }

    fn search(&self, patterns: &[Pattern], candidates: &[u32], text: &[u8]) -> Option<Search<'_>> {
        let mut search = Search::new(self, patterns, candidates, text);
        let mut state = self.automaton.start_state(Anchored::No).ok()?;
        for (at, byte) in text.iter().enumerate() {
            state = self.automaton.next_state(Anchored::No, state, *byte);
            if !self.automaton.is_special(state) || !self.automaton.is_match(state) {
                continue;
            }
            for index in 0..self.automaton.match_len(state) {
                search.met(self.automaton.match_pattern(state, index), at + 1);
            }
            if search.alive == 0 || search.found.as_ref() == candidates.first() {
                break;
            }
        }
        Some(search)
    }
}

// === impl Search ===

impl<'s> Search<'s> {
    fn new(pieces: &'s Pieces, patterns: &[Pattern], candidates: &[u32], text: &[u8]) -> Self {
        let waiting = vec![None; pieces.automaton.patterns_len()];
        let runs = Vec::with_capacity(candidates.len());
        let mut search = Search {
            pieces,
            runs,
            waiting,
            alive: 0,
            found: None,
            #[cfg(test)]
            looks: 0,
        };
        for number in candidates {
            let at = *number as usize;
            let (Some(pattern), Some([piece, end])) =
                (patterns.get(at), pieces.starts.get(at..at + 2))
            else {
                continue;
            };
            let (from, to) = (pattern.prefix().len(), text.len() - pattern.suffix().len());
            let (number, piece, end) = (*number, *piece, *end);
            search.runs.push(Run { number, piece, end, from, to, next: None });
            search.wait(search.runs.len() - 1);
            search.alive += 1;
        }
        search
    }

    /// Adds a run to the list of its next piece.
    fn wait(&mut self, run: usize) {
        let Some(it) = self.runs.get_mut(run) else { return };
        let id = self.pieces.ids.get(it.piece as usize);
        let Some(first) = id.and_then(|id| self.waiting.get_mut(id.as_usize())) else { return };
        it.next = std::mem::replace(first, u32::try_from(run).ok());
    }

    /// Advances the runs that wait for a piece, which ends before `end`.
    fn met(&mut self, id: PatternID, end: usize) {
        let start = end - self.pieces.automaton.pattern_len(id);
        let Some(first) = self.waiting.get_mut(id.as_usize()) else { return };
        let mut next = first.take();
        while let Some(run) = next {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let run = run as usize;
            let Some(it) = self.runs.get_mut(run) else { return };
            next = it.next.take();
            let is_late = end > it.to || self.found.is_some_and(|found| found < it.number);
            if start >= it.from && !is_late {
                it.from = end;
                it.piece += 1;
            }
            if it.piece == it.end {
                self.found = Some(it.number);
            }
            if is_late || it.piece == it.end {
                self.alive -= 1;
            } else {
                self.wait(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wildcard::SEARCHED_MAX;

    #[test]
    fn a_pattern_advances_once_per_piece_however_often_the_text_repeats_it() {
        let texts = (0..1000).map(|at| format!("*api*api*needle{at}*"));
        let patterns: Vec<Pattern> = texts.map(|text| Pattern::parse(&text).unwrap()).collect();
        let pieces = Pieces::new(&patterns, &Memory::default()).unwrap();
        let all: Vec<u32> = (0..1000).collect();
        let text = "api".repeat(20_000);
        let search = pieces.search(&patterns, &all, text.as_bytes()).unwrap();
        assert_eq!((search.found, search.looks), (None, 2 * 1000));
        let text = text + "needle7x";
        assert_eq!(pieces.find(&patterns, &all, text.as_bytes()), Some(7));
    }

    #[test]
    fn a_search_looks_at_most_once_for_each_piece_of_a_full_level() {
        let patterns: Vec<Pattern> = (0..SEARCHED_MAX)
            .map(|at| Pattern::parse(&format!("*{}*a*zz{at:x}", "ab".repeat(at % 11 + 1))).unwrap())
            .collect();
        let pieces = Pieces::new(&patterns, &Memory::default()).unwrap();
        let all: Vec<u32> = (0..).take(SEARCHED_MAX).collect();
        for text in ["ab".repeat(4096), "abababababababababababx".repeat(300), "a".repeat(8192)] {
            let search = pieces.search(&patterns, &all, text.as_bytes()).unwrap();
            assert!(search.looks <= 2 * SEARCHED_MAX, "{}", search.looks);
        }
    }
}
