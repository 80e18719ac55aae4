//! Sets up the log: lines on standard error, as text or JSON; [`push`] sends metrics to a
//! collector, and [`statsd`] counts to statsd. Spans and samples of decisions are in
//! `ratelease-server`, which begins them.
//!
//! One event is one line whatever it contains: control characters are escaped, so that no value
//! from outside can end a line, forge another or control a terminal.

mod log_writer;
pub mod push;
pub mod statsd;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::{fmt, io, panic};

use ratelease_cli::log_limiter::{Limited, LogLimiter};
use ratelease_cli::settings::{LogFormat, LogLevel, Logging};
use ratelease_engine::span_context;
use ratelease_engine::time::Clock;
use ratelease_rules::alters_display;
use ratelease_server::observe;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, error, warn};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

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
    let limiter = LogLimiter::new(logging.lines_per_second, observe::TARGET, clock);
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
        .with_target(observe::TARGET, ours.max(LevelFilter::INFO))
}

// Formats events as lines.
//
// tracing-subscriber 0.3.23 escapes terminal control sequences in messages, but neither line ends
// nor anything in fields that are logged by their `Display`; so text lines have their own field
// formatter here.

/// The name under which tracing keeps an event's message.
const MESSAGE: &str = "message";

/// The field that names the trace of the request for which a line was written, if that is traced:
/// the names are from OpenTelemetry's "Trace Context in non-OTLP Log Formats".
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";

/// Fields of a text line: the message, then `name=value`, control characters escaped.
struct OneLine;

/// A whole line as a JSON object, with the reference implementation's names: `@timestamp`,
/// `@message`, `level`.
struct Json;

/// Escapes characters that end a line or control its display.
struct Escaping<'a, 'w>(&'a mut Writer<'w>);

struct TextFields<'w> {
    writer: Writer<'w>,
    result: fmt::Result,
    is_first: bool,
}

struct JsonFields(Map<String, Value>);

// === impl OneLine ===

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = TextFields { writer, result: Ok(()), is_first: true };
        fields.record(&mut visitor);
        visitor.result?;
        span_context::current().map_or(Ok(()), |context| {
            let trace = context.trace_id();
            let span = context.span_id();
            write!(visitor.writer, " {TRACE_ID}={trace} {SPAN_ID}={span}")
        })
    }
}

impl TextFields<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        if field.name() != MESSAGE {
            write!(self.writer, "{}=", field.name())?;
        }
        Escaping(&mut self.writer).write_fmt(value)
    }
}

impl Visit for TextFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| {
            if alters_display(c) {
                write!(self.0, "{}", c.escape_default())
            } else {
                self.0.write_char(c)
            }
        })
    }
}

// === impl Json ===

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let meta = event.metadata();
        let mut line = JsonFields(Map::new());
        event.record(&mut line);
        line.0.insert("@timestamp".to_owned(), time.into());
        line.0.insert("level".to_owned(), level(*meta.level()).into());
        line.0.insert("target".to_owned(), meta.target().into());
        if let Some(context) = span_context::current() {
            line.0.insert(TRACE_ID.to_owned(), context.trace_id().to_string().into());
            line.0.insert(SPAN_ID.to_owned(), context.span_id().to_string().into());
        }
        let line = Value::Object(line.0).to_string();
        line.chars().try_for_each(|c| write_json(&mut writer, c))?;
        writer.write_char('\n')
    }
}

/// Writes a character of a JSON line. Of the characters that control the display serde_json escapes
/// only the first 32; the others can occur only in strings, where an escape means the same.
fn write_json(writer: &mut Writer<'_>, c: char) -> fmt::Result {
    if !alters_display(c) {
        return writer.write_char(c);
    }
    c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))
}

/// The reference implementation's names of the levels.
fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

impl JsonFields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        let name = match field.name() {
            MESSAGE => "@message".to_owned(),
            // As in the reference implementation's log, if a field has the name of a part of the
            // line.
            name @ ("level" | "target" | "@timestamp" | "@message" | TRACE_ID | SPAN_ID) => {
                format!("fields.{name}")
            }
            name => name.to_owned(),
        };
        self.0.insert(name, value.into());
    }
}

impl Visit for JsonFields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }
}
