//! Several stores as one: each ask goes to the store that its limit names.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ratelease_rules::key::Key;
use ratelease_rules::{DEFAULT_STORE, Limit, STORES_MAX, StoreId};

use super::{
    Ask, GrantFuture, Heartbeat, HoldersFuture, OrderFuture, OrdersFuture, PodCountFuture,
    PodFuture, PodsFuture, ReadyFuture, SHARDS_MAX, Store,
};
use crate::counter::Count;
use crate::order::{Follow, Follower, Order, Ordered, StoreOrders};
use crate::pod::PodRecord;

/// Sends each ask to the store that its limit names ([`Limit::store`]). Limits by the second that
/// name none have a store of their own where `REDIS_PERSECOND` is set.
///
/// Each store has shards of its own, hence queues, budgets and breakers of its own: a store that
/// fails affects only the limits that it counts.
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

/// The index of the store of limits by the second. The others have their numbers
/// ([`StoreId::number`]).
const PER_SECOND: usize = STORES_MAX + 1;

/// The largest number of shards of all stores together. Only those that are asked have queues.
pub const SHARDS_OF_ALL_MAX: usize = (PER_SECOND + 1) * SHARDS_MAX;

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

    /// The index of the store that counts `limit`.
    fn index(&self, limit: Limit) -> usize {
        let is_default = limit.store == StoreId::DEFAULT;
        let is_per_second = limit.algorithm.has_window() && limit.window_seconds() == 1;
        if is_default && self.per_second.is_some() && is_per_second {
            PER_SECOND
        } else {
            limit.store.number()
        }
    }

    /// The store at `index`. Rules name only stores that exist, so every index has one.
    fn at(&self, index: usize) -> &Arc<dyn Store> {
        match (index, &self.per_second) {
            (PER_SECOND, Some(store)) => store,
            _ => {
                let named = index.checked_sub(1).and_then(|at| self.named.get(at));
                named.map_or(&self.default, |named| &named.store)
            }
        }
    }

    fn name(&self, index: usize) -> &str {
        match index {
            PER_SECOND => PER_SECOND_NAME,
            _ => {
                let named = index.checked_sub(1).and_then(|at| self.named.get(at));
                named.map_or(DEFAULT_STORE, |named| &named.name)
            }
        }
    }

    /// The indices of the stores that there are.
    fn indices(&self) -> impl Iterator<Item = usize> {
        (0..=self.named.len()).chain(self.per_second.is_some().then_some(PER_SECOND))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Store>> {
        let named = self.named.iter().map(|named| &named.store);
        std::iter::once(&self.default).chain(&self.per_second).chain(named)
    }
}

/// Follows the orders of one of several stores.
struct OfStore<'a> {
    number: usize,
    follow: Follow<'a>,
}

impl Follower for OfStore<'_> {
    fn hear(&self, _: usize, ordered: Ordered) {
        self.follow.hear(self.number, ordered);
    }

    fn record(&self) -> Option<PodRecord> {
        self.follow.record()
    }
}

impl Store for Stores {
    fn shard(&self, ask: &Ask) -> usize {
        let index = self.index(ask.limit);
        index * SHARDS_MAX + self.at(index).shard(ask) % SHARDS_MAX
    }

    fn other_name(&self, ask: &Ask) -> Option<Key> {
        self.at(self.index(ask.limit)).other_name(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        self.at(self.index(ask.limit)).lend(ask)
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(async move {
            join_all(self.all().map(|store| store.ready())).await;
        })
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        self.at(shard / SHARDS_MAX).silence(shard % SHARDS_MAX)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.default.beat(beat)
    }

    fn clear<'a>(&'a self, ask: &'a Ask) -> OrderFuture<'a> {
        self.at(self.index(ask.limit)).clear(ask)
    }

    fn order<'a>(&'a self, ask: &'a Ask, order: Order) -> OrderFuture<'a> {
        self.at(self.index(ask.limit)).order(ask, order)
    }

    fn follow_orders<'a>(&'a self, follow: Follow<'a>) -> ReadyFuture<'a> {
        Box::pin(async move {
            let each = self.all().enumerate().map(|(number, store)| async move {
                store.follow_orders(&OfStore { number, follow }).await;
            });
            join_all(each).await;
        })
    }

    fn read_orders<'a>(&'a self, ask: Option<&'a Ask>) -> OrdersFuture<'a> {
        Box::pin(async move {
            let mut all = Vec::new();
            let only = ask.map(|ask| self.index(ask.limit));
            let stores = self.indices().filter(|index| only.is_none_or(|only| only == *index));
            for index in stores {
                let orders = self.at(index).read_orders(ask).await?;
                let name = |it| StoreOrders { store: self.name(index).to_owned(), ..it };
                all.extend(orders.into_iter().map(name));
            }
            Ok(all)
        })
    }

    fn pods(&self) -> PodsFuture<'_> {
        self.default.pods()
    }

    fn read_pod<'a>(&'a self, ask: &'a Ask, pod: u64) -> PodFuture<'a> {
        self.at(self.index(ask.limit)).read_pod(ask, pod)
    }

    fn holders<'a>(&'a self, ask: &'a Ask) -> HoldersFuture<'a> {
        self.at(self.index(ask.limit)).holders(ask)
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

    fn server(&self, shard: usize) -> Option<String> {
        self.at(shard / SHARDS_MAX).server(shard % SHARDS_MAX)
    }

    fn store_name(&self, shard: usize) -> String {
        self.name(shard / SHARDS_MAX).to_owned()
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

#[cfg(test)]
mod tests;
