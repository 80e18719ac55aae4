//! Settings for the store.

use clap::Args;
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::redis::RedisSettings;
use ratelease_tls::ClientFiles;

use super::fault::{Expected, Fault, Faults};
use super::group::Flags;
use super::redis::{PerSecondRedisTable, REDIS_TIMEOUT, REDIS_URL, RawRedis, RedisTable};
use super::redis_tls::{self, RedisTlsFlags};
use super::table::{Group, OptionalSetting, Row, Setting, optional, settings, switch};

/// Maximum length of `CACHE_KEY_PREFIX`, in bytes: every key contains the prefix.
const KEY_PREFIX_BYTES_MAX: usize = 64;

settings! {
    /// Settings of the store besides those of its Redis.
    pub(super) group StoreTable("Redis");

    /// Prefix of every key in Redis; no braces [default: none]
    CACHE_KEY_PREFIX: OptionalSetting<String> = optional("TEXT", key_prefix);
}

/// Flags of the Redis that owns the counts, of every command that looks at counts.
#[derive(Debug, Args)]
pub struct StoreFlags {
    #[command(flatten)]
    redis: Flags<RedisTable>,
    #[command(flatten)]
    tls: RedisTlsFlags,
    #[command(flatten)]
    store: Flags<StoreTable>,
}

settings! {
    /// Whether limits per second have a Redis of their own.
    pub(super) group PerSecondTable("Redis of limits per second");

    /// Keep limits with unit SECOND in a Redis of their own, which the flags below describe
    REDIS_PERSECOND: Setting<bool> = switch(false);
}

/// Flags of the Redis that owns the counts of limits per second, besides [`StoreFlags`].
#[derive(Debug, Args)]
pub struct PerSecondFlags {
    #[command(flatten)]
    is_on: Flags<PerSecondTable>,
    #[command(flatten)]
    redis: Flags<PerSecondRedisTable>,
}

// === impl StoreFlags ===

impl StoreFlags {
    /// Resolves the flags; without a URL, returns [`StoreSettings::Memory`].
    pub fn resolve(
        &self,
        per_second: &PerSecondFlags,
        faults: &mut Faults,
    ) -> Option<StoreSettings> {
        let url = self.redis.secret(&REDIS_URL, faults);
        let tls = self.tls.resolve(faults);
        // A faulty URL counts as present.
        let has_main = url.as_ref().is_none_or(Option::is_some);
        let main = url
            .as_ref()
            .and_then(Option::as_ref)
            .map(|url| RawRedis { values: &self.redis, url, tls: &tls }.resolve(faults));
        let per_second = per_second.resolve(has_main, &tls, faults);
        let of_per_second = per_second.as_ref().and_then(Option::as_ref);
        let mut redis = main.iter().flatten().chain(of_per_second);
        if redis.any(|redis| redis.tls.is_some()) {
            redis_tls::FILES.check(&tls, faults);
        }
        url?;
        let key_prefix = self.store.optional(&CACHE_KEY_PREFIX, faults);
        let (per_second, key_prefix) = (per_second?, key_prefix?.unwrap_or_default());
        match main {
            None => Some(StoreSettings::Memory),
            Some(main) => Some(StoreSettings::Redis { main: main?, per_second, key_prefix }),
        }
    }

    /// Returns `CACHE_KEY_PREFIX` as given, for use without a resolved Redis.
    pub fn key_prefix(&self) -> &str {
        self.store.text(&CACHE_KEY_PREFIX).unwrap_or_default()
    }

    /// Returns a warning if there are settings for Redis but no Redis.
    pub(super) fn warning(&self) -> Option<String> {
        let is_changed = |row: &Row| self.redis.is_changed(row);
        // The reference's deployments set a timeout in any case.
        let mut others = RedisTable::ROWS.iter().filter(|row| row.name != REDIS_TIMEOUT.row.name);
        (others.any(is_changed) && !is_changed(&REDIS_URL.row)).then(|| {
            "REDIS_URL: not set though other settings of Redis are; counts are kept in the memory \
             of this process and not shared"
                .to_owned()
        })
    }
}

// === impl PerSecondFlags ===

impl PerSecondFlags {
    fn resolve(
        &self,
        has_main: bool,
        tls: &ClientFiles,
        faults: &mut Faults,
    ) -> Option<Option<RedisSettings>> {
        if !self.is_on.get(&REDIS_PERSECOND, faults)? {
            return Some(None);
        }
        if !has_main {
            let fix = "set REDIS_URL, or unset REDIS_PERSECOND";
            faults.add(Fault::new("REDIS_PERSECOND", "there is no Redis for other limits", fix));
        }
        let Some(url) = self.redis.secret(&REDIS_URL, faults)? else {
            let fix = "set it or --redis-persecond-url, as in REDIS_PERSECOND_URL=redis:6379";
            faults.add(Fault::new("REDIS_PERSECOND_URL", "REDIS_PERSECOND needs it", fix));
            return None;
        };
        RawRedis { values: &self.redis, url: &url, tls }.resolve(faults).map(Some)
    }
}

/// Refuses braces, which would replace the hash tag that determines the slot of a key in the
/// cluster.
fn key_prefix(text: &str) -> Result<String, Expected> {
    if text.len() > KEY_PREFIX_BYTES_MAX || text.contains(['{', '}']) {
        let what = format!("at most {KEY_PREFIX_BYTES_MAX} bytes without braces");
        return Err(Expected::new(what).example("shop:"));
    }
    Ok(text.to_owned())
}
