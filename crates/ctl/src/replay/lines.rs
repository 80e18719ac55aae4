//! Reads the lines of several files, one file after another, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;

use ratelease_cli::source::STDIN;
use ratelease_replay::LINE_BYTES_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::signals::Signals;

/// Bytes per read.
const BUFFER_BYTES: usize = 1 << 18;

/// Maximum delay of a signal while a file has nothing to read yet.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Reads one file line by line. A signal ends the file.
pub(crate) struct Lines<'s> {
    reader: Box<dyn BufRead + 's>,
    signals: Option<&'s Signals>,
    line: Vec<u8>,
    /// Bytes read so far.
    bytes: u64,
}

/// The result of a read.
pub(crate) enum Next<'a> {
    /// A line, without its line end.
    Line(std::borrow::Cow<'a, str>),
    /// A line of more than [`LINE_BYTES_MAX`].
    TooLong,
}

/// A file that ends at a signal, because it may be a pipe that is never closed.
struct Heeding<'s> {
    file: File,
    signals: &'s Signals,
}

// === impl Heeding ===

impl Read for Heeding<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.signals.first().is_none() {
            let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ready, Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.file.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(0)
    }
}

// === impl Lines ===

impl<'s> Lines<'s> {
    /// Opens a file, or standard input if `name` is `-`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(name: &str, signals: &'s Signals) -> io::Result<Self> {
        let file = match name {
            STDIN => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            name => File::open(name)?,
        };
        let reader = BufReader::with_capacity(BUFFER_BYTES, Heeding { file, signals });
        let reader = Box::new(reader);
        Ok(Self { reader, signals: Some(signals), line: Vec::new(), bytes: 0 })
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next line; `None` at the end. Invalid UTF-8 is replaced.
    pub(crate) fn next(&mut self) -> io::Result<Option<Next<'_>>> {
        self.line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = self.reader.by_ref().take(most).read_until(b'\n', &mut self.line)?;
        self.bytes += read as u64;
        // A line that was cut off by a signal does not count.
        let is_cut = || self.signals.is_some_and(|signals| signals.first().is_some());
        if read == 0 || (self.line.last() != Some(&b'\n') && is_cut()) {
            return Ok(None);
        }
        if self.line.len() > LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
            self.skip_line()?;
            return Ok(Some(Next::TooLong));
        }
        while self.line.pop_if(|end| matches!(end, b'\n' | b'\r')).is_some() {}
        Ok(Some(Next::Line(String::from_utf8_lossy(&self.line))))
    }

    fn skip_line(&mut self) -> io::Result<()> {
        self.bytes += self.reader.skip_until(b'\n')? as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Option<String>> {
        let reader = Box::new(io::Cursor::new(text.to_vec()));
        let mut lines = Lines { reader, signals: None, line: Vec::new(), bytes: 0 };
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                Next::Line(text) => Some(text.into_owned()),
                Next::TooLong => None,
            });
        }
        assert_eq!(lines.bytes(), text.len() as u64);
        all
    }

    #[test]
    fn lines_end_with_a_line_feed_or_the_file() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(lines(b"a\r\n\nb"), [text("a"), text(""), text("b")]);
        assert_eq!(lines(b"\xff\n"), [text("\u{fffd}")]);
        assert!(lines(b"").is_empty());
    }

    #[test]
    fn a_line_too_long_is_skipped_whole() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX];
        text.extend(b"\nshort\n");
        assert_eq!(lines(&text), [None, Some("short".to_owned())]);
        let mut fits = vec![b'x'; LINE_BYTES_MAX];
        fits.extend(b"\ny");
        assert_eq!(lines(&fits).len(), 2);
        assert!(lines(&fits)[0].is_some());
    }
}
