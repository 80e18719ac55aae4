//! One server that receives every request the moment it arrives, without a round trip: a fleet of
//! pods is compared with it. Slow, plain arithmetic, independent of the product's.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease_rules::{Algorithm, Limit};

/// The exact answers under one limit, starting without charges.
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
    /// Fractions of tokens: one token has as many as there are nanoseconds in a window.
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
        let state = match limit.algorithm.name() {
            "fixed_window" | "sliding_window" => {
                State::Windows { window: 0, count: 0, previous: 0 }
            }
            "token_bucket" => State::Bucket { parts: u128::MAX, at: 0 },
            "sliding_log" => State::Log(VecDeque::new()),
            "leaky_bucket" => State::Slots { next: 0 },
            other => panic!("no exact answers by {other}"),
        };
        Self { limit, state }
    }

    /// Whether a request that arrives at `now`, since the Unix epoch, passes. Times must not
    /// decrease.
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
                *parts = refilled.min(u128::from(burst.get()) * length);
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
