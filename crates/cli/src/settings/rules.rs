//! Settings for the source of the rules: a directory, or an xDS server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use ratelease_engine::store::redis::parse_host;
use ratelease_rules::{DomainStores, Dotfiles, Endings, Options, StoreNames};
use ratelease_tls::{ClientFiles, ServerCheck};
use tokio_rustls::rustls::pki_types::ServerName;

use super::Role;
use super::fault::{Expected, Fault, Faults};
use super::listeners::{FileNames, server_name};
use super::table::{
    Section, Sections, Values, optional, parsed_secret, path, setting, switch, text,
};
use super::value::{self, HostPort, KIB, MIB};
use crate::settings;

/// Default rules directory of `ratelease`, relative to its working directory.
const DIR_OF_RATELEASE: &str = "config/rules";
/// The reference's `RUNTIME_ROOT`.
const REFERENCE_ROOT: &str = "/srv/runtime_data/current";
/// The reference's `RUNTIME_APPDIRECTORY`.
const REFERENCE_APPDIRECTORY: &str = "config";

settings! {
    /// Where the rules directory is, under its own name and the reference's names.
    pub(super) struct DirectoryNames in "Rules" {
        /// Directory with the rule files; takes precedence over the RUNTIME_ variables [default:
        /// config/rules, if none of those is set]
        "--rules" => rules: Option<PathBuf> = path("DIR").added();
        /// The rules are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY [default:
        /// /srv/runtime_data/current, if one of the others is set]
        "RUNTIME_ROOT" => root: Option<PathBuf> = path("DIR");
        /// Second part of the rules directory [default: none]
        "RUNTIME_SUBDIRECTORY" => subdirectory: String = text("DIR");
        /// Last part of the rules directory [default: config]
        "RUNTIME_APPDIRECTORY" => appdirectory: String = text("DIR");
    }
}

settings! {
    /// How rule files are read.
    pub(super) struct FileOptions in "Rules" {
        /// Skip files and directories whose name begins with a dot, such as a ConfigMap's ..data
        "RUNTIME_IGNOREDOTFILES" => skips_dotfiles: bool = switch(true).reference_default("false");
        /// Let several files add rules to one domain
        "MERGE_DOMAIN_CONFIG" => merges_domains: bool =
            switch(false).hidden_alias("merge-domain-configs");
        /// Count a limit of unit month by the months of the calendar, in UTC, instead of by 30 days,
        /// as ratelimit does with it: rules and overrides with a fixed window of one month
        "USE_CALENDAR_MONTH_RATE_LIMIT" => calendar_months: bool = switch(false);
        /// Names of the stores that rules may name besides default, separated by commas. Each has
        /// the settings of REDIS_PERSECOND_ under its own name: REDIS_STORE_PREMIUM_URL for premium
        /// [default: none]
        "REDIS_STORES" => stores: StoreNames = optional("NAMES", store_names).added();
        /// Stores of domains whose rules name none, such as acme=premium,shop=batch [default: none]
        "STORE_OF_DOMAIN" => store_of_domain: String = text("LIST").added();
    }
}

settings! {
    /// What `serve` does with the rules.
    pub(super) struct Service in "Rules" {
        /// Also watch whether RUNTIME_ROOT itself is replaced; the rules directory is always
        /// watched
        "RUNTIME_WATCH_ROOT" => watches_root: bool = switch(true);
        /// Report healthy only while rules of at least one domain are loaded. Otherwise rules
        /// without a domain will do, and as ratelimit any end of the first load
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" => needs_domain: bool = switch(false);
        /// Start even if the rules directory cannot be read; as ratelimit, be healthy before the
        /// first load. No request is decided before there are rules
        "FORCE_START_WITHOUT_INITIAL_CONFIG" => force_start: bool = switch(false);
        /// File that keeps the last good rules, for a start at which no rules can be loaded, and
        /// the number of pods, for a start without Redis [default: none]
        "RULES_SNAPSHOT" => snapshot: Option<PathBuf> = path("PATH").added();
    }
}

/// How rule files are read, independent of their location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Whether files and directories whose name begins with a dot are read.
    pub dotfiles: Dotfiles,
    /// Which files are rule files.
    pub endings: Endings,
    /// How rules are compiled.
    pub options: Options,
}

