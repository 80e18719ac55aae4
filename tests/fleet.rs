//! Acceptance tests of leases: real pods, each a process of its own, on a real Redis Cluster,
//! called over gRPC. `cargo test --test fleet -- --nocapture` prints what each test measures.
//!
//! The settings of the pods are the defaults, apart from addresses and a key prefix; a test that
//! changes anything else says so. Each call carries a `grpc-timeout` that lets a request wait for
//! Redis for the whole `LEASE_WAIT_LIMIT` (15 ms), as Envoy's default does.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// Requests drawn by a seed.
#[path = "it/accuracy/demand.rs"]
mod demand;
/// Sends requests when they are due.
#[path = "it/accuracy/drive.rs"]
mod drive;
/// The answers of one exact server.
#[path = "it/accuracy/oracle.rs"]
mod oracle;

/// A gRPC client that waits beyond its deadline.
#[path = "fleet/caller.rs"]
mod caller;
/// Pods, each with rules of its own.
#[path = "fleet/pods.rs"]
mod pods;

/// A pod that has never reached Redis.
#[path = "fleet/alone.rs"]
mod alone;
/// Token buckets with a small burst.
#[path = "fleet/buckets.rs"]
mod buckets;
/// Thousands of calls at once.
#[path = "fleet/bursts.rs"]
mod bursts;
/// Costs that are known afterwards, and slots in use at a time.
#[path = "fleet/costs.rs"]
mod costs;
/// A Redis that is healthy but distant.
#[path = "fleet/far.rs"]
mod far;
/// Limits that are lowered.
#[path = "fleet/lowered.rs"]
mod lowered;
/// The cost of lukewarm keys.
#[path = "fleet/lukewarm.rs"]
mod lukewarm;
/// Orders for one key.
#[path = "fleet/orders.rs"]
mod orders;
/// Limits that are raised and lowered once their keys are used up.
#[path = "fleet/raised.rs"]
mod raised;
/// Refunds, exact to the token.
#[path = "fleet/refunds.rs"]
mod refunds;
/// A secret that is replaced under load.
#[path = "fleet/secrets.rs"]
mod secrets;
/// Pools that are split and joined under load.
#[path = "fleet/shards.rs"]
mod shards;
/// Stores of tenants.
#[path = "fleet/stores.rs"]
mod stores;

use std::time::Duration;

use tokio::sync::RwLock;

/// Held shared by tests, and exclusively by one that measures time: on a machine of two cores,
/// concurrent tests would distort its measurements.
static MACHINE: RwLock<()> = RwLock::const_new(());

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
