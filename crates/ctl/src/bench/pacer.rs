//! Wakes connections when a request is due, more precisely than the runtime's timer, which counts
//! whole milliseconds.

use std::thread;

use ratelease_engine::time::Clock;

use super::client::ConnectionState;
use super::schedule::{Pace, RunTimes};

/// Nanoseconds by which the kernel may round up a thread's sleep; the default is 50 000.
const TIMER_SLACK_NANOS: &str = "1";

/// Asks the kernel to wake this thread, and those that it starts from now on, on time. If the
/// kernel refuses, requests are sent some 50 µs late, which counts as latency.
pub(super) fn reduce_timer_slack() {
    let _ = std::fs::write("/proc/self/timerslack_ns", TIMER_SLACK_NANOS);
}

/// Runs until the end of the run: wakes each connection in turn when its next request is due.
pub(super) fn wake_when_due(states: &[ConnectionState], pace: Pace, span: RunTimes, clock: Clock) {
    for turn in 0.. {
        for (state, index) in states.iter().zip(0..) {
            let due = span.start + pace.after(index, turn);
            if due >= span.end {
                return;
            }
            let ahead = due.since(clock.now());
            if !ahead.is_zero() {
                thread::sleep(ahead);
            }
            state.due.wake();
        }
    }
}
