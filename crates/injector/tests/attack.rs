//! The attack table of the injector: clients of the cluster, which need no certificate, attack the
//! webhook at its default settings beside an honest API server. Each test is a row, which
//! `scripts/attack --injector` collects.
//!
//! The bounds of every row: each pod of the API server is answered with the sidecar's patch within
//! the time that the chart's webhook is given, each probe in that of the kubelet, and the process
//! stays below the memory limit of the chart.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// A webhook as a process.
#[allow(dead_code)] // the other tests use more of it
#[path = "support/process.rs"]
mod process;
/// A row of the table, as all tables have it.
#[allow(dead_code, unreachable_pub)] // other tables are crates of their own too
#[path = "../../../tests/it/support/table_row.rs"]
mod table_row;

/// I1 to I4: clients of the webhook's port.
#[path = "attack/webhook.rs"]
mod webhook;
