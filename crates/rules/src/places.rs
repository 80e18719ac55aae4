//! Where rules are written, for people who look for one. No server keeps this.

use std::fmt;

use crate::fault::Place;
use crate::handful::TextMap;

/// The place of each rule of a load, by its path.
#[derive(Debug, Default)]
pub struct Places {
    /// Names of the sources that have rules, in the order in which they were read.
    files: Vec<Box<str>>,
    /// The index of the file, and the place in it.
    by_path: TextMap<(usize, Place)>,
}

/// Where a rule's descriptor begins. Shown as `file:line:column`, as faults are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written<'p> {
    /// Name of the source.
    pub file: &'p str,
    /// In it.
    pub place: Place,
}

// === impl Places ===

impl Places {
    /// Where the rule of this path is written; `None` if there is no such rule.
    pub fn of(&self, path: &str) -> Option<Written<'_>> {
        let (file, place) = self.by_path.get(path)?;
        Some(Written { file: self.files.get(*file)?, place: *place })
    }

    /// Notes a rule of `file`. Files come one after another.
    pub(crate) fn note(&mut self, path: &str, file: &str, place: Place) {
        if self.files.last().is_none_or(|last| **last != *file) {
            self.files.push(file.into());
        }
        self.by_path.insert(path.into(), (self.files.len() - 1, place));
    }
}

// === impl Written ===

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        write!(f, "{}:{line}:{column}", self.file)
    }
}
