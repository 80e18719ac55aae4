//! A fingerprint of all events of a run.

use std::hash::{DefaultHasher, Hash, Hasher};

use ratelease_engine::time::Time;

/// A sum over the events of a run. Events of one instant may come in any order: those of different
/// keys do, since the limiter's hash maps have random seeds.
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
