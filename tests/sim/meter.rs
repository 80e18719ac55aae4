//! The progress of a long simulation: one line on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// A progress line.
pub struct Meter {
    started: Instant,
    /// When it was last written.
    written: Option<Instant>,
    lasts: Option<Duration>,
    is_shown: bool,
}

/// Interval between two updates of the line.
const EVERY: Duration = Duration::from_millis(200);

// === impl Meter ===

impl Meter {
    #[allow(clippy::disallowed_methods, reason = "real time, for the person who waits")]
    pub fn start(lasts: Option<Duration>) -> Self {
        let is_shown = lasts.is_some() && stderr().is_terminal();
        Self { started: Instant::now(), written: None, lasts, is_shown }
    }

    /// Whether the time for the simulation is over.
    pub fn is_over(&mut self, done: u64, failures: usize) -> bool {
        let passed = self.started.elapsed();
        if self.is_shown && self.written.is_none_or(|at| at.elapsed() >= EVERY) {
            self.write(passed, done, failures);
        }
        self.lasts.is_some_and(|lasts| passed >= lasts)
    }

    #[allow(clippy::disallowed_methods, reason = "real time, for the person who waits")]
    fn write(&mut self, passed: Duration, done: u64, failures: usize) {
        self.written = Some(Instant::now());
        let all = self.lasts.map_or(0, |lasts| lasts.as_secs());
        let passed = passed.as_secs();
        let _ = write!(stderr(), "\r\x1b[K{passed} of {all} s, {done} seeds, {failures} failed");
    }

    /// Clears the line.
    pub fn end(self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
