//! Settings of the process: flags and environment, parsed once into types that hold only valid
//! values.
//!
//! [`settings!`](crate::settings!) states each setting once. [`Flags`] holds the text that was
//! given, and [`Settings`] its meaning. Every faulty setting is reported, not only the first, and
//! no message contains a secret. The control plane and the injector have their settings from the
//! same table.

mod answers;
mod fault;
mod listeners;
pub(crate) mod reference;
mod rules;
mod statsd;
mod store;
mod table;
mod telemetry;
#[cfg(test)]
pub(crate) mod tests;
mod value;

use std::path::Path;

use ratelease_engine::store::StoreSettings;
use ratelease_tls::{ClientFiles, ServerCheck, ServerFiles};

pub use answers::{HeaderNames, Headers, HotKeys, Key, Leases, Responses};
pub use fault::{Expected, Fault, Faults};
pub use listeners::{DebugListener, GrpcListen, HealthListener, Listeners, Uds, call_at};
pub use rules::{HealthyWith, Reading, RulesDir, RulesSource, Xds, XdsRetry};
pub(crate) use statsd::DATADOG_TAGS;
pub use statsd::{Mogrifier, Statsd, StatsdDialect, StatsdProtocol, Tag};
pub use store::{Store, key_prefix_of};
pub(crate) use store::{store_names, with_named_stores};
pub use table::{
    Flags, Names, Row, Section, Sections, Setting, Values, optional, parsed_secret, path, secret,
    setting, switch, text,
};
pub(crate) use telemetry::OTLP_SECRETS;
pub use telemetry::{
    Identity, LogFormat, LogLevel, Logging, Metrics, Otlp, OtlpCompression, OtlpProtocol, OtlpTls,
    Push, Telemetry, Tracing,
};
pub use value::{HostPort, boolean, count_within, duration_within};

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
    /// The headers of answers; `None` for no headers.
    pub headers: Option<Headers>,
    /// What answers contain besides.
    pub responses: Responses,
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
    /// Where counts are pushed as statsd reads them; `None` if nowhere.
    pub statsd: Option<Statsd>,
    /// One line for each setting that was asked for but is not followed; logged once logging is set
    /// up.
    pub warnings: Vec<String>,
    /// All settings as flags, for display; contains no secret.
    pub summary: Vec<EffectiveSetting>,
}

/// A setting with its value in force, given or default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The flag's name, without dashes.
    pub name: String,
    /// Its value; empty if it has none, and `***` for a secret.
    pub value: String,
    /// Whether the value is the one that applies without flags and environment.
    pub is_default: bool,
}

/// The name under which the program was run; it selects the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `ratelease`: loopback listeners, rules in `config/rules`.
    Ratelease,
    /// `ratelimit`, as a replacement of the reference: the reference's defaults, and no subcommand
    /// is needed.
    Ratelimit,
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
    Faults(#[from] Faults),
}

// === impl Settings ===

/// All flags of `serve`.
impl Sections for Settings {
    const SECTIONS: &'static [Section<'static>] = &[
        Listeners::SECTION,
        listeners::GrpcTls::SECTION,
        rules::DirectoryNames::SECTION,
        rules::FileOptions::SECTION,
        rules::Service::SECTION,
        Xds::SECTION,
        store::Redis::SECTION,
        store::RedisTls::SECTION,
        store::KeyPrefix::SECTION,
        store::PerSecond::SECTION,
        store::SECOND_REDIS,
        answers::AskedHeaders::SECTION,
        Responses::SECTION,
        Leases::SECTION,
        HotKeys::SECTION,
        Logging::SECTION,
        telemetry::Collected::SECTION,
        Metrics::SECTION,
        statsd::Pushed::SECTION,
    ];
}

