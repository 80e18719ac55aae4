//! Asks of one algorithm. Limits are so high that none is denied and windows so long that none
//! ends, so that every call does the same work.

use std::time::Duration;

use ratelease_engine::store::Ask;
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

/// Entries of each sliding log.
pub const LOG_ENTRIES: u64 = 100;

/// One algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    limit: Limit,
    /// Tokens of the lease that makes a key: so many that the key does not expire meanwhile. A key
    /// of a bucket does once the bucket is full again.
    first: u64,
}

/// Longest that a leaky bucket's slot may be waited for.
const DELAY_US: u32 = 60_000_000;

pub const KINDS: [Kind; 5] = [
    kind("fixed_window", Algorithm::FixedWindow, 900_000_000, 10),
    // A token comes back each second.
    kind("token_bucket", Algorithm::TokenBucket { burst: 10_000_000 }, 86_400, 600),
    kind("sliding_window", Algorithm::SlidingWindow, 900_000_000, 10),
    // A slot each 60 ms, the first lease's last one after 54 s.
    kind("leaky_bucket", Algorithm::LeakyBucket { max_delay_us: DELAY_US }, 1_440_000, 900),
    kind("sliding_log", Algorithm::SlidingLog, 10_000, LOG_ENTRIES),
];

const fn kind(name: &'static str, algorithm: Algorithm, limit: u32, first: u64) -> Kind {
    let limit = Limit { algorithm, ..Limit::fixed_window(limit, Unit::Day) };
    Kind { name, limit, first }
}

impl Kind {
    /// A log keeps every request.
    pub fn is_log(self) -> bool {
        self.limit.algorithm == Algorithm::SlidingLog
    }

    /// Keys whose memory is measured, where others have `keys`.
    pub fn keys(self, keys: u64) -> u64 {
        if self.is_log() { keys / 100 } else { keys }
    }

    /// Makes the key of number `n`.
    pub fn first(self, n: u64) -> Ask {
        Ask { want: self.first, ..self.ask(n) }
    }

    /// A call on the key of number `n`: a lease of one token, to change its state by little.
    pub fn ask(self, n: u64) -> Ask {
        // Keys of pods are hashes: these are spread as they are.
        let key = Key::for_test(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ttl = Duration::from_secs(2);
        Ask { want: 1, ttl, charge_denied: true, ..Ask::look(key, self.limit) }
    }
}
