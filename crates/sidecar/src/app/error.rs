//! Why the application cannot start.

/// Why the application cannot start: one line with the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(String);

// === impl BuildError ===

impl BuildError {
    pub(super) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}
