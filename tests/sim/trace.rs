//! A fingerprint of all events of a run.

use std::hash::{DefaultHasher, Hash, Hasher};

use ratelease_engine::time::Time;

/// A sum over the events of a run. The order of events of one instant does not change it: the
/// limiter's hash maps have random seeds, so events of different keys come in any order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    pub sum: u64,
    pub events: u64,
}

// === impl Trace ===

impl Trace {
    pub fn note(&mut self, at: Time, event: &impl Hash) {
        // The hasher's keys are fixed, so that runs compare across processes.
        let mut hasher = DefaultHasher::new();
        at.nanos().hash(&mut hasher);
        event.hash(&mut hasher);
        self.sum = self.sum.wrapping_add(hasher.finish());
        self.events += 1;
    }
}
