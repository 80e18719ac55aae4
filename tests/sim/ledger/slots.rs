//! Slots in use, as the upstream sees them: from the answer to a request to its end, to the end of
//! its pod, or for as long as a request may last.

use std::collections::BTreeMap;

use ratelease_engine::time::Time;
use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use super::call::Charge;

#[derive(Default)]
pub struct Slots {
    /// The number of slots of each request, and when it ends at the latest; by key, pod and id.
    used: BTreeMap<(Key, u64, &'static str), (u64, Time)>,
    limits: BTreeMap<Key, Limit>,
}

// === impl Slots ===

impl Slots {
    /// Enters a request that passes.
    pub fn start(&mut self, charge: &Charge, pod: u64, now: Time) -> Result<(), String> {
        let (Some((key, limit)), Some(terms)) = (charge.count, charge.hold) else { return Ok(()) };
        if charge.hits == 0 {
            return Ok(());
        }
        self.used.retain(|_, (_, ends)| *ends > now);
        self.limits.insert(key, limit);
        self.used.insert((key, pod, charge.id), (charge.hits, now + terms.lasts()));
        let (used, limit) = (self.used(key), limit.requests_per_unit);
        if used > limit { Err(format!("{used} slots in use of {limit}")) } else { Ok(()) }
    }

    /// Enters the end of a request, which does nothing at a pod where it has not begun.
    pub fn end(&mut self, charge: &Charge, pod: u64) {
        if let Some((key, _)) = charge.count {
            self.used.remove(&(key, pod, charge.id));
        }
    }

    /// Forgets the requests to `pod`, which has gone.
    pub fn forget_pod(&mut self, pod: u64) {
        self.used.retain(|(_, of, _), _| *of != pod);
    }

    pub fn keys(&self) -> Vec<(Key, Limit)> {
        self.limits.iter().map(|(key, limit)| (*key, *limit)).collect()
    }

    fn used(&self, key: Key) -> u64 {
        self.used.iter().filter(|((of, ..), _)| *of == key).map(|(_, (hits, _))| hits).sum()
    }
}
