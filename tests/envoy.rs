//! Tests of real ratelease processes between a real Envoy and a real Redis Cluster of three masters
//! and three replicas. They are slow, so they have a name of their own: `cargo test --test envoy`;
//! with `-- --nocapture` they print what they measured.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// Common parts of the tests below: rules, pods on the cluster, requests without Envoy.
#[path = "envoy/stand.rs"]
mod stand;

/// Checks the tests' Envoy itself.
#[path = "envoy/asks.rs"]
mod asks;
/// Many requests at once on a new connection.
#[path = "envoy/burst.rs"]
mod burst;
/// `scripts/demo --control`.
#[path = "envoy/demo.rs"]
mod demo;
/// Clients that leave while their requests start.
#[path = "envoy/departed.rs"]
mod departed;
/// A pod that ends under load.
#[path = "envoy/ending.rs"]
mod ending;
/// A Redis that is slow because of its distance.
#[path = "envoy/far.rs"]
mod far;
/// The headers as a client receives them.
#[path = "envoy/headers.rs"]
mod headers;
/// One pod and two: as many requests pass as the limit allows.
#[path = "envoy/limits.rs"]
mod limits;
/// The access log: each request, however it ended, and none lost.
#[path = "envoy/logs.rs"]
mod logs;
/// Rules that change under load.
#[path = "envoy/reload.rs"]
mod reload;
/// Mutual TLS between Envoy and a pod.
#[path = "envoy/secured.rs"]
mod secured;
/// Several descriptors, and hits and limits that Envoy sets.
#[path = "envoy/several.rs"]
mod several;
/// gRPC on a Unix socket.
#[path = "envoy/socket.rs"]
mod socket;
/// A pod that stalls under load.
#[path = "envoy/stalled.rs"]
mod stalled;
/// The cost of a decision: round trips to Redis, and time.
#[path = "envoy/trips.rs"]
mod trips;
