//! Settings of the process: flags and environment, parsed once into types that hold only valid
//! values.
//!
//! Parsing has two stages: [`ServeFlags`] holds the text of flags and variables, and [`Settings`]
//! its meaning. Every faulty setting is reported, not only the first, and no message contains a
//! secret.

mod fault;
mod flags;
mod group;
mod grpc_tls;
mod headers;
mod hot_keys;
mod leases;
mod listeners;
mod logging;
mod metrics;
mod otlp;
mod pod;
mod redis;
mod redis_tls;
pub(crate) mod reference;
mod responses;
mod role;
mod rules;
mod store;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod tracing;
mod value;
mod xds;

use std::time::Duration;

use ratelease_engine::store::StoreSettings;
use ratelease_tls::{ClientFiles, ServerCheck, ServerFiles};

pub use fault::{Fault, Faults};
pub use flags::ServeFlags;
pub(crate) use flags::reference_default;
pub use headers::{HeaderNames, Headers};
pub use hot_keys::HotKeys;
pub use leases::{KeyFlags, Leases};
pub use listeners::{GrpcListen, Listeners, Uds};
pub use logging::{LogFormat, LogLevel, Logging};
pub use metrics::Metrics;
pub use otlp::{Otlp, OtlpCompression, OtlpProtocol, OtlpTls};
pub use pod::{DebugListenerFlags, HealthListenerFlags};
pub use responses::ResponseSettings;
pub use role::Role;
pub use rules::{HealthyWith, Reading, ReadingFlags, RulesDir, RulesDirFlags, RulesSource};
pub use store::{PerSecondFlags, StoreFlags};
pub(crate) use store::{store_names, with_named_stores};
pub use summary::EffectiveSetting;
pub(crate) use summary::effective_settings;
pub use tracing::{Identity, Push, Telemetry, Tracing};
pub use value::HostPort;
pub use xds::{Xds, XdsRetry};

/// All settings of `serve`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The addresses to listen on.
    pub listeners: Listeners,
    /// The certificate of the gRPC listener; `None` for plaintext.
    pub grpc_tls: Option<ServerFiles>,
    /// The source of the rules.
    pub rules: RulesSource,
    /// The xDS server that the rules come from; `None` if they come from files.
    pub xds: Option<Xds>,
    /// The store that holds the counts.
    pub store: StoreSettings,
    /// The contents of responses.
    pub responses: ResponseSettings,
    /// How tokens are leased and buffers are kept.
    pub leases: Leases,
    /// How the hottest keys are counted; `None` turns this off.
    pub hot_keys: Option<HotKeys>,
    /// What is logged, and how.
    pub logging: Logging,
    /// What is sent to an OpenTelemetry collector.
    pub telemetry: Telemetry,
    /// Which metrics are kept, and where they are served.
    pub metrics: Metrics,
    /// Maximum time after a signal for requests in flight and for giving back leases; at most an
    /// hour.
    pub drain: Duration,
    /// One line for each setting that was asked for but is not followed; logged once logging is set
    /// up.
    pub warnings: Vec<String>,
    /// All settings as flags, for display; contains no secret.
    pub summary: Vec<EffectiveSetting>,
}

/// The reason why there are no settings to start with.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The help or version text was asked for; it goes to standard output.
    #[error("{0}")]
    Help(String),
    /// The command line was not understood; the text is clap's.
    #[error("{0}")]
    Usage(String),
    /// All settings that cannot be used.
    #[error("{0}")]
    Faults(Faults),
}

// === impl Settings ===

