//! Tests of the whole crate against real sockets and real servers, but for those behind a real
//! Envoy (`tests/envoy.rs`). One binary, so that it links once and shares one Redis Cluster; each
//! module below says what it is for.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts what the tests talk to.
mod support;

/// How near a fleet comes to one exact server, on real sockets.
mod accuracy;
/// The tools of the command line, as people run them.
mod cli;
/// The reference's contract, row by row, on every store.
mod contract;
/// What operators get in `deploy/`: alerts, their runbooks, a dashboard.
mod deploy;
/// The hottest keys, of all rules and of each, on the debug port.
mod hot_keys;
/// Bad requests, over gRPC and over `/json`: each gets its reason and disturbs nobody.
mod input;
/// Start and end of the process: what it says when it cannot start, signals, the drain.
mod life;
/// The live page of the debug port, in a headless Chromium.
mod live;
/// What `/metrics` shows, and that the docs name all of it.
mod metrics;
/// The subcommands that ask a server or read a log: what they print, and how they end.
mod ops;
/// The tests' own tools: children end with the test, loads count what came back.
mod rig;
/// The contract of `Store`, kept by every implementation.
mod store;
/// Spans and metrics for a collector, samples in the log.
mod telemetry;
/// The text of the source: sizes, names, stray words, who may name whom.
mod tidy;
