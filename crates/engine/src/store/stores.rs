//! Several stores as one: each ask goes to the store that its limit names.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ratelease_rules::{DEFAULT_STORE, Limit, STORES_MAX, StoreId};

use super::moving::Moving;
use super::{Ask, GrantFuture, Heartbeat, PodCountFuture, ReadyFuture, SHARDS_MAX, Store};
use crate::counter::Count;

/// Sends each ask to the store that its limit names ([`Limit::store`]). Limits by the second that
/// name none have a store of their own where `REDIS_PERSECOND` is set.
///
/// While a limit moves, both of its stores count it (`store/moving`). Each pair of stores has
/// shards of its own, hence queues, budgets and breakers of its own: a store that fails affects
/// only the limits that it counts.
pub struct Stores {
    default: Arc<dyn Store>,
    per_second: Option<Arc<dyn Store>>,
    named: Vec<NamedStore>,
}

/// A store with its name.
pub struct NamedStore {
    /// As `REDIS_STORES` has it.
    pub name: Box<str>,
    /// The store.
    pub store: Arc<dyn Store>,
}

/// The name of the store of limits by the second in metrics.
const PER_SECOND_NAME: &str = "persecond";

/// The place of the store of limits by the second. The others stand at their numbers
/// ([`StoreId::number`]).
const PER_SECOND: usize = STORES_MAX + 1;

/// Number of stores that there may be.
const PLACES: usize = PER_SECOND + 1;

/// Number of pairs of a store and the one that its limits move from, which may be none.
const ROUTES: usize = PLACES * (PLACES + 1);

/// The largest number of shards of all stores together. Only those that are asked have queues.
pub const SHARDS_OF_ALL_MAX: usize = ROUTES * SHARDS_MAX;

/// The places of the stores that count a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    owner: usize,
    /// The store that the limit moves from.
    from: Option<usize>,
}

// === impl Stores ===

impl Stores {
    /// Joins the stores: `named` in the order of their numbers, from 1.
    pub fn new(
        default: Arc<dyn Store>,
        per_second: Option<Arc<dyn Store>>,
        named: Vec<NamedStore>,
    ) -> Self {
        Self { default, per_second, named }
    }

    fn place(&self, store: StoreId, limit: Limit) -> usize {
        let is_default = store == StoreId::DEFAULT;
        if is_default && self.per_second.is_some() && limit.window_seconds() == 1 {
            PER_SECOND
        } else {
            store.number()
        }
    }

    fn route(&self, limit: Limit) -> Route {
        let owner = self.place(limit.store.owner, limit);
        let from = limit.store.from.map(|from| self.place(from, limit));
        Route { owner, from }
    }

    /// The store at `place`. Rules name only stores that exist, so every place has one.
    fn at(&self, place: usize) -> &Arc<dyn Store> {
        match (place, &self.per_second) {
            (PER_SECOND, Some(store)) => store,
            _ => {
                let named = place.checked_sub(1).and_then(|at| self.named.get(at));
                named.map_or(&self.default, |named| &named.store)
            }
        }
    }

    fn name(&self, place: usize) -> &str {
        match place {
            PER_SECOND => PER_SECOND_NAME,
            _ => {
                let named = place.checked_sub(1).and_then(|at| self.named.get(at));
                named.map_or(DEFAULT_STORE, |named| &named.name)
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Store>> {
        let named = self.named.iter().map(|named| &named.store);
        std::iter::once(&self.default).chain(&self.per_second).chain(named)
    }
}

impl Store for Stores {
    fn shard(&self, ask: &Ask) -> usize {
        let route = self.route(ask.limit);
        route.number() * SHARDS_MAX + self.at(route.owner).shard(ask) % SHARDS_MAX
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        let Route { owner, from } = self.route(ask.limit);
        let owner = self.at(owner);
        match from {
            // Tokens in a pool have been counted by both stores.
            Some(from) if ask.pool.is_none() => {
                Box::pin(Moving { from: &**self.at(from), to: &**owner }.lend(ask))
            }
            _ => owner.lend(ask),
        }
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(async move {
            join_all(self.all().map(|store| store.ready())).await;
        })
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        match Route::from_number(shard / SHARDS_MAX) {
            Route { owner, from: None } => self.at(owner).silence(shard % SHARDS_MAX),
            // An ask may wait for either store.
            Route { from: Some(_), .. } => None,
        }
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.default.beat(beat)
    }

    fn counts(&self) -> Vec<Count> {
        let mut counts: Vec<Count> = Vec::new();
        for (counter, more) in self.all().flat_map(|store| store.counts()) {
            match counts.iter_mut().find(|(other, _)| *other == counter) {
                Some((_, count)) => *count += more,
                None => counts.push((counter, more)),
            }
        }
        counts
    }

    fn owner(&self, ask: &Ask) -> Option<String> {
        self.at(self.route(ask.limit).owner).owner(ask)
    }

    fn store_name(&self, shard: usize) -> String {
        let Route { owner, from } = Route::from_number(shard / SHARDS_MAX);
        match from {
            Some(from) => format!("{}>{}", self.name(from), self.name(owner)),
            None => self.name(owner).to_owned(),
        }
    }

    fn describe(&self) -> String {
        let mut text = self.default.describe();
        if let Some(second) = &self.per_second {
            text.push_str(&format!(", by the second {}", second.describe()));
        }
        for NamedStore { name, store } in &self.named {
            text.push_str(&format!(", {name} {}", store.describe()));
        }
        text
    }
}

// === impl Route ===

impl Route {
    /// The number of the route, below [`ROUTES`]. That of a store alone is its place.
    fn number(self) -> usize {
        self.from.map_or(0, |from| from + 1) * PLACES + self.owner
    }

    fn from_number(number: usize) -> Self {
        Self { owner: number % PLACES, from: (number / PLACES).checked_sub(1) }
    }
}

#[cfg(test)]
mod tests;
