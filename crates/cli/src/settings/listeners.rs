//! Settings for listeners, and for TLS on that of gRPC.

use std::path::PathBuf;
use std::time::Duration;

use ratelease_engine::secret::Secret;
use ratelease_rules::request::scoped;
use ratelease_tls::{ClientFiles, FileFault, FileFaults, FileRole, ServerFiles};
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

use super::fault::{Expected, Fault, Faults};
use super::table::{Section, Sections, optional, path, secret, setting, switch};
use super::value::{self, HostPort};
use crate::settings;

/// Maximum of the setting for calls in flight in one process: each call that waits holds some 12
/// KiB.
///
/// The default, 4096, is 48 MiB of them. A call waits for a lease, by default at most 5 ms: a pod
/// at which every call waits that long has 4096 calls in flight at 800 000 a second.
const MAX_IN_FLIGHT_MAX: usize = 1_000_000;

/// Maximum of the setting for threads: more than any machine has cores.
const THREADS_MAX: usize = 1024;

settings! {
    /// The addresses to listen on, who may call there, and how many calls are answered at once.
    #[derive(Eq)]
    pub struct Listeners in "Listeners" {
        /// Interface of the HTTP listener; all interfaces by default, because the kubelet's probes
        /// come from outside the pod
        "HOST" => host: String = setting("HOST", "0.0.0.0", value::host);
        /// Port of the HTTP listener: /json, /shouldAllow, /api/v1/rate_limit, /healthcheck,
        /// /livez, /readyz
        "PORT" => port: u16 = setting("PORT", "8080", value::port);
        /// Host names under which /json, /shouldAllow and /api/v1/rate_limit may be called, in
        /// addition to IP addresses and cluster-internal names; * allows any
        "ALLOWED_HOSTS" => allowed_hosts: Vec<String> = optional("NAMES", names).added();
        /// Let /json give hits back (is_negative_hits); gRPC calls always may
        "JSON_REFUNDS" => json_refunds: bool = switch(false).added();
        /// Domain of the rules that /shouldAllow and /api/v1/rate_limit apply, as the control plane
        /// writes them at /rules
        "SCOPED_RULES_DOMAIN" => scoped_domain: String =
            setting("DOMAIN", scoped::DOMAIN, |text| Ok(text.to_owned())).added();
        /// Interface of the gRPC listener
        "GRPC_HOST" => grpc_host: String =
            setting("HOST", "127.0.0.1", value::host).reference_default("0.0.0.0");
        /// Port of the gRPC listener, which Envoy calls
        "GRPC_PORT" => grpc_port: u16 = setting("PORT", "8081", value::port);
        /// Unix socket on which to serve gRPC instead of the port
        "GRPC_UDS" => grpc_uds: Option<PathBuf> =
            optional("PATH", |text| value::socket_path(text).map(Some));
        /// Permissions of that socket, in octal; Envoy needs write permission
        "GRPC_UDS_MODE" => grpc_uds_mode: u32 = setting("MODE", "0666", mode).added();
        /// Group of that socket, by number [default: the group of the process]
        "GRPC_UDS_GROUP" => grpc_uds_group: Option<u32> =
            optional("GID", group_number).added();
        /// Age, a duration, after which a gRPC connection is closed gracefully; 0 for never
        "GRPC_MAX_CONNECTION_AGE" => max_connection_age: Option<Duration> =
            setting("AGE", "24h", value::duration_or_never);
        /// Time, a duration, that such a connection has to finish its calls; 0 for no limit
        "GRPC_MAX_CONNECTION_AGE_GRACE" => max_connection_age_grace: Option<Duration> =
            setting("SPAN", "1h", value::duration_or_never);
        /// Maximum number of calls in flight on all connections together; further calls are refused
        "MAX_IN_FLIGHT" => calls_max: usize =
            setting("COUNT", "4096", |text| value::count_within(text, 1..=MAX_IN_FLIGHT_MAX))
                .added();
        /// Number of threads that serve connections [default: one for each core that the process
        /// may use]
        "THREADS" => threads: Option<usize> =
            optional("COUNT", |text| value::count_within(text, 1..=THREADS_MAX).map(Some)).added();
        /// Interface of the debug listener
        "DEBUG_HOST" => debug_host: String = setting("HOST", "127.0.0.1", value::host);
        /// Port of the debug listener: /status, /metrics, /rlconfig, /hotkeys and their index
        "DEBUG_PORT" => debug_port: u16 = setting("PORT", "6070", value::port);
        /// Host names under which the debug and metrics listeners may be called, in addition to IP
        /// addresses and cluster-internal names; * allows any
        "DEBUG_ALLOWED_HOSTS" => debug_allowed_hosts: Vec<String> =
            optional("NAMES", names).added();
        /// Token that requests to the debug listener must carry, as a bearer token or a password
        /// [default: none, no token is required]
        "DEBUG_TOKEN" => debug_token: Secret = secret("SECRET").added();
    }
}

