//! Settings for what the process reports of itself: its log, its metrics, and what is sent to an
//! OpenTelemetry collector.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ratelease_engine::secret::{Secret, SecretFile};
use ratelease_tls::{ALPN_HTTP2, ClientFiles, ServerCheck};
use tokio_rustls::rustls::ClientConfig;

use super::fault::{Expected, Fault, Faults};
use super::listeners::FileNames;
use super::table::{Values, setting, switch, text};
use super::value::{self, HostPort};
use crate::settings;

/// Maximum number of lines a second from one place: a higher number would not be a bound.
const LINES_PER_SECOND_MAX: u32 = 1_000_000;

/// The reference's levels; its `fatal` and `panic` are `Error` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Events that need action.
    Error,
    /// Events that may need action.
    Warn,
    /// Events of interest to an operator.
    Info,
    /// Events that help to find a fault.
    Debug,
    /// All events, including those of libraries.
    Trace,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, for people.
    Text,
    /// One JSON object per line, with the reference's `@timestamp`, `@message`, `level`.
    Json,
}

settings! {
    /// What is logged, and how.
    #[derive(Copy)]
    pub struct Logging in "Logging" {
        /// Least severe level that is logged: error, warn, info, debug or trace
        "LOG_LEVEL" => level: LogLevel =
            setting("LEVEL", "info", level).reference_default("warn");
        /// Format of a line: text or json
        "LOG_FORMAT" => format: LogFormat = setting("FORMAT", "text", format);
        /// Maximum number of lines a second from one place in the code; one more line counts those
        /// left out; 0 for no limit
        "LOG_LINES_PER_SECOND" => lines_per_second: u32 =
            setting("LINES", "100", |text| value::count_within(text, 0..=LINES_PER_SECOND_MAX))
                .added();
        /// Let values of descriptors appear in the log
        "LOG_VALUES" => values: bool = switch(false).added();
        /// Share of the decisions that are logged, 0 to 1, such as 0.01
        "DECISION_SAMPLE_RATE" => decision_sample_rate: f32 = setting("SHARE", "0", |text| {
            value::ratio(text).map_err(|expected| expected.example("0.01"))
        })
        .added();
    }
}

fn level(text: &str) -> Result<LogLevel, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok(LogLevel::Error),
        "warn" | "warning" => Ok(LogLevel::Warn),
        "info" => Ok(LogLevel::Info),
        "debug" => Ok(LogLevel::Debug),
        "trace" => Ok(LogLevel::Trace),
        _ => Err(Expected::new("trace, debug, info, warn, error, fatal or panic")),
    }
}

fn format(text: &str) -> Result<LogFormat, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(Expected::new("text or json").example("json")),
    }
}

/// Maximum number of series of one kind: each takes some 500 bytes on two cores here, and more
/// memory in Prometheus.
const SERIES_LIMIT: usize = 100_000;

settings! {
    /// Which metrics are kept, and where they are served.
    #[derive(Eq)]
    pub struct Metrics in "Metrics" {
        /// Do not count decisions
        "DISABLE_STATS" => is_off: bool = switch(false);
        /// Also serve metrics on a port of their own; the debug port serves them as /metrics either
        /// way
        "USE_PROMETHEUS" => has_listener: bool = switch(false);
        /// That port, with or without the interface; all interfaces if there is none
        "PROMETHEUS_ADDR" => address: HostPort = setting("HOST:PORT", ":9090", address);
        /// Path of the metrics on that port
        "PROMETHEUS_PATH" => path: String = setting("PATH", "/metrics", path);
        /// Maximum number of rules, and of values of detailed rules, that are counted separately;
        /// the rest are counted together
        "METRICS_SERIES_MAX" => series_max: usize =
            setting("COUNT", "10000", |text| value::count_within(text, 0..=SERIES_LIMIT))
                .added();
    }
}

// === impl Metrics ===

impl Metrics {
    /// Returns the address of a listener for metrics only; `None` if only the debug port serves
    /// them.
    pub fn listener(&self) -> Option<&HostPort> {
        self.has_listener.then_some(&self.address)
    }
}

