//! Formats events as lines.
//!
//! tracing-subscriber 0.3.23 escapes terminal control sequences in messages, but neither line ends
//! nor anything in fields that are logged by their `Display`; so text lines have their own field
//! formatter here.

use std::fmt::{self, Write};

use ratelease_engine::span_context;
use ratelease_rules::display_safety::alters_display;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The name under which tracing keeps an event's message.
const MESSAGE: &str = "message";

/// The field that names the trace of the request for which a line was written, if that is traced:
/// the names are from OpenTelemetry's "Trace Context in non-OTLP Log Formats".
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";

/// Fields of a text line: the message, then `name=value`, control characters escaped.
pub(super) struct OneLine;

/// A whole line as a JSON object, with the reference implementation's names: `@timestamp`,
/// `@message`, `level`.
pub(super) struct Json;

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
            let (trace, span) = (context.trace_id(), context.span_id());
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