impl Settings {
    /// Reads the settings, without a summary of them. `env` is called only for variables that have
    /// no flag.
    ///
    /// # Errors
    /// Every fault.
    pub fn read(
        role: Role,
        values: Values<'_>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Faults> {
        Faults::none_in(|faults| {
            let listeners = Listeners::read(values, faults);
            let grpc_tls = listeners::GrpcTls::read(values, faults);
            let unused_tls = grpc_tls.warning();
            let grpc_tls = grpc_tls.files(faults);
            let rules = RulesSource::read(role, values, faults);
            let xds = Xds::read(values, faults).if_served(faults);
            let store = Store::read(values, &rules.reading.options.stores, faults);
            let headers = Headers::read(values, faults);
            let responses = Responses::read(values, faults);
            let leases = Leases::read_checked(values, faults);
            let hot_keys = Some(HotKeys::read(values, faults)).filter(|it| it.is_on);
            let logging = Logging::read(values, faults);
            let metrics = Metrics::read(values, faults);
            let statsd = Statsd::read(values, env, faults).filter(|_| !metrics.is_off);
            let mut warnings = reference::check(env, faults);
            let telemetry = Telemetry::read(values, env, faults, &mut warnings);
            let unpushed = Statsd::warning(values).filter(|_| metrics.is_off);
            let others = [unused_tls, unpushed, Store::warning(role, values)];
            warnings.extend(others.into_iter().flatten());
            let summary = Vec::new();
            let mut settings = Self {
                listeners,
                grpc_tls,
                rules,
                xds,
                store,
                headers,
                responses,
                leases,
                hot_keys,
                logging,
                telemetry,
                metrics,
                statsd,
                warnings,
                summary,
            };
            settings.warn_of_secrets();
            settings
        })
    }

    /// Adds a warning for each secret that is not kept as well as it could be.
    fn warn_of_secrets(&mut self) {
        let any_name =
            |files: &ClientFiles| files.roots.is_none() && files.server == ServerCheck::AnyName;
        let is_shared = matches!(self.store, StoreSettings::Redis { .. });
        let secret = &self.leases.key_secret;
        let warnings = [
            (
                self.store.all_redis().filter_map(|redis| redis.tls.as_ref()).any(any_name),
                "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: without REDIS_TLS_CACERT any certificate of \
                 a public CA passes for Redis, and gets its password; set REDIS_TLS_CACERT",
            ),
            (
                self.xds.as_ref().is_some_and(|it| !it.is_secured && !it.headers.is_empty()),
                "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: sent in plaintext; set \
                 CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
            ),
            (
                is_shared && secret.is_empty(),
                "KEY_SECRET: not set, so keys in Redis are hashes without a secret, and anyone who \
                 reads them can find the values (addresses, user names) by trying; set KEY_SECRET \
                 or KEY_SECRET_FILE to the same random text on all pods at once: pods with \
                 different secrets count separately",
            ),
            (
                // KEY_SECRET_FILE would leave it out.
                secret.reveal().ends_with('\n'),
                "KEY_SECRET: ends with a line end, which is part of the secret here but not in \
                 KEY_SECRET_FILE: pods that use the one and the other count separately",
            ),
        ];
        let warnings = warnings.into_iter().filter(|(is_due, _)| *is_due);
        self.warnings.extend(warnings.map(|(_, text)| text.to_owned()));
    }
}

/// Whether `name` begins like a variable that is read only if other settings ask for it: of
/// collectors and of `DogStatsD`.
pub fn is_read_sometimes(name: &str) -> bool {
    ["OTEL_", "DD_", "DOG_STATSD_MOGRIFIER_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the default of the variable `name` under the name `ratelimit`, if it differs.
pub(crate) fn reference_default(name: &str) -> Option<&'static str> {
    let mut rows = Settings::SECTIONS.iter().flat_map(Section::rows);
    rows.find(|row| row.name == name)?.reference_default
}

/// Returns whether the variable `name` is a setting that the reference has too: itself, or its
/// older or newer versions, its library for statsd, or Envoy Gateway.
pub(crate) fn is_of_reference(name: &str) -> bool {
    Settings::SECTIONS.iter().flat_map(Section::shared).any(|shared| shared == name)
}

/// Reads a variable of the process's environment. Invalid UTF-8 is replaced, so that the value is
/// reported as faulty rather than taken as unset.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

// === impl Role ===

impl Role {
    /// Determines the role from the program's name or path, the first argument of a process.
    pub fn of(program: &str) -> Self {
        match Path::new(program).file_name() {
            Some(name) if name == "ratelimit" => Self::Ratelimit,
            _ => Self::Ratelease,
        }
    }
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
