//! Shared by all subcommands: exit statuses, output, and colour.
//!
//! Results go to standard output, as text or, with `--json`, as one line of JSON; errors go to
//! standard error, one line each. If the reader closes the pipe, further output is dropped and the
//! exit status stays the same.

use std::fmt::{self, Display};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Color};
use clap::Args;
use serde::Serialize;
use tokio::signal::unix::SignalKind;

use crate::safe::Safe;
use crate::settings;

/// How a subcommand ended that completed its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// Status 0: no problem was found.
    Clean,
    /// Status 1: the work was completed, and a problem was found.
    Finding,
    /// Stopped early by a signal, after printing the results up to then.
    Interrupted(Interrupt),
}

/// A signal that asked the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupt {
    signal: u8,
}

/// The reason why a subcommand could not do its work (status 2): wrong arguments, or something that
/// could not be read or written. Its text says how to fix it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CliError(String);

/// The result of a subcommand.
pub type CliResult = Result<Completion, CliError>;

/// The flag that all subcommands with a result have.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutFlags {
    /// Print the result as one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Standard output of a subcommand.
pub struct Out {
    to: BufWriter<Box<dyn Write>>,
    painter: Painter,
    is_closed: bool,
}

/// Colours text on a terminal; leaves it unchanged elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Painter {
    is_on: bool,
}

/// The meaning of a text, which selects its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A heading, or the most important text.
    Strong,
    /// A secondary text.
    Faint,
    /// An error.
    Bad,
    /// Something doubtful.
    Doubtful,
    /// A good result.
    Good,
}

/// Exit statuses of the process.
const EXIT_FINDING: u8 = 1;
const EXIT_ERROR: u8 = 2;

/// Added to the number of a signal to form the exit status of a process that it ended, as shells
/// do.
const EXIT_SIGNAL: u8 = 128;

/// Flushes the output, prints the error of `name` if `result` is one, and returns the exit status.
pub fn finish(name: &str, mut out: Out, result: CliResult) -> ExitCode {
    match out.flush().and(result) {
        Ok(Completion::Clean) => ExitCode::SUCCESS,
        Ok(Completion::Finding) => ExitCode::from(EXIT_FINDING),
        Ok(Completion::Interrupted(interrupt)) => ExitCode::from(interrupt.status()),
        Err(error) => {
            // It may quote a server or a file.
            eprint_line(format_args!("{name}: {}", Safe(error)));
            ExitCode::from(EXIT_ERROR)
        }
    }
}

