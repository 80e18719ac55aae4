//! Hostile input by seed: whatever comes, nothing panics or hangs, and what is decided is what the
//! contract says. `scripts/fuzz` runs it for long, with seeds that no run has had.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../sim/dice.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the simulator")]
mod dice;
mod differential;
mod mutate;
mod run;
mod targets;
