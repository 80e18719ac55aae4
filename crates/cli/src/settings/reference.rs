//! Every environment variable of the reference (`src/settings/settings.go` at f2fb157), and how it
//! is handled here.

use ratelease_rules::parse_duration;

use super::fault::{Fault, Faults};
use super::value;

/// How a variable of the reference is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// There is a flag for it.
    Flag,
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

use Support::{Differs, Flag, Only, Unneeded, Unsupported};

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

/// All 114 variables, in the order of the reference.
#[rustfmt::skip]
pub(crate) const REFERENCE: [(&str, Support); 114] = [
    ("HOST", Flag),
    ("PORT", Flag),
    ("DEBUG_HOST", Flag),
    ("DEBUG_PORT", Flag),
    ("GRPC_UDS", Flag),
    ("GRPC_HOST", Flag),
    ("GRPC_PORT", Flag),
    ("GRPC_MAX_CONNECTION_AGE", Flag),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Flag),
    ("GRPC_SERVER_USE_TLS", Flag),
    ("GRPC_SERVER_TLS_CERT", Flag),
    ("GRPC_SERVER_TLS_KEY", Flag),
    ("GRPC_CLIENT_TLS_CACERT", Flag),
    ("GRPC_CLIENT_TLS_SAN", Flag),
    ("LOG_LEVEL", Flag),
    ("LOG_FORMAT", Flag),
    ("CONFIG_TYPE", Flag),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", Flag),
    ("CONFIG_GRPC_XDS_NODE_ID", Flag),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Flag),
    ("CONFIG_GRPC_XDS_SERVER_URL", Flag),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", RETRY),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Flag),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", Flag),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Flag),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Flag),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", Flag),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Flag),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Flag),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Flag),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", RANDOM_FACTOR),
    ("XDS_CLIENT_BACKOFF_JITTER", Flag),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Flag),
    ("USE_DOG_STATSD", Flag),
    ("USE_DOG_STATSD_MOGRIFIERS", Flag),
    ("USE_STATSD", Flag),
    ("STATSD_HOST", Flag),
    ("STATSD_PORT", Flag),
    ("EXTRA_TAGS", Flag),
    ("STATS_FLUSH_INTERVAL", Flag),
    ("DISABLE_STATS", Flag),
    ("USE_PROMETHEUS", Flag),
    ("PROMETHEUS_ADDR", Flag),
    ("PROMETHEUS_PATH", Flag),
    ("PROMETHEUS_MAPPER_YAML", MAPPER),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", MILLISECONDS),
    ("RUNTIME_ROOT", Flag),
    ("RUNTIME_SUBDIRECTORY", Flag),
    ("RUNTIME_APPDIRECTORY", Flag),
    ("RUNTIME_IGNOREDOTFILES", Flag),
    ("RUNTIME_WATCH_ROOT", WATCH_ROOT),
    ("EXPIRATION_JITTER_MAX_SECONDS", Unneeded("keys expire with their window")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Unneeded("not needed: exhausted keys are remembered anyway")),
    ("NEAR_LIMIT_RATIO", Flag),
    ("CACHE_KEY_PREFIX", KEY_PREFIX),
    ("BACKEND_TYPE", Only("redis", "only Redis is supported")),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Unneeded(SPARED)),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Flag),
    ("LIMIT_LIMIT_HEADER", Flag),
    ("LIMIT_REMAINING_HEADER", Flag),
    ("LIMIT_RESET_HEADER", Flag),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Flag),
    ("REDIS_SOCKET_TYPE", Flag),
    ("REDIS_TYPE", Flag),
    ("REDIS_URL", Flag),
    ("REDIS_POOL_SIZE", ONE_CONNECTION),
    ("REDIS_AUTH", Flag),
    ("REDIS_TLS", Flag),
    ("REDIS_TLS_CLIENT_CERT", Flag),
    ("REDIS_TLS_CLIENT_KEY", Flag),
    ("REDIS_TLS_CACERT", Flag),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Flag),
    ("REDIS_PIPELINE_WINDOW", BATCHES),
    ("REDIS_PIPELINE_LIMIT", BATCHES),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", BATCHES),
    ("REDIS_PERSECOND", Flag),
    ("REDIS_PERSECOND_SOCKET_TYPE", Flag),
    ("REDIS_PERSECOND_TYPE", Flag),
    ("REDIS_PERSECOND_URL", Flag),
    ("REDIS_PERSECOND_POOL_SIZE", ONE_CONNECTION),
    ("REDIS_PERSECOND_AUTH", Flag),
    ("REDIS_PERSECOND_TLS", Flag),
    ("REDIS_SENTINEL_AUTH", Flag),
    ("REDIS_PERSECOND_SENTINEL_AUTH", Flag),
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
    ("SHADOW_MODE", Flag),
    ("QUOTA_MODE", Flag),
    ("RESPONSE_DYNAMIC_METADATA", Flag),
    ("MERGE_DOMAIN_CONFIG", Flag),
    ("TRACING_ENABLED", Flag),
    ("TRACING_SERVICE_NAME", Flag),
    ("TRACING_SERVICE_NAMESPACE", Flag),
    ("TRACING_SERVICE_INSTANCE_ID", Flag),
    ("TRACING_EXPORTER_PROTOCOL", Flag),
    ("TRACING_SAMPLING_RATE", Flag),
];

/// Variables that deployments of the reference set, although the reference at f2fb157 does not read
/// them: those of newer and of older versions, of its libraries, and Envoy Gateway's.
pub(crate) const BESIDE_REFERENCE: [(&str, Support); 6] = [
    // Read by the library through which the reference writes to statsd.
    ("STATSD_PROTOCOL", Flag),
    // Merged in July and August 2026 (pull requests 1191 and 1206).
    ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", Unneeded(READONLY)),
    ("USE_CALENDAR_MONTH_RATE_LIMIT", Flag),
    ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", ONE_CONNECTION),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", ONE_CONNECTION),
    // Envoy Gateway's name for GRPC_CLIENT_TLS_CACERT.
    ("GRPC_SERVER_TLS_CA_CERT", CLIENT_CA),
];

/// Adds a fault for each variable that cannot be ignored safely, and returns a warning for each
/// other variable that is ignored.
pub(super) fn check(env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, support) in REFERENCE.into_iter().chain(BESIDE_REFERENCE) {
        let Some(value) = env(name).filter(|value| !value.is_empty()) else { continue };
        match support {
            Flag | Differs(..) => {}
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