/// Writes a line to standard error. Ignores write errors.
pub fn eprint_line(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

// === impl Completion ===

impl Completion {
    /// Returns `Clean` if `is_clean`, else `Finding`.
    pub fn clean_if(is_clean: bool) -> Self {
        if is_clean { Self::Clean } else { Self::Finding }
    }
}

// === impl Interrupt ===

impl Interrupt {
    /// Returns the interrupt for a signal of this kind.
    pub fn of(kind: SignalKind) -> Self {
        // Signal numbers are at most 64.
        Self { signal: u8::try_from(kind.as_raw_value()).unwrap_or_default() }
    }

    /// Returns the exit status of the process: 130 for Ctrl-C.
    pub fn status(self) -> u8 {
        EXIT_SIGNAL.saturating_add(self.signal)
    }
}

// === impl CliError ===

impl CliError {
    /// Makes an error from its message, usually one line.
    pub fn new(text: impl Display) -> Self {
        Self(text.to_string())
    }
}

impl From<settings::Faults> for CliError {
    fn from(faults: settings::Faults) -> Self {
        Self::new(faults)
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::new(format_args!("cannot write the result: {error}"))
    }
}

// === impl Out ===

impl Out {
    /// Returns the standard output of this process.
    pub fn stdout() -> Self {
        Self::new(Box::new(io::stdout()), Painter::of(&io::stdout()))
    }

    fn new(to: Box<dyn Write>, painter: Painter) -> Self {
        Self { to: BufWriter::new(to), painter, is_closed: false }
    }

    /// Returns colours if this output is a terminal.
    pub fn painter(&self) -> Painter {
        self.painter
    }

    /// Returns whether the reader has closed the pipe, so that further results are not needed.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Writes a text and a line end.
    pub fn line(&mut self, text: impl Display) -> Result<(), CliError> {
        self.write(|to| writeln!(to, "{text}"))
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.write(|to| to.write_all(bytes))
    }

    /// Writes one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let line = serde_json::to_string(value).map_err(io::Error::from)?;
        self.line(line)
    }

    /// Flushes the buffer.
    pub fn flush(&mut self) -> Result<(), CliError> {
        self.write(Write::flush)
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> io::Result<()>,
    ) -> Result<(), CliError> {
        if self.is_closed {
            return Ok(());
        }
        match write(&mut self.to) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

// === impl Painter ===

impl Painter {
    /// No colour.
    pub const OFF: Self = Self { is_on: false };

    /// Uses colour if `stream` is a terminal that has colours, and the environment does not forbid
    /// it: `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE` and `TERM` are read as clap reads them.
    pub fn of(stream: &impl RawStream) -> Self {
        Self { is_on: AutoStream::choice(stream) != ColorChoice::Never }
    }

    /// Returns whether colour is on.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// Returns `text`, in `style` if colour is on.
    pub fn paint<T: Display>(self, style: Style, text: T) -> Painted<T> {
        Painted { text, style: if self.is_on { style.escapes() } else { anstyle::Style::new() } }
    }
}

// === impl Style ===

impl Style {
    fn escapes(self) -> anstyle::Style {
        let bold = anstyle::Style::new().bold();
        let colored = |color| bold.fg_color(Some(Color::Ansi(color)));
        match self {
            Self::Strong => bold,
            Self::Faint => anstyle::Style::new().dimmed(),
            Self::Bad => colored(AnsiColor::Red),
            Self::Doubtful => colored(AnsiColor::Yellow),
            Self::Good => colored(AnsiColor::Green),
        }
    }
}

/// A text that is printed in colour.
pub struct Painted<T> {
    text: T,
    style: anstyle::Style,
}

impl<T: Display> Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, style } = self;
        write!(f, "{style}{text}{style:#}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Accepts bytes until a test makes it fail.
    #[derive(Clone, Default)]
    struct Sink {
        taken: Arc<Mutex<Vec<u8>>>,
        fails: Option<ErrorKind>,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.fails {
                Some(kind) => Err(kind.into()),
                None => self.taken.lock().write(bytes),
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn out(fails: Option<ErrorKind>) -> (Out, Sink) {
        let sink = Sink { fails, ..Sink::default() };
        (Out::new(Box::new(sink.clone()), Painter { is_on: false }), sink)
    }

    #[test]
    fn a_result_is_a_line() {
        let (mut out, sink) = out(None);
        out.line("text").unwrap();
        out.json(&serde_json::json!({"a": "b\nc"})).unwrap();
        out.flush().unwrap();
        assert_eq!(*sink.taken.lock(), b"text\n{\"a\":\"b\\nc\"}\n");
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_is_reported() {
        let (mut out, _) = out(Some(ErrorKind::BrokenPipe));
        out.line("text").unwrap();
        assert!(!out.is_closed(), "nothing was handed on yet");
        out.flush().unwrap();
        assert!(out.is_closed());
        out.line("x".repeat(100_000)).unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let (mut out, _) = out(Some(ErrorKind::StorageFull));
        out.line("text").unwrap();
        let error = out.flush().unwrap_err();
        assert!(error.to_string().starts_with("cannot write the result: "), "{error}");
    }

    #[test]
    fn colour_is_an_escape_and_its_end_or_nothing() {
        let (on, off) = (Painter { is_on: true }, Painter { is_on: false });
        assert_eq!(on.paint(Style::Bad, "wrong").to_string(), "\u{1b}[1m\u{1b}[31mwrong\u{1b}[0m");
        assert_eq!(off.paint(Style::Bad, "wrong").to_string(), "wrong");
    }
}
