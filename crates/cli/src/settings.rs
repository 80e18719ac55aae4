//! Settings of the process: flags and environment, parsed once into types that cannot be wrong.
//!
//! In two stages: [`ServeFlags`] holds what was typed or set, as text; [`Settings`] what it means.
//! Every faulty setting is reported, not just the first, and no message shows a secret.

mod answers;
mod fault;
pub(crate) mod flag;
mod flags;
mod headers;
mod hot_keys;
mod leases;
mod listeners;
mod logging;
mod metrics;
mod otlp;
mod redis;
mod reference;
mod rules;
mod store;
mod summary;
#[cfg(test)]
mod tests;
mod tracing;
mod value;

use std::time::Duration;

use ratelease_engine::store::StoreSettings;

pub use answers::Answers;
pub use fault::{Fault, Faults};
pub use flag::Role;
pub use flags::ServeFlags;
pub use headers::{HeaderNames, Headers};
pub use hot_keys::HotKeys;
pub use leases::{KeyFlags, Leases};
pub use listeners::{GrpcListen, Listeners, Uds};
pub use logging::{LogFormat, LogLevel, Logging};
pub use metrics::Metrics;
pub use otlp::{Otlp, OtlpProtocol, OtlpTls};
pub use rules::{Reading, ReadingFlags, RulesDir, RulesDirFlags, RulesSource};
pub use store::{PerSecondFlags, StoreFlags};
pub use summary::Told;
pub(crate) use summary::of as told;
pub use tracing::{Identity, Push, Telemetry, Tracing};
pub use value::HostPort;

/// Everything `serve` is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where to listen.
    pub listeners: Listeners,
    /// Where the rules come from.
    pub rules: RulesSource,
    /// Who owns the counts.
    pub store: StoreSettings,
    /// What goes into an answer.
    pub answers: Answers,
    /// How tokens are leased and keys held.
    pub leases: Leases,
    /// How the hottest keys are counted; `None` to do without.
    pub hot_keys: Option<HotKeys>,
    /// What is logged, and how.
    pub logging: Logging,
    /// What is told to an OpenTelemetry collector.
    pub telemetry: Telemetry,
    /// What is counted, and where it is shown.
    pub metrics: Metrics,
    /// What requests in flight and leases to give back may take after a signal, up to an hour.
    pub drain: Duration,
    /// One line each for what was asked for and is not done; to be logged once logging is set up.
    pub warnings: Vec<String>,
    /// All of it as flags, for people to see; no secret is in it.
    pub summary: Vec<Told>,
}

/// Why there are no settings to start with.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The help or version text was asked for; it goes to standard output.
    #[error("{0}")]
    Help(String),
    /// The command line was not understood; clap's words.
    #[error("{0}")]
    Usage(String),
    /// Settings that cannot be used, all of them.
    #[error("{0}")]
    Faults(Faults),
}

// === impl Settings ===

impl Settings {
    /// What `flags` mean, without a summary of them. `env` is asked only for variables that have no
    /// flag.
    ///
    /// # Errors
    /// [`SettingsError::Faults`], with all of them.
    pub fn resolve(
        role: Role,
        flags: &ServeFlags,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let listeners = flags.listeners.resolve(&mut faults);
        let rules = flags.rules.resolve(role, &mut faults);
        let store = flags.store.resolve(&flags.per_second, &mut faults);
        let answers = flags.answers.resolve(&mut faults);
        let leases = flags.leases.resolve(&mut faults);
        let drain = flags.leases.drain(&mut faults);
        let hot_keys = flags.hot_keys.resolve(&mut faults);
        let logging = flags.logging.resolve(&mut faults);
        let metrics = flags.metrics.resolve(&mut faults);
        let mut warnings = reference::check(env, &mut faults);
        let telemetry = flags.tracing.resolve(env, &mut faults, &mut warnings);
        warnings.extend(flags.store.warning());
        warnings.extend(leases.as_ref().zip(store.as_ref()).and_then(unset_key_secret));
        warnings.extend(leases.as_ref().and_then(key_secret_with_line_end));
        let settings = || {
            Some(Self {
                listeners: listeners?,
                rules: rules?,
                store: store?,
                answers: answers?,
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

/// A warning, where pods share counts under keys that anybody can compute.
fn unset_key_secret((leases, store): (&Leases, &StoreSettings)) -> Option<String> {
    let is_shared = matches!(store, StoreSettings::Redis { .. });
    (is_shared && leases.key_secret.is_empty()).then(|| {
        "KEY_SECRET: not set, so keys in Redis are hashes without a secret, and anyone who reads \
         them can find the values (addresses, user names) by trying; set KEY_SECRET or \
         KEY_SECRET_FILE to the same random text on all pods at once: pods with different \
         secrets count apart"
            .to_owned()
    })
}

/// A warning, where a line end is of the secret, as it is not in a file.
fn key_secret_with_line_end(leases: &Leases) -> Option<String> {
    leases.key_secret.reveal().ends_with('\n').then(|| {
        "KEY_SECRET: ends in a line end, which is of the secret here and is left out of \
         KEY_SECRET_FILE: pods with the one and with the other count apart"
            .to_owned()
    })
}

/// A variable of the process's environment. What is not UTF-8 in it is replaced, so that it shows
/// as a faulty value and is not taken for unset.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

// === impl SettingsError ===

impl SettingsError {
    /// 0 for help and version, 2 for all else.
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
