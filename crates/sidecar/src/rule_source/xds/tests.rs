//! The waits between streams; `tests/it/xds.rs` has the streams.

use super::*;

#[test]
fn waits_double_while_no_set_arrives_and_are_shortened_at_random() {
    let second = Duration::from_secs(1);
    let retry = XdsRetry { connect: 3 * second, first: second, last: 60 * second, jitter: 0.5 };
    let after = |useless| wait_after_stream(&retry, useless).as_secs();
    assert_eq!([0, 1, 2, 3, 7, 99].map(after), [1, 1, 2, 4, 60, 60]);
    let waits: Vec<_> = (0..100).map(|_| jittered(4 * second, 0.5).as_secs_f64()).collect();
    assert!(waits.iter().all(|wait| (2.0..=4.0).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    assert_eq!(jittered(second, 0.0), second);
}