/// The rules directory, and how its files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesDir {
    /// The directory with the rule files, as given: it may be relative.
    pub dir: PathBuf,
    /// The `RUNTIME_ROOT` from which the directory was derived, if it was.
    pub root: Option<PathBuf>,
    /// How its files are read.
    pub reading: Reading,
}

/// The rules directory, and what `serve` does with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesSource {
    /// The directory with the rule files, as given: it may be relative.
    pub dir: PathBuf,
    /// `RUNTIME_ROOT` if `RUNTIME_WATCH_ROOT` is true. The root and the directories between it and
    /// `dir` may be replaced at any time, or be symlinks that are swapped.
    pub watch_root: Option<PathBuf>,
    /// How the files are read.
    pub reading: Reading,
    /// What the process needs to be healthy.
    pub healthy_with: HealthyWith,
    /// Start even if the rules cannot be read, and wait for them.
    pub force_start: bool,
    /// File in which the last good rules are kept, for a start at which no rules can be loaded.
    pub snapshot: Option<PathBuf>,
}

/// What a process needs to be healthy, beside that it does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthyWith {
    /// Nothing: as the reference where its start was forced.
    Nothing,
    /// That the first load has ended, well or not: as the reference, which opens no port before.
    FirstLoad,
    /// Rules in force, if only those of no domain: it decides requests.
    Rules,
    /// Rules of at least one domain.
    Domain,
}

// === impl Reading ===

impl Sections for Reading {
    const SECTIONS: &'static [Section<'static>] = &[FileOptions::SECTION];
}

impl Reading {
    /// Reads the settings.
    pub fn read(values: Values<'_>, faults: &mut Faults) -> Self {
        let options = FileOptions::read(values, faults);
        let list = &options.store_of_domain;
        let domain_stores = match DomainStores::parse(list, &options.stores) {
            Ok(parsed) => parsed,
            // The names of the stores are not known.
            Err(_) if faults.has("REDIS_STORES") => DomainStores::default(),
            Err(problem) => {
                let fault = Fault::new("STORE_OF_DOMAIN", problem, "write domain=store");
                faults.add(fault.with_found(list));
                DomainStores::default()
            }
        };
        Self {
            dotfiles: if options.skips_dotfiles { Dotfiles::Skip } else { Dotfiles::Read },
            endings: Endings::Yaml,
            options: Options {
                merge_domains: options.merges_domains,
                stores: options.stores,
                domain_stores,
                calendar_months: options.calendar_months,
            },
        }
    }
}

// === impl RulesDir ===

impl Sections for RulesDir {
    const SECTIONS: &'static [Section<'static>] = &[DirectoryNames::SECTION, FileOptions::SECTION];
}

impl RulesDir {
    /// Reads the settings, with the defaults of `role`.
    pub fn read(role: Role, values: Values<'_>, faults: &mut Faults) -> Self {
        let (dir, root) = DirectoryNames::read(values, faults).directory(role);
        let endings = match role {
            Role::Ratelease => Endings::Yaml,
            Role::Ratelimit => Endings::Any,
        };
        Self { dir, root, reading: Reading { endings, ..Reading::read(values, faults) } }
    }
}

// === impl DirectoryNames ===

impl DirectoryNames {
    /// Returns the directory, and the `RUNTIME_ROOT` from which it was derived.
    fn directory(self, role: Role) -> (PathBuf, Option<PathBuf>) {
        let Self { rules, root, subdirectory, appdirectory } = self;
        if let Some(dir) = rules {
            return (dir, None);
        }
        let is_runtime = root.is_some() || !subdirectory.is_empty() || !appdirectory.is_empty();
        if role == Role::Ratelease && !is_runtime {
            return (DIR_OF_RATELEASE.into(), None);
        }
        let root = root.unwrap_or_else(|| REFERENCE_ROOT.into());
        let last = if appdirectory.is_empty() { REFERENCE_APPDIRECTORY } else { &appdirectory };
        (below(&below(&root, &subdirectory), last), Some(root))
    }
}

/// Joins paths like Go's `filepath.Join`: a second part with a leading slash stays below the first.
fn below(dir: &Path, part: &str) -> PathBuf {
    let part = part.trim_start_matches('/');
    if part.is_empty() { dir.to_owned() } else { dir.join(part) }
}

fn store_names(text: &str) -> Result<StoreNames, Expected> {
    StoreNames::parse(text).map_err(|problem| {
        Expected::new(format!("names of stores, and {problem}")).example("premium,batch")
    })
}

// === impl RulesSource ===

