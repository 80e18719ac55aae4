//! The algorithms that count requests: one row for each, with all that a rule may say of it. How
//! each counts is `crates/engine/src/algorithm`.

use std::fmt;
use std::time::Duration;

use crate::limit::{AMOUNT_MAX, Limit};

/// How requests are counted; `docs/rules.md` states the bound of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// `requests_per_unit` in each window; windows are aligned to the Unix epoch.
    #[default]
    FixedWindow,
    /// A bucket that refills steadily with `requests_per_unit` per window.
    TokenBucket {
        /// Capacity of the bucket, from 1; 0 if the limit, or a pod's part of it, is 0.
        burst: Burst,
    },
    /// The count of the current window plus a part of the previous window's: the part of the
    /// previous window that lies within one window's length before now.
    SlidingWindow,
    /// Stores the time of every request: exact in every window, and never leased.
    SlidingLog,
    /// One request in each slot of `window / requests_per_unit`.
    LeakyBucket {
        /// Maximum time for which an answer is delayed until its slot, in microseconds.
        max_delay_us: u32,
    },
    /// `requests_per_unit` at a time: slots that requests hold from their start to their end. It
    /// has no window.
    Concurrency,
}

/// The capacity of a bucket, up to [`AMOUNT_MAX`]. It is kept in two halves: with a whole number
/// every limit, and so every charge, would be eight bytes larger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Burst {
    high: u32,
    low: u32,
}

/// The properties of an algorithm that rules use.
struct Row {
    /// The name in rule files.
    name: &'static str,
    /// The algorithm's part of [`Limit::identity`], by which counts are named: it never changes.
    identity: u64,
    /// The most requests in a window, and why there are not more.
    requests_max: (u64, &'static str),
    /// The option of a limit that no other algorithm has.
    option: Option<&'static str>,
    /// Whether its tokens are leased to pods.
    is_leased: bool,
    /// Why its counts have no pools, if they have none.
    no_pools: Option<&'static str>,
    /// Why its limits have no window, and none of the options of one, if they have none.
    no_window: Option<&'static str>,
    /// Why its counts cannot exceed their limit, so that costs which are known afterwards cannot be
    /// counted whole, if they cannot.
    no_debt: Option<&'static str>,
    /// Returns the amount that a limit of these requests and this window allows, in words.
    words: fn(&str, &str, Limit) -> String,
}

const FIXED_WINDOW: Row = Row {
    name: "fixed_window",
    identity: 0,
    requests_max: (AMOUNT_MAX, ""),
    option: None,
    is_leased: true,
    no_pools: None,
    no_window: None,
    no_debt: None,
    words: |requests, window, limit| {
        if let Some(calendar) = limit.calendar {
            return format!("{requests} in each {}", calendar.words(limit.unit));
        }
        let one = if limit.unit_multiplier.get() == 1 { "one " } else { "" };
        format!("{requests} in each window of {one}{window}, aligned to the Unix epoch")
    },
};

const TOKEN_BUCKET: Row = Row {
    name: "token_bucket",
    identity: 1,
    option: Some("burst"),
    words: |requests, window, limit| {
        let burst = limit.capacity();
        format!("{requests} in each {window}, refilled steadily, at most {burst} at once")
    },
    ..FIXED_WINDOW
};

const SLIDING_WINDOW: Row = Row {
    name: "sliding_window",
    identity: 2,
    words: |requests, window, _| {
        format!("{requests} in any {window}, estimated from this window and the last")
    },
    ..FIXED_WINDOW
};

const SLIDING_LOG: Row = Row {
    name: "sliding_log",
    identity: 3,
    requests_max: (10_000, "which keeps the time of each; sliding_window does not"),
    is_leased: false,
    no_debt: Some("keeps the time of each request"),
    words: |requests, window, _| format!("{requests} in any {window}, exactly"),
    ..FIXED_WINDOW
};

const LEAKY_BUCKET: Row = Row {
    name: "leaky_bucket",
    identity: 4,
    requests_max: (SLOTS_MAX, "whose slots are counted in 32 bits; token_bucket takes more"),
    option: Some("max_delay"),
    no_pools: Some("is one queue and cannot be split"),
    no_debt: Some("hands out slots, which end before a request does"),
    words: |requests, window, limit| {
        let delay = limit.algorithm.max_delay();
        format!("{requests} in each {window}, evenly spaced, each held {delay:?} at most")
    },
    ..FIXED_WINDOW
};

const CONCURRENCY: Row = Row {
    name: "concurrency",
    identity: 5,
    requests_max: (SLOTS_MAX, "whose slots are counted in 32 bits"),
    no_pools: Some("lends each slot to one pod and cannot be split"),
    no_window: Some("counts the requests that are in progress and has no window"),
    words: |requests, _, _| format!("{requests} at a time"),
    ..FIXED_WINDOW
};

/// Maximum number of slots: the stores count the slots of a pod in four bytes.
const SLOTS_MAX: u64 = u32::MAX as u64;

/// The maximum of `max_delay`: callers have given up long before.
pub const MAX_DELAY_MAX: Duration = Duration::from_secs(60);

// === impl Algorithm ===

impl Algorithm {
    /// All algorithms; their amounts are not filled in.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::FixedWindow,
        Algorithm::token_bucket(0),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::LeakyBucket { max_delay_us: 0 },
        Algorithm::Concurrency,
    ];

