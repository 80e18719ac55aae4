//! Faults in rule files, and where they are.

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::memory::{LoadBounds, Memory};

/// A fault (or, as a warning, something doubtful) at one place of one file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Name of the source, as in its `Source`.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The fault, then the expected value or a way to fix it. A single line.
    pub message: String,
}

/// Every fault of a refused load, in order of file and place; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    kept: Vec<Fault>,
    dropped: usize,
    warnings: Vec<Fault>,
    exceeds_memory: bool,
}

/// A position in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// Collects the faults and warnings of all sources, one source after another. The reader and the
/// compiler of a source run in turns and share it.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    file: RefCell<String>,
    faults: RefCell<List>,
    warnings: RefCell<List>,
    /// Number of names for which a suggestion was searched.
    suggested: Cell<usize>,
    /// The memory of the load.
    pub(crate) memory: Memory,
}

#[derive(Debug, Default)]
struct List {
    kept: Vec<Fault>,
    /// Bytes of the findings that are kept.
    bytes: usize,
    /// Set once most findings that are kept are known to differ, so that removing duplicates again
    /// would gain little.
    is_full: bool,
    dropped: usize,
}

/// Maximum number of faults that are printed; of the rest only the number is shown.
const FAULTS_PRINTED_MAX: usize = 100;
/// Maximum number of faults, and of warnings, that are kept: a broken generator can produce
/// millions.
const FINDINGS_KEPT_MAX: usize = 10_000;
/// Maximum bytes of the faults, and of the warnings, that are kept. They are copied to be shown.
const FINDINGS_BYTES_MAX: usize = 2 << 20;
/// Maximum number of names for which a suggestion is searched. A search costs as much as reading a
/// long line; a broken generator misspells one name everywhere, and a few suggestions are enough to
/// fix it.
const SUGGESTIONS_MAX: usize = 20;
/// Maximum number of characters of the user's text that a message repeats.
const EXCERPT_CHARS_MAX: usize = 64;

