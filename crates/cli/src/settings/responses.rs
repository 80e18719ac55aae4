//! Settings for the contents of answers.

use clap::Args;

use super::fault::Faults;
use super::flag::BOOL;
use super::headers::{HeaderFlags, Headers};
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

#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
pub(super) struct ResponseFlags {
    #[command(flatten)]
    headers: HeaderFlags,
    /// Deny nothing; count and report as usual
    #[arg(long, env = "SHADOW_MODE", value_name = BOOL, default_value = "false")]
    shadow_mode: String,
    /// Deny only a request whose rules are all exhausted
    #[arg(long, env = "QUOTA_MODE", value_name = BOOL, default_value = "false")]
    quota_mode: String,
    /// Answer with dynamic metadata: descriptors, and the metadata of the rules
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", value_name = BOOL, default_value = "false")]
    response_dynamic_metadata: String,
    /// Share of a limit above which use counts as near it, 0 to 1
    #[arg(long, env = "NEAR_LIMIT_RATIO", value_name = "RATIO", default_value = "0.8")]
    near_limit_ratio: String,
}

// === impl ResponseFlags ===

impl ResponseFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<ResponseSettings> {
        let headers = self.headers.resolve(faults);
        let mut yes = |name, value: &str| faults.parse(name, value, value::boolean);
        let shadow_mode = yes("SHADOW_MODE", &self.shadow_mode);
        let quota_mode = yes("QUOTA_MODE", &self.quota_mode);
        let dynamic_metadata = yes("RESPONSE_DYNAMIC_METADATA", &self.response_dynamic_metadata);
        let ratio = faults.parse("NEAR_LIMIT_RATIO", &self.near_limit_ratio, value::ratio);
        Some(ResponseSettings {
            headers: headers?,
            shadow_mode: shadow_mode?,
            quota_mode: quota_mode?,
            dynamic_metadata: dynamic_metadata?,
            near_limit_ratio: ratio?,
        })
    }
}
