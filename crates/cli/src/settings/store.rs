//! Settings for the store.

use clap::Args;
use ratelease_engine::secret::{Secret, SecretFile};
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::redis::RedisSettings;

use super::fault::{Expected, Fault, Faults};
use super::flag::{BOOL, FILE};
use super::redis::RawRedis;
use super::value;

/// Maximum length of `CACHE_KEY_PREFIX`, in bytes: every key contains the prefix.
const KEY_PREFIX_BYTES_MAX: usize = 64;

/// Flags of the Redis that owns the counts: those of everything that looks at counts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Redis")]
pub struct StoreFlags {
    /// host:port, or a socket's path; for a cluster a comma list; for sentinels the master's name,
    /// then theirs. redis://user:password@host:port is taken too [default: none, counts live in
    /// this process]
    #[arg(long, env = "REDIS_URL", value_name = "URL")]
    redis_url: Option<Secret>,
    /// File that holds it, in place of REDIS_URL
    #[arg(long, env = "REDIS_URL_FILE", value_name = "FILE", value_hint = FILE)]
    redis_url_file: Option<SecretFile>,
    /// How the nodes hang together: single, cluster or sentinel
    #[arg(long, env = "REDIS_TYPE", value_name = "TYPE", default_value = "single")]
    redis_type: String,
    /// For a single server, tcp or unix [default: by the look of the URL]
    #[arg(long, env = "REDIS_SOCKET_TYPE", value_name = "TYPE")]
    redis_socket_type: Option<String>,
    /// password, or user:password; only in the environment, since flags show in ps
    #[arg(long, env = "REDIS_AUTH", value_name = "AUTH")]
    redis_auth: Option<Secret>,
    /// File that holds it, in place of REDIS_AUTH; read again for each connection
    #[arg(long, env = "REDIS_AUTH_FILE", value_name = "FILE", value_hint = FILE)]
    redis_auth_file: Option<SecretFile>,
    /// password, or user:password, of the sentinels; only in the environment
    #[arg(long, env = "REDIS_SENTINEL_AUTH", value_name = "AUTH")]
    redis_sentinel_auth: Option<Secret>,
    /// File that holds it, in place of REDIS_SENTINEL_AUTH; read again for each connection
    #[arg(long, env = "REDIS_SENTINEL_AUTH_FILE", value_name = "FILE", value_hint = FILE)]
    redis_sentinel_auth_file: Option<SecretFile>,
    /// Networks of the nodes that a server or sentinel may send us to, as 10.0.0.0/8,fd00::/8
    /// [default: a redirect leads to nodes of the cluster, wherever they are]
    #[arg(long, env = "REDIS_REDIRECT_NETWORKS", value_name = "CIDRS")]
    redis_redirect_networks: Option<String>,
    /// How long Redis may be silent, at least, before a connection is replaced; more where it is
    /// measured to be slower, a duration
    #[arg(long, env = "REDIS_TIMEOUT", value_name = "SPAN", default_value = "250ms")]
    redis_timeout: String,
    /// Goes before every key in Redis; no braces [default: none]
    #[arg(long, env = "CACHE_KEY_PREFIX", value_name = "TEXT")]
    cache_key_prefix: Option<String>,
}

/// Flags of the Redis that owns the counts of limits per second, beside [`StoreFlags`].
#[derive(Debug, Args)]
#[command(next_help_heading = "Redis of limits per second")]
pub struct PerSecondFlags {
    /// Limits with unit SECOND have a Redis of their own, given by the flags below
    #[arg(long, env = "REDIS_PERSECOND", value_name = BOOL, default_value = "false")]
    redis_persecond: String,
    /// As --redis-url
    #[arg(long, env = "REDIS_PERSECOND_URL", value_name = "URL")]
    redis_persecond_url: Option<Secret>,
    /// As --redis-url-file
    #[arg(long, env = "REDIS_PERSECOND_URL_FILE", value_name = "FILE", value_hint = FILE)]
    redis_persecond_url_file: Option<SecretFile>,
    /// As --redis-type
    #[arg(long, env = "REDIS_PERSECOND_TYPE", value_name = "TYPE", default_value = "single")]
    redis_persecond_type: String,
    /// As --redis-socket-type
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE", value_name = "TYPE")]
    redis_persecond_socket_type: Option<String>,
    /// As --redis-auth
    #[arg(long, env = "REDIS_PERSECOND_AUTH", value_name = "AUTH")]
    redis_persecond_auth: Option<Secret>,
    /// As --redis-auth-file
    #[arg(long, env = "REDIS_PERSECOND_AUTH_FILE", value_name = "FILE", value_hint = FILE)]
    redis_persecond_auth_file: Option<SecretFile>,
    /// As --redis-sentinel-auth
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH", value_name = "AUTH")]
    redis_persecond_sentinel_auth: Option<Secret>,
    /// As --redis-sentinel-auth-file
    #[arg(
        long,
        env = "REDIS_PERSECOND_SENTINEL_AUTH_FILE",
        value_name = "FILE",
        value_hint = FILE
    )]
    redis_persecond_sentinel_auth_file: Option<SecretFile>,
    /// As --redis-redirect-networks
    #[arg(long, env = "REDIS_PERSECOND_REDIRECT_NETWORKS", value_name = "CIDRS")]
    redis_persecond_redirect_networks: Option<String>,
    /// As --redis-timeout
    #[arg(long, env = "REDIS_PERSECOND_TIMEOUT", value_name = "SPAN", default_value = "250ms")]
    redis_persecond_timeout: String,
}