/// Parses an address as Go's `net.Listen` does: without a host it means all interfaces.
fn address(text: &str) -> Result<HostPort, Expected> {
    let expected = || Expected::new("a port after a colon, with or without a host");
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let port = value::port(port).map_err(|_| expected())?;
    match host {
        "" => Ok(HostPort::new("0.0.0.0", port)),
        // An IPv6 address without brackets may be missing its port.
        _ if host.contains(':') && !host.starts_with('[') => Err(expected()),
        _ => Ok(HostPort::new(value::host(host).map_err(|_| expected())?, port)),
    }
}

fn path(text: &str) -> Result<String, Expected> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"/-._~".contains(&b);
    if text.starts_with('/') && text.bytes().all(good) {
        return Ok(text.to_owned());
    }
    Err(Expected::new("a path that begins with / (letters, digits and -._~)"))
}

/// What is sent to a collector, and under which name.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// The identity of the sender.
    pub identity: Identity,
    /// Settings for spans; `None` if no spans are sent.
    pub tracing: Option<Tracing>,
    /// Settings for pushed metrics; `None` if metrics are only scraped.
    pub push: Option<Push>,
}

/// The attributes by which a collector identifies this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `service.name`.
    pub name: String,
    /// `service.namespace`; if empty, `attributes` decide.
    pub namespace: String,
    /// `service.instance.id`; if empty, `attributes` decide, or else it is random.
    pub instance: String,
    /// Other attributes of the resource, such as `k8s.pod.name`; the three above take precedence.
    pub attributes: Vec<(String, String)>,
}

/// Spans of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// Part of the requests without a parent span that are traced, 0 to 1. Requests with a parent
    /// are traced if their parent is.
    pub rate: f32,
    /// The destination of spans.
    pub otlp: Otlp,
}

/// Settings for pushed metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// Time between pushes.
    pub interval: Duration,
    /// The destination of metrics.
    pub otlp: Otlp,
}

/// Range of the time between pushes of metrics, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;

/// Maximum number of attributes in `OTEL_RESOURCE_ATTRIBUTES`.
const ATTRIBUTES_MAX: usize = 64;

/// The reference's `service.name`.
const SERVICE: &str = "RateLimit";
const NAME: &str = "service.name";

settings! {
    /// What is sent to a collector, as far as it has flags.
    pub(super) struct Collected in "Traces and pushed metrics" {
        /// Send spans to the collector at OTEL_EXPORTER_OTLP_ENDPOINT
        "TRACING_ENABLED" => traces: bool = switch(false);
        /// service.name of the spans and metrics [default: OTEL_SERVICE_NAME, or else RateLimit]
        "TRACING_SERVICE_NAME" => name: String = text("NAME");
        /// service.namespace of the spans and metrics
        "TRACING_SERVICE_NAMESPACE" => namespace: String = text("NAME");
        /// service.instance.id, which distinguishes this pod from others [default: random]
        "TRACING_SERVICE_INSTANCE_ID" => instance: String = text("ID");
        /// Protocol of the spans: http or grpc
        "TRACING_EXPORTER_PROTOCOL" => protocol: OtlpProtocol =
            setting("PROTOCOL", "http", protocol);
        /// Share, 0 to 1, of the requests that are traced if their caller made no decision about it
        "TRACING_SAMPLING_RATE" => given_rate: f32 = setting("SHARE", "1", sampling_rate);
        /// Also push metrics: otlp, or none
        "OTEL_METRICS_EXPORTER" => pushes: bool = setting("KIND", "none", pushes).added();
        /// Time between pushes of metrics, in milliseconds
        "OTEL_METRIC_EXPORT_INTERVAL" => interval_ms: u64 =
            setting("MS", "60000", |text| value::count_within(text, INTERVAL_MS)).added();
    }
}

// === impl Telemetry ===

