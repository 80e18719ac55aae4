//! Settings for listeners.

use std::path::PathBuf;
use std::time::Duration;

use ratelease_engine::secret::Secret;
use ratelease_rules::request::scoped;

use super::fault::{Expected, Faults};
use super::group::{Flags, Values};
use super::table::{
    OptionalSetting, SecretSetting, Setting, optional, secret, setting, settings, switch,
};
use super::value::{self, HostPort};

/// Maximum of the setting for calls in flight in one process: each call that waits holds some 12
/// KiB.
///
/// The default, 4096, is 48 MiB of them. A call waits for a lease, by default at most 5 ms: a pod
/// at which every call waits that long has 4096 calls in flight at 800 000 a second.
const MAX_IN_FLIGHT_MAX: usize = 1_000_000;

/// Maximum of the setting for threads: more than any machine has cores.
const THREADS_MAX: usize = 1024;

/// All addresses to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    /// `/json`, `/shouldAllow`, `/api/v1/rate_limit`, `/healthcheck`, `/livez`, `/readyz`.
    pub http: HostPort,
    /// Rate limit requests of Envoy.
    pub grpc: GrpcListen,
    /// `/status`, `/metrics`, `/rlconfig`, `/hotkeys` and their index.
    pub debug: HostPort,
    /// Host names under which decisions may be asked for over HTTP, besides the built-in ones.
    pub allowed_hosts: Vec<String>,
    /// Whether `/json` may give back hits.
    pub json_refunds: bool,
    /// The domain of the rules by who calls which endpoint; never empty.
    pub scoped_domain: String,
    /// Host names under which the debug and metrics listeners may be called, besides the built-in
    /// ones.
    pub debug_allowed_hosts: Vec<String>,
    /// The token that the debug listener requires; empty for none.
    pub debug_token: Secret,
    /// Age at which a gRPC connection is closed gracefully; `None` for never.
    pub max_connection_age: Option<Duration>,
    /// Time that such a connection has to finish its calls; `None` for no bound.
    pub max_connection_age_grace: Option<Duration>,
    /// Maximum number of calls in flight on all connections, from 1; further calls are refused.
    pub calls_max: usize,
    /// Number of threads that serve connections, from 1 to 1024; `None` for one for each core.
    pub threads: Option<usize>,
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

settings! {
    /// Settings of the listeners.
    pub(super) group ListenerTable("Listeners");

    /// Interface of the HTTP listener; all interfaces by default, because the kubelet's probes come
    /// from outside the pod
    pub(super) HOST: Setting<String> = setting("HOST", "0.0.0.0", value::host);
    /// Port of the HTTP listener: /json, /shouldAllow, /api/v1/rate_limit, /healthcheck, /livez,
    /// /readyz
    pub(super) PORT: Setting<u16> = setting("PORT", "8080", value::port);
    /// Host names under which /json, /shouldAllow and /api/v1/rate_limit may be called, in addition
    /// to IP addresses and cluster-internal names; * allows any
    ALLOWED_HOSTS: OptionalSetting<Vec<String>> = optional("NAMES", names);
    /// Let /json give hits back (is_negative_hits); gRPC calls always may
    JSON_REFUNDS: Setting<bool> = switch(false);
    /// Domain of the rules that /shouldAllow and /api/v1/rate_limit apply, as the control plane
    /// writes them at /rules
    SCOPED_RULES_DOMAIN: Setting<String> =
        setting("DOMAIN", scoped::DOMAIN, |text| Ok(text.to_owned()));
    /// Interface of the gRPC listener
    pub(super) GRPC_HOST: Setting<String> =
        setting("HOST", "127.0.0.1", value::host).reference_default("0.0.0.0");
    /// Port of the gRPC listener, which Envoy calls
    pub(super) GRPC_PORT: Setting<u16> = setting("PORT", "8081", value::port);
    /// Unix socket on which to serve gRPC instead of the port
    pub(super) GRPC_UDS: OptionalSetting<PathBuf> = optional("PATH", value::socket_path);
    /// Permissions of that socket, in octal; Envoy needs write permission
    GRPC_UDS_MODE: Setting<u32> = setting("MODE", "0666", mode);
    /// Group of that socket, by number [default: the group of the process]
    GRPC_UDS_GROUP: OptionalSetting<u32> = optional("GID", group_number);
    /// Age, a duration, after which a gRPC connection is closed gracefully; 0 for never
    GRPC_MAX_CONNECTION_AGE: Setting<Option<Duration>> =
        setting("AGE", "24h", value::duration_or_never);
    /// Time, a duration, that such a connection has to finish its calls; 0 for no limit
    GRPC_MAX_CONNECTION_AGE_GRACE: Setting<Option<Duration>> =
        setting("SPAN", "1h", value::duration_or_never);
    /// Maximum number of calls in flight on all connections together; further calls are refused
    MAX_IN_FLIGHT: Setting<usize> =
        setting("COUNT", "4096", |text| value::count_within(text, 1..=MAX_IN_FLIGHT_MAX));
    /// Number of threads that serve connections [default: one for each core that the process may
    /// use]
    THREADS: OptionalSetting<usize> =
        optional("COUNT", |text| value::count_within(text, 1..=THREADS_MAX));
    /// Interface of the debug listener
    pub(super) DEBUG_HOST: Setting<String> = setting("HOST", "127.0.0.1", value::host);
    /// Port of the debug listener: /status, /metrics, /rlconfig, /hotkeys and their index
    pub(super) DEBUG_PORT: Setting<u16> = setting("PORT", "6070", value::port);
    /// Host names under which the debug and metrics listeners may be called, in addition to IP
    /// addresses and cluster-internal names; * allows any
    DEBUG_ALLOWED_HOSTS: OptionalSetting<Vec<String>> = optional("NAMES", names);
    /// Token that requests to the debug listener must carry, as a bearer token or a password
    /// [default: none, no token is required]
    pub(super) DEBUG_TOKEN: SecretSetting = secret("SECRET");
}

