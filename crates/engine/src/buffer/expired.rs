//! How many tokens ended with their lease before they were spent.
//!
//! One number for the whole process: it is moved once or so in the life of a lease.

use std::sync::atomic::{AtomicU64, Ordering};

static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// Tokens that have ended unspent since the process began. Those of a key count when it is next
/// charged or forgotten, within seconds of their end.
pub fn expired() -> u64 {
    EXPIRED.load(Ordering::Relaxed)
}

/// Notes `tokens` that are dropped since they have ended.
pub(super) fn note(tokens: u64) {
    if tokens > 0 {
        EXPIRED.fetch_add(tokens, Ordering::Relaxed);
    }
}
