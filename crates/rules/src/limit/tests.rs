//! Tests of the parts of a limit that pods admit by themselves.

use proptest::prelude::*;

use super::*;

/// 2^64 / golden ratio: its multiples are spread evenly over 64 bits.
const EVENLY: u64 = 0x9E37_79B9_7F4A_7C15;

fn bucket(requests: u64, burst: u64) -> Limit {
    let algorithm = Algorithm::token_bucket(burst);
    Limit { algorithm, ..Limit::fixed_window(requests, Unit::Minute) }
}

fn sums(limit: Limit, pods: u32) -> (u64, u64) {
    let parts = (0..pods).map(|pod| limit.part(pods, u64::from(pod).wrapping_mul(EVENLY)));
    parts.fold((0, 0), |(requests, burst), part| {
        (requests + part.requests_per_unit, burst + part.capacity())
    })
}

proptest! {
    #[test]
    fn a_part_is_the_quotient_rounded_up_or_down(
        requests in 0..=AMOUNT_MAX, burst in 0..=AMOUNT_MAX, pods in prop_oneof![0..9u32, any::<u32>()], rng: u64,
    ) {
        let limit = bucket(requests, burst);
        let part = limit.part(pods, rng);
        let pods = u64::from(pods.max(1));
        for (part, whole) in
            [(part.requests_per_unit, requests), (part.capacity(), burst)]
        {
            let (down, up) = (whole / pods, whole.div_ceil(pods));
            prop_assert!((down..=up).contains(&part));
        }
        let whole = Limit { requests_per_unit: requests, algorithm: limit.algorithm, ..part };
        prop_assert_eq!(whole, limit);
    }

    #[test]
    fn the_parts_of_a_fleet_add_up_to_the_limit(
        requests in 0..5_000u64, burst in 0..5_000u64, pods in 1..3_000u32,
    ) {
        let limit = bucket(requests, burst);
        let (all, bursts) = sums(limit, pods);
        // Evenly spread rng differ from the mean by less than the contribution of a few of them.
        prop_assert!(all.abs_diff(requests) <= 8, "{} of {}", all, requests);
        prop_assert!(bursts.abs_diff(burst) <= 8, "{} of {}", bursts, burst);
    }

    #[test]
    fn one_pod_or_an_unknown_number_admits_the_whole_limit(
        requests: u64, burst: u64, rng: u64, pods in 0..=1u32,
    ) {
        let limit = bucket(requests, burst);
        prop_assert_eq!(limit.part(pods, rng), limit);
    }
}

#[test]
fn the_expected_sum_is_the_limit_also_with_fewer_tokens_than_pods() {
    let hash = |pod: u64, window: u64| {
        // splitmix64, which is as good as a hash of pod and window.
        let mut z = (pod << 32 ^ window).wrapping_add(1).wrapping_mul(EVENLY);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    for (requests, pods) in [(20, 1_000), (1, 7), (999, 1_000), (1_000, 400), (1_500, 1_000)] {
        let limit = Limit::fixed_window(requests, Unit::Minute);
        let windows = 400;
        let admitted: u64 = (0..windows)
            .flat_map(|window| (0..u64::from(pods)).map(move |pod| hash(pod, window)))
            .map(|rng| limit.part(pods, rng).requests_per_unit)
            .sum();
        let mean = admitted as f64 / windows as f64;
        // Five standard deviations of the mean, at most √(limit / windows) each.
        let slack = 5.0 * (requests as f64).sqrt() / (windows as f64).sqrt();
        assert!((mean - (requests as f64)).abs() <= slack, "{mean} of {requests} by {pods}");
    }
}

#[test]
fn the_highest_random_number_rounds_down_and_the_lowest_up() {
    let limit = bucket(20, 1_999);
    assert_eq!(limit.part(1_000, 0), bucket(1, 2));
    assert_eq!(limit.part(1_000, u64::MAX), bucket(0, 1));
    let half = 1 << 63;
    assert_eq!(bucket(1, 1).part(2, half - 1), bucket(1, 1));
    assert_eq!(bucket(1, 1).part(2, half), bucket(0, 0));
}
