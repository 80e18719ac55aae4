//! One server that sees every request the moment it arrives and has no trip to make: what a fleet
//! of pods is measured by. Slow, plain arithmetic of its own, not the product's.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease::rules::{Algorithm, Limit};

/// The exact answers under one limit, from when nothing has been charged yet.
pub struct Exact {
    limit: Limit,
    state: State,
}

/// Times are in nanoseconds since the Unix epoch.
enum State {
    /// Windows are numbered since the Unix epoch.
    Windows {
        window: u128,
        count: u64,
        previous: u64,
    },
    /// Parts of tokens: as many make a token as there are nanoseconds in a window.
    Bucket {
        parts: u128,
        at: u128,
    },
    Log(VecDeque<u128>),
    Slots {
        next: u128,
    },
}

impl Exact {
    pub fn new(limit: Limit) -> Self {
        let state = match limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                State::Windows { window: 0, count: 0, previous: 0 }
            }
            Algorithm::TokenBucket { .. } => State::Bucket { parts: u128::MAX, at: 0 },
            Algorithm::SlidingLog => State::Log(VecDeque::new()),
            Algorithm::LeakyBucket { .. } => State::Slots { next: 0 },
        };
        Self { limit, state }
    }

    /// Whether a request that arrives at `now`, since the Unix epoch, passes. Times may not go
    /// back.
    pub fn admits(&mut self, now: Duration) -> bool {
        let (now, length) = (now.as_nanos(), self.limit.window().as_nanos());
        let limit = u128::from(self.limit.requests_per_unit);
        match (&mut self.state, self.limit.algorithm) {
            (State::Windows { window, count, previous }, algorithm) => {
                let current = now / length;
                if current != *window {
                    *previous = if current == *window + 1 { *count } else { 0 };
                    (*window, *count) = (current, 0);
                }
                let rest = length - now % length;
                let weighed = match algorithm {
                    Algorithm::SlidingWindow => u128::from(*previous) * rest,
                    _ => 0,
                };
                let passes = weighed + (u128::from(*count) + 1) * length <= limit * length;
                *count += u64::from(passes);
                passes
            }
            (State::Bucket { parts, at }, Algorithm::TokenBucket { burst }) => {
                let refilled = parts.saturating_add((now - *at) * limit);
                *parts = refilled.min(u128::from(burst) * length);
                *at = now;
                let passes = *parts >= length;
                *parts -= if passes { length } else { 0 };
                passes
            }
            (State::Log(times), _) => {
                while times.front().is_some_and(|first| now - first >= length) {
                    times.pop_front();
                }
                let passes = (times.len() as u128) < limit;
                times.extend(passes.then_some(now));
                passes
            }
            (State::Slots { next }, Algorithm::LeakyBucket { max_delay_us }) => {
                let slot = now.max(*next);
                let passes = slot - now <= u128::from(max_delay_us) * 1_000;
                *next = if passes { slot + length / limit } else { *next };
                passes
            }
            _ => unreachable!("each algorithm has its state"),
        }
    }
}

/// How many of `requests` at each time, in milliseconds, pass under 10 in each 10 s.
fn passing(algorithm: Algorithm, requests: &[(u64, u32)]) -> Vec<u32> {
    let limit = Limit { algorithm, ..Limit::fixed_window(1, ratelease::rules::Unit::Second) };
    let ten = std::num::NonZeroU32::new(10).unwrap();
    let mut exact = Exact::new(Limit { requests_per_unit: 10, unit_multiplier: ten, ..limit });
    let mut at = |millis| u32::from(exact.admits(Duration::from_millis(1_000_000 + millis)));
    requests.iter().map(|(millis, count)| (0..*count).map(|_| at(*millis)).sum()).collect()
}

#[test]
fn each_algorithm_admits_what_its_definition_says() {
    let bucket = Algorithm::TokenBucket { burst: 4 };
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
