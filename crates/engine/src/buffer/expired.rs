//! Counts the tokens whose lease ended before they were spent.
//!
//! There is one counter for the whole process, since it changes only about once in the life of a
//! lease.

use std::sync::atomic::{AtomicU64, Ordering};

static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// Tokens that have ended unspent since the process began. A key's tokens are counted when the key
/// is next charged or evicted, within seconds of their end.
pub fn expired() -> u64 {
    EXPIRED.load(Ordering::Relaxed)
}

/// Counts `tokens` that are dropped because they have ended.
pub(super) fn note(tokens: u64) {
    if tokens > 0 {
        EXPIRED.fetch_add(tokens, Ordering::Relaxed);
    }
}
