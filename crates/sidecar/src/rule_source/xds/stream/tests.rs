//! The waits between streams; `tests/it/xds.rs` has the streams.

use super::*;

#[test]
fn waits_double_while_no_set_arrives_and_are_shortened_at_random() {
    let retry = XdsRetry {
        connect: Duration::from_secs(3),
        first: Duration::from_secs(1),
        last: Duration::from_secs(60),
        jitter: 0.0,
    };
    let after = |useless| wait_of(&retry, true, useless).as_secs();
    assert_eq!([0, 1, 2, 3, 7, 99].map(after), [1, 1, 2, 4, 60, 60]);
    assert_eq!(wait_of(&retry, false, 99), retry.connect);
    let retry = XdsRetry { jitter: 0.5, ..retry };
    let waits: Vec<_> = (0..100).map(|_| wait_of(&retry, true, 3).as_secs_f64()).collect();
    assert!(waits.iter().all(|wait| (2.0..=4.0).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
}
