//! How far long work has come: one line on a terminal's standard error, nothing elsewhere.

use std::io::{self, IsTerminal, Write};

/// Characters of a bar.
const BAR: usize = 30;

/// The line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    is_seen: bool,
}

// === impl Meter ===

impl Meter {
    /// On standard error.
    pub(super) fn stderr() -> Self {
        Self { is_seen: io::stderr().is_terminal() }
    }

    /// Whether anybody sees it.
    pub(super) fn is_seen(self) -> bool {
        self.is_seen
    }

    /// Puts `text` in place of what the line said.
    pub(super) fn draw(self, text: &str) {
        if self.is_seen {
            write(&format!("\r\u{1b}[K{text}"));
        }
    }

    /// Leaves the line empty.
    pub(super) fn clear(self) {
        self.draw("");
    }
}

/// What cannot be written is not missed.
fn write(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// A bar for a share from 0 to 1.
pub(super) fn bar(share: f64) -> String {
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
}
