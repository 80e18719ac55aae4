//! The text of a rule file, before parsing.

use std::fmt;

use crate::fault::Place;
use crate::small_map::TextMap;

/// The text of one rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name in faults, such as `shop.yaml`. Sources load in order of their names.
    pub name: String,
    /// The file's bytes. Loading is safe for any content.
    pub text: Vec<u8>,
}

// The place of each rule in the rule files, for tools. The sidecar does not keep it.

/// The place of each rule of a load, by its path.
#[derive(Debug, Default)]
pub struct RuleLocations {
    /// Names of the sources that have rules, in the order in which they were read.
    files: Vec<Box<str>>,
    /// The index of the file in `files`, and the place in that file.
    by_path: TextMap<(usize, Place)>,
}

/// The place where a rule's descriptor begins. Printed as `file:line:column`, as faults are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLocation<'p> {
    /// Name of the source.
    pub file: &'p str,
    /// The place in the source.
    pub place: Place,
}

// === impl RuleLocations ===

impl RuleLocations {
    /// Returns where the rule of this path is written; `None` if there is no such rule.
    pub fn of(&self, path: &str) -> Option<SourceLocation<'_>> {
        let (file, place) = self.by_path.get(path)?;
        Some(SourceLocation { file: self.files.get(*file)?, place: *place })
    }

    /// Records a rule of `file`. All rules of one file are recorded before those of the next.
    pub(crate) fn note(&mut self, path: &str, file: &str, place: Place) {
        if self.files.last().is_none_or(|last| **last != *file) {
            self.files.push(file.into());
        }
        self.by_path.insert(path.into(), (self.files.len() - 1, place));
    }
}

// === impl SourceLocation ===

impl fmt::Display for SourceLocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        write!(f, "{}:{line}:{column}", self.file)
    }
}
