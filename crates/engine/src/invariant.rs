//! Invariants, checked in release builds too: a breach is counted and logged, and the process
//! continues.
//!
//! This is not an `assert!`: a sidecar that exits fails every request of its pod. Tests assert that
//! the count is 0.

use std::sync::atomic::{AtomicU64, Ordering};

/// Breaches since the process began. One counter for all invariants, since none is expected.
static VIOLATIONS: AtomicU64 = AtomicU64::new(0);

/// The largest number of breaches that are logged, a line each; counting continues.
const LOGGED_MAX: u64 = 20;

/// Counts a breach unless `holds`. `what` describes in a few words what should have held.
#[inline]
pub fn check(holds: bool, what: &'static str) {
    if !holds {
        note(what);
    }
}

/// Breaches since the process began; any number but 0 means an internal error.
pub fn violations() -> u64 {
    VIOLATIONS.load(Ordering::Relaxed)
}

#[cold]
fn note(what: &'static str) {
    let before = VIOLATIONS.fetch_add(1, Ordering::Relaxed);
    if before < LOGGED_MAX {
        tracing::error!("internal error: invariant violated: {what}");
    }
}
