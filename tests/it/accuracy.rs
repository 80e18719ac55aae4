//! The accuracy of a fleet compared with one exact server: four pods on a real cluster under an
//! open-loop demand. Each test prints what it measured (`-- --nocapture`).
//!
//! `benches/accuracy.rs` measures the same in many more cells, with the modules here.

pub mod demand; // requests drawn by a seed
pub mod drive; // sends requests when they are due
pub mod fleet; // pods, each with a store
pub mod oracle; // the answers of an exact server

mod bounds; // no algorithm admits more than its bound
mod hand_over; // unspent tokens of a pod that ends
mod limits; // the whole limit passes, and few are denied too early
mod parts; // the parts themselves
mod trips; // commands for 1000 decisions

use std::time::Duration;

/// Longer than the product's default, so that no request fails on a busy machine: these tests
/// measure who passes, not when.
const MAX_WAIT: Duration = Duration::from_secs(2);
