//! Calls a server: one page of HTTP, or gRPC with or without TLS.
//!
//! A page is requested without an async runtime: a probe starts often and must be quick.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ratelease_engine::secret::Secret;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::parse_duration;
use ratelease_tls::{ClientFiles, ServerCheck};
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::out::CliError;
use crate::settings::HostPort;

/// Maximum bytes of an answer: `/status` has some tens of thousands.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Bytes per read.
const PIECE_BYTES: usize = 1 << 16;

/// An HTTP answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The HTTP status, 200 on success.
    pub status: u16,
    /// The bytes after the head.
    pub body: Vec<u8>,
}

/// What to do about a server that cannot be reached.
const START_IT: &str = "name another address, or start the server there";

/// Requests the page at `path` from `server`. `within` bounds the whole exchange.
///
/// # Errors
/// The server cannot be reached, does not answer in time, or does not answer with HTTP.
pub fn get(server: &HostPort, path: &str, within: Duration) -> Result<Page, CliError> {
    get_with(server, path, &Secret::default(), within)
}

/// Like [`get`], for a server that requires a token.
///
/// # Errors
/// Those of [`get`].
pub fn get_with(
    server: &HostPort,
    path: &str,
    token: &Secret,
    within: Duration,
) -> Result<Page, CliError> {
    exchange(server, path, token, within).map_err(|error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            CliError::new(format_args!("{server}: no answer within {within:?}"))
        }
        ErrorKind::InvalidData => CliError::new(format_args!("{server}: {error}")),
        _ => CliError::new(format_args!("{server}: cannot be reached: {error}; {START_IT}")),
    })
}

fn exchange(server: &HostPort, path: &str, token: &Secret, within: Duration) -> io::Result<Page> {
    let clock = Clock::start();
    let end = clock.now() + within;
    let mut stream = connect(server, &clock, end)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(left(&clock, end)?))?;
    // HTTP/1.0, so that the answer is not chunked and ends with the connection. The host is an
    // address because the debug port does not accept every name.
    let host = stream.peer_addr()?;
    let token = match token.reveal() {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let request = format!("GET {path} HTTP/1.0\r\nhost: {host}\r\n{token}accept: */*\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        stream.set_read_timeout(Some(left(&clock, end)?))?;
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return page(&answer);
        }
        answer.extend_from_slice(piece.get(..read).unwrap_or_default());
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "its answer is too long"));
        }
    }
}

/// Connects to the first address of the server that accepts the connection.
fn connect(server: &HostPort, clock: &Clock, end: Time) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "no such host");
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(clock, end)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn left(clock: &Clock, end: Time) -> io::Result<Duration> {
    match end.since(clock.now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn page(answer: &[u8]) -> io::Result<Page> {
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let status = answer.strip_prefix(b"HTTP/1.").and_then(|line| line.get(2..5));
    let status = status.and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    match (status, end) {
        (Some(status), Some(end)) => {
            Ok(Page { status, body: answer.get(end + 4..).unwrap_or_default().to_vec() })
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, "its answer is not HTTP")),
    }
}

/// Parses a server's address, `HOST:PORT`; an IPv6 address is in brackets.
pub fn host_port(text: &str) -> Result<HostPort, String> {
    let split = text.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
        // An IPv6 address is in brackets.
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_good = match bare {
            Some(bare) => bare.contains(':'),
            None => !host.is_empty() && !host.contains([':', '/', '[', ']', '@', ' ']),
        };
        is_good.then(|| HostPort::new(bare.unwrap_or(host), port))
    });
    split.ok_or_else(|| "expected HOST:PORT, as in 127.0.0.1:8080".to_owned())
}

/// Parses a flag's duration, which must be above zero.
pub fn span_above_zero(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero());
    span.ok_or_else(|| "expected a duration above 0 with its unit, as in 1s".to_owned())
}

/// The address of a gRPC server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A host and a port; the host is resolved for each connection.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

