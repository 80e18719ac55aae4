//! A bound on the log lines that clients cause: a stranger may connect as often as it likes.

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::warn;

/// Maximum number of lines a second.
const LINES_MAX: u32 = 20;

/// Counts the lines of each second.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    second: i64,
    lines: u32,
    suppressed: u64,
}

// === impl LogLimit ===

impl LogLimit {
    /// Whether a line may be logged. The first line of a second is preceded by the number of those
    /// that were suppressed before.
    pub(crate) fn admits(&self) -> bool {
        let mut state = self.0.lock();
        let suppressed = state.turn(Timestamp::now().as_second());
        let admits = state.admits();
        drop(state);
        if suppressed > 0 {
            warn!(lines = suppressed, "repeated lines were suppressed");
        }
        admits
    }
}

// === impl Second ===

impl Second {
    /// Begins another second. Returns the number of lines that were suppressed.
    fn turn(&mut self, second: i64) -> u64 {
        if self.second == second {
            return 0;
        }
        (self.second, self.lines) = (second, 0);
        std::mem::take(&mut self.suppressed)
    }

    fn admits(&mut self) -> bool {
        let admits = self.lines < LINES_MAX;
        if admits {
            self.lines += 1;
        } else {
            self.suppressed += 1;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_bound_are_counted() {
        let mut state = Second::default();
        assert_eq!(state.turn(1), 0);
        assert_eq!((0..LINES_MAX + 7).filter(|_| state.admits()).count(), 20);
        assert_eq!((state.turn(1), state.turn(2), state.turn(3)), (0, 7, 0));
        assert!(state.admits());
    }
}
