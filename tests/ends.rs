//! Each request that starts must end: the slot or the estimate that it took is free again soon,
//! however the request ends, and whatever ends beside it. A test runs a recipe of `envoy/recipes`
//! with a real Envoy, a real Redis and the binary, and prints its figures.
//!
//! By default the tests of thousands of requests are smaller than they should be, since they run
//! with all others. `RATELEASE_ENDS=full` runs them whole, `RATELEASE_BIN` with another build.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// The application behind Envoy, whose answers can be held.
#[path = "ends/application.rs"]
mod application;
/// Clients that leave at a chosen moment.
#[path = "ends/client.rs"]
mod client;
/// A recipe whose parts end and start again.
#[path = "ends/stand.rs"]
mod stand;

/// Requests that are aborted.
#[path = "ends/aborted.rs"]
mod aborted;
/// Calls in a burst on a new connection.
#[path = "ends/burst.rs"]
mod burst;
/// Thousands of streams that end at once.
#[path = "ends/departure.rs"]
mod departure;
/// Starts that their caller gives up.
#[path = "ends/given_up.rs"]
mod given_up;
/// Requests, aborts and failures in an order that follows from a seed.
#[path = "ends/random.rs"]
mod random;
/// Keys that are reset while requests hold estimates.
#[path = "ends/reset.rs"]
mod reset;
/// Processes that end while streams run.
#[path = "ends/restart.rs"]
mod restart;
