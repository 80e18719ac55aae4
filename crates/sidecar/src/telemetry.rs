//! Sets up the log: lines on standard error, as text or JSON; and [`push`] sends metrics to a
//! collector. Spans and samples of decisions are in `ratelease-server`, which begins them.
//!
//! One event is one line whatever it contains: control characters are escaped, so that no value
//! from outside can end a line, forge another or control a terminal.

mod format;
mod log_writer;
pub mod push;

use std::io::{self, IsTerminal};
use std::panic::{self, PanicHookInfo};

use ratelease_cli::log_limiter::{Limited, LogLimiter};
use ratelease_cli::settings::{LogFormat, LogLevel, Logging};
use ratelease_engine::time::Clock;
use ratelease_server::samples;
use tracing::level_filters::LevelFilter;
use tracing::{Subscriber, error, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use format::{Json, OneLine};
pub use log_writer::LogWriter;

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// Logging was set up before, and is unchanged.
    #[error("logging is already set up")]
    AlreadySetUp,
    /// The thread that writes the log could not be started.
    #[error("nothing is logged, since the log's thread cannot be started: {0}")]
    NoThread(io::Error),
}

/// Sets up logging for the whole process: to standard error, in colour if that is a terminal and
/// `NO_COLOR` is not set. If standard error is not read, lines are dropped rather than waited for.
/// Flush the log before the process ends. Panics are logged from now on: the default hook writes
/// directly to standard error and would block until that is read.
///
/// # Errors
/// Returns an error if the process has a log already, or the log's thread cannot be started.
pub fn init(logging: &Logging, clock: Clock) -> Result<LogWriter, SetUpError> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let ansi = io::stderr().is_terminal() && !no_color;
    let report_lost = |lines| warn!(lines, "log lines were lost: the log was not read in time");
    let limiter = LogLimiter::new(logging.lines_per_second, samples::TARGET, clock);
    let suppressed = limiter.clone();
    let each_second = move || suppressed.report();
    let log =
        LogWriter::start(io::stderr(), report_lost, each_second).map_err(SetUpError::NoThread)?;
    let writer = log.clone();
    let subscriber = subscriber(logging, ansi, limiter, move || writer.clone());
    tracing::subscriber::set_global_default(subscriber).map_err(|_| SetUpError::AlreadySetUp)?;
    panic::set_hook(Box::new(log_panic));
    Ok(log)
}

fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = info.payload_as_str().unwrap_or("no message");
    match info.location() {
        Some(location) => error!("thread {thread:?} panicked at {location}: {message}"),
        None => error!("thread {thread:?} panicked at an unknown location: {message}"),
    }
}

fn subscriber<W>(
    logging: &Logging,
    ansi: bool,
    limiter: LogLimiter,
    writer: W,
) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        // A line that cannot be written is dropped: reporting it on the same standard error would
        // panic. Suppressed lines return an error on purpose and must not be reported one by one.
        .log_internal_errors(false);
    let lines = match logging.format {
        LogFormat::Text => {
            let lines = lines.with_ansi(ansi).fmt_fields(OneLine);
            lines.map_event_format(|inner| Limited { inner, limiter }).boxed()
        }
        LogFormat::Json => lines.event_format(Limited { inner: Json, limiter }).boxed(),
    };
    Registry::default().with(lines.with_filter(filter(logging.level)))
}

/// The level applies to the crates of this workspace, whose names all begin with `ratelease`.
/// Libraries log little that an operator needs, and much at `debug`: only their warnings and errors
/// are logged, and everything at `trace`.
fn filter(level: LogLevel) -> Targets {
    let (ours, theirs) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::WARN),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new()
        .with_default(theirs)
        .with_target("ratelease", ours)
        .with_target(samples::TARGET, ours.max(LevelFilter::INFO))
}

#[cfg(test)]
mod tests;