/// How the connection is secured.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Use TLS; implied by each flag below
    #[arg(long)]
    tls: bool,
    /// CA certificates that the server's certificate must be signed by, PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate, with its intermediate certificates, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Name that the server's certificate must have [default: the host of the target]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

/// Maximum bytes of a certificate or key file: a bundle of all roots has a few hundred thousand.
const PEM_BYTES_MAX: u64 = 16 << 20;

/// Maximum time of each page that says what a port is.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Names of the gRPC status codes, indexed by number.
pub const GRPC_CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

// === impl Target ===

impl Target {
    /// Parses `HOST:PORT` or `unix:PATH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path behind unix:, as in unix:/run/ratelease.sock".into()),
            Some(path) => Ok(Self::Unix(path.into())),
            None if host_port(text).is_ok() => Ok(Self::Tcp(text.to_owned())),
            None => Err("expected HOST:PORT or unix:PATH, as in 127.0.0.1:8081".into()),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// A file cannot be read, or the server cannot be reached in time. The error says why and what
    /// to check.
    pub async fn connect(
        &self,
        tls: Option<ClientTlsConfig>,
        within: Duration,
    ) -> Result<Channel, CliError> {
        let uri = match self {
            Self::Tcp(address) if tls.is_some() => format!("https://{address}"),
            Self::Tcp(address) => format!("http://{address}"),
            Self::Unix(path) => format!("unix:{}", path.display()),
        };
        let failed = |error: &dyn Error| {
            CliError::new(format_args!("{self}: cannot be reached: {}; {START_IT}", root(error)))
        };
        let mut endpoint = Endpoint::from_shared(uri).map_err(|error| failed(&error))?;
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls).map_err(|error| {
                CliError::new(format_args!("the TLS flags cannot be used: {}", root(&error)))
            })?;
        }
        match tokio::time::timeout(within, endpoint.connect()).await {
            Ok(connected) => connected.map_err(|error| failed(&error)),
            Err(_) => Err(self.late(within)),
        }
    }

    /// Returns the error for a status other than OK, which says what to name instead if the target
    /// answers HTTP in place of gRPC.
    pub fn refused_or_http(&self, status: &tonic::Status) -> CliError {
        match self.port_of_http() {
            Some(port) => CliError::new(format_args!(
                "{self}: this is {port}, which does not speak gRPC; name the pod's GRPC_PORT, 8081 by \
                 default"
            )),
            None => self.refused(status),
        }
    }

    /// Returns which port of a pod the target is, if it answers HTTP in place of gRPC.
    fn port_of_http(&self) -> Option<&'static str> {
        let Self::Tcp(address) = self else { return None };
        let server = host_port(address).ok()?;
        let page = |path| get(&server, path, PROBE_MAX).ok();
        let index = page("/")?;
        if index.body.starts_with(b"ratelease ") {
            return Some("the debug port, DEBUG_PORT");
        }
        let has_health = page("/healthcheck").is_some_and(|page| page.status != 404);
        Some(if has_health { "the port of HTTP and JSON, PORT" } else { "a port of HTTP" })
    }

    /// Returns the error for a server that did not answer in time.
    pub fn late(&self, within: Duration) -> CliError {
        CliError::new(format_args!("{self}: no answer within {within:?}; --timeout waits longer"))
    }

    /// Returns the error for a status other than OK.
    fn refused(&self, status: &tonic::Status) -> CliError {
        let code = status.code();
        let reason = status.message();
        match status.source() {
            Some(source) if code == Code::Unknown || code == Code::Unavailable => {
                CliError::new(format_args!("{self}: the connection broke: {}", root(source)))
            }
            _ => CliError::new(format_args!("{self}: answered {code:?}: {reason}")),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Returns the innermost cause of an error, which is the most specific one, with the message of
/// TLS.
fn root(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

// === impl TlsFlags ===

impl TlsFlags {
    /// Returns whether the flags ask for TLS.
    pub fn is_on(&self) -> bool {
        let Self { tls, ca, cert, key: _, server_name } = self;
        *tls || ca.is_some() || cert.is_some() || server_name.is_some()
    }

    /// Returns the files of the flags, for connections that tonic does not make; `None` for no TLS.
    ///
    /// # Errors
    /// `--server-name` is neither a DNS name nor an IP address.
    pub fn files(&self) -> Result<Option<ClientFiles>, CliError> {
        if !self.is_on() {
            return Ok(None);
        }
        let name = self.server_name.clone().map(ServerName::try_from).transpose();
        let name = name.map_err(|error| CliError::new(format_args!("--server-name: {error}")))?;
        Ok(Some(ClientFiles {
            roots: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
            server: name.map_or(ServerCheck::Host, ServerCheck::Name),
        }))
    }

    /// Builds the TLS configuration of the flags; `None` for no TLS.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn config(&self) -> Result<Option<ClientTlsConfig>, CliError> {
        let Self { ca, cert, key, server_name, .. } = self;
        if !self.is_on() {
            return Ok(None);
        }
        let mut config = ClientTlsConfig::new();
        config = match ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(pem(path)?)),
            None => config.with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (cert, key) {
            config = config.identity(Identity::from_pem(pem(cert)?, pem(key)?));
        }
        if let Some(name) = server_name {
            config = config.domain_name(name);
        }
        Ok(Some(config))
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |why: &dyn fmt::Display| CliError::new(format_args!("{}: {why}", path.display()));
    let length = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > PEM_BYTES_MAX {
        return Err(failed(&"too long for certificates"));
    }
    let pem = fs::read(path).map_err(|error| failed(&error))?;
    // A file without a PEM block is skipped silently later, and no certificate would be trusted.
    if !pem.windows(11).any(|text| text == b"-----BEGIN ") {
        return Err(failed(&"holds nothing in PEM, which begins with -----BEGIN"));
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    /// Starts a server that answers one request with `answer`. If `keeps`, it leaves the connection
    /// open.
    fn server(answer: &'static [u8], keeps: bool) -> HostPort {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /page HTTP/1.0\r\n"));
            stream.write_all(answer).unwrap();
            if keeps {
                // Until the client closes the connection.
                let _ = stream.read(&mut request);
            }
        });
        HostPort::new("127.0.0.1", port)
    }

    #[test]
    fn a_page_has_a_status_and_a_body() {
        let server = server(b"HTTP/1.1 503 Service\r\na: b\r\n\r\nbody\r\n\r\nmore", false);
        let page = get(&server, "/page", WITHIN).unwrap();
        assert_eq!(page, Page { status: 503, body: b"body\r\n\r\nmore".to_vec() });
    }

    #[test]
    fn an_answer_that_is_not_http_is_reported() {
        let server = server(b"\x00\x00\x12\x04 not HTTP/1.1 200", false);
        let error = get(&server, "/page", WITHIN).unwrap_err().to_string();
        assert!(error.ends_with("its answer is not HTTP"), "{error}");
    }

    #[test]
    fn a_server_that_hangs_is_left_in_time() {
        let server = server(b"HTTP/1.1 200 OK\r\n\r\n", true);
        let error = get(&server, "/page", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.ends_with("no answer within 50ms"), "{error}");
    }

    #[test]
    fn an_unreachable_server_is_reported_with_the_reason() {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let error = get(&HostPort::new("127.0.0.1", port), "/", WITHIN).unwrap_err().to_string();
        assert!(error.starts_with(&format!("127.0.0.1:{port}: cannot be reached: ")), "{error}");
    }

    #[test]
    fn a_target_is_a_host_with_a_port_or_a_socket() {
        for good in ["127.0.0.1:8081", "[::1]:8081", "ratelimit.shop:1", "unix:/a", "unix:b"] {
            assert_eq!(Target::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "8081", ":8081", "a:", "a:0", "a:65536", "::1:80", "http://a:80", "unix:"] {
            assert!(Target::parse(bad).is_err_and(|error| error.starts_with("expected ")), "{bad}");
        }
    }
}