impl Telemetry {
    /// Reads the settings. Variables of OpenTelemetry are read from `env`, and only for what is
    /// enabled: a faulty variable for a collector that is not used is not reported.
    pub(super) fn read(
        values: Values<'_>,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
        warnings: &mut Vec<String>,
    ) -> Self {
        let attributes = attributes(env, faults);
        let given = Collected::read(values, faults);
        // As the reference's sampler.
        let rate = given.given_rate.clamp(0.0, 1.0);
        if rate != given.given_rate {
            warnings.push(format!(
                "TRACING_SAMPLING_RATE: {} is out of range, {rate} is used; the rate is a share \
                 from 0 to 1",
                given.given_rate
            ));
        }
        let mut otlp = |signal, protocol| Otlp::read(signal, protocol, env, faults, warnings);
        let tracing = given.traces.then(|| otlp(Signal::Traces, Some(given.protocol)));
        let push = given.pushes.then(|| otlp(Signal::Metrics, None));
        let interval = Duration::from_millis(given.interval_ms);
        let listed = || attributes.iter().find(|(key, value)| key == NAME && !value.is_empty());
        let name = Some(given.name).filter(|name| !name.is_empty());
        let name = name.or_else(|| env("OTEL_SERVICE_NAME").filter(|name| !name.is_empty()));
        let name = name.or_else(|| listed().map(|(_, name)| name.clone()));
        let name = name.unwrap_or_else(|| SERVICE.to_owned());
        Self {
            identity: Identity {
                name,
                namespace: given.namespace,
                instance: given.instance,
                attributes,
            },
            tracing: tracing.flatten().map(|otlp| Tracing { rate, otlp }),
            push: push.flatten().map(|otlp| Push { interval, otlp }),
        }
    }
}

/// Parses the rate. One out of range is not refused, since the reference takes it.
fn sampling_rate(text: &str) -> Result<f32, Expected> {
    let rate = text.parse().ok().filter(|rate: &f32| !rate.is_nan());
    rate.ok_or_else(|| Expected::new("a number from 0 to 1").example("0.01"))
}

fn protocol(text: &str) -> Result<OtlpProtocol, Expected> {
    protocol_named(text).ok_or_else(|| Expected::new("http or grpc").example("grpc"))
}

/// Parses a protocol by its name in OpenTelemetry's variables, or the reference's `http`.
fn protocol_named(text: &str) -> Option<OtlpProtocol> {
    match text.to_ascii_lowercase().as_str() {
        "grpc" => Some(OtlpProtocol::Grpc),
        "http" | "http/protobuf" => Some(OtlpProtocol::Http),
        _ => None,
    }
}

/// Parses OpenTelemetry's list of exporters. `prometheus` asks for what is available anyway.
fn pushes(text: &str) -> Result<bool, Expected> {
    let mut names = text.split(',').map(str::trim);
    let known = |name: &str| ["otlp", "none", "prometheus", ""].contains(&name);
    if names.clone().all(known) {
        Ok(names.any(|name| name == "otlp"))
    } else {
        Err(Expected::new("otlp or none").example("otlp"))
    }
}

/// Parses `OTEL_RESOURCE_ATTRIBUTES`: `key=value,key=value` with percent-encoded values.
fn attributes(env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> Vec<(String, String)> {
    let text = env("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let pairs: Vec<_> = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).collect();
    let read = pairs.iter().map(|pair| {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty())?;
        let value = String::from_utf8(percent_decoded(value.trim())).ok()?;
        Some((key.trim().to_owned(), value))
    });
    let read = read.collect::<Option<Vec<_>>>().filter(|read| read.len() <= ATTRIBUTES_MAX);
    read.unwrap_or_else(|| {
        let problem = format!("expected at most {ATTRIBUTES_MAX} pairs as key=value,key=value");
        let fix = "as in OTEL_RESOURCE_ATTRIBUTES=k8s.pod.name=shop-0";
        faults.add(Fault::new("OTEL_RESOURCE_ATTRIBUTES", problem, fix).with_found(&text));
        Vec::new()
    })
}

// The destination of one signal: OpenTelemetry's own variables, which have no flags here. Names,
// defaults and precedence are those of OpenTelemetry's "OTLP Exporter Configuration".

/// A kind of telemetry, in OpenTelemetry's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// Spans.
    Traces,
    /// Counters, gauges, histograms.
    Metrics,
}

/// The transport of telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// A gRPC call over HTTP/2.
    Grpc,
    /// Protobuf in the body of a POST over HTTP/1.1.
    Http,
}

/// The compression of what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpCompression {
    /// No compression.
    None,
    /// gzip.
    Gzip,
}

