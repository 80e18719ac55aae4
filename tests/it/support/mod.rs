//! Helpers for several test modules. Everything here is cleaned up even if the test process is
//! killed.

// Each module uses a part of them.
#![allow(dead_code, unused_imports)]

pub(crate) mod asked;
pub(crate) mod chromium;
pub(crate) mod collector;
pub(crate) mod control;
pub(crate) mod control_plane;
pub(crate) mod cores;
pub(crate) mod envoy;
pub(crate) mod faketime;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod memory_group;
pub(crate) mod module;
pub(crate) mod netns;
pub(crate) mod oidc;
pub(crate) mod paced;
pub(crate) mod papers;
pub(crate) mod ports;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod ratectl;
pub(crate) mod ratelease;
pub(crate) mod raw_grpc;
pub(crate) mod readable;
pub(crate) mod redis;
pub(crate) mod redis_cluster;
pub(crate) mod redis_sentinel;
pub(crate) mod redis_server;
pub(crate) mod rng;
pub(crate) mod shop;
pub(crate) mod table_row;
pub(crate) mod terminal;
pub(crate) mod tls_files;
pub(crate) mod tls_relay;
pub(crate) mod windows;
pub(crate) mod xds_server;

use std::time::{Duration, Instant};

/// Calls `probe` until it returns a value; fails the test after `patience`.
#[track_caller]
pub fn wait_for<T>(what: &str, patience: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = now() + patience;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(now() < end, "timed out after {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The monotonic clock.
pub fn now() -> Instant {
    // Tests on real sockets run in real time.
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}
