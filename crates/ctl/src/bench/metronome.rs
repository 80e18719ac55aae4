//! Wakes connections when a request is due, finer than the runtime's timer, which counts whole
//! milliseconds.

use std::thread;

use ratelease_engine::time::Clock;

use super::client::Seat;
use super::schedule::{Pace, Span};

/// The kernel may round a thread's sleep up by this many nanoseconds; 50 000 unless told otherwise.
const TIMER_SLACK_NANOS: &str = "1";

/// Asks the kernel to wake threads on time, this one and those that it starts from here on. It
/// need not: requests are sent some 50 µs late then, which counts as latency.
pub(super) fn sharpen() {
    let _ = std::fs::write("/proc/self/timerslack_ns", TIMER_SLACK_NANOS);
}

/// Beats until the run's end: connection after connection, each when its next request is due.
pub(super) fn beat(seats: &[Seat], pace: Pace, span: Span, clock: Clock) {
    for turn in 0.. {
        for (seat, index) in seats.iter().zip(0..) {
            let due = span.start + pace.after(index, turn);
            if due >= span.end {
                return;
            }
            let ahead = due.since(clock.now());
            if !ahead.is_zero() {
                thread::sleep(ahead);
            }
            seat.due.wake();
        }
    }
}
