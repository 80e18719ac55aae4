//! The patterns of one level: finds the first, in the order of the file, that matches a text.
//!
//! A few patterns are tried one after the other. More patterns have an index, so that a lookup
//! makes one pass over the text, however many patterns there are: the prefix index selects the
//! patterns whose text before the first `*` starts the value, and one automaton searches for the
//! pieces of all of them at once.

use std::collections::HashMap;

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, PatternID};
use memchr::memmem;
use smallvec::SmallVec;

use crate::memory::{Memory, table_bytes};

/// Patterns in the order of the file, each with its node. Call [`Patterns::index`] after the last
/// pattern has been added and before the first lookup.
#[derive(Debug, Default)]
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

#[derive(Debug)]
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

/// Maximum number of different pieces of a level of which each ends the next, such as `a`, `aa` and
/// `aaa`. A search meets all of them at once wherever the longest ends, and the automaton has a
/// list of them for each of its states that they end.
pub(crate) const NESTED_MAX: usize = 16;

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
        memory.shrink(&mut self.patterns);
        memory.shrink(&mut self.nodes);
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

    /// Whether a search would meet more than [`NESTED_MAX`] pieces at one byte of a value.
    pub(crate) fn nests_too_deep(&self, memory: &Memory) -> bool {
        self.patterns.len() > FEW_MAX && nesting(&self.patterns, memory) > Some(NESTED_MAX)
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

// Patterns with `*`: each `*` stands for any bytes, including none. Matching allocates nothing.
//
// The text before the first `*` must start the value, and the text after the last must end it. The
// pieces between are searched from left to right, each at its first place after the previous
// piece. As `*` is the only wildcard, this finds a match whenever there is one.

/// A text with at least one `*`, split at each of them.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    prefix: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    suffix: Box<[u8]>,
}

// === impl Pattern ===

impl Pattern {
    /// Parses `text`; `None` if it has no `*`.
    fn parse(text: &str) -> Option<Pattern> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        // Adjacent stars enclose an empty piece, which is skipped.
        let pieces = middle.split('*').filter(|piece| !piece.is_empty());
        let middle = pieces.map(|piece| Box::from(piece.as_bytes())).collect();
        let [prefix, suffix] = [prefix, suffix].map(|end| Box::from(end.as_bytes()));
        Some(Pattern { prefix, middle, suffix })
    }

    /// Returns whether the pattern matches `text`.
    fn matches(&self, text: &[u8]) -> bool {
        let starts = self.prefix.is_empty() || text.starts_with(&self.prefix);
        if !starts || !self.ends_fit(text) {
            return false;
        }
        let between = text.get(self.prefix.len()..text.len() - self.suffix.len());
        let Some(mut rest) = between else { return false };
        self.middle.iter().all(|piece| {
            let found = memmem::find(rest, piece);
            rest = found.and_then(|at| rest.get(at + piece.len()..)).unwrap_or_default();
            found.is_some()
        })
    }

    /// Returns whether `text` starts and ends like the pattern, and is long enough for both ends.
    ///
    /// Most patterns lack an end, and an empty end is not compared: where `memcmp` uses masked
    /// loads (glibc on AVX-512), comparing zero bytes at the address of an empty box costs a
    /// hundred times as much.
    fn ends_fit(&self, text: &[u8]) -> bool {
        text.len() >= self.prefix.len() + self.suffix.len()
            && (self.suffix.is_empty() || text.ends_with(&self.suffix))
    }

    /// Whether there is text after the first `*`.
    fn is_searched(&self) -> bool {
        !self.middle.is_empty() || !self.suffix.is_empty()
    }

    /// Returns the text before the first `*`.
    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the pieces between the stars, in order; none of them is empty.
    fn middle(&self) -> &[Box<[u8]>] {
        &self.middle
    }

    /// Returns the text after the last `*`.
    fn suffix(&self) -> &[u8] {
        &self.suffix
    }
}

// Searches for the pieces between the `*` of many patterns in one pass over a text.
//
// An Aho-Corasick automaton reports every place at which any piece ends. Each pattern waits for
// its first piece, then for the next, in a list of the patterns that wait for the same piece. So
// the cost at a place is the number of patterns that advance there, and no pattern advances more
// often than it has pieces.

/// The pieces of all patterns of a level.
#[derive(Debug)]
struct Pieces {
    /// Finds the distinct pieces.
    automaton: NFA,
    /// The pieces of all patterns, one pattern after the other, as the automaton numbers them.
    ids: Box<[PatternID]>,
    /// The index in `ids` at which each pattern begins, followed by the end of the last pattern.
    starts: Box<[u32]>,
}

