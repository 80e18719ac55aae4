//! Why the application cannot start.

/// Why the application cannot start: one line that says what, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(String);

// === impl BuildError ===

impl BuildError {
    pub(super) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}
