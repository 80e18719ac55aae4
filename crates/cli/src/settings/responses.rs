//! Settings for the contents of answers.

use clap::Args;

use super::fault::Faults;
use super::group::Flags;
use super::headers::{HeaderFlags, Headers};
use super::table::{Setting, setting, settings, switch};
use super::value;

/// Settings for the contents of answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseSettings {
    /// The headers of answers; `None` for no headers.
    pub headers: Option<Headers>,
    /// Nothing is denied; counts and statuses are unaffected.
    pub shadow_mode: bool,
    /// Every rule is a quota: a request is denied only if all of its rules are exhausted.
    pub quota_mode: bool,
    /// Answers include dynamic metadata: the descriptors, and the metadata of the rules.
    pub dynamic_metadata: bool,
    /// Part of a limit, 0 to 1, above which use is counted as near the limit.
    pub near_limit_ratio: f32,
}

settings! {
    /// Settings for the contents of answers, besides headers.
    pub(super) group ResponseTable("Answers");

    /// Deny nothing; count and report as usual
    SHADOW_MODE: Setting<bool> = switch(false);
    /// Deny a request only if all of its rules are exhausted
    QUOTA_MODE: Setting<bool> = switch(false);
    /// Add dynamic metadata to answers: the descriptors, and the metadata of the rules
    RESPONSE_DYNAMIC_METADATA: Setting<bool> = switch(false);
    /// Share of a limit, 0 to 1, above which its use counts as near the limit
    NEAR_LIMIT_RATIO: Setting<f32> = setting("RATIO", "0.8", value::ratio);
}

#[derive(Debug, Args)]
pub(super) struct ResponseFlags {
    #[command(flatten)]
    headers: HeaderFlags,
    #[command(flatten)]
    contents: Flags<ResponseTable>,
}

// === impl ResponseFlags ===

impl ResponseFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<ResponseSettings> {
        let headers = self.headers.resolve(faults);
        let shadow_mode = self.contents.get(&SHADOW_MODE, faults);
        let quota_mode = self.contents.get(&QUOTA_MODE, faults);
        let dynamic_metadata = self.contents.get(&RESPONSE_DYNAMIC_METADATA, faults);
        let near_limit_ratio = self.contents.get(&NEAR_LIMIT_RATIO, faults);
        Some(ResponseSettings {
            headers: headers?,
            shadow_mode: shadow_mode?,
            quota_mode: quota_mode?,
            dynamic_metadata: dynamic_metadata?,
            near_limit_ratio: near_limit_ratio?,
        })
    }
}
