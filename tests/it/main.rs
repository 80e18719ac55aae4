//! Tests of the whole crate against real sockets and real servers, except those behind a real Envoy
//! (`tests/envoy.rs`). One binary, so that it links once and shares one Redis Cluster; each module
//! below states its subject.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
mod support;

/// The accuracy of a fleet compared with one exact server, on real sockets.
mod accuracy;
/// The command line tools, as people run them.
mod cli;
/// The reference's contract, row by row, on every store.
mod contract;
/// The page of the control plane, in a headless Chromium.
mod control_page;
/// The files for operators in `deploy/`: alerts, their runbooks, a dashboard.
mod deploy;
/// The hottest keys, over all rules and of each rule, on the debug port.
mod hot_keys;
/// Bad requests, over gRPC and over `/json`: each gets its reason and disturbs no other client.
mod input;
/// Start and end of the process: its messages when it cannot start, signals, the drain.
mod life;
/// The live page of the debug port, in a headless Chromium.
mod live;
/// The content of `/metrics`, and that the docs name all of it.
mod metrics;
/// The subcommands that call a server or read a log: their output, and their exit status.
mod ops;
/// The tests' own tools: children end with the test, loads count their answers.
mod rig;
/// The contract of `Store`, for every implementation.
mod store;
/// Spans and metrics sent to a collector, samples in the log.
mod telemetry;
/// The text of the source: sizes, names, stray words, allowed dependencies.
mod tidy;
/// TLS on the gRPC port and to Redis, with real certificates.
mod tls;
/// Rules from a scripted xDS server.
mod xds;
