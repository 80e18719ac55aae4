//! What goes into an answer.

use clap::Args;

use super::cli::BOOL;
use super::fault::Faults;
use super::value;

/// How answers are made and dressed.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// Names of the headers that every answer carries; `None` for no headers.
    pub headers: Option<HeaderNames>,
    /// Nothing is denied; counts and statuses are as usual.
    pub shadow_mode: bool,
    /// Every rule is a quota: a request is denied only if all of its rules are exhausted.
    pub quota_mode: bool,
    /// Answers carry dynamic metadata: the descriptors, and the rules' metadata.
    pub dynamic_metadata: bool,
    /// Share of a limit, 0 to 1, above which use counts as near the limit.
    pub near_limit_ratio: f32,
}

/// The three headers, named in the case that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderNames {
    /// The limit.
    pub limit: String,
    /// What is left of it.
    pub remaining: String,
    /// Seconds until it is whole again.
    pub reset: String,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
pub(super) struct AnswerFlags {
    /// Answer with the three headers below
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", value_name = BOOL, default_value = "false")]
    limit_response_headers_enabled: String,
    /// Header for the limit
    #[arg(
        long,
        env = "LIMIT_LIMIT_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Limit"
    )]
    limit_limit_header: String,
    /// Header for what is left of the limit
    #[arg(
        long,
        env = "LIMIT_REMAINING_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Remaining"
    )]
    limit_remaining_header: String,
    /// Header for the seconds until the limit is whole again
    #[arg(
        long,
        env = "LIMIT_RESET_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Reset"
    )]
    limit_reset_header: String,
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

// === impl AnswerFlags ===

impl AnswerFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Answers> {
        let mut yes = |name, value: &str| faults.parse(name, value, value::boolean);
        let enabled = yes("LIMIT_RESPONSE_HEADERS_ENABLED", &self.limit_response_headers_enabled);
        let shadow_mode = yes("SHADOW_MODE", &self.shadow_mode);
        let quota_mode = yes("QUOTA_MODE", &self.quota_mode);
        let dynamic_metadata = yes("RESPONSE_DYNAMIC_METADATA", &self.response_dynamic_metadata);
        let mut name = |env, value: &str| faults.parse(env, value, value::header_name);
        let limit = name("LIMIT_LIMIT_HEADER", &self.limit_limit_header);
        let remaining = name("LIMIT_REMAINING_HEADER", &self.limit_remaining_header);
        let reset = name("LIMIT_RESET_HEADER", &self.limit_reset_header);
        let ratio = faults.parse("NEAR_LIMIT_RATIO", &self.near_limit_ratio, value::ratio);
        let names = HeaderNames { limit: limit?, remaining: remaining?, reset: reset? };
        Some(Answers {
            headers: enabled?.then_some(names),
            shadow_mode: shadow_mode?,
            quota_mode: quota_mode?,
            dynamic_metadata: dynamic_metadata?,
            near_limit_ratio: ratio?,
        })
    }
}
