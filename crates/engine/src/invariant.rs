//! What must hold whatever happens, checked in release too: a breach is counted and told, and the
//! process goes on.
//!
//! Not an `assert!`: a sidecar that ends takes every request of its pod with it. Tests assert that
//! the count is 0.

use std::sync::atomic::{AtomicU64, Ordering};

/// Breaches since the process began. One number for all of it, since none is expected.
static VIOLATIONS: AtomicU64 = AtomicU64::new(0);

/// Breaches that are logged, a line each; the count goes on.
const LOGGED_MAX: u64 = 20;

/// Notes a breach unless `holds`. `what` says in a few words what should have held.
#[inline]
pub fn check(holds: bool, what: &'static str) {
    if !holds {
        note(what);
    }
}

/// Breaches since the process began; anything but 0 is a fault of the program's own.
pub fn violations() -> u64 {
    VIOLATIONS.load(Ordering::Relaxed)
}

#[cold]
fn note(what: &'static str) {
    let before = VIOLATIONS.fetch_add(1, Ordering::Relaxed);
    if before < LOGGED_MAX {
        tracing::error!("invariant violated (a fault of the program's own): {what}");
    }
}
