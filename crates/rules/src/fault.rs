//! What is wrong in a rule file, and where.

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::nearest::nearest;
use crate::steering::steers;

/// Something wrong (or, as a warning, doubtful) at one place of one file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Name of the source, as its `Source` gave it.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// What is wrong, then what was expected or how to mend it. One line.
    pub message: String,
}

/// Every fault of a refused load, in order of file and place; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    kept: Vec<Fault>,
    dropped: usize,
    warnings: Vec<Fault>,
}

/// Where something starts in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// Collects what is found in the sources, one source after another. Who reads a source and who
/// compiles what was read take turns, and share it.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    file: RefCell<String>,
    faults: RefCell<List>,
    warnings: RefCell<List>,
    /// Names for which a near one was looked for.
    suggested: Cell<usize>,
}

#[derive(Debug, Default)]
struct List {
    kept: Vec<Fault>,
    /// Most of what is kept differs, so that there is no use in looking for what does not.
    is_full: bool,
    dropped: usize,
}

/// Faults that are printed; the rest is a number.
const FAULTS_PRINTED_MAX: usize = 100;
/// Faults, and warnings, that are kept: a broken generator can make millions.
const FINDINGS_KEPT_MAX: usize = 10_000;
/// Names for which a near one is looked for. A search costs as much as reading a long line does; a
/// broken generator misspells one name everywhere, and who mends it needs to be told a few times.
const SUGGESTIONS_MAX: usize = 20;
/// Characters of the user's text that a message repeats.
const EXCERPT_CHARS_MAX: usize = 64;

/// The user's text, fit for a message: nothing in it steers a display, and it is not too long.
pub fn excerpt(text: &str) -> String {
    let mut characters = text.chars();
    let mut out = String::new();
    for character in characters.by_ref().take(EXCERPT_CHARS_MAX) {
        if steers(character) {
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

    /// How many there are, kept or not; at least 1.
    pub fn count(&self) -> usize {
        self.kept.len() + self.dropped
    }

    /// What would not have refused the load, found on the way; in order of file and place, at most
    /// 10 000.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }
}

/// One a line; past the first hundred, how many more.
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
    /// The first character of a file.
    pub const START: Place = Place { line: 1, column: 1 };
}

// === impl Findings ===

impl Findings {
    /// What follows is found in `file`.
    pub(crate) fn begin(&self, file: &str) {
        file.clone_into(&mut self.file.borrow_mut());
    }

    /// The file that is being read.
    pub(crate) fn file(&self) -> String {
        self.file.borrow().clone()
    }

    /// Something for which the load is refused.
    pub(crate) fn fault(&self, place: Place, message: impl Into<String>) {
        self.fault_with(place, || message.into());
    }

    /// As [`Findings::fault`], for a message that is costly to make: past those that are kept, only
    /// the number counts.
    pub(crate) fn fault_with(&self, place: Place, message: impl FnOnce() -> String) {
        self.faults.borrow_mut().push(&self.file.borrow(), place, message);
    }

    /// Something that loads, and may not do what its author meant.
    pub(crate) fn warn(&self, place: Place, message: impl Into<String>) {
        self.warnings.borrow_mut().push(&self.file.borrow(), place, || message.into());
    }

    /// The end of a message about a name that is none of `lists`: the nearest, if one is near
    /// enough. Empty after the first [`SUGGESTIONS_MAX`] names of a load.
    pub(crate) fn suggestion(&self, name: &str, lists: &[&[&str]]) -> String {
        let suggested = self.suggested.get();
        if suggested == SUGGESTIONS_MAX {
            return String::new();
        }
        self.suggested.set(suggested + 1);
        let meant = lists.iter().find_map(|names| nearest(name, names));
        meant.map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"))
    }

    /// The faults if there are any, else the warnings; in order of file and place.
    pub(crate) fn finish(self) -> Result<Vec<Fault>, Faults> {
        let (faults, warnings) = (self.faults.into_inner(), self.warnings.into_inner());
        let warnings = warnings.in_order();
        match faults.kept.is_empty() {
            true => Ok(warnings),
            false => Err(Faults { dropped: faults.dropped, kept: faults.in_order(), warnings }),
        }
    }
}

// === impl List ===

impl List {
    fn push(&mut self, file: &str, place: Place, message: impl FnOnce() -> String) {
        if self.kept.len() == FINDINGS_KEPT_MAX && !self.is_full {
            // What aliases repeat must not keep out what they are refused for.
            self.put_in_order();
            self.is_full = self.kept.len() > FINDINGS_KEPT_MAX / 2;
        }
        if self.kept.len() == FINDINGS_KEPT_MAX {
            self.dropped += 1;
            return;
        }
        let Place { line, column } = place;
        self.kept.push(Fault { file: file.to_owned(), line, column, message: message() });
    }

    /// An alias shows what it stands for more than once; the finding in it counts once.
    fn put_in_order(&mut self) {
        self.kept.sort();
        self.kept.dedup();
    }

    fn in_order(mut self) -> Vec<Fault> {
        self.put_in_order();
        self.kept
    }
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
    fn reports_what_an_alias_repeats_once() {
        let findings = Findings::default();
        findings.fault(Place::START, "wrong");
        findings.fault(Place::START, "wrong");
        assert_eq!(findings.finish().unwrap_err().count(), 1);
    }

    #[test]
    fn what_an_alias_repeats_keeps_nothing_else_out() {
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
