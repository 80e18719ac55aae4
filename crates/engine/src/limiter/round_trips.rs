//! The round trips to the stores, for keys of which nothing has been measured yet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_rules::{STORES_MAX, StoreId};

/// The round trip that is assumed before the first measurement.
const ROUND_TRIP_FIRST_US: u64 = 1_000;

/// The round trip that was last measured for any key of each store, in microseconds. Each store has
/// its own, so that one that is slow does not make keys of another wait.
#[derive(Debug)]
pub(super) struct RoundTrips([AtomicU64; STORES_MAX + 1]);

// === impl RoundTrips ===

impl RoundTrips {
    /// The round trip of the store, in microseconds.
    pub(super) fn of(&self, store: StoreId) -> u64 {
        let measured = self.0.get(store.number());
        measured.map_or(ROUND_TRIP_FIRST_US, |measured| measured.load(Ordering::Relaxed))
    }

    pub(super) fn note(&self, store: StoreId, measured: Duration) {
        if let Some(last) = self.0.get(store.number()) {
            let micros = u64::try_from(measured.as_micros()).unwrap_or(u64::MAX);
            last.store(micros, Ordering::Relaxed);
        }
    }
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(ROUND_TRIP_FIRST_US)))
    }
}
