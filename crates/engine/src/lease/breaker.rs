//! A circuit breaker for each shard: it keeps asks from a shard that fails or stalls. Pure: time
//! and random numbers are arguments.

use std::time::Duration;

use crate::rng::shortened;
use crate::time::Time;

/// Consecutive failures that open the breaker (`docs/design.md`, When Redis is away).
const IN_A_ROW_MAX: u32 = 5;

/// The breaker also opens when more than half of the asks of this span failed.
const SPAN: Duration = Duration::from_secs(10);
const SECONDS: usize = 10;
const SECOND: Duration = Duration::from_secs(SPAN.as_secs() / SECONDS as u64);

/// With fewer asks in the span than this, the share of failures is ignored.
const SPAN_ASKS_MIN: u32 = 20;

/// Waits before a probe: the first wait, which doubles with each probe that fails, and the largest.
/// Leases should resume within a second of the shard's return. The first probe may only find that
/// the shard has moved, so the largest wait leaves time to read the slot map and for another probe.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_LAST: Duration = Duration::from_millis(500);

/// A probe without an outcome after this time was never sent. This is longer than an exchange may
/// take.
const PROBE_MAX: Duration = Duration::from_secs(15);

/// Keeps asks from a shard that does not answer them.
///
/// ```text
///          5 failures in a row, more than half of 10 s, a stall
///  closed ─────────────────────────────────────────────────────▶ open ◀───────┐
///    ▲                                                            │ wait over │ fails:
///    │                    succeeds                                ▼           │ wait doubles
///    └───────────────────────────────────────────────────────── probing ──────┘
/// ```
#[derive(Debug, Clone, Default)]
pub(super) struct Breaker {
    phase: Phase,
    /// The wait before the probe after the next failure.
    wait: Duration,
    in_a_row: u32,
    recent: [Second; SECONDS],
    opened: u64,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Asks pass.
    Closed,
    /// No ask passes.
    Open,
    /// One ask is out as a probe.
    Probing,
}

#[derive(Debug, Clone, Copy, Default)]
enum Phase {
    #[default]
    Closed,
    Open {
        until: Time,
    },
    Probing {
        since: Time,
    },
}

/// The outcomes of the asks of one second.
#[derive(Debug, Clone, Copy, Default)]
struct Second {
    /// The number of the second, counted from the clock's start.
    number: u64,
    asks: u32,
    failures: u32,
}

// === impl Breaker ===

impl Breaker {
    /// Whether an ask may be sent. If the breaker is open and its wait is over, one ask may, as the
    /// probe.
    pub(super) fn admits(&mut self, now: Time) -> bool {
        match self.phase {
            Phase::Closed => true,
            Phase::Open { until } if now < until => false,
            Phase::Probing { since } if now < since + PROBE_MAX => false,
            Phase::Open { .. } | Phase::Probing { .. } => {
                self.phase = Phase::Probing { since: now };
                true
            }
        }
    }

    /// Records an ask that was answered. It closes the breaker: the shard answers.
    pub(super) fn note_success(&mut self, now: Time) {
        let second = self.second(now);
        second.asks = second.asks.saturating_add(1);
        self.in_a_row = 0;
        if self.state() != BreakerState::Closed {
            self.close();
        }
    }

    /// Records an ask that was not answered, or answered with an error.
    pub(super) fn note_failure(&mut self, now: Time, rng: u64) {
        let second = self.second(now);
        second.asks = second.asks.saturating_add(1);
        second.failures = second.failures.saturating_add(1);
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.phase {
            Phase::Closed if self.in_a_row >= IN_A_ROW_MAX || self.mostly_fails(now) => {
                self.open(now, rng);
            }
            Phase::Probing { .. } => self.open(now, rng),
            Phase::Closed | Phase::Open { .. } => {}
        }
    }

    /// Records a reply that refuses one key, independently of the others. The shard answers, which
    /// ends an outage; the reply says nothing else about the shard.
    pub(super) fn note_key_error(&mut self) {
        if self.state() != BreakerState::Closed {
            self.close();
        }
    }

