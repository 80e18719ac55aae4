//! Tests.

use super::*;

#[test]
fn an_outage_begins_with_its_first_fault_and_ends_in_silence() {
    let counters = Counters::default();
    let at = |seconds| Time::default() + Duration::from_secs(seconds);
    assert!(counters.note_fault(Kind::OutOfMemory, at(0)));
    assert!(counters.note_fault(Kind::Busy, at(1)), "another kind is another outage");
    assert!((1..100).all(|seconds| !counters.note_fault(Kind::OutOfMemory, at(seconds * 10))));
    assert!(counters.note_fault(Kind::OutOfMemory, at(990 + 31)));
    assert!(
        counters
            .counts()
            .contains(&(Counter::Redis(RedisCounter::Failure(Kind::OutOfMemory)), 101))
    );
}

/// When each of `count` callers that wait at once is through.
fn through(limits: (u32, Duration), count: usize) -> Vec<Time> {
    let mut turn = ConnectLimiter::new(limits).turn.into_inner();
    let mut now = Time::default() + Duration::from_secs(9);
    let pass = |_| {
        now = now + turn.wait(now);
        turn.take(now);
        now
    };
    (0..count).map(pass).collect()
}

#[test]
fn never_more_than_ten_are_let_through_again_within_a_second() {
    let through = through(AGAIN, 400);
    assert_eq!(through[4], through[0], "five at once");
    for pair in through.windows(11) {
        let within = pair[10].since(pair[0]);
        assert!(within >= Duration::from_secs(1), "eleven within {within:?}");
    }
}

#[test]
fn sixty_four_are_connected_to_at_once_and_then_a_hundred_a_second() {
    let through = through(FIRST, 2_000);
    assert_eq!(through[63], through[0], "64 at once");
    for pair in through.windows(165) {
        let within = pair[164].since(pair[0]);
        assert!(within >= Duration::from_secs(1), "165 within {within:?}");
    }
}

#[tokio::test]
async fn those_who_gave_up_waiting_have_taken_no_turn() {
    let (limiter, clock) = (ConnectLimiter::new((1, Duration::from_secs(3_600))), Clock::start());
    limiter.pass(&clock).await;
    let mut waiting: Vec<_> = (0..1_000).map(|_| Box::pin(limiter.pass(&clock))).collect();
    for pass in &mut waiting {
        assert!(futures_util::poll!(pass).is_pending());
    }
    drop(waiting);
    let wait = limiter.turn.lock().await.wait(clock.now());
    assert!(wait <= Duration::from_secs(3_600), "{wait:?}");
}

const LEAST: Duration = Duration::from_millis(250);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_fast_server_gets_the_least() {
    let timeout = AdaptiveTimeout::new(LEAST);
    assert_eq!(timeout.for_command(), LEAST);
    timeout.connected(ms(1));
    (0..100).for_each(|_| timeout.answered(ms(2)));
    assert_eq!((timeout.for_command(), timeout.for_connect()), (LEAST, LEAST));
}

#[test]
fn a_server_that_is_slow_from_the_start_is_connected_to_at_the_third_attempt() {
    let timeout = AdaptiveTimeout::new(LEAST);
    let mut dials = 0;
    while timeout.for_connect() <= ms(500) {
        timeout.note_failed_connect();
        dials += 1;
    }
    assert_eq!(dials, 2);
    timeout.connected(ms(500));
    assert_eq!(timeout.for_command(), ms(1_500));
    (0..100).for_each(|_| timeout.answered(ms(500)));
    assert!((ms(500)..ms(550)).contains(&timeout.for_command()), "{timeout:?}");
}

#[test]
fn a_silence_doubles_until_a_command_is_answered_not_just_a_handshake() {
    let timeout = AdaptiveTimeout::new(LEAST);
    timeout.connected(ms(1));
    timeout.given_up();
    timeout.connected(ms(1));
    assert_eq!(timeout.for_command(), LEAST * 2);
    timeout.given_up();
    timeout.connected(ms(1));
    assert_eq!(timeout.for_command(), LEAST * 4);
    timeout.answered(ms(1));
    assert_eq!(timeout.for_command(), LEAST);
}

#[test]
fn attempts_to_connect_in_vain_are_no_reason_to_be_patient_with_the_connection() {
    let timeout = AdaptiveTimeout::new(LEAST);
    (0..100).for_each(|_| timeout.note_failed_connect());
    assert_eq!(timeout.for_connect(), PATIENCE_MAX);
    timeout.connected(ms(1));
    assert_eq!((timeout.for_command(), timeout.for_connect()), (LEAST, LEAST));
}

#[test]
fn no_patience_is_without_end_and_none_is_below_what_was_set() {
    for (set, most) in [(1, 4_000), (250, 4_000), (5_000, 5_000), (60_000, 8_000)] {
        let timeout = AdaptiveTimeout::new(ms(set));
        assert_eq!(timeout.for_command(), ms(set).min(LEAST_MAX));
        timeout.connected(Duration::MAX / 8);
        (0..40).for_each(|_| timeout.given_up());
        assert_eq!(timeout.for_command(), ms(most), "set to {set} ms");
    }
}