    /// Returns a token bucket that holds `burst` tokens.
    pub const fn token_bucket(burst: u64) -> Self {
        Algorithm::TokenBucket { burst: Burst::new(burst) }
    }

    const fn row(self) -> &'static Row {
        match self {
            Algorithm::FixedWindow => &FIXED_WINDOW,
            Algorithm::TokenBucket { .. } => &TOKEN_BUCKET,
            Algorithm::SlidingWindow => &SLIDING_WINDOW,
            Algorithm::SlidingLog => &SLIDING_LOG,
            Algorithm::LeakyBucket { .. } => &LEAKY_BUCKET,
            Algorithm::Concurrency => &CONCURRENCY,
        }
    }

    /// Returns the same algorithm with another burst, if it has one.
    #[must_use]
    pub const fn with_burst(self, burst: u64) -> Self {
        match self {
            Algorithm::TokenBucket { .. } => Algorithm::token_bucket(burst),
            other => other,
        }
    }

    /// Returns the same algorithm with another maximum delay, if it has one.
    #[must_use]
    pub const fn with_max_delay_us(self, max_delay_us: u32) -> Self {
        match self {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { max_delay_us },
            other => other,
        }
    }

    /// Returns the tokens that may be spent at once; `None` if these are the requests of a window.
    #[inline]
    pub const fn burst(self) -> Option<u64> {
        match self {
            Algorithm::TokenBucket { burst } => Some(burst.get()),
            _ => None,
        }
    }

    /// Returns the maximum time that a request is held until its slot; zero if none is ever held.
    pub const fn max_delay(self) -> Duration {
        match self {
            Algorithm::LeakyBucket { max_delay_us } => Duration::from_micros(max_delay_us as u64),
            _ => Duration::ZERO,
        }
    }

    /// Returns the name in rule files.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    pub(crate) const fn identity(self) -> u64 {
        self.row().identity
    }

    /// Returns whether its tokens are leased to pods.
    pub const fn is_leased(self) -> bool {
        self.row().is_leased
    }

    /// Returns whether limits of this algorithm alone have this option.
    pub(crate) fn owns(self, option: &str) -> bool {
        self.row().option == Some(option)
    }

    /// Returns the most requests in a window, or at a time where there is no window.
    pub const fn requests_max(self) -> u64 {
        self.row().requests_max.0
    }

    /// Returns why a limit of this algorithm cannot have so many requests in a window.
    pub(crate) fn refuses_requests(self, requests: u64) -> Option<String> {
        let Row { name, requests_max: (most, why), .. } = *self.row();
        (requests > most).then(|| {
            format!(
                "'requests_per_unit' must be at most {most} with {name}, {why}; found {requests}"
            )
        })
    }

    /// Returns why a limit of this algorithm cannot have the option of another one.
    pub(crate) fn refuses_option(self, option: &str) -> Option<String> {
        let owner = Self::ALL.into_iter().find(|one| one.owns(option))?.name();
        let name = self.name();
        (name != owner).then(|| {
            format!(
                "'{option}' belongs to {owner}, and this limit is a {name}; write 'algorithm: \
                 {owner}', or remove it"
            )
        })
    }

    /// Returns why its counts have no pools, if they have none.
    pub(crate) const fn has_no_pools(self) -> Option<&'static str> {
        self.row().no_pools
    }

    /// Returns whether its limits have a window. Without one, [`Limit::unit`] means nothing.
    #[inline]
    pub const fn has_window(self) -> bool {
        self.row().no_window.is_none()
    }

    /// Returns why a limit of this algorithm cannot have an option of a window or of its leases, if
    /// it has no window.
    pub(crate) fn refuses_window(self, option: &str) -> Option<String> {
        let why = self.row().no_window?;
        Some(format!("{} {why}; remove '{option}'", self.name()))
    }

    /// Returns whether its counts can exceed their limit, so that costs which are known afterwards
    /// can be counted whole.
    #[inline]
    pub const fn takes_settlements(self) -> bool {
        self.row().no_debt.is_none()
    }

    /// Returns why a limit of this algorithm cannot have `option`, which settles costs: `hold` or
    /// `settle`.
    pub(crate) fn refuses_settlements(self, option: &str) -> Option<String> {
        let Row { name, no_debt, .. } = *self.row();
        let can = |one: &Self| one.row().no_debt.is_none() && one.has_window();
        let names: Vec<_> = Self::ALL.into_iter().filter(can).map(Self::name).collect();
        no_debt.map(|why| {
            format!(
                "'{option}' cannot be used with {name}, which {why}; remove it, or use one of {}",
                names.join(", ")
            )
        })
    }

    /// Describes a limit of this algorithm.
    pub(crate) fn words(self, limit: Limit) -> String {
        let requests = match limit.requests_per_unit {
            1 => "1 request".to_owned(),
            requests => format!("{requests} requests"),
        };
        let unit = limit.unit.name().to_ascii_lowercase();
        let window = match limit.unit_multiplier.get() {
            1 => unit,
            units => format!("{units} {unit}s"),
        };
        (self.row().words)(&requests, &window, limit)
    }
}