/// Bytes for each byte of pieces, and for each piece, while the automaton is built.
const BUILD_BYTES: usize = 90;

/// Bytes added to [`BUILD_BYTES`] for each further piece that may end where one does.
const MATCH_BYTES: usize = 8;

/// The most different pieces of which each ends the next; `None` if there is no memory to find it.
fn nesting(patterns: &[Pattern], memory: &Memory) -> Option<usize> {
    let pieces = || patterns.iter().flat_map(|pattern| pattern.middle().iter().map(|it| &**it));
    memory.pass(pieces().count() * size_of::<&[u8]>())?;
    let mut sorted: Vec<&[u8]> = pieces().collect();
    // After this sort, a piece comes after each piece that ends it.
    sorted.sort_unstable_by(|a, b| a.iter().rev().cmp(b.iter().rev()));
    sorted.dedup();
    let mut most = 0;
    let mut open: Vec<&[u8]> = Vec::new();
    for piece in sorted {
        while open.last().is_some_and(|end| !piece.ends_with(end)) {
            open.pop();
        }
        open.push(piece);
        most = most.max(open.len());
    }
    Some(most)
}

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
    /// The next piece of the run, as an index into `Pieces::ids`. `end` is the index after its last
    /// piece.
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
    fn new(patterns: &[Pattern], memory: &Memory) -> Option<Self> {
        let all: usize = patterns.iter().map(|pattern| pattern.middle().len()).sum();
        let known_bytes = table_bytes(all + 1, size_of::<(&[u8], PatternID)>());
        let lists = (all + patterns.len() + 1) * size_of::<u32>();
        // Vectors and tables that double while they grow.
        memory.take(3 * (known_bytes + lists))?;
        let mut known: HashMap<&[u8], PatternID> = HashMap::new();
        let mut different: Vec<&[u8]> = Vec::new();
        let mut ids = Vec::new();
        let mut starts = vec![0];
        let mut bytes = 0;
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
        // More are a fault of the load, whose index is not needed.
        let nested = nesting(patterns, memory).filter(|nested| *nested <= NESTED_MAX)?;
        memory.pass(size * (BUILD_BYTES + nested.saturating_sub(1) * MATCH_BYTES))?;
        let automaton = NFA::builder().prefilter(false).build(&different).ok()?;
        memory.take(automaton.memory_usage())?;
        memory.give_back(3 * known_bytes + 2 * lists);
        Some(Self { automaton, ids: ids.into(), starts: starts.into() })
    }

    /// Returns the first of `candidates`, which must be in order, whose pieces occur in `text` one
    /// after the other. The ends of each candidate must already match.
    fn find(&self, patterns: &[Pattern], candidates: &[u32], text: &[u8]) -> Option<u32> {
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
        for number in candidates.iter().copied() {
            let at = number as usize;
            let (Some(pattern), Some(&[piece, end])) =
                (patterns.get(at), pieces.starts.get(at..at + 2))
            else {
                continue;
            };
            let from = pattern.prefix().len();
            let to = text.len() - pattern.suffix().len();
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

// Finds the patterns whose prefix starts a text, without trying all patterns.
//
// Prefixes are sorted, and each has a link to the longest other prefix that starts it. All
// prefixes that start a text are then found with one binary search: they are on the chain of links
// that begins at the last prefix that is not greater than the text.

/// Patterns, grouped by prefix.
#[derive(Debug)]
struct Prefixes {
    /// Numbers of patterns, ordered by prefix, then by number.
    numbers: Box<[u32]>,
    /// One group for each prefix, in the order of the prefixes.
    groups: Box<[Group]>,
}

/// The patterns that have the same prefix.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The index at which its numbers begin.
    start: u32,
    /// The group of the longest other prefix that starts this one.
    parent: Option<u32>,
}

// === impl Prefixes ===

impl Prefixes {
    /// Returns `None` if there is no memory for them.
    fn new(patterns: &[Pattern], memory: &Memory) -> Option<Self> {
        // The numbers, and half as many while they are sorted; the groups, and those that nest,
        // which double while they are found.
        let kept = patterns.len() * (size_of::<u32>() + size_of::<Group>());
        memory.take(kept)?;
        memory.pass(3 * kept)?;
        let prefix =
            |number: &u32| patterns.get(*number as usize).map_or(&b""[..], Pattern::prefix);
        let mut numbers: Box<[u32]> = (0..).take(patterns.len()).collect();
        numbers.sort_by(|a, b| prefix(a).cmp(prefix(b)));
        let mut groups: Vec<Group> = Vec::new();
        // The groups whose prefixes start the previous prefix, outermost first.
        let mut open: Vec<(u32, &[u8])> = Vec::new();
        for (start, number) in (0..).zip(&numbers) {
            let prefix = prefix(number);
            while open.last().is_some_and(|(_, outer)| !prefix.starts_with(outer)) {
                open.pop();
            }
            if open.last().is_some_and(|(_, outer)| *outer == prefix) {
                continue;
            }
            let parent = open.last().map(|(group, _)| *group);
            // `DESCRIPTORS_MAX` keeps this far from failing.
            open.push((u32::try_from(groups.len()).unwrap_or(u32::MAX), prefix));
            groups.push(Group { start, parent });
        }
        Some(Self { numbers, groups: groups.into() })
    }

    /// Returns the numbers of the patterns of each prefix that starts `text`, longest prefix first.
    fn groups<'i>(
        &'i self,
        patterns: &'i [Pattern],
        text: &[u8],
    ) -> impl Iterator<Item = &'i [u32]> {
        let prefix = |group: &Group| {
            let number = self.numbers.get(group.start as usize).copied().unwrap_or_default();
            patterns.get(number as usize).map_or(&b""[..], Pattern::prefix)
        };
        let behind = self.groups.partition_point(|group| prefix(group) <= text);
        let last = behind.checked_sub(1);
        let shared = last
            .and_then(|last| self.groups.get(last))
            .map_or(0, |group| prefix(group).iter().zip(text).take_while(|(a, b)| a == b).count());
        let up = move |at: &usize| Some(self.groups.get(*at)?.parent? as usize);
        std::iter::successors(last, up)
            .filter(move |at| self.groups.get(*at).is_some_and(|it| prefix(it).len() <= shared))
            .filter_map(|at| self.numbers_of(at))
    }

    fn numbers_of(&self, at: usize) -> Option<&[u32]> {
        let start = self.groups.get(at)?.start as usize;
        let end = self.groups.get(at + 1).map_or(self.numbers.len(), |next| next.start as usize);
        self.numbers.get(start..end)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod pattern_tests {
    use proptest::prelude::*;

    use super::Pattern;

    /// Tries every length for every star.
    fn oracle(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', pattern)), _) => {
                (0..=text.len()).any(|skipped| oracle(pattern, &text[skipped..]))
            }
            (Some((wanted, pattern)), Some((found, text))) => {
                wanted == found && oracle(pattern, text)
            }
            (Some(_), None) => false,
        }
    }

    #[test]
    fn stars_stand_for_any_bytes_anywhere() {
        let table = [
            ("foo*", "foo", true),
            ("foo*", "foo1", true),
            ("foo*", "fo", false),
            ("*", "", true),
            ("**", "x", true),
            ("*b", "ab", true),
            ("*b", "ba", false),
            ("bar*b", "barab", true),
            ("bar*b", "barb", true),
            ("bar*b", "bara", false),
            ("bar*b", "xbarb", false),
            ("ab*ba", "aba", false),
            ("foo*bar*baz", "foo123bar456baz", true),
            ("foo*bar*baz", "foobarbaz", true),
            ("foo*bar*baz", "foo123baz", false),
            ("a*A", "aa", false),
            ("*é*", "caféx", true),
        ];
        for (pattern, text, matches) in table {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(text.as_bytes()), matches, "{pattern} {text}");
        }
        assert_eq!(Pattern::parse("plain"), None);
    }

    proptest! {
        #[test]
        fn matches_what_a_naive_search_matches(
            pattern in "[ab_é*]{0,4}\\*[ab_*]{0,4}",
            text in "[ab_é]{0,8}",
        ) {
            let parsed = Pattern::parse(&pattern).unwrap();
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(parsed.matches(text), oracle(pattern, text));
        }
    }
}

#[cfg(test)]
mod pieces_tests {
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
    fn pieces_that_end_each_other_are_counted() {
        for (texts, expected) in [
            (&["*a*", "*b*"][..], 1),
            (&["*a*ba*", "*aa*cba*", "*xba*", "*ab*"], 3),
            (&["*a*aaa*", "*a*", "*aa*"], 3),
            (&["*", "a*"], 0),
        ] {
            let patterns: Vec<_> = texts.iter().map(|it| Pattern::parse(it).unwrap()).collect();
            assert_eq!(nesting(&patterns, &Memory::default()), Some(expected), "{texts:?}");
        }
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
