//! The parts: the stream, the driver, and the oracle.

use std::num::NonZeroU32;
use std::time::Duration;

use ratelease_rules::{Algorithm, Limit, Unit};
use tokio::time::Instant;

use super::demand::{Arrival, Demand};
use super::drive::{Said, count, drive};
use super::oracle::Exact;

#[test]
fn a_stream_has_its_rate_and_its_weights_and_moves() {
    let second = Duration::from_secs(1);
    let demand = Demand { rate: 10_000.0, weights: vec![3.0, 1.0], moves_every: Some(second) };
    let mut counts = [[0_u32; 2]; 2];
    for Arrival { at, pod } in demand.arrivals(7, 2 * second) {
        counts[usize::from(at >= second)][pod] += 1;
    }
    let expected = [[7_500, 2_500], [2_500, 7_500]];
    for (count, expected) in counts.iter().flatten().zip(expected.iter().flatten()) {
        // Five standard deviations.
        assert!(count.abs_diff(*expected) < 450, "{counts:?}");
    }
}

#[test]
fn a_seed_gives_the_same_stream_again() {
    let demand = Demand { rate: 1_000.0, weights: vec![1.0; 4], moves_every: None };
    let stream = |seed| demand.arrivals(seed, Duration::from_secs(1)).collect::<Vec<_>>();
    assert_eq!(stream(1), stream(1));
    assert_ne!(stream(1), stream(2));
}

/// By a clock that goes on only when all tasks wait: no stall of the machine makes a request late.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_delays_no_other_request() {
    let at = |millis| Arrival { at: Duration::from_millis(millis), pod: usize::from(millis == 0) };
    let arrivals = [at(0), at(5), at(10), at(60)];
    let slow = |pod| async move {
        tokio::time::sleep(Duration::from_millis(if pod == 1 { 200 } else { 0 })).await;
        Said::Admitted
    };
    #[allow(clippy::disallowed_methods, reason = "the clock of the runtime, which is paused")]
    let start = Instant::now();
    let answers = drive(arrivals.into_iter(), start, Duration::from_millis(50), slow).await;
    assert_eq!(count(&answers, Said::Admitted), 3, "the last one is due after the end");
    assert!(answers[0].answered >= Duration::from_millis(200));
    assert!(answers[1].answered < answers[0].answered && answers[2].answered < answers[0].answered);
}

/// Of `requests` (time in milliseconds, and number), those that pass under a limit of 10 in 10 s.
fn passing(algorithm: Algorithm, requests: &[(u64, u32)]) -> Vec<u32> {
    let limit = Limit { algorithm, ..Limit::fixed_window(1, Unit::Second) };
    let ten = NonZeroU32::new(10).unwrap();
    let mut exact = Exact::new(Limit { requests_per_unit: 10, unit_multiplier: ten, ..limit });
    let mut at = |millis| u32::from(exact.admits(Duration::from_millis(1_000_000 + millis)));
    requests.iter().map(|(millis, count)| (0..*count).map(|_| at(*millis)).sum()).collect()
}

#[test]
fn each_algorithm_admits_what_its_definition_says() {
    let bucket = Algorithm::token_bucket(4);
    let leaky = Algorithm::LeakyBucket { max_delay_us: 2_000_000 };
    for (algorithm, requests, expected) in [
        (Algorithm::FixedWindow, &[(0, 7), (9_999, 7), (10_000, 20)][..], vec![7, 3, 10]),
        (bucket, &[(0, 9), (999, 9), (1_000, 9), (60_000, 9)][..], vec![4, 0, 1, 4]),
        (Algorithm::SlidingWindow, &[(5_000, 20), (10_000, 9), (15_000, 9)][..], vec![10, 0, 5]),
        (Algorithm::SlidingWindow, &[(5_000, 20), (20_000, 19)][..], vec![10, 10]),
        (Algorithm::SlidingLog, &[(5_000, 20), (14_999, 9), (15_000, 19)][..], vec![10, 0, 10]),
        (leaky, &[(0, 9), (1_000, 9), (10_000, 9)][..], vec![3, 1, 3]),
    ] {
        assert_eq!(passing(algorithm, requests), expected, "{algorithm:?}");
    }
}
