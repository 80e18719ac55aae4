//! The environment variables of the reference (`src/settings/settings.go` at f2fb157) that are no
//! settings here, or not quite the same, and how they are handled. Each other variable of the
//! reference is a row of the table of settings, without the mark `added`.

use ratelease_rules::parse_duration;

use super::fault::{Fault, Faults};
use super::value;

/// How such a variable is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// There is a flag for it, whose meaning is not quite the reference's: what differs, and what
    /// to do about it; empty if nothing has to be done.
    Differs(&'static str, &'static str),
    /// Only this value is accepted, in any case; another is a fault, with the reason.
    Only(&'static str, &'static str),
    /// A feature that is missing: one warning with the reason, unless the value turns the feature
    /// off.
    Unsupported(&'static str),
    /// A setting of something that does not exist here, and is not needed: one warning with the
    /// reason, as for a missing feature.
    Unneeded(&'static str),
}

use Support::{Differs, Only, Unneeded, Unsupported};

const SPARED: &str = "not needed: a denied request spends nothing on its other rules anyway";
const HEALTH: &str = "health does not depend on Redis: leased tokens are spent without it";
const READONLY: &str =
    "not needed: a connection to a master that became a replica is always replaced";
const MAPPER: Support =
    Unsupported("metrics have the names and labels of the reference's default mapper");
const MILLISECONDS: Support = Unsupported("response times are in seconds, as their name says");
const MEMCACHE: Support = Unsupported("only Redis is supported");
const ONE_CONNECTION: Support =
    Unneeded("there is no pool: one multiplexed connection to each node carries every call");
const BATCHES: Support = Unneeded("calls to a shard are batched anyway");
const STARTUP: Support =
    Unneeded("the start does not wait for Redis; connecting is retried forever");
const REDIS_TIMEOUT: Support = Differs(
    "bounds each reply too, not only connecting, so that a dead connection is replaced; requests \
     do not wait for it",
    "",
);
const RETRY: Support = Differs("each wait is this long; the reference's waits grow", "");
const RANDOM_FACTOR: Support = Differs(
    "the part by which a wait is shortened at random; the reference's waits grow by this factor",
    "",
);
const WATCH_ROOT: Support =
    Differs("a change of a file in place is seen too, with true and with false", "");
const KEY_PREFIX: Support =
    Differs("stands before rl:{hash}; keys of the reference are not read", "");
const CLIENT_CA: Support = Differs(
    "clients must have a certificate that it signed; the reference does not read this variable",
    "check that each client presents one",
);

/// These variables, in the order of the reference. Last are those that deployments of it set
/// although the reference at f2fb157 does not read them.
pub(crate) const EXCEPTIONS: [(&str, Support); 39] = [
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", RETRY),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", RANDOM_FACTOR),
    ("PROMETHEUS_MAPPER_YAML", MAPPER),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", MILLISECONDS),
    ("RUNTIME_WATCH_ROOT", WATCH_ROOT),
    ("EXPIRATION_JITTER_MAX_SECONDS", Unneeded("keys expire with their window")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Unneeded("not needed: exhausted keys are remembered anyway")),
    ("CACHE_KEY_PREFIX", KEY_PREFIX),
    ("BACKEND_TYPE", Only("redis", "only Redis is supported")),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Unneeded(SPARED)),
    ("REDIS_POOL_SIZE", ONE_CONNECTION),
    ("REDIS_PIPELINE_WINDOW", BATCHES),
    ("REDIS_PIPELINE_LIMIT", BATCHES),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", BATCHES),
    ("REDIS_PERSECOND_POOL_SIZE", ONE_CONNECTION),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", BATCHES),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", BATCHES),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", BATCHES),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Unneeded(HEALTH)),
    ("REDIS_TIMEOUT", REDIS_TIMEOUT),
    ("REDIS_PERSECOND_TIMEOUT", REDIS_TIMEOUT),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", ONE_CONNECTION),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", ONE_CONNECTION),
    ("REDIS_STARTUP_INITIAL_INTERVAL", STARTUP),
    ("REDIS_STARTUP_MAX_INTERVAL", STARTUP),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", STARTUP),
    ("MEMCACHE_HOST_PORT", MEMCACHE),
    ("MEMCACHE_MAX_IDLE_CONNS", MEMCACHE),
    ("MEMCACHE_SRV", MEMCACHE),
    ("MEMCACHE_SRV_REFRESH", MEMCACHE),
    ("MEMCACHE_TLS", MEMCACHE),
    ("MEMCACHE_TLS_CLIENT_CERT", MEMCACHE),
    ("MEMCACHE_TLS_CLIENT_KEY", MEMCACHE),
    ("MEMCACHE_TLS_CACERT", MEMCACHE),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", MEMCACHE),
    // Merged in July 2026 (pull request 1191).
    ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", Unneeded(READONLY)),
    // Of older versions.
    ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", ONE_CONNECTION),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", ONE_CONNECTION),
    // Envoy Gateway's name for GRPC_CLIENT_TLS_CACERT.
    ("GRPC_SERVER_TLS_CA_CERT", CLIENT_CA),
];

/// Adds a fault for each variable that cannot be ignored safely, and returns a warning for each
/// other variable that is ignored.
pub(super) fn check(env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, support) in EXCEPTIONS {
        let Some(value) = env(name).filter(|value| !value.is_empty()) else { continue };
        match support {
            Differs(..) => {}
            Only(good, _) if value.eq_ignore_ascii_case(good) => {}
            Only(good, reason) => {
                let fault = Fault::new(name, reason, format!("unset it, or set it to {good}"));
                faults.add(fault.with_found(&value));
            }
            Unsupported(_) | Unneeded(_) if asks_for_nothing(&value) => {}
            Unsupported(reason) | Unneeded(reason) => {
                warnings.push(format!("{name}: ignored; {reason}"));
            }
        }
    }
    warnings
}

/// Returns whether the value is false or zero, which turns off a feature that does not exist here.
pub(crate) fn asks_for_nothing(value: &str) -> bool {
    matches!(value::boolean(value), Ok(false))
        || parse_duration(value).is_some_and(|span| span.is_zero())
}
