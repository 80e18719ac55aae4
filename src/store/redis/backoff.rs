//! Waits between attempts, and what is said of an outage: one line when it begins, one when it
//! ends.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Waits that double from one failure to the next, each cut by a random part so that the pods of a
/// fleet do not knock in step.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

/// Whether a part of the store is in an outage, so that only its two ends are logged.
#[derive(Debug, Default)]
pub(super) struct Outage {
    begun: bool,
}

// === impl Backoff ===

impl Backoff {
    pub(super) const fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// The wait after one more failure: between half and all of the nominal one.
    pub(super) fn next(&mut self) -> Duration {
        let nominal = self.next;
        self.next = (nominal * 2).min(self.last);
        jittered(nominal)
    }

    /// Begins anew after a success.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Between half of `nominal` and all of it.
pub(super) fn jittered(nominal: Duration) -> Duration {
    // Fresh keys for every `RandomState` make its hash of nothing a random number.
    let random = RandomState::new().hash_one(());
    // 32 bits in 32: a fraction below one, exact in a double.
    let fraction = f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX);
    nominal.mul_f64(0.5 + fraction / 2.0)
}

// === impl Outage ===

impl Outage {
    /// Whether this failure is the first of an outage.
    pub(super) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    /// Whether this success ends an outage.
    pub(super) fn ends(&mut self) -> bool {
        std::mem::replace(&mut self.begun, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last_within_half_of_their_nominal() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        for nominal in [100, 200, 400, 800, 1600, 2000, 2000] {
            let wait = backoff.next();
            let nominal = Duration::from_millis(nominal);
            assert!(wait >= nominal / 2 && wait <= nominal, "{wait:?} of {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }

    #[test]
    fn waits_differ() {
        let waits: std::collections::BTreeSet<_> =
            (0..20).map(|_| jittered(Duration::from_secs(1))).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }

    #[test]
    fn an_outage_has_one_beginning_and_one_end() {
        let mut outage = Outage::default();
        assert!(!outage.ends());
        assert!(outage.begins());
        assert!(!outage.begins());
        assert!(outage.ends());
        assert!(!outage.ends());
    }
}
