//! Slots in use, as the upstream sees them: from the answer to a request to its end, to the end of
//! its pod, or for as long as a request may last.

use std::collections::{BTreeMap, BTreeSet};

use ratelease_engine::time::Time;
use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use super::call::Charge;

#[derive(Default)]
pub struct Slots {
    /// The key and the number of slots of each request, and when it ends at the latest; by pod and
    /// id.
    used: BTreeMap<(u64, &'static str), (Key, u64, Time)>,
    /// Requests whose end came before their start had its answer: they have no slot.
    ended: BTreeSet<(u64, &'static str)>,
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
        self.used.retain(|_, (.., ends)| *ends > now);
        self.limits.insert(key, limit);
        if self.ended.contains(&(pod, charge.id)) {
            return Ok(());
        }
        self.used.insert((pod, charge.id), (key, charge.hits, now + terms.lasts()));
        let (used, limit) = (self.used(key), limit.requests_per_unit);
        if used > limit { Err(format!("{used} slots in use of {limit}")) } else { Ok(()) }
    }

    /// Enters the end of a request. At a pod where it has not begun, its start takes no slot later.
    pub fn end(&mut self, charge: &Charge, pod: u64) {
        if self.used.remove(&(pod, charge.id)).is_none() {
            self.ended.insert((pod, charge.id));
        }
    }

    /// Forgets the requests to `pod`, which has gone.
    pub fn forget_pod(&mut self, pod: u64) {
        self.used.retain(|(of, _), _| *of != pod);
    }

    pub fn keys(&self) -> Vec<(Key, Limit)> {
        self.limits.iter().map(|(key, limit)| (*key, *limit)).collect()
    }

    fn used(&self, key: Key) -> u64 {
        self.used.values().filter(|(of, ..)| *of == key).map(|(_, hits, _)| hits).sum()
    }
}
