//! Computes when requests are due, and wakes the connections then.

use std::thread;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use ratelease_engine::time::{Clock, Time};

/// Maximum number of requests per connection that are due but not sent. Further ones are given up,
/// and counted with the time that they waited.
const BACKLOG_MAX: u64 = 100_000;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Start, warm-up and end of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunTimes {
    pub(crate) start: Time,
    /// Requests that are due from here on are measured.
    pub(crate) warm: Time,
    /// No request is due from here on.
    pub(crate) end: Time,
}

/// The pace of an open loop: connections send in turn, at a total rate in requests a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rate: u32,
    pub(crate) connections: u32,
}

/// The requests of one connection, and when they are due.
#[derive(Debug)]
pub(crate) struct Schedule {
    span: RunTimes,
    /// The pace, this connection's index, and the number of its requests sent so far. `None` for a
    /// closed loop, where a request is due whenever a stream is free.
    open: Option<(Pace, u32, u64)>,
}

// === impl Pace ===

impl Pace {
    /// Returns the time from the start to request number `turn` of the connection `index`.
    fn after(self, index: u32, turn: u64) -> Duration {
        let at = u128::from(turn) * u128::from(self.connections) + u128::from(index);
        let nanos = at * NANOS_PER_SECOND / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

// === impl Schedule ===

impl Schedule {
    /// Makes the schedule of the connection `index`.
    pub(crate) fn new(span: RunTimes, pace: Option<Pace>, index: u32) -> Self {
        Self { span, open: pace.map(|pace| (pace, index, 0)) }
    }

    /// Ends the schedule: nothing is due from `end` on.
    pub(crate) fn end_at(&mut self, end: Time) {
        self.span.end = end;
    }

    /// Returns when the next request was due, if it is due at `now`.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let due = self.next(now);
        (due <= now && due < self.span.end).then_some(due)
    }

    /// Records that the next request was sent.
    pub(crate) fn advance(&mut self) {
        if let Some((_, _, sent)) = &mut self.open {
            *sent += 1;
        }
    }

    /// Gives up the next request if too many wait behind it, and returns when it was due.
    pub(crate) fn give_up(&mut self, now: Time) -> Option<Time> {
        let (pace, index, sent) = self.open?;
        let last_kept = self.span.start + pace.after(index, sent + BACKLOG_MAX);
        if last_kept > now {
            return None;
        }
        let due = self.due(now)?;
        self.advance();
        Some(due)
    }

    /// Returns whether there is nothing left to send.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        self.next(now) >= self.span.end
    }

    fn next(&self, now: Time) -> Time {
        match self.open {
            None => now.max(self.span.start),
            Some((pace, index, sent)) => self.span.start + pace.after(index, sent),
        }
    }
}

// === Pacer ===

/// Nanoseconds by which the kernel may round up a thread's sleep; the default is 50 000.
const TIMER_SLACK_NANOS: &str = "1";

/// Asks the kernel to wake this thread, and those that it starts from now on, on time. If the
/// kernel refuses, requests are sent some 50 µs late, which counts as latency.
pub(crate) fn reduce_timer_slack() {
    let _ = std::fs::write("/proc/self/timerslack_ns", TIMER_SLACK_NANOS);
}

/// Runs until the end of the run: wakes each connection in turn when its next request is due, more
/// precisely than the runtime's timer, which counts whole milliseconds.
pub(crate) fn wake_when_due(wakers: &[AtomicWaker], pace: Pace, span: RunTimes, clock: Clock) {
    for turn in 0.. {
        for (waker, index) in wakers.iter().zip(0..) {
            let due = span.start + pace.after(index, turn);
            if due >= span.end {
                return;
            }
            let ahead = due.since(clock.now());
            if !ahead.is_zero() {
                thread::sleep(ahead);
            }
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn span() -> RunTimes {
        RunTimes { start: at(1000), warm: at(1500), end: at(2000) }
    }

    #[test]
    fn a_closed_loop_sends_whenever_it_can_until_the_end() {
        let mut schedule = Schedule::new(span(), None, 0);
        assert_eq!(schedule.due(at(999)), None);
        for now in [at(1000), at(1999)] {
            assert_eq!(schedule.due(now), Some(now));
            schedule.advance();
            assert!(!schedule.is_over(now));
        }
        assert_eq!(schedule.due(at(2000)), None);
        assert!(schedule.is_over(at(2000)));
    }

    #[test]
    fn connections_of_an_open_loop_take_turns_at_even_intervals() {
        let pace = Pace { rate: 100, connections: 3 };
        let mut all = Vec::new();
        for index in 0..3 {
            let mut schedule = Schedule::new(span(), Some(pace), index);
            // Long after the end, requests that were due before it are still due.
            while let Some(due) = schedule.due(at(9000)) {
                all.push(due);
                schedule.advance();
            }
            assert!(schedule.is_over(at(1000)));
        }
        all.sort_unstable();
        assert_eq!(all, (0..100).map(|n| at(1000 + 10 * n)).collect::<Vec<_>>());
    }

    #[test]
    fn an_end_may_come_sooner() {
        for pace in [None, Some(Pace { rate: 10, connections: 1 })] {
            let mut schedule = Schedule::new(span(), pace, 0);
            assert!(!schedule.is_over(at(1000)));
            schedule.end_at(at(1000));
            assert!(schedule.is_over(at(1000)) && schedule.due(at(1900)).is_none(), "{pace:?}");
        }
    }

    #[test]
    fn a_request_is_not_due_before_its_time() {
        let mut schedule = Schedule::new(span(), Some(Pace { rate: 10, connections: 1 }), 0);
        schedule.advance();
        assert_eq!(schedule.due(at(1099)), None);
        assert_eq!(schedule.due(at(1100)), Some(at(1100)));
        assert_eq!(schedule.due(at(1350)), Some(at(1100)), "a late one keeps its time");
    }

    #[test]
    fn the_backlog_is_bounded_and_its_oldest_request_is_given_up() {
        let long = RunTimes { end: at(1_000_000), ..span() };
        let mut schedule = Schedule::new(long, Some(Pace { rate: 1000, connections: 1 }), 0);
        let now = at(1000 + BACKLOG_MAX + 2);
        assert_eq!(schedule.give_up(now), Some(at(1000)));
        assert_eq!(schedule.give_up(now), Some(at(1001)));
        assert_eq!(schedule.give_up(now), Some(at(1002)));
        assert_eq!(schedule.give_up(now), None);
        assert_eq!(schedule.due(now), Some(at(1003)));
        assert_eq!(Schedule::new(long, None, 0).give_up(now), None);
    }
}