// === impl StoreFlags ===

impl StoreFlags {
    /// Resolves the flags; without a URL, returns [`StoreSettings::Memory`].
    pub fn resolve(
        &self,
        per_second: &PerSecondFlags,
        faults: &mut Faults,
    ) -> Option<StoreSettings> {
        let (given, file) = (self.redis_url.as_ref(), self.redis_url_file.as_ref());
        let url = faults.secret("REDIS_URL", given, file);
        // A faulty URL counts as present.
        let has_main = url.as_ref().is_none_or(Option::is_some);
        let main = url.as_ref().and_then(Option::as_ref).map(|url| self.main(url).resolve(faults));
        let per_second = per_second.resolve(has_main, faults);
        url?;
        let prefix = self.cache_key_prefix.as_deref();
        let prefix = faults.parse_optional("CACHE_KEY_PREFIX", prefix, key_prefix);
        let (per_second, prefix) = (per_second?, prefix?);
        match main {
            None => Some(StoreSettings::Memory),
            Some(main) => Some(StoreSettings::Redis {
                main: main?,
                per_second,
                key_prefix: prefix.unwrap_or_default(),
            }),
        }
    }

    fn main<'a>(&'a self, url: &'a Secret) -> RawRedis<'a> {
        RawRedis {
            prefix: "REDIS_",
            kind: &self.redis_type,
            socket_type: self.redis_socket_type.as_deref(),
            url,
            url_file: self.redis_url_file.as_ref(),
            auth: self.redis_auth.as_ref(),
            auth_file: self.redis_auth_file.as_ref(),
            sentinel_auth: self.redis_sentinel_auth.as_ref(),
            sentinel_auth_file: self.redis_sentinel_auth_file.as_ref(),
            redirect_networks: self.redis_redirect_networks.as_deref(),
            timeout: &self.redis_timeout,
        }
    }

    /// Returns `CACHE_KEY_PREFIX` as given, for use without a resolved Redis.
    pub fn key_prefix(&self) -> &str {
        self.cache_key_prefix.as_deref().unwrap_or_default()
    }

    /// Returns a warning if there are settings for Redis but no Redis.
    pub(super) fn warning(&self) -> Option<String> {
        let is_secret = |secret: &Option<Secret>| secret.as_ref().is_some_and(|it| !it.is_empty());
        let is_file = |file: &Option<SecretFile>| file.as_ref().is_some_and(|it| !it.is_empty());
        let has_url = is_secret(&self.redis_url) || is_file(&self.redis_url_file);
        let is_given = self.redis_type != "single"
            || self.redis_socket_type.is_some()
            || is_secret(&self.redis_auth)
            || is_file(&self.redis_auth_file)
            || is_secret(&self.redis_sentinel_auth)
            || is_file(&self.redis_sentinel_auth_file)
            || self.redis_redirect_networks.is_some();
        (is_given && !has_url).then(|| {
            "REDIS_URL: not set though other settings of Redis are; counts live in this process \
             and are not shared"
                .to_owned()
        })
    }
}

// === impl PerSecondFlags ===

impl PerSecondFlags {
    fn resolve(&self, has_main: bool, faults: &mut Faults) -> Option<Option<RedisSettings>> {
        let enabled = faults.parse("REDIS_PERSECOND", &self.redis_persecond, value::boolean)?;
        if !enabled {
            return Some(None);
        }
        if !has_main {
            let mend = "set REDIS_URL, or unset REDIS_PERSECOND";
            faults.add(Fault::new("REDIS_PERSECOND", "there is no Redis for other limits", mend));
        }
        let (given, file) =
            (self.redis_persecond_url.as_ref(), self.redis_persecond_url_file.as_ref());
        let Some(url) = faults.secret("REDIS_PERSECOND_URL", given, file)? else {
            let mend = "set it or --redis-persecond-url, as in REDIS_PERSECOND_URL=redis:6379";
            faults.add(Fault::new("REDIS_PERSECOND_URL", "REDIS_PERSECOND needs it", mend));
            return None;
        };
        let raw = RawRedis {
            prefix: "REDIS_PERSECOND_",
            kind: &self.redis_persecond_type,
            socket_type: self.redis_persecond_socket_type.as_deref(),
            url: &url,
            url_file: self.redis_persecond_url_file.as_ref(),
            auth: self.redis_persecond_auth.as_ref(),
            auth_file: self.redis_persecond_auth_file.as_ref(),
            sentinel_auth: self.redis_persecond_sentinel_auth.as_ref(),
            sentinel_auth_file: self.redis_persecond_sentinel_auth_file.as_ref(),
            redirect_networks: self.redis_persecond_redirect_networks.as_deref(),
            timeout: &self.redis_persecond_timeout,
        };
        raw.resolve(faults).map(Some)
    }
}

/// Refuses braces, which would replace the hash tag that determines the slot of a key in the
/// cluster.
fn key_prefix(text: &str) -> Result<String, Expected> {
    if text.len() > KEY_PREFIX_BYTES_MAX || text.contains(['{', '}']) {
        let what = format!("at most {KEY_PREFIX_BYTES_MAX} bytes without braces");
        return Err(Expected::new(what, "shop:"));
    }
    Ok(text.to_owned())
}