/// The destination of one signal.
#[derive(Debug, Clone, PartialEq)]
pub struct Otlp {
    /// The transport.
    pub protocol: OtlpProtocol,
    /// The URL: scheme, authority and, over HTTP, the whole path.
    pub endpoint: Uri,
    /// TLS for an endpoint of `https`.
    pub tls: Option<OtlpTls>,
    /// Headers to send, such as a token of the collector's; values are marked sensitive, so that
    /// their debug form does not show them.
    pub headers: HeaderMap,
    /// Timeout of one push, including the connection.
    pub timeout: Duration,
    /// The compression of messages.
    pub compression: OtlpCompression,
}

/// Default and maximum of `OTEL_EXPORTER_OTLP_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Maximum number of headers to send.
const HEADERS_MAX: usize = 32;

/// Looks up variables of one signal: `OTEL_EXPORTER_OTLP_TRACES_X` before `OTEL_EXPORTER_OTLP_X`.
struct Lookup<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    signal: Signal,
}

/// TLS for connections to a collector. Files are read once, at the start.
#[derive(Clone)]
pub struct OtlpTls(Arc<ClientConfig>);

/// Variables of collectors that hold secrets. Each has a twin, `…_FILE`, that names a file.
pub(crate) const OTLP_SECRETS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
];

/// Suffixes of variables that name files, after `OTEL_EXPORTER_OTLP_`.
const ROOTS: &str = "CERTIFICATE";
const CERTIFICATE: &str = "CLIENT_CERTIFICATE";
const KEY: &str = "CLIENT_KEY";

// === impl Otlp ===

impl Otlp {
    /// Reads the destination of `signal` from the environment; `None` if the endpoint is faulty.
    /// `protocol` is the one that another setting gave; without it the environment decides. Adds
    /// warnings to `warnings`.
    fn read(
        signal: Signal,
        protocol: Option<OtlpProtocol>,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
        warnings: &mut Vec<String>,
    ) -> Option<Self> {
        let lookup = Lookup { env, signal };
        let protocol = protocol.unwrap_or_else(|| lookup.protocol(faults));
        let endpoint = lookup.endpoint(protocol, faults);
        let headers = lookup.headers(faults);
        let timeout = lookup.timeout(faults);
        let compression = lookup.compression(warnings);
        let endpoint = endpoint?;
        let tls = match endpoint.scheme_str() {
            Some("https") => lookup.tls(protocol, faults),
            _ => {
                let given = [ROOTS, CERTIFICATE, KEY].into_iter().filter_map(|it| lookup.find(it));
                warnings.extend(
                    given.map(|(name, _)| {
                        format!("{name}: ignored; the endpoint is http, not https")
                    }),
                );
                None
            }
        };
        Some(Self { protocol, endpoint, tls, headers, timeout, compression })
    }
}

// === impl Lookup ===