impl Settings {
    /// Resolves `flags` to settings, without a summary of them. `env` is called only for variables
    /// that have no flag.
    ///
    /// # Errors
    /// [`SettingsError::Faults`], with every fault.
    pub fn resolve(
        role: Role,
        flags: &ServeFlags,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let listeners = flags.listeners.resolve(&mut faults);
        let grpc_tls = flags.grpc_tls.resolve(&mut faults);
        let rules = flags.rules.resolve(role, &mut faults);
        let xds = flags.xds.resolve(&mut faults);
        let store = flags.store.resolve(&flags.per_second, &mut faults);
        let responses = flags.responses.resolve(&mut faults);
        let leases = flags.leases.resolve(&mut faults);
        let drain = flags.leases.drain(&mut faults);
        let hot_keys = flags.hot_keys.resolve(&mut faults);
        let logging = flags.logging.resolve(&mut faults);
        let metrics = flags.metrics.resolve(&mut faults);
        let mut warnings = reference::check(env, &mut faults);
        let telemetry = flags.tracing.resolve(env, &mut faults, &mut warnings);
        warnings.extend(flags.grpc_tls.warning());
        warnings.extend(flags.store.warning(role));
        warnings.extend(store.as_ref().and_then(unchecked_redis));
        warnings.extend(xds.as_ref().and_then(Option::as_ref).and_then(headers_in_plaintext));
        warnings.extend(leases.as_ref().zip(store.as_ref()).and_then(unset_key_secret));
        warnings.extend(leases.as_ref().and_then(key_secret_with_line_end));
        let settings = || {
            Some(Self {
                listeners: listeners?,
                grpc_tls: grpc_tls?,
                rules: rules?,
                xds: xds?,
                store: store?,
                responses: responses?,
                leases: leases?,
                hot_keys: hot_keys?,
                logging: logging?,
                telemetry: telemetry?,
                metrics: metrics?,
                drain: drain?,
                warnings,
                summary: Vec::new(),
            })
        };
        match settings() {
            Some(settings) if faults.is_empty() => Ok(settings),
            _ => Err(SettingsError::Faults(faults)),
        }
    }
}

/// Returns a warning if pods share counts under keys that anyone can compute.
fn unset_key_secret((leases, store): (&Leases, &StoreSettings)) -> Option<String> {
    let is_shared = matches!(store, StoreSettings::Redis { .. });
    (is_shared && leases.key_secret.is_empty()).then(|| {
        "KEY_SECRET: not set, so keys in Redis are hashes without a secret, and anyone who reads \
         them can find the values (addresses, user names) by trying; set KEY_SECRET or \
         KEY_SECRET_FILE to the same random text on all pods at once: pods with different \
         secrets count separately"
            .to_owned()
    })
}

/// Returns a warning if any certificate of a public CA is accepted as that of Redis.
fn unchecked_redis(store: &StoreSettings) -> Option<String> {
    let is_unchecked =
        |files: &ClientFiles| files.roots.is_none() && files.server == ServerCheck::AnyName;
    store.all_redis().filter_map(|redis| redis.tls.as_ref()).any(is_unchecked).then(|| {
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: without REDIS_TLS_CACERT any certificate of a \
         public CA passes for Redis, and gets its password; set REDIS_TLS_CACERT"
            .to_owned()
    })
}

/// Returns a warning if headers, such as a token, are sent in plaintext.
fn headers_in_plaintext(xds: &Xds) -> Option<String> {
    (xds.tls.is_none() && !xds.headers.is_empty()).then(|| {
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: sent in plaintext; set \
         CONFIG_GRPC_XDS_SERVER_USE_TLS=true"
            .to_owned()
    })
}

/// Returns a warning if the secret ends with a line end, which `KEY_SECRET_FILE` would leave out.
fn key_secret_with_line_end(leases: &Leases) -> Option<String> {
    leases.key_secret.reveal().ends_with('\n').then(|| {
        "KEY_SECRET: ends with a line end, which is part of the secret here but not in \
         KEY_SECRET_FILE: pods that use the one and the other count separately"
            .to_owned()
    })
}

/// Reads a variable of the process's environment. Invalid UTF-8 is replaced, so that the value is
/// reported as faulty rather than taken as unset.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

// === impl SettingsError ===

impl SettingsError {
    /// Returns the exit code: 0 for help and version, 2 for all else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Help(_) => 0,
            Self::Usage(_) | Self::Faults(_) => 2,
        }
    }
}

impl From<clap::Error> for SettingsError {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        // clap's own exit codes: 0 for help and version, 2 for what it does not understand.
        if error.exit_code() == 0 { Self::Help(text) } else { Self::Usage(text) }
    }
}