// === impl Burst ===

impl Burst {
    #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    const fn new(tokens: u64) -> Self {
        Self { high: (tokens >> 32) as u32, low: tokens as u32 }
    }

    /// Returns the number of tokens.
    #[inline]
    pub const fn get(self) -> u64 {
        (self.high as u64) << 32 | self.low as u64
    }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limit::Unit;

    #[test]
    fn a_limit_is_described_in_words() {
        let limit = |requests, units, algorithm| Limit {
            unit_multiplier: NonZeroU32::new(units).unwrap(),
            algorithm,
            ..Limit::fixed_window(requests, Unit::Minute)
        };
        for (limit, words) in [
            (
                limit(1, 1, Algorithm::FixedWindow),
                "1 request in each window of one minute, aligned to the Unix epoch",
            ),
            (
                limit(100, 5, Algorithm::FixedWindow),
                "100 requests in each window of 5 minutes, aligned to the Unix epoch",
            ),
            (
                limit(100, 5, Algorithm::token_bucket(20)),
                "100 requests in each 5 minutes, refilled steadily, at most 20 at once",
            ),
            (
                limit(9, 1, Algorithm::LeakyBucket { max_delay_us: 50_000 }),
                "9 requests in each minute, evenly spaced, each held 50ms at most",
            ),
            (limit(10, 5, Algorithm::Concurrency), "10 requests at a time"),
        ] {
            assert_eq!(limit.words(), words);
        }
    }

    #[test]
    fn each_algorithm_has_a_name_and_an_identity_of_its_own() {
        for (at, one) in Algorithm::ALL.into_iter().enumerate() {
            for other in &Algorithm::ALL[..at] {
                assert_ne!(one.name(), other.name());
                assert_ne!(one.identity(), other.identity());
            }
        }
    }
}
