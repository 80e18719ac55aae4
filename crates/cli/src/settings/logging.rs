//! Settings for logging.

use super::fault::{Expected, Faults};
use super::group::Flags;
use super::table::{Setting, setting, settings, switch};
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

settings! {
    /// Settings for logging.
    pub(super) group LoggingTable("Logging");

    /// Least severe level that is logged: error, warn, info, debug or trace
    LOG_LEVEL: Setting<LogLevel> = setting("LEVEL", "info", level).reference_default("warn");
    /// Format of a line: text or json
    LOG_FORMAT: Setting<LogFormat> = setting("FORMAT", "text", format);
    /// Maximum number of lines a second from one place in the code; one more line counts those
    /// left out; 0 for no limit
    LOG_LINES_PER_SECOND: Setting<u32> =
        setting("LINES", "100", |text| value::count_within(text, 0..=LINES_PER_SECOND_MAX));
    /// Let values of descriptors appear in the log
    LOG_VALUES: Setting<bool> = switch(false);
    /// Share of the decisions that are logged, 0 to 1, such as 0.01
    DECISION_SAMPLE_RATE: Setting<f32> = setting("SHARE", "0", |text| {
        value::ratio(text).map_err(|expected| expected.example("0.01"))
    });
}

/// Maximum number of lines a second from one place: a higher number would not be a bound.
const LINES_PER_SECOND_MAX: u32 = 1_000_000;

/// Flags for logging.
pub(super) type LoggingFlags = Flags<LoggingTable>;

// === impl LoggingFlags ===

impl LoggingFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Logging> {
        let level = self.get(&LOG_LEVEL, faults);
        let format = self.get(&LOG_FORMAT, faults);
        let lines_per_second = self.get(&LOG_LINES_PER_SECOND, faults);
        let values = self.get(&LOG_VALUES, faults);
        let decision_sample_rate = self.get(&DECISION_SAMPLE_RATE, faults);
        Some(Logging {
            level: level?,
            format: format?,
            lines_per_second: lines_per_second?,
            values: values?,
            decision_sample_rate: decision_sample_rate?,
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
        _ => Err(Expected::new("trace, debug, info, warn, error, fatal or panic")),
    }
}

fn format(text: &str) -> Result<LogFormat, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(Expected::new("text or json").example("json")),
    }
}
