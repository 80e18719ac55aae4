//! The attack table of the control plane: hostile clients, each beside an honest one, attack the
//! binary at its default settings. Each test is a row, which `scripts/attack --control` collects.
//!
//! The bounds of every row, unless the row says otherwise (`attack/scene.rs`): each request of the
//! honest client succeeds, each probe is answered in the time that the kubelet gives it, and the
//! process stays below the memory limit of the chart. Rows named `c` attack the API, rows named `o`
//! write objects of Kubernetes, rows named `p` attack the port of pods.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// A database, a control plane, and calls of it.
#[allow(dead_code, unused_imports)] // the other tests use more of it
#[path = "control/support.rs"]
mod support;
/// A row of the table, as all tables have it.
#[allow(dead_code, unreachable_pub)] // other tables are crates of their own too
#[path = "../../../tests/it/support/table_row.rs"]
mod table_row;

/// C1 to C9: clients without a token, and holders of one.
#[path = "attack/api.rs"]
mod api;
/// O1: writers of objects of Kubernetes.
#[path = "attack/objects.rs"]
mod objects;
/// Certificates.
#[allow(dead_code)] // other tests use more of it
#[path = "../../../tests/it/support/papers.rs"]
mod papers;
/// P1 to P4: clients of the pods' port.
#[path = "attack/pods.rs"]
mod pods;
/// A control plane under attack, and its honest client.
#[path = "attack/scene.rs"]
mod scene;
