//! A real Envoy before real ratelease processes before a real Redis Cluster of three masters and
//! three replicas. The slow ones, by a name of their own: `cargo test --test envoy`; with
//! `-- --nocapture` they tell what they measured.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts what the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// What the tests below have in common: rules, pods on the cluster, questions without Envoy.
#[path = "envoy/stand.rs"]
mod stand;

/// The tests' Envoy itself.
#[path = "envoy/asks.rs"]
mod asks;
/// A pod that ends under load.
#[path = "envoy/ending.rs"]
mod ending;
/// A Redis that is slow because it is far.
#[path = "envoy/far.rs"]
mod far;
/// The headers as a client sees them.
#[path = "envoy/headers.rs"]
mod headers;
/// One pod and two: as many pass as the limit says.
#[path = "envoy/limits.rs"]
mod limits;
/// Rules that change under load.
#[path = "envoy/reload.rs"]
mod reload;
/// Several descriptors, hits and limits of Envoy's own.
#[path = "envoy/several.rs"]
mod several;
/// gRPC on a Unix socket.
#[path = "envoy/socket.rs"]
mod socket;
/// A pod that stands still under load.
#[path = "envoy/stalled.rs"]
mod stalled;
/// What a decision costs: trips to Redis, and time.
#[path = "envoy/trips.rs"]
mod trips;
