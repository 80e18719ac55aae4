//! Tests of lease, shard.

use super::*;
use std::time::Duration;

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
fn an_outcome_of_another_shard_neither_opens_nor_closes_it_and_another_probe_follows() {
    let mut breaker = Breaker::default();
    (0..1_000).for_each(|_| breaker.note_nothing(START, 0));
    assert_eq!(breaker.state(), BreakerState::Closed);
    failed(5, &mut breaker, START);
    let probed = START + WAIT_FIRST;
    assert!(breaker.admits(probed));
    breaker.note_nothing(probed, u64::MAX);
    assert_eq!(breaker.state(), BreakerState::Open);
    assert!(breaker.admits(probed + WAIT_LAST));
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

/// One pod of a hundred: 500 a second, 50 at once.
const PODS: u32 = 100;

fn at(millis: u64) -> Time {
    START + Duration::from_millis(millis)
}

/// The number of asks that are sent in a row, of 1000.
fn sent(budget: &mut Budget, purpose: Purpose, pods: u32, now: Time) -> u32 {
    let mut sent = 0;
    for _ in 0..1_000 {
        if budget.permits(purpose, pods, now) {
            budget.spend(pods, now);
            sent += 1;
        }
    }
    sent
}

#[test]
fn the_fleets_rate_is_divided_by_the_pods_and_has_a_floor() {
    let rates = [0, 1, 16, 100, 500, 501, 10_000].map(rate);
    assert_eq!(rates, [50_000, 50_000, 3_125, 500, 100, 100, 100]);
}

#[test]
fn asks_ahead_leave_half_of_the_budget_to_probes_and_probes_leave_none() {
    let mut budget = Budget::default();
    assert_eq!(sent(&mut budget, Purpose::Ahead, PODS, START), 26, "until 24 of 50 are left");
    assert_eq!(sent(&mut budget, Purpose::Ahead, PODS, START), 0);
    assert_eq!(sent(&mut budget, Purpose::Probe, PODS, START), 24);
    assert_eq!(sent(&mut budget, Purpose::Probe, PODS, START), 0);
}

#[test]
fn requests_and_returns_are_never_dropped_and_spend() {
    for purpose in [Purpose::Request, Purpose::Return] {
        let mut budget = Budget::default();
        assert_eq!(sent(&mut budget, purpose, PODS, START), 1_000);
        assert!(!budget.permits(Purpose::Probe, PODS, at(101)), "50 of debt take 100 ms");
        assert!(budget.permits(Purpose::Probe, PODS, at(103)));
        assert!(!budget.permits(Purpose::Ahead, PODS, at(149)));
        assert!(budget.permits(Purpose::Ahead, PODS, at(151)));
    }
}

#[test]
fn the_budget_accrues_with_time_up_to_a_tenth_of_a_second() {
    let mut budget = Budget::default();
    sent(&mut budget, Purpose::Probe, PODS, START);
    assert_eq!(sent(&mut budget, Purpose::Probe, PODS, at(21)), 10);
    assert_eq!(sent(&mut budget, Purpose::Probe, PODS, at(60_000)), 50);
}

#[test]
fn a_change_of_pods_holds_at_once() {
    let mut budget = Budget::default();
    assert_eq!(sent(&mut budget, Purpose::Probe, 1_000, START), 10, "the floor");
    assert_eq!(sent(&mut budget, Purpose::Probe, PODS, at(1_000)), 50);
    assert!(!budget.permits(Purpose::Probe, PODS, at(1_000)));
}

#[test]
fn time_that_runs_back_adds_nothing() {
    let mut budget = Budget::default();
    sent(&mut budget, Purpose::Probe, PODS, at(1_000));
    assert!(!budget.permits(Purpose::Probe, PODS, START));
    assert!(!budget.permits(Purpose::Probe, PODS, at(1_000)));
}

/// When a shard that owes replies has stalled.
mod silence {
    use super::*;

    const STALL_AFTER: Duration = Duration::from_millis(50);

    fn at(millis: u64) -> Time {
        Time::from_nanos((1_000 + millis) * 1_000_000)
    }

    fn sent() -> Silence {
        let mut silence = Silence::default();
        silence.sent(true, at(0));
        silence
    }

    fn stalls(silence: &mut Silence, millis: u64) -> bool {
        silence.stalls(STALL_AFTER, at(millis), || None)
    }

    #[test]
    fn a_shard_stalls_once_after_its_time_without_a_reply() {
        let mut silence = sent();
        assert!(!stalls(&mut silence, 49));
        assert!(stalls(&mut silence, 50));
        assert!(!stalls(&mut silence, 55), "it is known");
        assert_eq!(silence.due(STALL_AFTER), None);
    }

    #[test]
    fn each_reply_puts_the_stall_off_and_further_asks_do_not() {
        let mut silence = sent();
        for millis in (40..400).step_by(40) {
            silence.heard(at(millis));
            assert!(!stalls(&mut silence, millis + 39));
        }
        silence.sent(false, at(400));
        assert_eq!(silence.due(STALL_AFTER), Some(at(360 + 50)));
    }

    #[test]
    fn a_probe_after_a_stall_gets_its_own_time() {
        let mut silence = sent();
        assert!(stalls(&mut silence, 50));
        silence.sent(false, at(150));
        assert!(!stalls(&mut silence, 199));
        assert!(stalls(&mut silence, 200));
    }

    #[test]
    fn a_reply_since_an_ask_was_sent_shows_congestion_for_a_while() {
        let mut silence = sent();
        assert!(!silence.ended_since(at(0), STALL_AFTER, at(10)), "none came");
        silence.heard(at(20));
        assert!(silence.ended_since(at(0), STALL_AFTER, at(69)));
        assert!(!silence.ended_since(at(0), STALL_AFTER, at(70)), "too long ago");
        assert!(!silence.ended_since(at(30), STALL_AFTER, at(40)), "before it was sent");
    }

    #[test]
    fn a_process_that_was_held_up_reads_first() {
        let mut silence = sent();
        assert!(!stalls(&mut silence, 61));
        assert_eq!(silence.due(STALL_AFTER), Some(at(81)));
        assert!(stalls(&mut silence, 81));
        let mut silence = sent();
        assert!(stalls(&mut silence, 10_000), "too long for any hold-up");
    }

    #[test]
    fn a_server_that_owes_nothing_or_not_for_long_does_not_stall() {
        let mut silence = sent();
        let owed = |millis| move || Some(Duration::from_millis(millis));
        assert!(!silence.stalls(STALL_AFTER, at(50), owed(0)));
        assert_eq!(silence.due(STALL_AFTER), Some(at(100)));
        assert!(!silence.stalls(STALL_AFTER, at(100), owed(30)));
        assert!(silence.stalls(STALL_AFTER, at(120), owed(50)));
    }
}
