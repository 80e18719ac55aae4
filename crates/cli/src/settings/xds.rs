//! Settings for rules from an xDS server.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use ratelease_engine::store::redis::parse_host;
use ratelease_tls::{ClientFiles, ServerCheck};
use tokio_rustls::rustls::pki_types::ServerName;

use super::fault::{Expected, Faults};
use super::group::Flags;
use super::table::{
    OptionalSetting, SecretSetting, Setting, optional, secret, setting, settings, switch, text,
};
use super::tls::{ClientFileSettings, server_name};
use super::value::{self, HostPort, KIB, MIB};

/// Maximum of each interval between attempts.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Maximum bytes of the node's id, and of each key and value of its metadata.
const NODE_BYTES_MAX: usize = 256;

/// Maximum number of entries of the node's metadata, and of headers.
const ENTRIES_MAX: usize = 32;

/// An xDS server, and how this process presents itself to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Xds {
    /// The server.
    pub server: HostPort,
    /// The files of TLS to the server, read again for each connection; `None` for plaintext.
    pub tls: Option<ClientFiles>,
    /// The id of this node, for which the server has a set of rules.
    pub node_id: String,
    /// Metadata of this node, which the server may choose rules by.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream, such as a token; their values are marked sensitive.
    pub headers: HeaderMap,
    /// Maximum size in bytes of one message of the server.
    pub message_bytes_max: usize,
    /// A silent server is pinged at this interval.
    pub keepalive: Duration,
    /// The waits before the server is connected to again.
    pub retry: XdsRetry,
    /// Whether the server also serves rules as YAML, in a type of ratelease's own.
    pub own_rules: bool,
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

/// `CONFIG_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfigType {
    File,
    Xds,
}

settings! {
    /// Settings for rules from an xDS server.
    pub(super) group XdsTable("Rules over xDS");

    /// Where the rules come from: FILE, or GRPC_XDS_SOTW for an xDS server
    CONFIG_TYPE: Setting<ConfigType> = setting("TYPE", "FILE", config_type);
    /// Address of the xDS server, which serves ADS, state of the world
    CONFIG_GRPC_XDS_SERVER_URL: Setting<HostPort> =
        setting("HOST:PORT", "localhost:18000", server);
    /// Id of this node, for which the server has a set of rules
    CONFIG_GRPC_XDS_NODE_ID: Setting<String> = setting("ID", "default", node_text);
    /// Metadata of this node, as in zone=a,team=shop [default: none]
    CONFIG_GRPC_XDS_NODE_METADATA: OptionalSetting<Vec<(String, String)>> =
        optional("PAIRS", node_metadata);
    /// Headers of the stream, as in authorization:Bearer x,team:shop
    CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: SecretSetting = secret("HEADERS");
    /// Also take rules as YAML, in the type ratelease.config.v1.Rules, from the same server
    CONFIG_GRPC_XDS_RATELEASE: Setting<bool> = switch(false);
    /// Use TLS to the xDS server
    CONFIG_GRPC_XDS_SERVER_USE_TLS: Setting<bool> = switch(false);
    /// File with the CA certificates that the server's must be signed by, PEM; read again for each
    /// connection, like the files below [default: the system's]
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT: OptionalSetting<String> = text("FILE");
    /// DNS name that the server's certificate must have [default: the host that is connected to]
    CONFIG_GRPC_XDS_SERVER_TLS_SAN: OptionalSetting<ServerName<'static>> =
        optional("NAME", server_name);
    /// File with a client certificate and its intermediates, PEM
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT: OptionalSetting<String> = text("FILE");
    /// File with the key of that certificate, PEM
    CONFIG_GRPC_XDS_CLIENT_TLS_KEY: OptionalSetting<String> = text("FILE");
    /// Wait, a duration, after an attempt to connect that failed
    CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL: Setting<Duration> =
        setting("SPAN", "3s", interval);
    /// Wait, a duration, after a stream that broke; doubled while no set of rules arrives
    XDS_CLIENT_BACKOFF_INITIAL_INTERVAL: Setting<Duration> =
        setting("SPAN", "1s", interval).reference_default("10s");
    /// Longest such wait
    XDS_CLIENT_BACKOFF_MAX_INTERVAL: Setting<Duration> = setting("SPAN", "60s", interval);
    /// By which part of itself a wait is shortened at random, at most
    XDS_CLIENT_BACKOFF_RANDOM_FACTOR: Setting<f32> = setting("RATIO", "0.5", value::ratio);
    /// Shorten waits at random, so that the pods of a fleet do not reconnect in step
    XDS_CLIENT_BACKOFF_JITTER: Setting<bool> = switch(true);
    /// Maximum size of one message of the server
    XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: Setting<usize> =
        setting("SIZE", "16MiB", |text| value::size_within(text, 64 * KIB..=256 * MIB));
    /// Interval, a duration, at which a silent server is pinged; many servers close connections
    /// that ping more often than every 5 minutes
    XDS_CLIENT_KEEPALIVE_INTERVAL: Setting<Duration> = setting("SPAN", "5m10s", interval);
}

