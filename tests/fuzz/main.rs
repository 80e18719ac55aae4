//! Hostile input by seed: no input causes a panic or a hang, and decisions follow the contract.
//! `scripts/fuzz` runs the targets longer, with fresh seeds.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../sim/dice.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the simulator")]
mod dice;
mod differential;
mod mutate;
mod run;
mod targets;
