//! Hostile input by seed: no input causes a panic or a hang, and decisions follow the contract.
//! `scripts/fuzz` runs the targets longer, with fresh seeds.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod differential;
mod mutate;
#[path = "../sim/rng.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the simulator")]
mod rng;
mod run;
mod targets;