    /// Opens the breaker because the asks that are out are overdue, so that no further ask joins
    /// them.
    pub(super) fn stall(&mut self, now: Time, rng: u64) {
        if self.state() != BreakerState::Open {
            self.open(now, rng);
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.phase {
            Phase::Closed => BreakerState::Closed,
            Phase::Open { .. } => BreakerState::Open,
            Phase::Probing { .. } => BreakerState::Probing,
        }
    }

    /// How often the breaker has gone from closed to open.
    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    fn close(&mut self) {
        *self = Self { opened: self.opened, ..Self::default() };
    }

    fn open(&mut self, now: Time, rng: u64) {
        self.opened += u64::from(self.state() == BreakerState::Closed);
        let wait = self.wait.clamp(WAIT_FIRST, WAIT_LAST);
        self.phase = Phase::Open { until: now + shortened(wait, rng) };
        self.wait = wait * 2;
    }

    fn mostly_fails(&self, now: Time) -> bool {
        let oldest = number(now).saturating_sub(SECONDS as u64 - 1);
        let recent = self.recent.iter().filter(|second| second.number >= oldest);
        let (asks, failures) = recent.fold((0_u32, 0_u32), |(asks, failures), second| {
            (asks.saturating_add(second.asks), failures.saturating_add(second.failures))
        });
        asks >= SPAN_ASKS_MIN && failures > asks / 2
    }

    fn second(&mut self, now: Time) -> &mut Second {
        let number = number(now);
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of SECONDS fits")]
        let second = &mut self.recent[(number % SECONDS as u64) as usize];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second
    }
}

/// Seconds since the clock's start.
fn number(now: Time) -> u64 {
    now.since(Time::default()).as_secs() / SECOND.as_secs()
}

// === impl BreakerState ===

impl BreakerState {
    /// The name in status reports.
    pub fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::Probing => "probing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(100_000_000_000);

    fn failed(times: u32, breaker: &mut Breaker, now: Time) {
        (0..times).for_each(|_| breaker.note_failure(now, u64::MAX));
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        failed(4, &mut breaker, START);
        breaker.note_success(START);
        failed(4, &mut breaker, START);
        assert!(breaker.admits(START));
        failed(1, &mut breaker, START);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        assert!(!breaker.admits(START));
    }

    #[test]
    fn more_failures_than_half_within_ten_seconds_open_it() {
        let mut breaker = Breaker::default();
        for second in 0..9 {
            let now = START + Duration::from_secs(second);
            failed(1, &mut breaker, now);
            breaker.note_success(now);
        }
        let now = START + Duration::from_secs(9);
        failed(1, &mut breaker, now);
        assert_eq!(breaker.state(), BreakerState::Closed, "10 of 19: too few asks");
        failed(1, &mut breaker, now);
        assert_eq!(breaker.state(), BreakerState::Open, "11 of 20");
    }

    #[test]
    fn failures_of_long_ago_and_few_asks_say_nothing() {
        let mut breaker = Breaker::default();
        for second in 0..100 {
            let now = START + Duration::from_secs(second * 11);
            failed(4, &mut breaker, now);
            breaker.note_success(now);
        }
        assert_eq!(breaker.opened(), 0, "5 asks in 10 s");
    }

    #[test]
    fn one_probe_goes_out_after_each_wait_and_waits_double_to_the_last() {
        let mut breaker = Breaker::default();
        let mut now = START;
        failed(5, &mut breaker, now);
        for wait in [100, 200, 400, 500, 500, 500] {
            let early = now + Duration::from_millis(wait / 2 - 1);
            assert!(!breaker.admits(early), "{wait}");
            now = now + Duration::from_millis(wait);
            assert!(breaker.admits(now), "{wait}");
            assert_eq!(breaker.state(), BreakerState::Probing);
            assert!(!breaker.admits(now), "one at a time");
            breaker.note_failure(now, u64::MAX);
        }
        now = now + WAIT_LAST;
        assert!(breaker.admits(now));
        breaker.note_success(now);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 1));
        failed(5, &mut breaker, now);
        assert!(breaker.admits(now + WAIT_FIRST), "the wait starts over");
    }

    #[test]
    fn a_probe_that_is_lost_is_followed_by_another() {
        let mut breaker = Breaker::default();
        failed(5, &mut breaker, START);
        let probed = START + WAIT_FIRST;
        assert!(breaker.admits(probed));
        assert!(!breaker.admits(probed + (PROBE_MAX - Duration::from_nanos(1))));
        assert!(breaker.admits(probed + PROBE_MAX));
    }

    #[test]
    fn a_refusal_of_one_key_neither_opens_it_nor_hides_a_failure_and_ends_an_outage() {
        let mut breaker = Breaker::default();
        (0..1_000).for_each(|_| breaker.note_key_error());
        failed(4, &mut breaker, START);
        breaker.note_key_error();
        assert_eq!(breaker.state(), BreakerState::Closed);
        failed(1, &mut breaker, START);
        assert_eq!(breaker.state(), BreakerState::Open, "five in a row, of those that count");
        assert!(breaker.admits(START + WAIT_FIRST));
        breaker.note_key_error();
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 1), "it answers");
    }

    #[test]
    fn a_stall_opens_it_and_the_late_answer_closes_it() {
        let mut breaker = Breaker::default();
        breaker.stall(START, 0);
        breaker.stall(START, 0);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        breaker.note_success(START);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
