//! The count of one rule for one descriptor, and the pools of its key: where they are stored, and
//! their contents.

use futures_util::future::join_all;
use ratelease_cli::out::CliError;
use ratelease_engine::limiter::Charge;
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::redis::slot_of;
use ratelease_engine::store::{self, Ask, Grant, StoreError};
use ratelease_rules::{Algorithm, Leasing, Limit, Rule};

/// A key's own count, which holds the whole limit, and its pools, which hold tokens leased from it.
pub(super) struct Count {
    /// The limit of the count.
    pub(super) limit: Limit,
    pub(super) own: StoredCount,
    /// The pools in order of their numbers; empty if the key has none.
    pub(super) pools: Vec<StoredCount>,
}

/// What the store holds for one key.
pub(super) struct StoredCount {
    ask: Ask,
    /// The key in Redis, once [`read_store`] has filled it in.
    pub(super) in_store: String,
    /// Slot of the cluster.
    pub(super) slot: usize,
    /// Address of the server that owns the slot, if a Redis was given and the owner is known.
    pub(super) server: Option<String>,
    /// The state in the store, if a Redis was given.
    pub(super) now: Option<Result<Grant, StoreError>>,
}

// === impl Count ===

impl Count {
    /// Returns the count to which `charge` is charged.
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let limit = charge.applied.limit;
        let look = Ask::look(charge.own, limit);
        let pools = 0..charge.applied.rule.map_or(0, |rule| pools(rule, limit));
        let pools = pools.map(|pool| StoredCount::of(Ask { pool: Some(pool), ..look }));
        Self { limit, own: StoredCount::of(look), pools: pools.collect() }
    }

    /// Returns the count, then its pools.
    pub(super) fn stored(&mut self) -> impl Iterator<Item = &mut StoredCount> {
        std::iter::once(&mut self.own).chain(&mut self.pools)
    }
}

/// Returns the number of pools that pods use under `rule`: none without leases, because pools hold
/// leased tokens, and none for a leaky bucket, because its slots are spaced.
fn pools(rule: &Rule, limit: Limit) -> u8 {
    let is_leased = rule.leasing != Leasing::Off;
    let is_spaced = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
    if is_leased && !is_spaced { rule.pools() } else { 0 }
}

// === impl StoredCount ===

impl StoredCount {
    fn of(ask: Ask) -> Self {
        Self { ask, in_store: String::new(), slot: 0, server: None, now: None }
    }

    /// Returns the key without the prefix and braces that it has in Redis.
    pub(super) fn key(&self) -> String {
        self.ask.counter().to_string()
    }
}

/// Fills in where each of `entries` is stored and, if `store` is a Redis, what it holds. Spends no
/// tokens. `prefix` is the prefix of keys if the store has none of its own.
pub(super) fn read_store(
    store: StoreSettings,
    prefix: &str,
    entries: &mut [&mut StoredCount],
) -> Result<(), CliError> {
    for entry in entries.iter_mut() {
        entry.in_store = entry.ask.counter().in_store(prefix);
        entry.slot = slot_of(entry.in_store.as_bytes());
    }
    if store == StoreSettings::Memory || entries.is_empty() {
        return Ok(());
    }
    let asks: Vec<Ask> = entries.iter().map(|entry| entry.ask).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CliError::new(format_args!("cannot read from Redis: {error}")))?;
    let (replies, servers): (Vec<_>, Vec<_>) = runtime.block_on(async {
        let store = store::open(store);
        let replies = join_all(asks.iter().map(|ask| store.lend(ask))).await;
        (replies, asks.iter().map(|ask| store.owner(ask)).collect())
    });
    for ((entry, reply), server) in entries.iter_mut().zip(replies).zip(servers) {
        entry.now = Some(reply);
        entry.server = server;
    }
    Ok(())
}
