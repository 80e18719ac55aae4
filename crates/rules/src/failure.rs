//! What a rule answers while the store is unavailable.

/// The answer while the store is unavailable and no token is left in this pod (`failure_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailureMode {
    /// Each pod admits its own part of the limit, by [`Limit::part`](crate::Limit::part): of n pods
    /// ⌊limit / n⌋ per window, plus one if a hash of pod, key and window falls below the fraction
    /// that is left. n is the number of live pods that the store last reported.
    #[default]
    Local,
    /// Admits every request, uncounted.
    Allow,
    /// Denies every request as over the limit.
    Deny,
    /// Returns an error, so that Envoy's `failure_mode_deny` decides, as with the reference.
    Error,
}

// === impl FailureMode ===

impl FailureMode {
    /// All failure modes.
    pub const ALL: [FailureMode; 4] =
        [FailureMode::Local, FailureMode::Allow, FailureMode::Deny, FailureMode::Error];

    /// Returns the name in rule files.
    pub fn name(self) -> &'static str {
        match self {
            FailureMode::Local => "local",
            FailureMode::Allow => "allow",
            FailureMode::Deny => "deny",
            FailureMode::Error => "error",
        }
    }
}
