//! Settings for the store.

use std::ffi::OsString;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use ratelease_engine::store::redis::RedisSettings;
use ratelease_engine::store::{NamedRedis, StoreSettings};
use ratelease_rules::StoreNames;
use ratelease_tls::ClientFiles;

use super::fault::{Expected, Fault, Faults, flag_name};
use super::group::{Flags, GroupOptions, Values};
use super::redis::{PerSecondRedisTable, REDIS_TIMEOUT, REDIS_URL, RawRedis, RedisTable};
use super::redis_tls::{self, RedisTlsFlags};
use super::role::Role;
use super::rules::REDIS_STORES;
use super::table::{Group, Names, OptionalSetting, Row, Setting, optional, settings, switch};

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

/// Flags of the Redis of limits per second and of named stores, besides [`StoreFlags`].
#[derive(Debug, Args)]
pub struct PerSecondFlags {
    #[command(flatten)]
    is_on: Flags<PerSecondTable>,
    #[command(flatten)]
    redis: Flags<PerSecondRedisTable>,
    #[command(flatten)]
    named: NamedStoreFlags,
}

/// The settings of each named store. Their flags exist once `REDIS_STORES` is known:
/// [`with_named_stores`] adds them.
#[derive(Debug)]
pub(super) struct NamedStoreFlags {
    /// In the order of the stores' numbers.
    stores: Vec<(Box<str>, Values)>,
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
        let named = per_second.named.resolve(has_main, &tls, faults);
        let per_second = per_second.resolve(has_main, &tls, faults);
        let of_per_second = per_second.as_ref().and_then(Option::as_ref);
        let of_named = named.iter().flatten().map(|named| &named.redis);
        let mut redis = main.iter().flatten().chain(of_per_second).chain(of_named);
        if redis.any(|redis| redis.tls.is_some()) {
            redis_tls::FILES.check(&tls, faults);
        }
        url?;
        let key_prefix = self.store.optional(&CACHE_KEY_PREFIX, faults);
        let (per_second, key_prefix) = (per_second?, key_prefix?.unwrap_or_default());
        match main {
            None => Some(StoreSettings::Memory),
            Some(main) => {
                let (main, named) = (main?, named?);
                Some(StoreSettings::Redis { main, per_second, named, key_prefix })
            }
        }
    }

    /// Returns `CACHE_KEY_PREFIX` as given, for use without a resolved Redis.
    pub fn key_prefix(&self) -> &str {
        self.store.text(&CACHE_KEY_PREFIX).unwrap_or_default()
    }

    /// Returns a warning if there are settings for Redis but no Redis, or if the reference, which
    /// does not start without one, was to be replaced.
    pub(super) fn warning(&self, role: Role) -> Option<String> {
        let is_changed = |row: &Row| self.redis.is_changed(row);
        // The reference's deployments set a timeout in any case.
        let mut others = RedisTable::ROWS.iter().filter(|row| row.name != REDIS_TIMEOUT.row.name);
        let why = match others.any(is_changed) {
            _ if is_changed(&REDIS_URL.row) => return None,
            true => " though other settings of Redis are",
            false if role == Role::Ratelimit => "",
            false => return None,
        };
        Some(format!(
            "REDIS_URL: not set{why}; counts are kept in the memory of this process and not \
             shared, so that each pod admits whole limits"
        ))
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

// === impl NamedStoreFlags ===

impl NamedStoreFlags {
    fn resolve(
        &self,
        has_main: bool,
        tls: &ClientFiles,
        faults: &mut Faults,
    ) -> Option<Vec<NamedRedis>> {
        let mut resolved = Some(Vec::new());
        for (name, values) in &self.stores {
            let is_set = RedisTable::ROWS.iter().any(|row| values.is_changed(row));
            if !has_main {
                // A tool may be given the names that rules may use, without any Redis.
                if is_set {
                    let fix = "set REDIS_URL, or unset this store's settings";
                    let problem = "there is no Redis for limits that name no store";
                    faults.add(Fault::new(&*values.name(&REDIS_URL.row), problem, fix));
                }
                continue;
            }
            let redis = Self::redis(name, values, tls, faults);
            resolved = resolved.zip(redis).map(|(mut all, redis)| {
                all.push(NamedRedis { name: name.clone(), redis });
                all
            });
        }
        resolved
    }

    fn redis(
        name: &str,
        values: &Values,
        tls: &ClientFiles,
        faults: &mut Faults,
    ) -> Option<RedisSettings> {
        let Some(url) = values.secret(&REDIS_URL, faults)? else {
            let variable = values.name(&REDIS_URL.row);
            let problem = format!("REDIS_STORES names {name}, which needs it");
            let fix = format!("set it or {}, as in {variable}=redis:6379", flag_name(&variable));
            faults.add(Fault::new(&*variable, problem, fix));
            return None;
        };
        RawRedis { values, url: &url, tls }.resolve(faults)
    }
}

/// No flag of its own: those of named stores are not known yet.
impl Args for NamedStoreFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for NamedStoreFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = matches.try_get_one::<String>(REDIS_STORES.row.name).ok().flatten();
        let names = names.and_then(|names| StoreNames::parse(names).ok()).unwrap_or_default();
        let values = |name: &str| {
            let names = Names::Store(name.into());
            (name.into(), Values::new(matches, RedisTable::ROWS, names))
        };
        Ok(Self { stores: names.iter().map(values).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the names of stores that the command line or else the environment gives; none if they
/// are faulty, which is reported where the setting is resolved.
pub(crate) fn store_names(args: &[OsString], env: &dyn Fn(&str) -> Option<String>) -> StoreNames {
    let flag = flag_name(REDIS_STORES.row.name);
    let mut given = env(REDIS_STORES.row.name);
    let mut texts = args.iter().map(|arg| arg.to_string_lossy());
    while let Some(arg) = texts.next() {
        match arg.strip_prefix(&*flag) {
            Some("") => given = texts.next().map(Into::into),
            Some(rest) if rest.starts_with('=') => given = Some(rest[1..].to_owned()),
            _ => {}
        }
    }
    StoreNames::parse(&given.unwrap_or_default()).unwrap_or_default()
}

/// Adds the flags of named stores to a command that has those of [`PerSecondFlags`].
pub(crate) fn with_named_stores(command: Command, names: &StoreNames) -> Command {
    let has_stores = command.get_arguments().any(|arg| arg.get_id() == REDIS_PERSECOND.row.name);
    if !has_stores {
        return command;
    }
    names.iter().fold(command, |command, name| {
        let names = Names::Store(name.into());
        let options = GroupOptions { heading: "Redis of named stores", names, is_hidden: true };
        options.add_all(RedisTable::ROWS, command)
    })
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
