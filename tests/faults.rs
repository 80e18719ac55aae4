//! The fault table: what happens to requests while Redis nodes, networks, clocks, rules and pods
//! fail, with a real Envoy in front and real processes behind. Each test is a row of it and prints
//! a line that `scripts/faults` collects; that script also runs them at full scale.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts what the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// Rules, and questions without Envoy.
#[allow(dead_code)] // it has more of both
#[path = "envoy/stand.rs"]
mod stand;

/// One row as it comes out.
#[path = "faults/row.rs"]
mod row;
/// Pods behind an Envoy under load, and what is counted there.
#[path = "faults/stage.rs"]
mod stage;

/// Files that may not be read or written, and disks without room.
#[path = "faults/disk.rs"]
mod disk;

/// Clocks that step.
#[path = "faults/clock.rs"]
mod clock;
/// Pods that come and go.
#[path = "faults/fleet.rs"]
mod fleet;
/// Masters that are killed or frozen.
#[path = "faults/masters.rs"]
mod masters;
/// A master that is left alone.
#[path = "faults/minority.rs"]
mod minority;
/// Slots that move, restarts in turn, refusals.
#[path = "faults/moving.rs"]
mod moving;
/// Parts of the process that panic.
#[path = "faults/panics.rs"]
mod panics;
/// Links that are cut, between network namespaces.
#[path = "faults/partition.rs"]
mod partition;
/// Pods that end, are killed, panic, or run short of something.
#[path = "faults/process.rs"]
mod process;
/// Rules that are garbage, or change all the time.
#[path = "faults/rules.rs"]
mod rules;
/// Networks that are slow, silent or broken.
#[path = "faults/slow.rs"]
mod slow;
/// Mixed faults by seed.
#[path = "faults/soak.rs"]
mod soak;
