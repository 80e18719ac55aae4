//! Tests of the whole crate against real sockets and real servers. One binary, so that it links
//! once and shares one Redis Cluster; each module below says what it is for.

// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts what the tests talk to.
mod support;

/// The contract of `Store`, kept by every implementation.
mod store;