impl RulesSource {
    /// Whether the directory is the one that is read if no setting names one.
    pub fn has_default_directory(&self) -> bool {
        self.dir == Path::new(DIR_OF_RATELEASE)
    }

    pub(super) fn read(role: Role, values: Values<'_>, faults: &mut Faults) -> Self {
        let RulesDir { dir, root, reading } = RulesDir::read(role, values, faults);
        let service = Service::read(values, faults);
        let healthy_with = match role {
            _ if service.needs_domain => HealthyWith::Domain,
            Role::Ratelease => HealthyWith::Rules,
            Role::Ratelimit if service.force_start => HealthyWith::Nothing,
            Role::Ratelimit => HealthyWith::FirstLoad,
        };
        Self {
            dir,
            watch_root: root.filter(|_| service.watches_root),
            reading,
            healthy_with,
            force_start: service.force_start,
            snapshot: service.snapshot,
        }
    }
}

/// Maximum of each interval between attempts.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Maximum bytes of the node's id, and of each key and value of its metadata.
const NODE_BYTES_MAX: usize = 256;

/// Maximum number of entries of the node's metadata, and of headers.
const ENTRIES_MAX: usize = 32;

/// `CONFIG_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigType {
    /// A directory.
    File,
    /// An xDS server.
    Xds,
}

settings! {
    /// An xDS server, and how this process presents itself to it.
    pub struct Xds in "Rules over xDS" {
        /// Where the rules come from: FILE, or GRPC_XDS_SOTW for an xDS server
        "CONFIG_TYPE" => config_type: ConfigType = setting("TYPE", "FILE", config_type);
        /// Address of the xDS server, which serves ADS, state of the world
        "CONFIG_GRPC_XDS_SERVER_URL" => server: HostPort =
            setting("HOST:PORT", "localhost:18000", server);
        /// Id of this node, for which the server has a set of rules
        "CONFIG_GRPC_XDS_NODE_ID" => node_id: String = setting("ID", "default", node_text);
        /// Metadata of this node, as in zone=a,team=shop [default: none]
        "CONFIG_GRPC_XDS_NODE_METADATA" => node_metadata: Vec<(String, String)> =
            optional("PAIRS", node_metadata);
        /// Headers of the stream, as in authorization:Bearer x,team:shop
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" => headers: HeaderMap =
            parsed_secret("HEADERS", "", header_map);
        /// Ask for rule files, the type ratelease.config.v1.Rules, in place of RateLimitConfig
        "CONFIG_GRPC_XDS_RATELEASE" => own_rules: bool = switch(false).added();
        /// Count a call whose descriptors all have a hits_addend above 0 whole although it is denied,
        /// under rules of the type RateLimitConfig: gateways tell so what an answer has cost
        "CONFIG_GRPC_XDS_SETTLE_OWN_HITS" => settles_own_hits: bool = switch(true).added();
        /// Use TLS to the xDS server
        "CONFIG_GRPC_XDS_SERVER_USE_TLS" => is_secured: bool = switch(false);
        /// File with the CA certificates that the server's must be signed by, PEM; read again for
        /// each connection, like the files below [default: the system's]
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT" => roots: Option<PathBuf> = path("FILE");
        /// DNS name that the server's certificate must have [default: the host that is connected
        /// to]
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN" => server_name: Option<ServerName<'static>> =
            optional("NAME", server_name);
        /// File with a client certificate and its intermediates, PEM
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT" => certificate: Option<PathBuf> = path("FILE");
        /// File with the key of that certificate, PEM
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY" => key: Option<PathBuf> = path("FILE");
        /// Wait, a duration, after an attempt to connect that failed
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" => connect_retry: Duration =
            setting("SPAN", "3s", interval);
        /// Wait, a duration, after a stream that broke; doubled while no set of rules arrives
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" => backoff_first: Duration =
            setting("SPAN", "1s", interval).reference_default("10s");
        /// Longest such wait
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL" => backoff_last: Duration =
            setting("SPAN", "60s", interval);
        /// By which part of itself a wait is shortened at random, at most
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR" => random_factor: f32 =
            setting("RATIO", "0.5", value::ratio);
        /// Shorten waits at random, so that the pods of a fleet do not reconnect in step
        "XDS_CLIENT_BACKOFF_JITTER" => jitters: bool = switch(true);
        /// Maximum size of one message of the server
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" => message_bytes_max: usize =
            setting("SIZE", "16MiB", |text| value::size_within(text, 64 * KIB..=256 * MIB));
        /// Interval, a duration, at which a silent server is pinged; many servers close connections
        /// that ping more often than every 5 minutes
        "XDS_CLIENT_KEEPALIVE_INTERVAL" => keepalive: Duration =
            setting("SPAN", "5m10s", interval).added();
    }
}