/// Returns the user's text in a form that is safe in a message: shortened, and without characters
/// that alter the display.
pub fn excerpt(text: &str) -> String {
    let mut characters = text.chars();
    let mut out = String::new();
    for character in characters.by_ref().take(EXCERPT_CHARS_MAX) {
        if alters_display(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    if characters.next().is_some() {
        out.push('…');
    }
    out
}

// === impl Fault ===

impl Fault {
    /// Bytes of the fault in a list that doubles.
    fn bytes(&self) -> usize {
        2 * size_of::<Self>() + self.file.len() + self.message.len()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

// === impl Faults ===

impl Faults {
    /// The faults that were kept (at most 10 000), in order of file and place.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.kept.iter()
    }

    /// Returns the number of faults, kept or not; at least 1.
    pub fn count(&self) -> usize {
        self.kept.len() + self.dropped
    }

    /// Whether the load needed more memory than it had.
    pub fn exceeds_memory(&self) -> bool {
        self.exceeds_memory
    }

    /// Returns the warnings that were found as well, in order of file and place; at most 10 000.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }
}

/// Prints one fault a line; after the first hundred, prints how many more there are.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.kept.iter().take(FAULTS_PRINTED_MAX).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        match self.count().saturating_sub(FAULTS_PRINTED_MAX) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for Faults {}

// === impl Place ===

impl Place {
    /// The position of the first character of a file.
    pub const START: Place = Place { line: 1, column: 1 };
}

impl Default for Place {
    fn default() -> Self {
        Self::START
    }
}

// === impl Findings ===

impl Findings {
    /// The findings of a load with these bounds.
    pub(crate) fn within(bounds: LoadBounds) -> Self {
        Self { memory: Memory::new(bounds), ..Self::default() }
    }

    /// Attributes the findings that follow to `file`.
    pub(crate) fn begin(&self, file: &str) {
        file.clone_into(&mut self.file.borrow_mut());
    }

    /// Returns the name of the file that is being read.
    pub(crate) fn file(&self) -> String {
        self.file.borrow().clone()
    }

    /// Reports a fault; the load will be refused.
    pub(crate) fn fault(&self, place: Place, message: impl Into<String>) {
        self.fault_with(place, || message.into());
    }

    /// Like [`Findings::fault`], for a message that is costly to make. It is made only if the fault
    /// is kept; further faults are only counted.
    pub(crate) fn fault_with(&self, place: Place, message: impl FnOnce() -> String) {
        let bytes = self.faults.borrow_mut().push(&self.file.borrow(), place, message);
        self.take(bytes);
    }

    /// Reports a warning: something that loads but may not do what its author meant.
    pub(crate) fn warn(&self, place: Place, message: impl Into<String>) {
        let message = || message.into();
        let bytes = self.warnings.borrow_mut().push(&self.file.borrow(), place, message);
        self.take(bytes);
    }

    /// Takes the memory of a finding and of a copy. If there is not so much, the load ends.
    fn take(&self, bytes: usize) {
        let _ = self.memory.take(2 * bytes);
    }

    /// Returns the end of a message about a name that is in none of `lists`: a suggestion of the
    /// nearest name, if one is near enough. Empty after the first [`SUGGESTIONS_MAX`] names of a
    /// load.
    pub(crate) fn suggestion(&self, name: &str, lists: &[&[&str]]) -> String {
        let suggested = self.suggested.get();
        if suggested == SUGGESTIONS_MAX {
            return String::new();
        }
        self.suggested.set(suggested + 1);
        let meant = lists.iter().find_map(|names| nearest(name, names));
        meant.map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"))
    }

    /// Whether the load will be refused.
    pub(crate) fn has_faults(&self) -> bool {
        self.memory.is_exceeded() || !self.faults.borrow().kept.is_empty()
    }

    /// Returns the faults as an error if there are any, else the warnings; both in order of file
    /// and place.
    pub(crate) fn finish(self) -> Result<Vec<Fault>, Faults> {
        let exceeds_memory = self.memory.is_exceeded();
        if exceeds_memory {
            // This fault ended the load, so it is reported however many faults there are.
            let file = self.file();
            let message = self.memory.refusal();
            let Place { line, column } = Place::START;
            self.faults.borrow_mut().kept.push(Fault { file, line, column, message });
        }
        let faults = self.faults.into_inner();
        let warnings = self.warnings.into_inner();
        let warnings = warnings.in_order();
        match faults.kept.is_empty() {
            true => Ok(warnings),
            false => {
                let dropped = faults.dropped;
                let kept = faults.in_order();
                Err(Faults { kept, dropped, warnings, exceeds_memory })
            }
        }
    }
}

// === impl List ===

impl List {
    /// Returns the bytes of the finding, if it is kept.
    fn push(&mut self, file: &str, place: Place, message: impl FnOnce() -> String) -> usize {
        if self.has_no_room() && !self.is_full {
            // Duplicates through aliases must not crowd out the fault for which the aliases are
            // refused.
            self.put_in_order();
            self.bytes = self.kept.iter().map(Fault::bytes).sum();
            let few = FINDINGS_KEPT_MAX / 2;
            let small = FINDINGS_BYTES_MAX / 2;
            self.is_full = self.kept.len() > few || self.bytes > small;
        }
        if self.has_no_room() {
            self.dropped += 1;
            return 0;
        }
        let Place { line, column } = place;
        let message = message();
        let fault = Fault { file: file.to_owned(), line, column, message };
        let bytes = fault.bytes();
        self.bytes += bytes;
        self.kept.push(fault);
        bytes
    }

    fn has_no_room(&self) -> bool {
        self.kept.len() == FINDINGS_KEPT_MAX || self.bytes > FINDINGS_BYTES_MAX
    }

    /// Sorts, and removes duplicates: a finding under an alias is reported once for each use of the
    /// alias.
    fn put_in_order(&mut self) {
        self.kept.sort();
        self.kept.dedup();
    }

    fn in_order(mut self) -> Vec<Fault> {
        self.put_in_order();
        self.kept
    }
}

// Finds the known name that is nearest to a misspelt one.

/// Longer names get no suggestion: comparing them costs the product of the lengths.
const NAME_CHARS_MAX: usize = 32;

/// Returns the candidate nearest to `name`, if it is near enough: at most one edit for every three
/// characters. A difference in case does not count.
pub fn nearest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    if name.chars().count() > NAME_CHARS_MAX {
        return None;
    }
    let name = name.to_lowercase();
    let (distance, candidate) = candidates
        .iter()
        .map(|candidate| (strsim::osa_distance(&name, candidate), *candidate))
        .min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= candidate.len().max(3)).then_some(candidate)
}

// Recognises characters that make a text look like a different one on a terminal or a page.

/// Returns whether `character` is a control character, a line end of Unicode, changes the direction
/// of text, or is invisible.
pub fn alters_display(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(n: usize) -> Faults {
        let findings = Findings::default();
        findings.begin("a.yaml");
        for line in (1..=u32::try_from(n).unwrap()).rev() {
            findings.fault(Place { line, column: 1 }, "wrong");
        }
        findings.finish().unwrap_err()
    }

    #[test]
    fn prints_one_fault_a_line_in_order_of_place() {
        assert_eq!(faults(2).to_string(), "a.yaml:1:1: wrong\na.yaml:2:1: wrong");
    }

    #[test]
    fn prints_a_hundred_and_counts_the_rest() {
        let text = faults(12_345).to_string();
        assert_eq!(text.lines().count(), 101);
        assert!(text.ends_with("\nand 12245 more"), "{text}");
    }

    #[test]
    fn reports_a_fault_that_an_alias_repeats_once() {
        let findings = Findings::default();
        findings.fault(Place::START, "wrong");
        findings.fault(Place::START, "wrong");
        assert_eq!(findings.finish().unwrap_err().count(), 1);
    }

    #[test]
    fn faults_repeated_by_an_alias_do_not_crowd_out_others() {
        let findings = Findings::default();
        for _ in 0..3 * FINDINGS_KEPT_MAX {
            findings.fault(Place::START, "wrong");
        }
        findings.fault(Place { line: 2, column: 1 }, "wrong too");
        let faults = findings.finish().unwrap_err();
        assert_eq!(faults.to_string(), ":1:1: wrong\n:2:1: wrong too");
    }

    #[test]
    fn an_excerpt_is_short_and_without_control_characters() {
        assert_eq!(excerpt("a\n\u{1b}[1mb"), "a\\n\\u{1b}[1mb");
        assert_eq!(excerpt("a\u{202e}\u{200b}b"), "a\\u{202e}\\u{200b}b");
        assert_eq!(excerpt(&"é".repeat(1000)).chars().count(), EXCERPT_CHARS_MAX + 1);
    }
}

#[cfg(test)]
mod nearest_tests {
    use super::*;

    #[test]
    fn suggests_a_near_name_and_nothing_far() {
        let names =
            ["key", "rate_limit", "requests_per_unit", "algorithm", "max_delay", "metadata"];
        assert_eq!(nearest("ratelimit", &names), Some("rate_limit"));
        assert_eq!(nearest("requestsPerUnit", &names), Some("requests_per_unit"));
        assert_eq!(nearest("kye", &names), Some("key"));
        assert_eq!(nearest("keys", &names), Some("key"));
        assert_eq!(nearest("algoritm", &names), Some("algorithm"));
        assert_eq!(nearest("max_dealy", &names), Some("max_delay"));
        assert_eq!(nearest("on_redis_error", &names), None);
        assert_eq!(nearest(&"x".repeat(100_000), &names), None);
    }
}
