//! Faulty settings of an Envoy, each with its fix.

use super::config::At;

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
