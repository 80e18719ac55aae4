//! Slots: when the store leases a slot, the slots of all pods together are at most the limit. They
//! are the slots that pods stated or were leased, of the pods that asked within [`SILENCE`].

use std::collections::HashMap;
use std::time::Duration;

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

/// Any pod that asked within this time is still counted.
const SILENCE: Duration = Duration::from_millis(3_900);

#[derive(Debug, Default)]
pub struct Slots {
    pods: HashMap<u64, Pod>,
    excused: u64,
}

#[derive(Debug)]
struct Pod {
    /// The slots of the pod after its last ask: stated, leased, and on their way.
    held: u64,
    /// The number of its last ask.
    order: u32,
    at: Time,
    /// The slots leased by each ask, with its number.
    lent: Vec<(u32, u64)>,
}

impl Book for Slots {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, ask, grant, .. } = step;
        let Some(stated) = ask.slots else {
            return if grant.tokens == 0 { Ok(()) } else { Err("slots for no pod".into()) };
        };
        self.pods.retain(|_, pod| at.since(pod.at) < SILENCE);
        // If a pod has no slots, the store keeps nothing of it.
        let last = self.pods.get(&stated.pod).filter(|pod| pod.held > 0);
        if last.is_some_and(|pod| pod.order > stated.order) {
            // A later ask has overtaken it.
            return if grant.tokens == 0 { Ok(()) } else { Err("slots for a late ask".into()) };
        }
        let former = self.pods.remove(&stated.pod);
        let mut lent = former.map(|pod| pod.lent).unwrap_or_default();
        lent.retain(|(order, _)| *order >= stated.since);
        let on_its_way = lent.iter().map(|(_, slots)| slots).sum::<u64>();
        let held = stated.held + on_its_way.saturating_sub(stated.received) + grant.tokens;
        lent.push((stated.order, grant.tokens));
        self.pods.insert(stated.pod, Pod { held, order: stated.order, at: *at, lent });
        let held: u64 = self.pods.values().map(|pod| pod.held).sum();
        let limit = ask.limit.requests_per_unit;
        if grant.tokens > 0 && held > limit {
            return Err(format!("{held} slots lent of {limit}"));
        }
        Ok(())
    }

    fn fail_over(&mut self, _failover: &Failover) {
        // Pods state their slots within a second. Until then all slots may be leased once more.
        self.excused += self.pods.drain().map(|(_, pod)| pod.held).sum::<u64>();
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
