//! Counters of the asks of one shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::buckets::Buckets;
use crate::latency::Latency;
use crate::store::{Ask, Grant, StoreError};

/// Counters of the asks of one shard since the process began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardCounters {
    /// The name of the shard's store, by [`crate::store::Store::store_name`].
    pub store: Arc<str>,
    /// The shard's number, by [`crate::store::Store::shard`].
    pub shard: usize,
    /// Asks for tokens that were sent.
    pub asks: u64,
    /// Of those, the number that were answered, even with no token.
    pub grants: u64,
    /// Asks that were sent only to give unspent tokens back.
    pub returns: u64,
    /// Asks of both kinds that the store did not answer, or answered with an error.
    pub failures: u64,
    /// Tokens lent.
    pub tokens_granted: u64,
    /// Unspent tokens that the store has taken back, or would have taken back if their lease had
    /// not ended.
    pub tokens_returned: u64,
    /// How long each ask was out, whatever its outcome.
    pub took: Buckets,
}

/// Counts the asks of one shard.
#[derive(Debug, Default)]
pub(super) struct AtomicShardCounters {
    asks: AtomicU64,
    grants: AtomicU64,
    returns: AtomicU64,
    failures: AtomicU64,
    tokens_granted: AtomicU64,
    tokens_returned: AtomicU64,
    took: Latency,
}

// === impl AtomicShardCounters ===

impl AtomicShardCounters {
    /// Records the outcome of `ask`.
    pub(super) fn note(&self, ask: &Ask, outcome: &Result<Grant, StoreError>) {
        let add = |counter: &AtomicU64, more: u64| counter.fetch_add(more, Ordering::Relaxed);
        let is_return = ask.is_return();
        add(if is_return { &self.returns } else { &self.asks }, 1);
        match outcome {
            Err(_) => add(&self.failures, 1),
            Ok(_) if is_return => {
                add(&self.tokens_returned, ask.back.map_or(0, |back| back.tokens))
            }
            Ok(grant) => {
                add(&self.tokens_granted, grant.tokens);
                add(&self.grants, 1)
            }
        };
    }

    /// Records that an ask was out for this long.
    pub(super) fn note_took(&self, took: Duration) {
        self.took.note(took);
    }

    pub(super) fn of(&self, store: &Arc<str>, shard: usize) -> ShardCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShardCounters {
            store: Arc::clone(store),
            shard,
            asks: read(&self.asks),
            grants: read(&self.grants),
            returns: read(&self.returns),
            failures: read(&self.failures),
            tokens_granted: read(&self.tokens_granted),
            tokens_returned: read(&self.tokens_returned),
            took: self.took.shown(),
        }
    }
}
