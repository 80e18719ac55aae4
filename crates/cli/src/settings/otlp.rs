//! Settings for pushing telemetry: OpenTelemetry's own variables, which have no flags here.
//!
//! Names, defaults and precedence are those of OpenTelemetry's "OTLP Exporter Configuration".

mod tls;

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ratelease_engine::secret::{Secret, SecretFile};

use super::fault::{Fault, Faults};
pub use tls::OtlpTls;

/// A kind of telemetry, in OpenTelemetry's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
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

// === impl Otlp ===

impl Otlp {
    /// Resolves the destination of `signal` from the environment. `protocol` is the one that
    /// another setting gave; without it the environment decides. Adds warnings to `warnings`.
    pub(super) fn resolve(
        signal: Signal,
        protocol: Option<OtlpProtocol>,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
        warnings: &mut Vec<String>,
    ) -> Option<Self> {
        let lookup = Lookup { env, signal };
        let protocol = protocol.map_or_else(|| lookup.protocol(faults), Some);
        let endpoint = lookup.endpoint(protocol.unwrap_or(OtlpProtocol::Http), faults);
        let headers = lookup.headers(faults);
        let timeout = lookup.timeout(faults);
        let compression = lookup.compression(warnings);
        let (protocol, endpoint) = (protocol?, endpoint?);
        let tls = lookup.tls(protocol, &endpoint, faults, warnings)?;
        let (headers, timeout) = (headers?, timeout?);
        Some(Self { protocol, endpoint, tls, headers, timeout, compression })
    }
}

/// Parses a protocol by its name in OpenTelemetry's variables, or the reference's `http`.
pub(super) fn protocol(text: &str) -> Option<OtlpProtocol> {
    match text.to_ascii_lowercase().as_str() {
        "grpc" => Some(OtlpProtocol::Grpc),
        "http" | "http/protobuf" => Some(OtlpProtocol::Http),
        _ => None,
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

    fn protocol(&self, faults: &mut Faults) -> Option<OtlpProtocol> {
        let Some((name, found)) = self.find("PROTOCOL") else { return Some(OtlpProtocol::Http) };
        protocol(&found).or_else(|| {
            let mend = format!("set {name}=grpc or {name}=http/protobuf");
            let fault = Fault::new(name, "expected grpc or http/protobuf", mend);
            faults.add(fault.with_found(&found));
            None
        })
    }

    /// Resolves the endpoint. The signal's own endpoint is taken unchanged; the common one gets the
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
        let uri = text.parse::<Uri>().ok().filter(|uri| {
            [Some("http"), Some("https")].contains(&uri.scheme_str()) && uri.authority().is_some()
        });
        // Anywhere in the URL, because a password may contain a `/`. In a path, `@` is written
        // `%40`.
        if found.contains('@') {
            let problem = "the URL has a user or a password, which logs of connections would show";
            let headers = name.replace("ENDPOINT", "HEADERS");
            let mend = format!("send them as a header, as in {headers}=authorization=Basic%20…");
            faults.add(Fault::new(name, problem, mend));
            return None;
        }
        if uri.is_none() {
            let mend = format!("as in {name}=http://otel-collector:{port}");
            let problem = "expected a URL of http or https";
            faults.add(Fault::new(name, problem, mend).with_found(without_query(&found)));
        }
        uri
    }

    /// Resolves TLS if the endpoint uses it; `Some(None)` if not.
    fn tls(
        &self,
        protocol: OtlpProtocol,
        endpoint: &Uri,
        faults: &mut Faults,
        warnings: &mut Vec<String>,
    ) -> Option<Option<OtlpTls>> {
        if endpoint.scheme_str() == Some("https") {
            return OtlpTls::resolve(self, protocol, faults).map(Some);
        }
        for (name, _) in tls::ALL.iter().filter_map(|name| self.find(name)) {
            warnings.push(format!("{name}: ignored; the endpoint is http, not https"));
        }
        Some(None)
    }

    /// Returns the headers of the signal, else the common ones, given directly or in a file;
    /// `Some(None)` for none.
    fn headers_text(&self, faults: &mut Faults) -> Option<Option<(String, Secret)>> {
        for name in self.names("HEADERS") {
            let given = (self.env)(&name).map(Secret::from);
            let file = (self.env)(&format!("{name}_FILE")).map(SecretFile::from);
            let is_file = given.as_ref().is_none_or(Secret::is_empty);
            if let Some(secret) = faults.secret(&name, given.as_ref(), file.as_ref())? {
                return Some(Some((if is_file { format!("{name}_FILE") } else { name }, secret)));
            }
        }
        Some(None)
    }

    /// Parses `name=value,name=value` with percent-encoded values. These are secrets, so no fault
    /// shows them.
    fn headers(&self, faults: &mut Faults) -> Option<HeaderMap> {
        let Some((name, found)) = self.headers_text(faults)? else {
            return Some(HeaderMap::new());
        };
        let found = found.reveal();
        let pairs: Vec<_> = found.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
        let headers = pairs.iter().map(|pair| {
            let (key, value) = pair.split_once('=')?;
            let key = HeaderName::from_bytes(key.trim().as_bytes()).ok()?;
            let mut value = HeaderValue::from_bytes(&percent_decoded(value.trim())).ok()?;
            value.set_sensitive(true);
            Some((key, value))
        });
        let headers: Option<HeaderMap> =
            headers.collect::<Option<Vec<_>>>().map(|headers| headers.into_iter().collect());
        let headers = headers.filter(|_| pairs.len() <= HEADERS_MAX);
        if headers.is_none() {
            let problem =
                format!("expected at most {HEADERS_MAX} headers as name=value,name=value");
            let mend = format!("as in {name}=authorization=Bearer%20abc");
            faults.add(Fault::new(name, problem, mend));
        }
        headers
    }

    /// Resolves the compression. An unknown one is ignored with a warning, as OpenTelemetry's
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

    fn timeout(&self, faults: &mut Faults) -> Option<Duration> {
        let Some((name, found)) = self.find("TIMEOUT") else { return Some(TIMEOUT) };
        let timeout = found.parse().ok().map(Duration::from_millis);
        let good = timeout.filter(|it| !it.is_zero() && *it <= TIMEOUT_MAX);
        if good.is_none() {
            let problem = format!("expected milliseconds from 1 to {}", TIMEOUT_MAX.as_millis());
            let mend = format!("as in {name}=10000");
            faults.add(Fault::new(name, problem, mend).with_found(&found));
        }
        good
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
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
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
}
