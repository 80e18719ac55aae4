//! How far a run has come: one line on a terminal, nothing elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::client::{DRAIN_MAX, Seat, Shared};
use super::schedule::Span;

/// Between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(20);

/// Looks that the line is drawn at.
const DRAWN_EACH: u32 = 10;

/// Characters of the bar.
const BAR: usize = 30;

/// The line of one run.
pub(super) struct Progress<'a> {
    shared: &'a Shared,
    span: Span,
    is_seen: bool,
}

// === impl Progress ===

impl<'a> Progress<'a> {
    pub(super) fn new(shared: &'a Shared, span: Span) -> Self {
        Self { shared, span, is_seen: io::stderr().is_terminal() }
    }

    /// Returns once `is_over` says so.
    pub(super) fn follow(self, is_over: impl Fn() -> bool) {
        // Nothing to draw and nothing to end before that.
        if !self.is_seen {
            thread::sleep(self.span.end.since(self.shared.clock.now()));
        }
        let mut answered = 0;
        for look in 0_u32.. {
            if is_over() {
                break;
            }
            if self.is_seen && look.is_multiple_of(DRAWN_EACH) {
                let before = answered;
                answered = self.sum(|seat| &seat.answered);
                self.draw(answered, answered - before);
            }
            thread::sleep(LOOK);
        }
        if self.is_seen {
            write("\r\u{1b}[K");
        }
    }

    fn sum(&self, count: impl Fn(&Seat) -> &AtomicU64) -> u64 {
        self.shared.seats.iter().map(|seat| count(seat).load(Ordering::Relaxed)).sum()
    }

    fn draw(&self, answered: u64, since: u64) {
        let now = self.shared.clock.now();
        let (done, all) = (now.since(self.span.start), self.span.end.since(self.span.start));
        let share = (done.as_secs_f64() / all.as_secs_f64()).min(1.0);
        let full = (1..=BAR).take_while(|at| *at as f64 <= share * BAR as f64).count();
        let bar = format!("{}{}", "=".repeat(full), " ".repeat(BAR - full));
        let rate = since as f64 / (LOOK * DRAWN_EACH).as_secs_f64();
        let failed = self.sum(|seat| &seat.failed);
        let stage = if now < self.span.warm {
            "warming up".to_owned()
        } else if now < self.span.end {
            format!("{:.0} s left", self.span.end.since(now).as_secs_f64())
        } else {
            format!("last answers, {DRAIN_MAX:?} at most")
        };
        write(&format!(
            "\r\u{1b}[K[{bar}] {stage}, {answered} answered, {rate:.0}/s, {failed} without verdict"
        ));
    }
}

/// What cannot be written is not missed.
fn write(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
