//! A breaker for each shard: it keeps asks from a shard that errs or stalls. Pure: time and dice
//! come in as arguments.

use std::time::Duration;

use crate::dice::shortened;
use crate::time::Time;

/// Failures in a row that open it (`docs/architecture.md`, When Redis is away).
const IN_A_ROW_MAX: u32 = 5;

/// It also opens when more than half of the asks of this span failed.
const SPAN: Duration = Duration::from_secs(10);
const PARTS: usize = 10;
const PART: Duration = Duration::from_secs(SPAN.as_secs() / PARTS as u64);

/// Of fewer asks, half says nothing.
const SPAN_ASKS_MIN: u32 = 20;

/// Waits before a probe: the first, doubled by each that fails, and the last. Leases are to resume
/// within a second of the shard's return. The first probe may only find that it has moved: the last
/// wait leaves time for the map to be read and for another.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_LAST: Duration = Duration::from_millis(500);

/// A probe that nothing was heard of for so long never went out. Above what an exchange may take.
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
    state: State,
    /// Before the probe after the next failure.
    wait: Duration,
    in_a_row: u32,
    recent: [Part; PARTS],
    opened: u64,
}

/// How a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Asks pass.
    Closed,
    /// None does.
    Open,
    /// One is on its way to find out.
    Probing,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Closed,
    Open {
        until: Time,
    },
    Probing {
        since: Time,
    },
}

/// What came of the asks of one second.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    /// Which second, counted from the clock's start.
    number: u64,
    asks: u32,
    failures: u32,
}

// === impl Breaker ===

impl Breaker {
    /// Whether an ask may go out. Where it is open and its wait is over, one may, as the probe.
    pub(super) fn admits(&mut self, now: Time) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } if now < until => false,
            State::Probing { since } if now < since + PROBE_MAX => false,
            State::Open { .. } | State::Probing { .. } => {
                self.state = State::Probing { since: now };
                true
            }
        }
    }

    /// Takes note of an answer to an ask. Any good one closes it: the shard answers.
    pub(super) fn note(&mut self, good: bool, now: Time, dice: u64) {
        let part = self.part(now);
        part.asks = part.asks.saturating_add(1);
        part.failures = part.failures.saturating_add(u32::from(!good));
        if good {
            self.in_a_row = 0;
            if self.position() != Position::Closed {
                self.close();
            }
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.state {
            State::Closed if self.in_a_row >= IN_A_ROW_MAX || self.mostly_fails(now) => {
                self.open(now, dice);
            }
            State::Probing { .. } => self.open(now, dice),
            State::Closed | State::Open { .. } => {}
        }
    }

    /// Takes note of an answer that refuses one key, whatever the others may have: the shard
    /// answers, which ends an outage, and no more is to be learnt from it.
    pub(super) fn note_of_key(&mut self) {
        if self.position() != Position::Closed {
            self.close();
        }
    }

    /// The asks that are out are overdue: none joins them.
    pub(super) fn stall(&mut self, now: Time, dice: u64) {
        if self.position() != Position::Open {
            self.open(now, dice);
        }
    }

    pub(super) fn position(&self) -> Position {
        match self.state {
            State::Closed => Position::Closed,
            State::Open { .. } => Position::Open,
            State::Probing { .. } => Position::Probing,
        }
    }

    /// How often it has opened, from closed.
    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    fn close(&mut self) {
        *self = Self { opened: self.opened, ..Self::default() };
    }

    fn open(&mut self, now: Time, dice: u64) {
        self.opened += u64::from(self.position() == Position::Closed);
        let wait = self.wait.clamp(WAIT_FIRST, WAIT_LAST);
        self.state = State::Open { until: now + shortened(wait, dice) };
        self.wait = wait * 2;
    }

    fn mostly_fails(&self, now: Time) -> bool {
        let oldest = number(now).saturating_sub(PARTS as u64 - 1);
        let recent = self.recent.iter().filter(|part| part.number >= oldest);
        let (asks, failures) = recent.fold((0_u32, 0_u32), |(asks, failures), part| {
            (asks.saturating_add(part.asks), failures.saturating_add(part.failures))
        });
        asks >= SPAN_ASKS_MIN && failures > asks / 2
    }

    fn part(&mut self, now: Time) -> &mut Part {
        let number = number(now);
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of PARTS fits")]
        let part = &mut self.recent[(number % PARTS as u64) as usize];
        if part.number != number {
            *part = Part { number, ..Part::default() };
        }
        part
    }
}

/// Seconds since the clock's start.
fn number(now: Time) -> u64 {
    now.since(Time::default()).as_secs() / PART.as_secs()
}

// === impl Position ===

impl Position {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Position::Closed => "closed",
            Position::Open => "open",
            Position::Probing => "probing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(100_000_000_000);

    fn failed(times: u32, breaker: &mut Breaker, now: Time) {
        (0..times).for_each(|_| breaker.note(false, now, u64::MAX));
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        failed(4, &mut breaker, START);
        breaker.note(true, START, 0);
        failed(4, &mut breaker, START);
        assert!(breaker.admits(START));
        failed(1, &mut breaker, START);
        assert_eq!((breaker.position(), breaker.opened()), (Position::Open, 1));
        assert!(!breaker.admits(START));
    }

    #[test]
    fn more_failures_than_half_within_ten_seconds_open_it() {
        let mut breaker = Breaker::default();
        for second in 0..9 {
            let now = START + Duration::from_secs(second);
            failed(1, &mut breaker, now);
            breaker.note(true, now, 0);
        }
        let now = START + Duration::from_secs(9);
        failed(1, &mut breaker, now);
        assert_eq!(breaker.position(), Position::Closed, "10 of 19: too few asks");
        failed(1, &mut breaker, now);
        assert_eq!(breaker.position(), Position::Open, "11 of 20");
    }

    #[test]
    fn failures_of_long_ago_and_few_asks_say_nothing() {
        let mut breaker = Breaker::default();
        for second in 0..100 {
            let now = START + Duration::from_secs(second * 11);
            failed(4, &mut breaker, now);
            breaker.note(true, now, 0);
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
            assert_eq!(breaker.position(), Position::Probing);
            assert!(!breaker.admits(now), "one at a time");
            breaker.note(false, now, u64::MAX);
        }
        now = now + WAIT_LAST;
        assert!(breaker.admits(now));
        breaker.note(true, now, 0);
        assert_eq!((breaker.position(), breaker.opened()), (Position::Closed, 1));
        failed(5, &mut breaker, now);
        assert!(breaker.admits(now + WAIT_FIRST), "the wait begins anew");
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
        (0..1_000).for_each(|_| breaker.note_of_key());
        failed(4, &mut breaker, START);
        breaker.note_of_key();
        assert_eq!(breaker.position(), Position::Closed);
        failed(1, &mut breaker, START);
        assert_eq!(breaker.position(), Position::Open, "five in a row, of those that count");
        assert!(breaker.admits(START + WAIT_FIRST));
        breaker.note_of_key();
        assert_eq!((breaker.position(), breaker.opened()), (Position::Closed, 1), "it answers");
    }

    #[test]
    fn a_stall_opens_it_and_the_late_answer_closes_it() {
        let mut breaker = Breaker::default();
        breaker.stall(START, 0);
        breaker.stall(START, 0);
        assert_eq!((breaker.position(), breaker.opened()), (Position::Open, 1));
        breaker.note(true, START, 0);
        assert_eq!(breaker.position(), Position::Closed);
    }
}