/// Flags of the listeners.
pub(super) type ListenerFlags = Flags<ListenerTable>;

// === impl ListenerFlags ===

impl ListenerFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Listeners> {
        let http = host_port(self, (&HOST, &PORT), faults);
        let tcp = host_port(self, (&GRPC_HOST, &GRPC_PORT), faults);
        let unix = self.optional(&GRPC_UDS, faults);
        let mode = self.get(&GRPC_UDS_MODE, faults);
        let group = self.optional(&GRPC_UDS_GROUP, faults);
        let debug = host_port(self, (&DEBUG_HOST, &DEBUG_PORT), faults);
        let allowed_hosts = self.optional(&ALLOWED_HOSTS, faults);
        let json_refunds = self.get(&JSON_REFUNDS, faults);
        let scoped_domain = self.get(&SCOPED_RULES_DOMAIN, faults);
        let debug_allowed_hosts = self.optional(&DEBUG_ALLOWED_HOSTS, faults);
        let debug_token = self.secret(&DEBUG_TOKEN, faults);
        let max_connection_age = self.get(&GRPC_MAX_CONNECTION_AGE, faults);
        let grace = self.get(&GRPC_MAX_CONNECTION_AGE_GRACE, faults);
        let calls_max = self.get(&MAX_IN_FLIGHT, faults);
        let threads = self.optional(&THREADS, faults);
        Some(Listeners {
            http: http?,
            grpc: match unix? {
                Some(path) => GrpcListen::Unix(Uds { path, mode: mode?, group: group? }),
                None => GrpcListen::Tcp(tcp?),
            },
            debug: debug?,
            allowed_hosts: allowed_hosts?.unwrap_or_default(),
            json_refunds: json_refunds?,
            scoped_domain: scoped_domain?,
            debug_allowed_hosts: debug_allowed_hosts?.unwrap_or_default(),
            debug_token: debug_token?.unwrap_or_default(),
            max_connection_age: max_connection_age?,
            max_connection_age_grace: grace?,
            calls_max: calls_max?,
            threads: threads?,
        })
    }
}

/// Parses both halves of an address before either can fail, so that the faults of both are
/// reported.
fn host_port(
    values: &Values,
    (host, port): (&Setting<String>, &Setting<u16>),
    faults: &mut Faults,
) -> Option<HostPort> {
    let (host, port) = (values.get(host, faults), values.get(port, faults));
    Some(HostPort::new(host?, port?))
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
fn group_number(text: &str) -> Result<u32, Expected> {
    let number = text.parse().ok().filter(|number| *number < u32::MAX);
    number.ok_or_else(|| Expected::new("a group's number").example("1337"))
}
