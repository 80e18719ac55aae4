//! Which store owns the counts, and how to open it.

use std::sync::Arc;

use super::Store;
use super::memory::MemoryStore;
use super::redis::{RedisSettings, RedisStore};
use super::stores::{NamedStore, Stores};

/// Which store owns the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // there is one a process
pub enum StoreSettings {
    /// The memory of this process: counts are not shared and are lost when it exits.
    Memory,
    /// Redis.
    Redis {
        /// The Redis of all limits, except those that the others take.
        main: RedisSettings,
        /// The Redis of limits with unit SECOND that name no store.
        per_second: Option<RedisSettings>,
        /// The Redis of each named store, in the order of the stores' numbers.
        named: Vec<NamedRedis>,
        /// Prefix of every key; at most 64 bytes, without braces.
        key_prefix: String,
    },
}

/// The Redis of a named store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRedis {
    /// The store's name in rules.
    pub name: Box<str>,
    /// Its Redis.
    pub redis: RedisSettings,
}

/// Opens the store of these settings. A store on Redis starts to connect, on the present runtime.
pub fn open(settings: StoreSettings) -> Arc<dyn Store> {
    match settings {
        StoreSettings::Memory => Arc::new(MemoryStore::system()),
        StoreSettings::Redis { main, per_second, named, key_prefix } => {
            let open = |redis| RedisStore::spawn(redis, &key_prefix) as Arc<dyn Store>;
            let main = open(main);
            if per_second.is_none() && named.is_empty() {
                return main;
            }
            let named = named.into_iter().map(|NamedRedis { name, redis }| {
                let store = open(redis);
                NamedStore { name, store }
            });
            let named = named.collect();
            Arc::new(Stores::new(main, per_second.map(open), named))
        }
    }
}

// === impl StoreSettings ===

impl StoreSettings {
    /// Returns the settings with the limit of each Redis' connections changed by `part`, which is
    /// given the limit and the number of Redis that there are.
    #[must_use]
    pub fn with_connections(self, part: impl Fn(usize, usize) -> usize) -> Self {
        let Self::Redis { main, per_second, named, key_prefix } = self else { return self };
        let count = 1 + usize::from(per_second.is_some()) + named.len();
        let changed = |redis: RedisSettings| {
            let connections_max = part(redis.connections_max, count);
            RedisSettings { connections_max, ..redis }
        };
        let of_named = |it: NamedRedis| NamedRedis { redis: changed(it.redis), ..it };
        Self::Redis {
            main: changed(main),
            per_second: per_second.map(changed),
            named: named.into_iter().map(of_named).collect(),
            key_prefix,
        }
    }

    /// Returns every Redis that is used.
    pub fn all_redis(&self) -> impl Iterator<Item = &RedisSettings> {
        let (main, per_second, named) = match self {
            Self::Memory => (None, None, &[][..]),
            Self::Redis { main, per_second, named, .. } => {
                (Some(main), per_second.as_ref(), &named[..])
            }
        };
        main.into_iter().chain(per_second).chain(named.iter().map(|it| &it.redis))
    }
}