impl Lookup<'_> {
    /// Returns the variable that takes effect, with its value.
    fn find(&self, name: &str) -> Option<(String, String)> {
        self.names(name).into_iter().find_map(|name| {
            let value = (self.env)(&name).filter(|value| !value.is_empty())?;
            Some((name, value))
        })
    }

    /// Returns a variable's names, in order of precedence.
    fn names(&self, name: &str) -> [String; 2] {
        let of_signal = match self.signal {
            Signal::Traces => "TRACES_",
            Signal::Metrics => "METRICS_",
        };
        [of_signal, ""].map(|part| format!("OTEL_EXPORTER_OTLP_{part}{name}"))
    }

    fn protocol(&self, faults: &mut Faults) -> OtlpProtocol {
        let Some((name, found)) = self.find("PROTOCOL") else { return OtlpProtocol::Http };
        protocol_named(&found).unwrap_or_else(|| {
            let fix = format!("set {name}=grpc or {name}=http/protobuf");
            let fault = Fault::new(name, "expected grpc or http/protobuf", fix);
            faults.add(fault.with_found(&found));
            OtlpProtocol::Http
        })
    }

    /// Reads the endpoint. The signal's own endpoint is taken unchanged; the common one gets the
    /// signal's path appended.
    fn endpoint(&self, protocol: OtlpProtocol, faults: &mut Faults) -> Option<Uri> {
        let (port, path) = match (protocol, self.signal) {
            (OtlpProtocol::Http, Signal::Traces) => (4318, "/v1/traces"),
            (OtlpProtocol::Http, Signal::Metrics) => (4318, "/v1/metrics"),
            (OtlpProtocol::Grpc, _) => (4317, ""),
        };
        let (name, found) = self.find("ENDPOINT").unwrap_or_else(|| {
            ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), format!("http://localhost:{port}"))
        });
        let is_common = name == "OTEL_EXPORTER_OTLP_ENDPOINT";
        let text = match protocol {
            OtlpProtocol::Http if !is_common => found.clone(),
            OtlpProtocol::Http => format!("{}{path}", found.trim_end_matches('/')),
            OtlpProtocol::Grpc => origin(&found).to_owned(),
        };
        // Anywhere in the URL, because a password may contain a `/`. In a path, `@` is written
        // `%40`.
        if found.contains('@') {
            let problem = "the URL has a user or a password, which logs of connections would show";
            let headers = name.replace("ENDPOINT", "HEADERS");
            let fix = format!("send them as a header, as in {headers}=authorization=Basic%20…");
            faults.add(Fault::new(name, problem, fix));
            return None;
        }
        let uri = text.parse::<Uri>().ok().filter(|uri| {
            [Some("http"), Some("https")].contains(&uri.scheme_str()) && uri.authority().is_some()
        });
        if uri.is_none() {
            let fix = format!("as in {name}=http://otel-collector:{port}");
            let problem = "expected a URL of http or https";
            faults.add(Fault::new(name, problem, fix).with_found(without_query(&found)));
        }
        uri
    }

    /// Reads the files of TLS, for a collector with this protocol. A client certificate that has
    /// expired is left to the collector: it must not keep the process from its requests.
    fn tls(&self, protocol: OtlpProtocol, faults: &mut Faults) -> Option<OtlpTls> {
        let path = |suffix| self.find(suffix).map(|(_, path)| PathBuf::from(path));
        let identity = match (self.find(CERTIFICATE), self.find(KEY)) {
            (Some((_, certificate)), Some((_, key))) => Some((certificate.into(), key.into())),
            (Some((name, found)), None) | (None, Some((name, found))) => {
                let problem = format!("{CERTIFICATE} and {KEY} go together, and one is missing");
                let fault = Fault::new(name, problem, "set both, or neither");
                faults.add(fault.with_found(&found));
                None
            }
            (None, None) => None,
        };
        let files = ClientFiles { roots: path(ROOTS), identity, server: ServerCheck::Host };
        let name_of = |suffix: &str| {
            let unset = || format!("OTEL_EXPORTER_OTLP_{suffix}");
            self.find(suffix).map_or_else(unset, |(name, _)| name)
        };
        let [roots, certificate, key] = [ROOTS, CERTIFICATE, KEY].map(name_of);
        let names = FileNames { roots: &roots, certificate: &certificate, key: &key };
        let loaded = files.load(&files.read(), None);
        let mut config = loaded.map_err(|found| names.add_faults(found, faults)).ok()?;
        config.alpn_protocols = match protocol {
            OtlpProtocol::Grpc => vec![ALPN_HTTP2.to_vec()],
            OtlpProtocol::Http => vec![b"http/1.1".to_vec()],
        };
        Some(OtlpTls(Arc::new(config)))
    }

    /// Returns the headers of the signal, else the common ones, given directly or in a file; with
    /// the name of the variable.
    fn headers_text(&self, faults: &mut Faults) -> Option<(String, Secret)> {
        for name in self.names("HEADERS") {
            let given = (self.env)(&name).map(Secret::from);
            let file = (self.env)(&format!("{name}_FILE")).map(SecretFile::from);
            let is_file = given.as_ref().is_none_or(Secret::is_empty);
            if let Some(secret) = faults.secret(&name, given.as_ref(), file.as_ref()) {
                return Some((if is_file { format!("{name}_FILE") } else { name }, secret));
            }
            if faults.has(&name) {
                return None;
            }
        }
        None
    }

    /// Parses `name=value,name=value` with percent-encoded values. These are secrets, so no fault
    /// shows them.
    fn headers(&self, faults: &mut Faults) -> HeaderMap {
        let Some((name, found)) = self.headers_text(faults) else { return HeaderMap::new() };
        let found = found.reveal();
        let pairs: Vec<_> = found.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
        let headers = pairs.iter().map(|pair| {
            let (key, value) = pair.split_once('=')?;
            let key = HeaderName::from_bytes(key.trim().as_bytes()).ok()?;
            let mut value = HeaderValue::from_bytes(&percent_decoded(value.trim())).ok()?;
            value.set_sensitive(true);
            Some((key, value))
        });
        let headers = headers.collect::<Option<Vec<_>>>();
        let headers = headers.filter(|_| pairs.len() <= HEADERS_MAX).unwrap_or_else(|| {
            let problem =
                format!("expected at most {HEADERS_MAX} headers as name=value,name=value");
            let fix = format!("as in {name}=authorization=Bearer%20abc");
            faults.add(Fault::new(name, problem, fix));
            Vec::new()
        });
        headers.into_iter().collect()
    }

    /// Reads the compression. An unknown one is ignored with a warning, as OpenTelemetry's
    /// exporters do.
    fn compression(&self, warnings: &mut Vec<String>) -> OtlpCompression {
        let Some((name, found)) = self.find("COMPRESSION") else { return OtlpCompression::None };
        match found.to_ascii_lowercase().as_str() {
            "gzip" => OtlpCompression::Gzip,
            "none" => OtlpCompression::None,
            _ => {
                warnings.push(format!("{name}: ignored; expected gzip or none"));
                OtlpCompression::None
            }
        }
    }

    fn timeout(&self, faults: &mut Faults) -> Duration {
        let Some((name, found)) = self.find("TIMEOUT") else { return TIMEOUT };
        let timeout = found.parse().ok().map(Duration::from_millis);
        timeout.filter(|it| !it.is_zero() && *it <= TIMEOUT_MAX).unwrap_or_else(|| {
            let problem = format!("expected milliseconds from 1 to {}", TIMEOUT_MAX.as_millis());
            let fix = format!("as in {name}=10000");
            faults.add(Fault::new(name, problem, fix).with_found(&found));
            TIMEOUT
        })
    }
}

