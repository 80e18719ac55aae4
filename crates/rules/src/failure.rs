//! What a rule answers when the store cannot be asked.

/// What is answered when the store cannot be asked and no token is left here (`failure_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailureMode {
    /// Each pod admits its part of the limit by itself: ⌈L/n⌉ a window, n being the pods that were
    /// alive when the store last said.
    #[default]
    Local,
    /// Everything passes, uncounted.
    Allow,
    /// Everything is over the limit.
    Deny,
    /// No verdict: Envoy's `failure_mode_deny` decides, as with the reference.
    Error,
}

// === impl FailureMode ===

impl FailureMode {
    /// All of them.
    pub const ALL: [FailureMode; 4] =
        [FailureMode::Local, FailureMode::Allow, FailureMode::Deny, FailureMode::Error];

    /// As rule files say it.
    pub fn name(self) -> &'static str {
        match self {
            FailureMode::Local => "local",
            FailureMode::Allow => "allow",
            FailureMode::Deny => "deny",
            FailureMode::Error => "error",
        }
    }
}
