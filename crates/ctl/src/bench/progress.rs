//! Shows the progress of a run: one line on a terminal, nothing elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ratelease_cli::out::Interrupt;

use super::client::{DRAIN_MAX, Seat, Shared};
use super::schedule::Span;
use crate::progress_line::{Meter, bar};
use crate::signals::Signals;

/// Time between checks of whether the run is over.
const LOOK: Duration = Duration::from_millis(20);

/// The line is redrawn once in this many checks.
const DRAWN_EACH: u32 = 10;

/// The progress line of one run.
pub(super) struct Progress<'a> {
    shared: &'a Shared,
    span: Span,
    meter: Meter,
}

// === impl Progress ===

impl<'a> Progress<'a> {
    pub(super) fn new(shared: &'a Shared, span: Span) -> Self {
        Self { shared, span, meter: Meter::stderr() }
    }

    /// Returns once `is_over` returns true. If a signal arrives, stops the run first and returns
    /// the signal.
    pub(super) fn follow(self, signals: &Signals, is_over: impl Fn() -> bool) -> Option<Interrupt> {
        let mut interrupted = None;
        // Without a terminal there is nothing to draw before the end.
        if !self.meter.is_seen() {
            interrupted = signals.wait(self.span.end.since(self.shared.clock.now()));
        }
        let mut answered = 0;
        for look in 0_u32.. {
            if is_over() {
                break;
            }
            if self.meter.is_seen() && look.is_multiple_of(DRAWN_EACH) {
                let before = answered;
                answered = self.sum(|seat| &seat.answered);
                self.draw(answered, answered - before);
            }
            if interrupted.is_some() {
                self.shared.stop(self.shared.clock.now());
                thread::sleep(LOOK);
            } else {
                interrupted = signals.wait(LOOK);
            }
        }
        self.meter.clear();
        interrupted
    }

    fn sum(&self, count: impl Fn(&Seat) -> &AtomicU64) -> u64 {
        self.shared.seats.iter().map(|seat| count(seat).load(Ordering::Relaxed)).sum()
    }

    fn draw(&self, answered: u64, since: u64) {
        let now = self.shared.clock.now();
        let (done, all) = (now.since(self.span.start), self.span.end.since(self.span.start));
        let share = (done.as_secs_f64() / all.as_secs_f64()).min(1.0);
        let bar = bar(share);
        let rate = since as f64 / (LOOK * DRAWN_EACH).as_secs_f64();
        let failed = match self.sum(|seat| &seat.failed) {
            0 => String::new(),
            failed => format!(", {failed} without verdict"),
        };
        let stage = if now < self.span.warm {
            "warming up".to_owned()
        } else if now < self.shared.end(self.span.end) {
            format!("{:.0} s left", self.span.end.since(now).as_secs_f64())
        } else {
            format!("last answers, {DRAIN_MAX:?} at most")
        };
        self.meter.draw(&bar, &format!("{stage}, {answered} answered, {rate:.0}/s{failed}"));
    }
}
