//! Tests.

use super::*;

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

#[test]
fn a_refused_login_repeats_no_password() {
    let refused = |kind, text: &str| {
        let fault = refusal(Fault::new(kind, text), "sesame");
        assert!(!fault.text.contains("sesame"), "{}", fault.text);
        (fault.kind, fault.text)
    };
    let text = "ERR unknown command `AUTH`, with args beginning with: `sesame`, ";
    assert_eq!(
        refused(Kind::Refused, text),
        (Kind::Denied, "ERR unknown command `AUTH`".to_owned())
    );
    let text = "ERR bad word 'sesame'";
    assert_eq!(refused(Kind::Refused, text), (Kind::Refused, "the login was refused".into()));
    let text = "WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(refused(Kind::Denied, text), (Kind::Denied, text.to_owned()));
    let text = "ERR max number of clients reached";
    assert_eq!(refused(Kind::Refused, text), (Kind::Refused, text.to_owned()));
}
