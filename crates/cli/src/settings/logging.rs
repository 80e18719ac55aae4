//! Settings for logging.

use clap::Args;

use super::fault::{Expected, Faults};
use super::flag::BOOL;
use super::value;

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logging {
    /// The least severe level that is logged.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
    /// Maximum number of lines a second from one place in the code; 0 for no bound.
    pub lines_per_second: u32,
    /// Whether lines may contain values of descriptors.
    pub values: bool,
    /// Part of the decisions that are logged, 0 to 1.
    pub decision_sample_rate: f32,
}

/// The reference's levels; its `fatal` and `panic` are `Error` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Events that need action.
    Error,
    /// Events that may need action.
    Warn,
    /// Events of interest to an operator.
    Info,
    /// Events that help to find a fault.
    Debug,
    /// All events, including those of libraries.
    Trace,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, for people.
    Text,
    /// One JSON object per line, with the reference's `@timestamp`, `@message`, `level`.
    Json,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(super) struct LoggingFlags {
    /// Least severe level to log: error, warn, info, debug or trace
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// How a line looks: text or json
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: String,
    /// Lines a second from one place in the code at most, and a line that counts the others; 0 for
    /// no bound
    #[arg(long, env = "LOG_LINES_PER_SECOND", value_name = "LINES", default_value = "100")]
    log_lines_per_second: String,
    /// Let values of descriptors show in the log
    #[arg(long, env = "LOG_VALUES", value_name = BOOL, default_value = "false")]
    log_values: String,
    /// Share of the decisions that are logged, 0 to 1: 0.01 shows what goes on
    #[arg(long, env = "DECISION_SAMPLE_RATE", value_name = "SHARE", default_value = "0")]
    decision_sample_rate: String,
}

/// Maximum number of lines a second from one place: a higher number would not be a bound.
const LINES_PER_SECOND_MAX: usize = 1_000_000;

// === impl LoggingFlags ===

impl LoggingFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Logging> {
        let level = faults.parse("LOG_LEVEL", &self.log_level, level);
        let format = faults.parse("LOG_FORMAT", &self.log_format, format);
        let lines = &self.log_lines_per_second;
        let in_range = value::count_within(0..=LINES_PER_SECOND_MAX, "100");
        let lines = faults.parse("LOG_LINES_PER_SECOND", lines, in_range);
        let values = faults.parse("LOG_VALUES", &self.log_values, value::boolean);
        let rate = faults.parse("DECISION_SAMPLE_RATE", &self.decision_sample_rate, value::ratio);
        Some(Logging {
            level: level?,
            format: format?,
            lines_per_second: u32::try_from(lines?).ok()?,
            values: values?,
            decision_sample_rate: rate?,
        })
    }
}

fn level(text: &str) -> Result<LogLevel, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok(LogLevel::Error),
        "warn" | "warning" => Ok(LogLevel::Warn),
        "info" => Ok(LogLevel::Info),
        "debug" => Ok(LogLevel::Debug),
        "trace" => Ok(LogLevel::Trace),
        _ => Err(Expected::new("trace, debug, info, warn, error, fatal or panic", "info")),
    }
}

fn format(text: &str) -> Result<LogFormat, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(Expected::new("text or json", "json")),
    }
}
