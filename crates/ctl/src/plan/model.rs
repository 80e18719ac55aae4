//! The estimate for a whole fleet: the sum over its keys. Pure functions.

use std::time::Duration;

use super::key::{Cost, Demand};
use super::ranks;

/// Bytes per key in Redis just after its tables have grown (`docs/capacity.md`), and in a pod
/// (`docs/performance.md`).
const REDIS_KEY_BYTES: f64 = 147.0;
const POD_KEY_BYTES: f64 = 98.8;

/// A quantile is local if this part of the decisions is.
const P95: f64 = 0.95;

/// The fleet to plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fleet {
    pub(super) pods: u32,
    pub(super) keys: u64,
    pub(super) limit: u32,
    pub(super) window: Duration,
    /// Decisions a second over all pods.
    pub(super) rate: f64,
    pub(super) zipf: f64,
    pub(super) calls_per_shard: f64,
    pub(super) round_trip: Duration,
}

/// The estimate; rates are per second unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// The part of the decisions that do not wait for Redis.
    pub(super) local: f64,
    /// The part of the decisions that are denied.
    pub(super) denied: f64,
    pub(super) asks: f64,
    /// Asks in the first second of a window, in which all keys start with new windows.
    pub(super) asks_at_start: f64,
    /// Asks for the key with the most asks.
    pub(super) asks_of_hottest: f64,
    /// Shards needed for the mean, and for the first second of a window.
    pub(super) shards: f64,
    pub(super) shards_at_start: f64,
    /// Keys in Redis at the end of a window, and their bytes.
    pub(super) redis_keys: f64,
    pub(super) redis_bytes: f64,
    /// Keys in each pod at the end of a window, and their bytes.
    pub(super) pod_keys: f64,
    pub(super) pod_bytes: f64,
    /// Whether 95 of 100 decisions are local.
    pub(super) is_p95_local: bool,
}

/// Sums over keys, for one window.
#[derive(Debug, Default)]
struct Sums {
    offered: f64,
    admitted: f64,
    asks: f64,
    waits: f64,
    at_start: f64,
    hottest: f64,
    redis_keys: f64,
    holders: f64,
}

// === impl Estimate ===

impl Estimate {
    /// Makes the estimate for `fleet`.
    pub(super) fn of(fleet: &Fleet) -> Self {
        let window = fleet.window.as_secs_f64();
        let mut sums = Sums::default();
        for group in ranks::groups(fleet.keys, fleet.zipf) {
            let offered = fleet.rate * window * group.weight;
            let (limit, pods) = (f64::from(fleet.limit), f64::from(fleet.pods));
            sums.add(Demand { offered, limit, window, pods }, group.keys);
        }
        let asks = sums.asks / window;
        let asks_at_start = sums.at_start.max(asks);
        let shards = |asks: f64| (asks / fleet.calls_per_shard).ceil().max(1.0);
        let local = 1.0 - sums.waits / sums.offered;
        let pod_keys = sums.holders / f64::from(fleet.pods);
        Self {
            local,
            denied: 1.0 - sums.admitted / sums.offered,
            asks,
            asks_at_start,
            asks_of_hottest: sums.hottest / window,
            shards: shards(asks),
            shards_at_start: shards(asks_at_start),
            redis_keys: sums.redis_keys,
            redis_bytes: sums.redis_keys * REDIS_KEY_BYTES,
            pod_keys,
            pod_bytes: pod_keys * POD_KEY_BYTES,
            is_p95_local: local >= P95,
        }
    }
}

// === impl Sums ===

impl Sums {
    fn add(&mut self, demand: Demand, keys: f64) {
        let Cost { admitted, asks, waits, holders } = demand.cost();
        self.offered += keys * demand.offered;
        self.admitted += keys * admitted;
        self.asks += keys * asks;
        self.waits += keys * waits;
        self.at_start += keys * demand.holders_after(1.0);
        self.hottest = self.hottest.max(asks);
        self.redis_keys += keys * -(-demand.offered).exp_m1();
        self.holders += keys * holders;
    }
}
