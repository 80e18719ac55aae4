//! Tests of the dynamic module within a real Envoy: `cargo test --test module`. The module is built
//! with the test, as a library that a test of the root package depends on.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// Envoy with the module, and the rules of a test.
#[path = "module/stand.rs"]
mod stand;

/// Small limits that two Envoys share.
#[path = "module/accuracy.rs"]
mod accuracy;
/// Each kind of action: the descriptors are those of Envoy's own filter.
#[path = "module/actions.rs"]
mod actions;
/// What a stream gets: statuses, headers, metadata, details.
#[path = "module/answers.rs"]
mod answers;
/// An Envoy around which all changes.
#[path = "module/churn.rs"]
mod churn;
/// Configurations that are refused, and how.
#[path = "module/config.rs"]
mod config;
/// The engine: its start, its pages, its end, and changes of Envoy's configuration.
#[path = "module/engine.rs"]
mod engine;
/// `ratectl migrate --to-module`, before and after.
#[path = "module/migration.rs"]
mod migration;
/// Requests that wait, fail or leave.
#[path = "module/waits.rs"]
mod waits;
