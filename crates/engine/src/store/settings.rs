//! Which store owns the counts, and how to open it.

use std::sync::Arc;

use super::Store;
use super::memory::MemoryStore;
use super::per_second::PerSecond;
use super::redis::{RedisSettings, RedisStore};

/// Which store owns the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // there is one a process
pub enum StoreSettings {
    /// The memory of this process: counts are not shared and are lost when it exits.
    Memory,
    /// Redis.
    Redis {
        /// The Redis of all limits, except those that `per_second` takes.
        main: RedisSettings,
        /// The Redis of limits with unit SECOND.
        per_second: Option<RedisSettings>,
        /// Prefix of every key; at most 64 bytes, without braces.
        key_prefix: String,
    },
}

/// Opens the store of these settings. A store on Redis starts to connect, on the present runtime.
pub fn open(settings: StoreSettings) -> Arc<dyn Store> {
    match settings {
        StoreSettings::Memory => Arc::new(MemoryStore::system()),
        StoreSettings::Redis { main, per_second, key_prefix } => {
            let main = RedisStore::spawn(main, &key_prefix);
            match per_second {
                None => main,
                Some(second) => {
                    Arc::new(PerSecond::new(main, RedisStore::spawn(second, &key_prefix)))
                }
            }
        }
    }
}

// === impl StoreSettings ===

impl StoreSettings {
    /// Returns the settings with the limit of each Redis' connections changed by `part`.
    #[must_use]
    pub fn with_connections(self, part: impl Fn(usize) -> usize) -> Self {
        let changed = |redis: RedisSettings| {
            let connections_max = part(redis.connections_max);
            RedisSettings { connections_max, ..redis }
        };
        match self {
            Self::Memory => Self::Memory,
            Self::Redis { main, per_second, key_prefix } => {
                Self::Redis { main: changed(main), per_second: per_second.map(changed), key_prefix }
            }
        }
    }
}
