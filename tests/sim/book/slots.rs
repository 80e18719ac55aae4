//! Slots: those of the pods that asked within [`SILENCE`], which they stated or were lent, are
//! never more than the limit when the store lends any.

use std::collections::HashMap;
use std::time::Duration;

use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

/// Any pod that asked within this time is still counted.
const SILENCE: Duration = Duration::from_millis(3_900);

#[derive(Debug, Default)]
pub struct Slots {
    /// What each pod had after its last ask, and when that was.
    pods: HashMap<u64, (u64, Time)>,
    excused: u64,
}

impl Book for Slots {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, ask, grant, .. } = step;
        let Some(stated) = ask.slots else {
            return if grant.tokens == 0 { Ok(()) } else { Err("slots for no pod".into()) };
        };
        self.pods.insert(stated.pod, (stated.held + grant.tokens, *at));
        self.pods.retain(|_, (_, seen)| at.since(*seen) < SILENCE);
        let held: u64 = self.pods.values().map(|(held, _)| held).sum();
        let limit = ask.limit.requests_per_unit;
        if grant.tokens > 0 && held > limit {
            return Err(format!("{held} slots lent of {limit}"));
        }
        Ok(())
    }

    fn fail_over(&mut self, _failover: &Failover) {
        // Pods state what they have within a second; until then all of it may be lent once more.
        self.excused += self.pods.drain().map(|(_, (held, _))| held).sum::<u64>();
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}