/// The gRPC listener: `GRPC_UDS` replaces the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrpcListen {
    /// A TCP address.
    Tcp(HostPort),
    /// A Unix socket.
    Unix(Uds),
}

/// A Unix socket to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uds {
    /// Path of the socket, at most 107 bytes.
    pub path: PathBuf,
    /// Permissions of the socket, from 0 to 0o777: connecting requires write permission.
    pub mode: u32,
    /// Group of the socket, by number; `None` for the process's own.
    pub group: Option<u32>,
}

/// The settings of the listeners that answer whether a pod is healthy, for commands that call it in
/// the environment of `serve`.
#[derive(Debug)]
pub enum HealthListener {}

impl Sections for HealthListener {
    const SECTIONS: &'static [Section<'static>] = &[Listeners::SECTION
        .only(&["HOST", "PORT", "GRPC_HOST", "GRPC_PORT", "GRPC_UDS"])
        .hidden()];
}

/// The settings of the debug listener, for the same.
#[derive(Debug)]
pub enum DebugListener {}

impl Sections for DebugListener {
    const SECTIONS: &'static [Section<'static>] =
        &[Listeners::SECTION.only(&["DEBUG_HOST", "DEBUG_PORT", "DEBUG_TOKEN"]).hidden()];
}

// === impl Listeners ===

impl Listeners {
    /// Returns the address of the HTTP listener.
    pub fn http(&self) -> HostPort {
        HostPort::new(&*self.host, self.port)
    }

    /// Returns the gRPC listener.
    pub fn grpc(&self) -> GrpcListen {
        match self.grpc_uds.clone() {
            Some(path) => {
                let mode = self.grpc_uds_mode;
                GrpcListen::Unix(Uds { path, mode, group: self.grpc_uds_group })
            }
            None => GrpcListen::Tcp(HostPort::new(&*self.grpc_host, self.grpc_port)),
        }
    }

    /// Returns the address of the debug listener.
    pub fn debug(&self) -> HostPort {
        HostPort::new(&*self.debug_host, self.debug_port)
    }
}

/// Returns the address at which to call a listener. The setting `port` must say on which it is.
pub fn call_at(listener: HostPort, port: &str, faults: &mut Faults) -> HostPort {
    if listener.port == 0 {
        let problem = "0 lets the listener choose its port, which is not known here";
        faults.add(Fault::new(port, problem, "name the address with a flag"));
    }
    listener.reachable()
}

/// Parses names without ports, in the form of a `Host` header.
fn names(text: &str) -> Result<Vec<String>, Expected> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let read = |name: &str| if name == "*" { Ok(name.to_owned()) } else { value::host(name) };
    let read: Result<_, _> = names.map(read).collect();
    read.map_err(|_| {
        let expected = "names without a port, separated by commas, or *";
        Expected::new(expected).example("debug.example.com")
    })
}

/// Parses permissions in octal, as `chmod` takes them.
fn mode(text: &str) -> Result<u32, Expected> {
    let is_octal = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = is_octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| Expected::new("permissions in octal, from 0 to 0777").example("0660"))
}

/// Parses a group number. The highest number means no group (chown(2)).
fn group_number(text: &str) -> Result<Option<u32>, Expected> {
    match text.parse() {
        Ok(number) if number < u32::MAX => Ok(Some(number)),
        _ => Err(Expected::new("a group's number").example("1337")),
    }
}

settings! {
    /// TLS on the gRPC listener.
    pub(super) struct GrpcTls in "TLS of the gRPC listener" {
        /// Serve gRPC over TLS only; /json and the probes of HTTP stay without
        "GRPC_SERVER_USE_TLS" => is_on: bool = switch(false);
        /// File with the certificate of the listener and its intermediates, PEM; read again when it
        /// changes, like the files below
        "GRPC_SERVER_TLS_CERT" => certificate: Option<PathBuf> = path("FILE");
        /// File with the key of that certificate, PEM: PKCS#8, PKCS#1 or SEC1
        "GRPC_SERVER_TLS_KEY" => key: Option<PathBuf> = path("FILE");
        /// File with CA certificates, PEM; clients must then have a certificate that one of them
        /// signed [default: clients need no certificate]
        "GRPC_CLIENT_TLS_CACERT" => client_roots: Option<PathBuf> = path("FILE");
        /// The same under the name that Envoy Gateway sets
        "GRPC_SERVER_TLS_CA_CERT" => client_roots_of_gateway: Option<PathBuf> = path("FILE");
        /// DNS name or IP address that the certificates of clients must have [default: any name]
        "GRPC_CLIENT_TLS_SAN" => client_name: Option<ServerName<'static>> =
            optional("NAME", server_name);
    }
}

// === impl GrpcTls ===

