//! What all subcommands share: how they end, where results go, and colour.
//!
//! Results go to standard output, as text or, with `--json`, as one line of JSON; troubles go to
//! standard error, a line each. A reader that has closed the pipe has seen enough: what comes after
//! is dropped, and the status is what it would have been.

use std::fmt::{self, Display};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tokio::signal::unix::SignalKind;

use crate::safe::Safe;
use crate::settings;

/// How a subcommand ended that could do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Status 0: nothing to mend.
    Good,
    /// Status 1: what was asked for was found out, and it is not good.
    Finding,
    /// Stopped before its end, with what there was by then told.
    Interrupted(Interrupt),
}

/// A signal that asked the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupt {
    signal: u8,
}

/// Why a subcommand could not do its work (status 2): what is wrong with what it was told, or what
/// could not be read or written. Its text says how to mend it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(String);

/// What a subcommand returns.
pub type Ended = Result<Outcome, Trouble>;

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
    paint: Paint,
    is_closed: bool,
}

/// Colours text for a terminal; leaves it alone elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    is_on: bool,
}

/// How a text is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// A heading, or what the eye should find first.
    Strong,
    /// Beside the point.
    Faint,
    /// Wrong.
    Bad,
    /// Doubtful.
    Doubtful,
    /// As it should be.
    Good,
}

/// `status`es of the process.
const EXIT_FINDING: u8 = 1;
const EXIT_TROUBLE: u8 = 2;

/// Status of a process that a signal has ended, above the number of that: as shells have it.
const EXIT_SIGNAL: u8 = 128;

/// Writes out what is left, tells why `name` could not do its work if it could not, and gives the
/// exit status.
pub fn end(name: &str, mut out: Out, ended: Ended) -> ExitCode {
    match out.flush().and(ended) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Finding) => ExitCode::from(EXIT_FINDING),
        Ok(Outcome::Interrupted(interrupt)) => ExitCode::from(interrupt.status()),
        Err(trouble) => {
            // It may repeat what a server or a file said.
            tell(format_args!("{name}: {}", Safe(trouble)));
            ExitCode::from(EXIT_TROUBLE)
        }
    }
}

/// Writes a line to standard error. One that cannot be written is lost.
pub fn tell(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

// === impl Outcome ===

impl Outcome {
    /// Good, or else a finding.
    pub fn good_if(is_good: bool) -> Self {
        if is_good { Self::Good } else { Self::Finding }
    }
}

// === impl Interrupt ===

impl Interrupt {
    /// The signal of this kind.
    pub fn of(kind: SignalKind) -> Self {
        // There are 64.
        Self { signal: u8::try_from(kind.as_raw_value()).unwrap_or_default() }
    }

    /// The process's exit status, 130 of Ctrl-C.
    pub fn status(self) -> u8 {
        EXIT_SIGNAL.saturating_add(self.signal)
    }
}

// === impl Trouble ===

impl Trouble {
    /// A trouble, said in one line (or several, if it is several).
    pub fn new(text: impl Display) -> Self {
        Self(text.to_string())
    }
}

impl From<settings::Faults> for Trouble {
    fn from(faults: settings::Faults) -> Self {
        Self::new(faults)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::new(format_args!("cannot write the result: {error}"))
    }
}

// === impl Out ===

impl Out {
    /// The standard output of this process.
    pub fn stdout() -> Self {
        Self::new(Box::new(io::stdout()), Paint::of(&io::stdout()))
    }

    fn new(to: Box<dyn Write>, paint: Paint) -> Self {
        Self { to: BufWriter::new(to), paint, is_closed: false }
    }

    /// Colour, if this is a terminal.
    pub fn paint(&self) -> Paint {
        self.paint
    }

    /// Whether nobody reads any more, so that more results need not be made.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Writes a text and the end of its line.
    pub fn line(&mut self, text: impl Display) -> Result<(), Trouble> {
        self.write(|to| writeln!(to, "{text}"))
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        self.write(|to| to.write_all(bytes))
    }

    /// Writes one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Trouble> {
        let line = serde_json::to_string(value).map_err(io::Error::from)?;
        self.line(line)
    }

    /// Hands on what was written so far.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        self.write(Write::flush)
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> io::Result<()>,
    ) -> Result<(), Trouble> {
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

// === impl Paint ===

impl Paint {
    /// No colour.
    pub const OFF: Self = Self { is_on: false };

    /// Colour where `stream` is a terminal and `NO_COLOR` is not set (<https://no-color.org>).
    pub fn of(stream: &impl IsTerminal) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { is_on: stream.is_terminal() && !no_color }
    }

    /// Whether there is colour.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// `text`, in `ink` where there is colour.
    pub fn dye<T: Display>(self, ink: Ink, text: T) -> Dyed<T> {
        Dyed { text, code: self.is_on.then(|| ink.code()) }
    }
}

// === impl Ink ===

impl Ink {
    /// Parameters of the escape sequence "select graphic rendition" (ECMA-48 §8.3.117).
    const fn code(self) -> &'static str {
        match self {
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Bad => "1;31",
            Self::Doubtful => "1;33",
            Self::Good => "1;32",
        }
    }
}

/// A text that shows itself in colour.
pub struct Dyed<T> {
    text: T,
    code: Option<&'static str>,
}

impl<T: Display> Display for Dyed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "\u{1b}[{code}m{}\u{1b}[0m", self.text),
            None => self.text.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Takes bytes until it is told to fail.
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
        (Out::new(Box::new(sink.clone()), Paint { is_on: false }), sink)
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
    fn a_closed_pipe_is_no_trouble_and_shows() {
        let (mut out, _) = out(Some(ErrorKind::BrokenPipe));
        out.line("text").unwrap();
        assert!(!out.is_closed(), "nothing was handed on yet");
        out.flush().unwrap();
        assert!(out.is_closed());
        out.line("x".repeat(100_000)).unwrap();
    }

    #[test]
    fn a_full_disk_is_trouble() {
        let (mut out, _) = out(Some(ErrorKind::StorageFull));
        out.line("text").unwrap();
        let trouble = out.flush().unwrap_err();
        assert!(trouble.to_string().starts_with("cannot write the result: "), "{trouble}");
    }

    #[test]
    fn colour_is_an_escape_and_its_end_or_nothing() {
        let (on, off) = (Paint { is_on: true }, Paint { is_on: false });
        assert_eq!(on.dye(Ink::Bad, "wrong").to_string(), "\u{1b}[1;31mwrong\u{1b}[0m");
        assert_eq!(off.dye(Ink::Bad, "wrong").to_string(), "wrong");
    }
}
