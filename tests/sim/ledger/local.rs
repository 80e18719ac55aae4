//! Local admissions of pods, with `failure_mode: local`, checked against their parts of the limit.

use std::collections::HashMap;
use std::time::Duration;

use ratelease_engine::algorithm::{Token, counting};
use ratelease_engine::time::Time;
use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use crate::world::World;

/// Hits that each pod admitted locally, and the largest part that it may have assumed.
#[derive(Debug, Default)]
pub struct Locals(HashMap<Window, (u64, u64)>);

/// A fixed window of one pod and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    pod: u64,
    key: Key,
    number: u64,
    limit: Limit,
}

/// Number of a pod's windows that may lie in one of the master's, because they lag behind by the
/// way out.
const PARTS: u64 = 2;

/// This number where clocks differ: a pod learns its current window from a later reply.
const PARTS_OF_STRANGE_CLOCKS: u64 = 4;

/// Maximum age of a number of pods that a pod may still use.
const HEARD: Duration = Duration::from_secs(1);

// === impl Window ===

impl Window {
    /// `None` if the limit has no fixed windows.
    pub fn of(world: &World, pod: u64, (key, limit): (Key, Limit), wall_us: u64) -> Option<Self> {
        let fixed = counting(limit).token == Token::OfWindow && !world.plan.has_failovers();
        let number = wall_us / (limit.window_seconds() * 1_000_000);
        fixed.then_some(Self { pod, key, number, limit })
    }

    /// Maximum that the pod may admit locally.
    pub fn part(&self, world: &World, now: Time) -> u64 {
        let back = self.limit.window() + HEARD;
        let from = Time::default() + now.since(Time::default() + back);
        let expected = world.plan.pods_expected;
        let pods = world.state().fewest_pods(self.pod, from, now, expected);
        let parts = if world.plan.skews_us.is_empty() { PARTS } else { PARTS_OF_STRANGE_CLOCKS };
        parts * self.limit.requests_per_unit.div_ceil(pods.into())
    }
}

// === impl Locals ===

impl Locals {
    /// Enters an admission. Returns the hits beyond `part`, which a lease has to pay for.
    pub fn admit(&mut self, window: Window, part: u64, hits: u64) -> u64 {
        let any = Window { limit: Limit { requests_per_unit: 0, ..window.limit }, ..window };
        let (admitted, parts) = self.0.entry(any).or_default();
        *parts = part.max(*parts);
        *admitted += hits;
        let excess = admitted.saturating_sub(*parts);
        // A lease pays for it now, or the run fails.
        *admitted -= excess;
        excess
    }
}
