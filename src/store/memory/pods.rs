//! The pods that beat on the embedded store.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::{Beat, PODS_MAX};

/// Pods alive, by the store's time that each lapses at.
#[derive(Debug, Default)]
pub(super) struct Pods {
    lapse: BTreeMap<u64, Duration>,
}

// === impl Pods ===

impl Pods {
    /// Notes `beat` at the store's time `now`, and tells how many pods are alive.
    pub(super) fn beat(&mut self, beat: Beat, now: Duration) -> u32 {
        self.lapse.retain(|_, lapses_at| *lapses_at > now);
        if beat.leaves {
            self.lapse.remove(&beat.pod);
        } else if self.lapse.len() < PODS_MAX || self.lapse.contains_key(&beat.pod) {
            self.lapse.insert(beat.pod, now.saturating_add(beat.lasts));
        }
        u32::try_from(self.lapse.len()).unwrap_or(u32::MAX)
    }
}
