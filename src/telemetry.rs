//! Set-up of the log: lines on standard error, as text or JSON.
//!
//! One event is one line whatever is in it: control characters are escaped, so that no value that
//! came from outside can end a line, forge another or steer a terminal.

mod format;
mod spool;

use std::io::{self, IsTerminal};
use std::panic::{self, PanicHookInfo};

use tracing::level_filters::LevelFilter;
use tracing::{Subscriber, error, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::settings::{LogFormat, LogLevel, Logging};
use format::{Json, OneLine};
pub use spool::Spool;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// Logging was set up before, and stays as it was.
    #[error("logging is already set up")]
    AlreadySetUp,
    /// No thread to write it.
    #[error("nothing is logged, since there can be no thread for it: {0}")]
    NoThread(io::Error),
}

/// Sets up logging for the whole process: to standard error, in colour if that is a terminal and
/// `NO_COLOR` is not set. Lines are lost rather than waited for if nobody takes them; the spool is
/// to be flushed before the process ends. Panics are lines of the log from now on: told as they are
/// by default, right to standard error, one would wait for whoever reads that.
///
/// # Errors
/// If the process has a log already, or can have no thread for it.
pub fn init(logging: &Logging) -> Result<Spool, SetUpError> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let ansi = io::stderr().is_terminal() && !no_color;
    let tell = |lines| warn!(lines, "nobody read the log in time: lines were lost");
    let spool = Spool::start(io::stderr(), tell).map_err(SetUpError::NoThread)?;
    let writer = spool.clone();
    tracing::subscriber::set_global_default(subscriber(logging, ansi, move || writer.clone()))
        .map_err(|_| SetUpError::AlreadySetUp)?;
    panic::set_hook(Box::new(tell_panic));
    Ok(spool)
}

fn tell_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let what = info.payload_as_str().unwrap_or("no message");
    match info.location() {
        Some(place) => error!("thread {thread:?} panicked at {place}: {what}"),
        None => error!("thread {thread:?} panicked at an unknown place: {what}"),
    }
}

fn subscriber<W>(logging: &Logging, ansi: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        // A line that cannot be written is lost: told on the same standard error, it would panic.
        .log_internal_errors(false);
    let lines = match logging.format {
        LogFormat::Text => lines.with_ansi(ansi).fmt_fields(OneLine).boxed(),
        LogFormat::Json => lines.event_format(Json).boxed(),
    };
    Registry::default().with(lines.with_filter(filter(logging.level)))
}

/// The level is for this crate. Libraries say little that an operator needs, and much at `debug`:
/// of them only warnings and errors are logged, and everything at `trace`.
fn filter(level: LogLevel) -> Targets {
    let (ours, theirs) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::WARN),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(theirs).with_target(env!("CARGO_PKG_NAME"), ours)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tracing::{debug, error, info};

    use super::*;

    /// What `events` leave on a log of this format and level.
    fn logged(format: LogFormat, level: LogLevel, ansi: bool, events: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = subscriber(&Logging { level, format }, ansi, move || writer.clone());
        tracing::subscriber::with_default(subscriber, events);
        let bytes = sink.0.lock().clone();
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn text_is_a_line_an_event_with_level_target_message_and_fields() {
        let text = logged(LogFormat::Text, LogLevel::Info, false, || {
            warn!(port = 8080, path = %"/a b", name = "x y", "cannot listen");
        });
        let (time, rest) = text.split_once(' ').expect("a timestamp");
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        let expected =
            " WARN ratelease::telemetry::tests: cannot listen port=8080 path=/a b name=\"x y\"\n";
        assert_eq!(rest, expected);
    }

    #[test]
    fn no_value_can_end_a_line_or_steer_a_terminal() {
        let evil = "a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{7}\0\u{202e}\u{2028}z";
        let shown = r"a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{7}\u{0}\u{202e}\u{2028}z";
        for ansi in [false, true] {
            let text = logged(LogFormat::Text, LogLevel::Info, ansi, || {
                warn!(display = %evil, debug = evil, "{evil}");
            });
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert_eq!(text.matches(shown).count(), 2, "message and display: {text}");
            for hidden in ["\u{1b}[2J", "\u{9b}", "\u{7}", "\0", "\r", "\u{202e}", "\u{2028}"] {
                assert!(!text.contains(hidden), "{hidden:?} in {text:?}");
            }
            assert_eq!(text.contains("\u{1b}["), ansi, "colour only where asked for: {text:?}");
        }
    }

    #[test]
    fn json_is_an_object_an_event_with_the_names_of_the_reference() {
        let text = logged(LogFormat::Json, LogLevel::Info, true, || {
            warn!(port = 8080, ok = true, level = "mine", why = %"a\nb", "it {}", "happened");
        });
        assert_eq!(text.lines().count(), 1, "{text:?}");
        let mut line: Value = serde_json::from_str(&text).expect("JSON");
        let time = line["@timestamp"].take();
        assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{time}");
        let expected = json!({
            "@timestamp": null, "@message": "it happened", "level": "warning",
            "target": "ratelease::telemetry::tests", "port": 8080, "ok": true,
            "fields.level": "mine", "why": "a\nb",
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn the_level_is_for_this_crate_and_libraries_only_warn() {
        let events = || {
            error!("E");
            info!("I");
            debug!("D");
            warn!(target: "h2::codec", "lib W");
            debug!(target: "h2::codec", "lib D");
        };
        let messages = |level| {
            let text = logged(LogFormat::Text, level, false, events);
            let lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.map(|(_, message)| message.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(messages(LogLevel::Error), ["E"]);
        assert_eq!(messages(LogLevel::Warn), ["E", "lib W"]);
        assert_eq!(messages(LogLevel::Info), ["E", "I", "lib W"]);
        assert_eq!(messages(LogLevel::Debug), ["E", "I", "D", "lib W"]);
        assert_eq!(messages(LogLevel::Trace), ["E", "I", "D", "lib W", "lib D"]);
    }
}
