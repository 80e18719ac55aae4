//! Waits between attempts that are repeated until they succeed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::rng::shortened;

/// Waits that double from one failure to the next. Each is shortened by a random part, so that the
/// pods of a fleet do not retry in step.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Waits from `first`, doubling up to `last`.
    pub const fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// The wait after one more failure: between half and all of the nominal wait.
    pub fn next_wait(&mut self) -> Duration {
        let nominal = self.next;
        self.next = (nominal * 2).min(self.last);
        jittered(nominal)
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random duration between half of `nominal` and all of it.
pub fn jittered(nominal: Duration) -> Duration {
    // Each `RandomState` has fresh keys, so its hash of an empty input is a random number.
    let random = RandomState::new().hash_one(());
    shortened(nominal, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last_within_half_of_their_nominal() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        for nominal in [100, 200, 400, 800, 1600, 2000, 2000] {
            let wait = backoff.next_wait();
            let nominal = Duration::from_millis(nominal);
            assert!(wait >= nominal / 2 && wait <= nominal, "{wait:?} of {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(100));
    }

    #[test]
    fn waits_differ() {
        let waits: std::collections::BTreeSet<_> =
            (0..20).map(|_| jittered(Duration::from_secs(1))).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }
}
