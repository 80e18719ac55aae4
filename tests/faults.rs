//! The fault table: what happens to requests while Redis nodes, networks, clocks, rules and pods
//! fail, between a real Envoy and real processes. Each test is a row of the table and prints a line
//! that `scripts/faults` collects; that script also runs the tests at full scale.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// Rules, and requests without Envoy.
#[allow(dead_code)] // not all of it is used here
#[path = "envoy/stand.rs"]
mod stand;

/// One row of the table, and its printed form.
#[path = "faults/row.rs"]
mod row;
/// Pods behind an Envoy under load, and their counts.
#[path = "faults/stage.rs"]
mod stage;
/// The wait until every key is leased.
#[path = "faults/warm.rs"]
mod warm;

/// Files without read or write permission, and full disks.
#[path = "faults/disk.rs"]
mod disk;

/// Clocks that step.
#[path = "faults/clock.rs"]
mod clock;
/// Pods that start and stop.
#[path = "faults/fleet.rs"]
mod fleet;
/// Masters that are killed or frozen.
#[path = "faults/masters.rs"]
mod masters;
/// A master that is cut off from its cluster.
#[path = "faults/minority.rs"]
mod minority;
/// Slots that move, rolling restarts, error replies.
#[path = "faults/moving.rs"]
mod moving;
/// Parts of the process that panic.
#[path = "faults/panics.rs"]
mod panics;
/// Links that are cut, between network namespaces.
#[path = "faults/partition.rs"]
mod partition;
/// Pods that end, are killed, panic, or exhaust a resource.
#[path = "faults/process.rs"]
mod process;
/// Rules that are garbage, or change continually.
#[path = "faults/rules.rs"]
mod rules;
/// Networks that are slow, silent or broken.
#[path = "faults/slow.rs"]
mod slow;
/// Mixed faults, drawn by seed.
#[path = "faults/soak.rs"]
mod soak;
/// A zone that is lost.
#[path = "faults/zone.rs"]
mod zone;