// === impl OtlpTls ===

impl OtlpTls {
    /// Returns the configuration for rustls.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for OtlpTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtlpTls")
    }
}

/// Compares identity: settings are equal if they come from the same read of the files.
impl PartialEq for OtlpTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Returns a URL up to its authority: the path of a gRPC call is its method.
fn origin(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |at| at + "://".len());
    let end = url[authority..].find('/').map_or(url.len(), |at| authority + at);
    &url[..end]
}

/// Returns a URL up to its query, which may contain a token.
fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// Decodes `%20` and the like; leaves malformed sequences unchanged.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code =
            behind.split_at_checked(2).filter(|_| first == b'%').and_then(|(code, behind)| {
                let code = std::str::from_utf8(code).ok()?;
                Some((u8::from_str_radix(code, 16).ok()?, behind))
            });
        let (byte, behind) = code.unwrap_or((first, behind));
        decoded.push(byte);
        rest = behind;
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_codes_are_decoded_and_malformed_ones_stay() {
        for (text, expected) in
            [("a%20b", "a b"), ("%41%4a", "AJ"), ("100%", "100%"), ("%zz", "%zz")]
        {
            assert_eq!(percent_decoded(text), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn grpc_has_paths_of_its_own() {
        for (url, expected) in [
            ("http://a:4317", "http://a:4317"),
            ("http://a:4317/v1/traces", "http://a:4317"),
            ("a:4317", "a:4317"),
        ] {
            assert_eq!(origin(url), expected);
        }
    }

    #[test]
    fn an_address_is_a_port_with_or_without_its_host() {
        for (text, expected) in [
            (":9090", Some(("0.0.0.0", 9090))),
            ("127.0.0.1:0", Some(("127.0.0.1", 0))),
            ("[::]:9090", Some(("::", 9090))),
            ("localhost:80", Some(("localhost", 80))),
            ("9090", None),
            ("::1:80", None),
            ("a b:80", None),
            (":65536", None),
            ("", None),
        ] {
            let parsed = address(text).ok();
            let expected = expected.map(|(host, port)| HostPort::new(host, port));
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn a_path_has_nothing_that_routes_or_urls_read_otherwise() {
        for (text, good) in
            [("/metrics", true), ("/", true), ("/a/b-c", true), ("metrics", false), ("", false)]
        {
            assert_eq!(path(text).is_ok(), good, "{text}");
        }
        assert!(["/{a}", "/*", "/a?b", "/a#b", "/a b"].into_iter().all(|text| path(text).is_err()));
    }
}
