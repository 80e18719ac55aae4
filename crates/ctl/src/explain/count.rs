//! The count of one rule for one descriptor and the pools of its key: where they live, and what the
//! store holds of them.

use ratelease_cli::out::Trouble;
use ratelease_engine::limiter::Charge;
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::redis::slot_of;
use ratelease_engine::store::{self, Ask, Grant, StoreError};
use ratelease_rules::{Algorithm, Leasing, Limit, Rule};

/// A key's own count, which holds the whole limit, and its pools, which hold tokens lent by it.
pub(super) struct Count {
    /// What the count is held to.
    pub(super) limit: Limit,
    pub(super) own: Entry,
    /// In order of their numbers; empty where the key is not split.
    pub(super) pools: Vec<Entry>,
}

/// What the store keeps under one of its keys.
pub(super) struct Entry {
    ask: Ask,
    /// The key in Redis, once [`look`] has filled it in.
    pub(super) in_store: String,
    /// Of a cluster.
    pub(super) slot: usize,
    /// The server that owns it, where a Redis was given and knows.
    pub(super) server: Option<String>,
    /// What the store holds of it, where a Redis was given.
    pub(super) now: Option<Result<Grant, StoreError>>,
}

// === impl Count ===

impl Count {
    /// That which `charge` is charged to.
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let limit = charge.applied.limit;
        let look = Ask::look(charge.own, limit);
        let pools = 0..charge.applied.rule.map_or(0, |rule| pools(rule, limit));
        let pools = pools.map(|pool| Entry::of(Ask { pool: Some(pool), ..look }));
        Self { limit, own: Entry::of(look), pools: pools.collect() }
    }

    /// The count, then its pools.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        std::iter::once(&mut self.own).chain(&mut self.pools)
    }
}

/// Pools that pods use under `rule`: none without leases, whose tokens they hold, and none of a
/// leaky bucket, whose slots are spaced.
fn pools(rule: &Rule, limit: Limit) -> u8 {
    let is_leased = rule.leasing != Leasing::Off;
    let is_spaced = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
    let shards = rule.shards.get();
    if shards > 1 && is_leased && !is_spaced { shards } else { 0 }
}

// === impl Entry ===

impl Entry {
    fn of(ask: Ask) -> Self {
        Self { ask, in_store: String::new(), slot: 0, server: None, now: None }
    }

    /// The key without what surrounds it in Redis.
    pub(super) fn key(&self) -> String {
        self.ask.counter().to_string()
    }
}

/// Fills in where each of `entries` lives and, if `store` is a Redis, what it holds. Nothing is
/// taken. `prefix` is that of the keys where the store has none of its own.
pub(super) fn look(
    store: StoreSettings,
    prefix: &str,
    entries: &mut [&mut Entry],
) -> Result<(), Trouble> {
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
        runtime.map_err(|error| Trouble::new(format_args!("cannot look at Redis: {error}")))?;
    let (replies, servers): (Vec<_>, Vec<_>) = runtime.block_on(async {
        let store = store::open(store);
        let replies = store.exchange(&asks).await;
        (replies, asks.iter().map(|ask| store.owner(ask)).collect())
    });
    for ((entry, reply), server) in entries.iter_mut().zip(replies).zip(servers) {
        entry.now = Some(reply);
        entry.server = server;
    }
    Ok(())
}
