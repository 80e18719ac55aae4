//! What is logged, and how a line looks.

use clap::Args;

use super::fault::{Expected, Faults};

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// The least severe level that is logged.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
}

/// The reference's levels; its `fatal` and `panic` are `Error` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What needs somebody.
    Error,
    /// What may need somebody.
    Warn,
    /// What an operator likes to know.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything, of the libraries too.
    Trace,
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object a line, with the reference's `@timestamp`, `@message`, `level`.
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
}

// === impl LoggingFlags ===

impl LoggingFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Logging> {
        let level = faults.parse("LOG_LEVEL", &self.log_level, level);
        let format = faults.parse("LOG_FORMAT", &self.log_format, format);
        Some(Logging { level: level?, format: format? })
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