impl GrpcTls {
    /// Returns the files of the listener; `None` for one without TLS. They are read, so that what
    /// is wrong with them is reported together with all other faults.
    pub(super) fn files(self, faults: &mut Faults) -> Option<ServerFiles> {
        if !self.is_on {
            return None;
        }
        let names = FileNames {
            certificate: "GRPC_SERVER_TLS_CERT",
            key: "GRPC_SERVER_TLS_KEY",
            roots: match self.client_roots {
                Some(_) => "GRPC_CLIENT_TLS_CACERT",
                None => "GRPC_SERVER_TLS_CA_CERT",
            },
        };
        for (name, file) in [(names.certificate, &self.certificate), (names.key, &self.key)] {
            if file.is_none() {
                let problem = "not set, and GRPC_SERVER_USE_TLS is true";
                faults.add(Fault::new(name, problem, "name a PEM file"));
            }
        }
        if let (Some(one), Some(other)) = (&self.client_roots, &self.client_roots_of_gateway)
            && one != other
        {
            let problem = "GRPC_CLIENT_TLS_CACERT, which means the same, names another file";
            let fault = Fault::new("GRPC_SERVER_TLS_CA_CERT", problem, "set one of the two");
            faults.add(fault.with_found(&other.to_string_lossy()));
            return None;
        }
        let client_roots = self.client_roots.or(self.client_roots_of_gateway);
        if self.client_name.is_some() && client_roots.is_none() {
            let problem = "no certificate is asked of clients, so none is checked for this name";
            let fix = "set GRPC_CLIENT_TLS_CACERT too";
            faults.add(Fault::new("GRPC_CLIENT_TLS_SAN", problem, fix));
        }
        let (certificate, key) = self.certificate.zip(self.key)?;
        let files = ServerFiles { certificate, key, client_roots, client_name: self.client_name };
        if let Err(found) = files.load(&files.read(), UnixTime::now()) {
            names.add_faults(found, faults);
        }
        Some(files)
    }

    /// Returns a warning if files are given for TLS that is off.
    pub(super) fn warning(&self) -> Option<String> {
        let given = [
            ("GRPC_SERVER_TLS_CERT", &self.certificate),
            ("GRPC_SERVER_TLS_KEY", &self.key),
            ("GRPC_CLIENT_TLS_CACERT", &self.client_roots),
            ("GRPC_SERVER_TLS_CA_CERT", &self.client_roots_of_gateway),
        ];
        let (name, _) = given.into_iter().find(|(_, file)| file.is_some())?;
        (!self.is_on).then(|| {
            format!("{name}: ignored, gRPC is served in plaintext; set GRPC_SERVER_USE_TLS=true")
        })
    }
}

/// The names of the settings that name the files of TLS.
pub(super) struct FileNames<'n> {
    pub(super) roots: &'n str,
    pub(super) certificate: &'n str,
    pub(super) key: &'n str,
}

// === impl FileNames ===

impl FileNames<'_> {
    /// Adds a fault for a certificate without its key, and for a key without its certificate.
    pub(super) fn check_identity(
        &self,
        certificate: Option<&PathBuf>,
        key: Option<&PathBuf>,
        faults: &mut Faults,
    ) {
        let missing = match (certificate, key) {
            (Some(_), None) => self.key,
            (None, Some(_)) => self.certificate,
            _ => return,
        };
        let problem = "a client certificate and its key go together, and this one is missing";
        faults.add(Fault::new(missing, problem, "set both, or neither"));
    }

    /// Adds a fault for each file of a client that cannot be used.
    pub(super) fn check(&self, files: &ClientFiles, faults: &mut Faults) {
        if let Err(found) = files.load(&files.read(), Some(UnixTime::now())) {
            self.add_faults(found, faults);
        }
    }

    /// Adds a fault for each file that cannot be used.
    pub(super) fn add_faults(&self, found: FileFaults, faults: &mut Faults) {
        for FileFault { role, path, problem } in found {
            let (name, fix) = match role {
                FileRole::Certificate => {
                    (self.certificate, "name a PEM file with a certificate that is valid now")
                }
                FileRole::Key => {
                    (self.key, "name the PEM file with the key of the certificate named beside it")
                }
                FileRole::Roots => (self.roots, "name a PEM file of the certificates to trust"),
            };
            faults.add(match path {
                Some(path) => Fault::new(name, format!("the file {problem}"), fix)
                    .in_file(&path.to_string_lossy()),
                None => Fault::new(name, problem, fix),
            });
        }
    }
}

/// Parses a name that a certificate may have.
pub(super) fn server_name(text: &str) -> Result<Option<ServerName<'static>>, Expected> {
    match ServerName::try_from(text.to_owned()) {
        Ok(name) => Ok(Some(name)),
        Err(_) => Err(Expected::new("a DNS name or an IP address").example("envoy.shop.internal")),
    }
}