/// The settings that name files.
const FILES: ClientFileSettings = ClientFileSettings {
    roots: CONFIG_GRPC_XDS_SERVER_TLS_CACERT,
    certificate: CONFIG_GRPC_XDS_CLIENT_TLS_CERT,
    key: CONFIG_GRPC_XDS_CLIENT_TLS_KEY,
};

/// Flags for rules from an xDS server.
pub(super) type XdsFlags = Flags<XdsTable>;

// === impl XdsFlags ===

impl XdsFlags {
    /// Resolves the flags; `Some(None)` for rules from files.
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Option<Xds>> {
        let config_type = self.get(&CONFIG_TYPE, faults);
        let server = self.get(&CONFIG_GRPC_XDS_SERVER_URL, faults);
        let node_id = self.get(&CONFIG_GRPC_XDS_NODE_ID, faults);
        let node_metadata = self.optional(&CONFIG_GRPC_XDS_NODE_METADATA, faults);
        let headers = self.secret(&CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, faults);
        let name = CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS.row.name;
        let headers = headers.and_then(|it| faults.parse_secret(name, it.as_ref(), header_map));
        let own_rules = self.get(&CONFIG_GRPC_XDS_RATELEASE, faults);
        let message_bytes_max = self.get(&XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, faults);
        let keepalive = self.get(&XDS_CLIENT_KEEPALIVE_INTERVAL, faults);
        let retry = self.retry(faults);
        if config_type? == ConfigType::File {
            return Some(None);
        }
        let tls = self.tls(faults);
        Some(Some(Xds {
            server: server?,
            tls: tls?,
            node_id: node_id?,
            node_metadata: node_metadata?.unwrap_or_default(),
            headers: headers?.unwrap_or_default(),
            message_bytes_max: message_bytes_max?,
            keepalive: keepalive?,
            retry: retry?,
            own_rules: own_rules?,
        }))
    }

    fn retry(&self, faults: &mut Faults) -> Option<XdsRetry> {
        let connect = self.get(&CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL, faults);
        let first = self.get(&XDS_CLIENT_BACKOFF_INITIAL_INTERVAL, faults);
        let last = self.get(&XDS_CLIENT_BACKOFF_MAX_INTERVAL, faults);
        let factor = self.get(&XDS_CLIENT_BACKOFF_RANDOM_FACTOR, faults);
        let jitters = self.get(&XDS_CLIENT_BACKOFF_JITTER, faults);
        let (first, last) = (first?, last?);
        let jitter = if jitters? { factor? } else { 0.0 };
        Some(XdsRetry { connect: connect?, first, last: last.max(first), jitter })
    }

    /// The files of TLS; they are read, so that what is wrong with them is reported.
    fn tls(&self, faults: &mut Faults) -> Option<Option<ClientFiles>> {
        let is_on = self.get(&CONFIG_GRPC_XDS_SERVER_USE_TLS, faults);
        let name = self.optional(&CONFIG_GRPC_XDS_SERVER_TLS_SAN, faults);
        if !is_on? {
            return Some(None);
        }
        let server = name?.map_or(ServerCheck::Host, ServerCheck::Name);
        let files = ClientFiles { server, ..FILES.resolve(self, faults) };
        FILES.check(&files, faults);
        Some(Some(files))
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
