//! Asks of one algorithm. Limits are too high for a denial and windows too long to end, so that
//! every call does the same work.

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
    /// Tokens of the lease that creates a key: enough that the key does not expire during the
    /// bench. The key of a bucket expires once the bucket is full again.
    first: u64,
}

/// Maximum delay of a leaky bucket's slot.
const DELAY_US: u32 = 60_000_000;

pub const KINDS: [Kind; 5] = [
    kind("fixed_window", Algorithm::FixedWindow, 900_000_000, 10),
    // One token is earned each second.
    kind("token_bucket", Algorithm::token_bucket(10_000_000), 86_400, 600),
    kind("sliding_window", Algorithm::SlidingWindow, 900_000_000, 10),
    // One slot each 60 ms; the last slot of the first lease is after 54 s.
    kind("leaky_bucket", Algorithm::LeakyBucket { max_delay_us: DELAY_US }, 1_440_000, 900),
    kind("sliding_log", Algorithm::SlidingLog, 10_000, LOG_ENTRIES),
];

const fn kind(name: &'static str, algorithm: Algorithm, limit: u64, first: u64) -> Kind {
    let limit = Limit { algorithm, ..Limit::fixed_window(limit, Unit::Day) };
    Kind { name, limit, first }
}

impl Kind {
    /// Whether the algorithm is a log, which stores every request.
    pub fn is_log(self) -> bool {
        self.limit.algorithm == Algorithm::SlidingLog
    }

    /// Number of keys whose memory is measured; `keys` for all algorithms but the log.
    pub fn keys(self, keys: u64) -> u64 {
        if self.is_log() { keys / 100 } else { keys }
    }

    /// The ask that creates the key with number `n`.
    pub fn first(self, n: u64) -> Ask {
        Ask { want: self.first, ..self.ask(n) }
    }

    /// A call on the key with number `n`: a lease of one token, which changes its state little.
    pub fn ask(self, n: u64) -> Ask {
        // Keys of pods are hashes: these are spread in the same way.
        let key = Key::for_test(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ttl = Duration::from_secs(2);
        Ask { want: 1, ttl, charge_denied: true, ..Ask::look(key, self.limit) }
    }
}