/// The waits before an xDS server is connected to again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct XdsRetry {
    /// After an attempt to connect that failed.
    pub connect: Duration,
    /// After the first stream that broke without a set of rules; doubled for each further one.
    pub first: Duration,
    /// The longest wait of that kind.
    pub last: Duration,
    /// By which part of itself a wait may be shortened at random, from 0 to 1.
    pub jitter: f32,
}

/// The settings that name files.
const FILES: FileNames<'static> = FileNames {
    roots: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    key: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
};

// === impl Xds ===

impl Xds {
    /// Returns the server; `None` if the rules come from files. The files of TLS are read, so that
    /// what is wrong with them is reported.
    pub(super) fn if_served(self, faults: &mut Faults) -> Option<Self> {
        if self.config_type == ConfigType::File {
            return None;
        }
        if let Some(files) = self.tls() {
            FILES.check_identity(self.certificate.as_ref(), self.key.as_ref(), faults);
            FILES.check(&files, faults);
        }
        Some(self)
    }

    /// Returns the files of TLS to the server, to be read for each connection; `None` for
    /// plaintext.
    pub fn tls(&self) -> Option<ClientFiles> {
        self.is_secured.then(|| ClientFiles {
            roots: self.roots.clone(),
            identity: self.certificate.clone().zip(self.key.clone()),
            server: self.server_name.clone().map_or(ServerCheck::Host, ServerCheck::Name),
        })
    }

    /// Returns the waits before the server is connected to again.
    pub fn retry(&self) -> XdsRetry {
        XdsRetry {
            connect: self.connect_retry,
            first: self.backoff_first,
            last: self.backoff_last.max(self.backoff_first),
            jitter: if self.jitters { self.random_factor } else { 0.0 },
        }
    }
}

fn config_type(text: &str) -> Result<ConfigType, Expected> {
    match text.to_ascii_uppercase().as_str() {
        "FILE" => Ok(ConfigType::File),
        "GRPC_XDS_SOTW" => Ok(ConfigType::Xds),
        _ => Err(Expected::new("FILE or GRPC_XDS_SOTW")),
    }
}

fn server(text: &str) -> Result<HostPort, Expected> {
    let expected = || Expected::new("a host and a port").example("envoy-gateway:18001");
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(expected)?;
    Ok(HostPort::new(parse_host(host).ok_or_else(expected)?, port))
}

fn interval(text: &str) -> Result<Duration, Expected> {
    value::duration_within(text, Duration::from_millis(1)..=INTERVAL_MAX)
}

/// Parses a text that the server may log: without control characters.
fn node_text(text: &str) -> Result<String, Expected> {
    let is_good = (1..=NODE_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
    let what = "1 to 256 bytes without control characters";
    if is_good { Ok(text.to_owned()) } else { Err(Expected::new(what)) }
}

fn node_metadata(text: &str) -> Result<Vec<(String, String)>, Expected> {
    let expected = || {
        let what = "at most 32 of key=value, separated by commas, without control characters";
        Expected::new(what).example("zone=a,team=shop")
    };
    let pair = |item: &str| {
        let (key, value) = item.split_once('=')?;
        let value = if value.is_empty() { Ok(String::new()) } else { node_text(value) };
        Some((node_text(key.trim()).ok()?, value.ok()?))
    };
    entries(text, pair).ok_or_else(expected)
}

/// Parses `name:value,name:value`, as the reference does.
fn header_map(text: &str) -> Result<HeaderMap, Expected> {
    let expected =
        || Expected::new("at most 32 of name:value, separated by commas").example("team:shop");
    let pair = |item: &str| {
        let (name, value) = item.split_once(':')?;
        let mut value = HeaderValue::from_str(value.trim()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value))
    };
    Ok(entries(text, pair).ok_or_else(expected)?.into_iter().collect())
}

/// Parses a list that is separated by commas; `None` if an item is bad, or if there are too many.
fn entries<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let entries: Option<Vec<_>> = text.split(',').map(parse).collect();
    entries.filter(|entries| entries.len() <= ENTRIES_MAX)
}
