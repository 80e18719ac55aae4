//! Faulty settings of an Envoy, each with its place and its fix.

use std::fmt;

use ratelease_rules::Place;

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) file: String,
    pub(super) place: Place,
}

/// The document that is read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) file: String,
    /// Lines of the file before the document.
    pub(super) lines_before: u32,
}

/// A setting that has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) at: At,
    pub(super) problem: String,
    pub(super) fix: String,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// A limit does not hold, or ends are lost.
    Error,
    /// The setting fails under load, or in some cases.
    Warning,
}

/// Findings, each once.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

// === impl At ===

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place: Place { line, column } } = self;
        write!(f, "{file}:{line}:{column}")
    }
}

// === impl Reading ===

impl Reading {
    /// The place in the file, from one in the document.
    pub(super) fn at(&self, place: Place) -> At {
        let place = Place { line: place.line + self.lines_before, ..place };
        At { file: self.file.clone(), place }
    }
}

// === impl Level ===

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

// === impl Finding ===

impl Finding {
    pub(super) fn error(at: At, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Error, at, problem: problem.into(), fix: fix.into() }
    }

    pub(super) fn warning(at: At, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(at, problem, fix) }
    }
}

// === impl Findings ===

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    pub(super) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }
}

/// A remark on a value that is not set.
pub(super) fn own_default(is_default: bool) -> &'static str {
    if is_default { ", Envoy's default" } else { "" }
}
