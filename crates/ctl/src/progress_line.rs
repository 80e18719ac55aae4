//! Shows the progress of long work: one line on a terminal's standard error, nothing elsewhere.

use std::io;
use std::io::{IsTerminal, Write};

use rustix::termios::tcgetwinsize;

/// Width of a bar in characters.
const BAR: usize = 30;

/// Width in cells of a terminal that does not report it.
const CELLS: usize = 80;

/// The progress line.
#[derive(Debug, Clone, Copy)]
pub struct ProgressLine {
    is_visible: bool,
}

// === impl ProgressLine ===

impl ProgressLine {
    /// Makes a progress line on standard error.
    pub fn stderr() -> Self {
        Self { is_visible: io::stderr().is_terminal() }
    }

    /// Returns whether standard error is a terminal.
    pub fn is_visible(self) -> bool {
        self.is_visible
    }

    /// Replaces the line by `bar` and `text`, whose characters must each take one cell.
    pub fn draw(self, bar: &str, text: &str) {
        if self.is_visible {
            write(&format!("\r\u{1b}[K{}", fitting(bar, text, cells())));
        }
    }

    /// Clears the line.
    pub fn clear(self) {
        self.draw("", "");
    }
}

/// Returns the width of the terminal in cells, which may have changed since the last call.
fn cells() -> usize {
    let size = tcgetwinsize(io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|cells| *cells > 0).unwrap_or(CELLS)
}

/// Cuts the line to one cell less than `cells`: a wrapped line would take two rows, of which the
/// next drawing would replace only one. Leaves out the bar if both do not fit.
fn fitting(bar: &str, text: &str, cells: usize) -> String {
    let room = cells.saturating_sub(1);
    let both = format!("{bar} {text}");
    let fits = !bar.is_empty() && both.chars().count() <= room;
    if fits { both } else { text.chars().take(room).collect() }
}

/// Ignores write errors.
fn write(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Formats a bar for a part from 0 to 1.
pub fn bar(share: f64) -> String {
    let full = (1..=BAR).take_while(|at| *at as f64 <= share * BAR as f64).count();
    format!("[{}{}]", "=".repeat(full), " ".repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share_and_never_longer() {
        for (share, full) in [(0.0, 0), (0.5, 15), (1.0, 30), (7.0, 30), (-1.0, 0), (f64::NAN, 0)] {
            assert_eq!(bar(share).matches('=').count(), full, "{share}");
            assert_eq!(bar(share).len(), BAR + 2, "{share}");
        }
    }

    #[test]
    fn a_line_stays_off_the_last_cell_of_the_terminal() {
        for (cells, shown) in [(0, ""), (1, ""), (2, "é"), (5, "éabc"), (99, "éabc")] {
            assert_eq!(fitting("", "éabc", cells), shown, "{cells}");
        }
        for (cells, shown) in [(4, "éab"), (8, "éabc"), (9, "[=] éabc")] {
            assert_eq!(fitting("[=]", "éabc", cells), shown, "{cells}");
        }
    }
}
