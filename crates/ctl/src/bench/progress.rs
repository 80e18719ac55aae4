//! Shows the progress of a run: one line on a terminal, nothing elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ratelease_cli::out::Interrupt;

use super::client::{ConnectionState, DRAIN_MAX, Shared};
use super::schedule::RunTimes;
use crate::progress_line::{ProgressLine, bar};
use crate::signals::Signals;

/// Time between checks of whether the run is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The line is redrawn once in this many checks.
const CHECKS_PER_DRAW: u32 = 10;

/// The progress line of one run.
pub(super) struct Progress<'a> {
    shared: &'a Shared,
    span: RunTimes,
    progress_line: ProgressLine,
}

// === impl Progress ===

impl<'a> Progress<'a> {
    pub(super) fn new(shared: &'a Shared, span: RunTimes) -> Self {
        Self { shared, span, progress_line: ProgressLine::stderr() }
    }

    /// Returns once `is_over` returns true. If a signal arrives, stops the run first and returns
    /// the signal.
    pub(super) fn follow(self, signals: &Signals, is_over: impl Fn() -> bool) -> Option<Interrupt> {
        let mut interrupted = None;
        // Without a terminal there is nothing to draw before the end.
        if !self.progress_line.is_visible() {
            interrupted = signals.wait(self.span.end.since(self.shared.clock.now()));
        }
        let mut answered = 0;
        for check in 0_u32.. {
            if is_over() {
                break;
            }
            if self.progress_line.is_visible() && check.is_multiple_of(CHECKS_PER_DRAW) {
                let before = answered;
                answered = self.sum(|state| &state.answered);
                self.draw(answered, answered - before);
            }
            if interrupted.is_some() {
                self.shared.stop(self.shared.clock.now());
                thread::sleep(CHECK_INTERVAL);
            } else {
                interrupted = signals.wait(CHECK_INTERVAL);
            }
        }
        self.progress_line.clear();
        interrupted
    }

    fn sum(&self, count: impl Fn(&ConnectionState) -> &AtomicU64) -> u64 {
        self.shared.states.iter().map(|state| count(state).load(Ordering::Relaxed)).sum()
    }

    fn draw(&self, answered: u64, since: u64) {
        let now = self.shared.clock.now();
        let (done, all) = (now.since(self.span.start), self.span.end.since(self.span.start));
        let share = (done.as_secs_f64() / all.as_secs_f64()).min(1.0);
        let bar = bar(share);
        let rate = since as f64 / (CHECK_INTERVAL * CHECKS_PER_DRAW).as_secs_f64();
        let failed = match self.sum(|state| &state.failed) {
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
        self.progress_line
            .draw(&bar, &format!("{stage}, {answered} answered, {rate:.0}/s{failed}"));
    }
}
