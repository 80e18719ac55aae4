//! What a key needs to know of its pod while it is visited.

use ratelease_rules::key::Key;

use super::pod_counts::PodCounts;
use super::round_trips::RoundTrips;
use crate::lease::LeaseClient;
use crate::time::Time;
use std::time::Duration;

/// The context that a key needs from its limiter.
#[derive(Clone, Copy)]
pub(super) struct PodContext<'a> {
    pub(super) now: Time,
    pub(super) pods: &'a PodCounts,
    /// This pod's number.
    pub(super) pod: u64,
    /// The time that a request may wait for a lease, whatever its caller's deadline.
    pub(super) wait_min: Duration,
    pub(super) round_trips: &'a RoundTrips,
    pub(super) lease_client: &'a LeaseClient,
}

// === impl PodContext ===

impl PodContext<'_> {
    /// The pool of a split key that this pod asks: a different one for each pod, as far as there
    /// are enough pools.
    #[allow(clippy::cast_possible_truncation, reason = "the lowest byte is what is meant")]
    pub(super) fn first_pool(&self, key: Key) -> u8 {
        self.pod.wrapping_add(key.bits()) as u8
    }
}
