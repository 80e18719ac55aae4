//! Settings for listeners.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ratelease_engine::secret::{Secret, SecretFile};

use super::fault::{Expected, Faults};
use super::flag::{BOOL, FILE};
use super::value::{self, HostPort};

/// Maximum of the setting for calls in flight in one process: each call that waits holds some 12
/// KiB.
///
/// The default, 4096, is 48 MiB of them. A call waits for a lease, by default at most 5 ms: a pod
/// at which every call waits that long has 4096 calls in flight at 800 000 a second.
const MAX_IN_FLIGHT_MAX: usize = 1_000_000;

/// All addresses to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    /// `/json`, `/healthcheck`, `/livez`, `/readyz`.
    pub http: HostPort,
    /// Rate limit requests of Envoy.
    pub grpc: GrpcListen,
    /// `/status`, `/metrics`, `/rlconfig`, `/hotkeys` and their index.
    pub debug: HostPort,
    /// Host names under which `/json` may be called, besides the built-in ones.
    pub allowed_hosts: Vec<String>,
    /// Whether `/json` may give back hits.
    pub json_refunds: bool,
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

#[derive(Debug, Args)]
#[command(next_help_heading = "Listeners")]
pub(super) struct ListenerFlags {
    /// Interface of the HTTP listener; not loopback, since probes of the kubelet come from outside
    #[arg(long, env = "HOST", value_name = "HOST", default_value = "0.0.0.0")]
    host: String,
    /// Port of the HTTP listener: /json, /healthcheck, /livez, /readyz
    #[arg(long, env = "PORT", value_name = "PORT", default_value = "8080")]
    port: String,
    /// Names to reach /json by, beside addresses and inner names; * for any
    #[arg(long, env = "ALLOWED_HOSTS", value_name = "NAMES")]
    allowed_hosts: Option<String>,
    /// Let /json give hits back (is_negative_hits); over gRPC they may be in any case
    #[arg(long, env = "JSON_REFUNDS", value_name = BOOL, default_value = "false")]
    json_refunds: String,
    /// Interface of the gRPC listener
    #[arg(long, env = "GRPC_HOST", value_name = "HOST", default_value = "127.0.0.1")]
    grpc_host: String,
    /// Port of the gRPC listener, which Envoy asks
    #[arg(long, env = "GRPC_PORT", value_name = "PORT", default_value = "8081")]
    grpc_port: String,
    /// Unix socket to serve gRPC on, in place of the port
    #[arg(long, env = "GRPC_UDS", value_name = "PATH")]
    grpc_uds: Option<String>,
    /// Permissions of that socket, in octal; Envoy needs the right to write
    #[arg(long, env = "GRPC_UDS_MODE", value_name = "MODE", default_value = "0666")]
    grpc_uds_mode: String,
    /// Group of that socket, by number; the process's own unless given
    #[arg(long, env = "GRPC_UDS_GROUP", value_name = "GID")]
    grpc_uds_group: Option<String>,
    /// Age at which a gRPC connection is asked to go, a duration; 0 for never
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", value_name = "AGE", default_value = "24h")]
    grpc_max_connection_age: String,
    /// What such a connection is left to finish, a duration; 0 for as long as it takes
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", value_name = "SPAN", default_value = "1h")]
    grpc_max_connection_age_grace: String,
    /// Calls under way at once, on all connections together; more are refused at once
    #[arg(long, env = "MAX_IN_FLIGHT", value_name = "COUNT", default_value = "4096")]
    max_in_flight: String,
    /// Interface of the debug listener
    #[arg(long, env = "DEBUG_HOST", value_name = "HOST", default_value = "127.0.0.1")]
    debug_host: String,
    /// Port of the debug listener: /status, /metrics, /rlconfig, /hotkeys and their index
    #[arg(long, env = "DEBUG_PORT", value_name = "PORT", default_value = "6070")]
    debug_port: String,
    /// Names to reach the debug and metrics listeners by, beside addresses and inner; * for any
    #[arg(long, env = "DEBUG_ALLOWED_HOSTS", value_name = "NAMES")]
    debug_allowed_hosts: Option<String>,
    /// What the debug listener is to be asked with, as a bearer token or a password; nothing unless
    /// given
    #[arg(long, env = "DEBUG_TOKEN", value_name = "SECRET")]
    debug_token: Option<Secret>,
    /// File that holds it, in place of DEBUG_TOKEN
    #[arg(long, env = "DEBUG_TOKEN_FILE", value_name = "FILE", value_hint = FILE)]
    debug_token_file: Option<SecretFile>,
}

// === impl ListenerFlags ===

impl ListenerFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Listeners> {
        let http = host_port(faults, ("HOST", &self.host), ("PORT", &self.port));
        let tcp = host_port(faults, ("GRPC_HOST", &self.grpc_host), ("GRPC_PORT", &self.grpc_port));
        let unix = faults.parse_optional("GRPC_UDS", self.grpc_uds.as_deref(), value::socket_path);
        let mode = faults.parse("GRPC_UDS_MODE", &self.grpc_uds_mode, mode);
        let group = self.grpc_uds_group.as_deref();
        let group = faults.parse_optional("GRPC_UDS_GROUP", group, group_number);
        let debug =
            host_port(faults, ("DEBUG_HOST", &self.debug_host), ("DEBUG_PORT", &self.debug_port));
        let allowed = self.allowed_hosts.as_deref();
        let allowed = faults.parse_optional("ALLOWED_HOSTS", allowed, names);
        let refunds = faults.parse("JSON_REFUNDS", &self.json_refunds, value::boolean);
        let debug_allowed = self.debug_allowed_hosts.as_deref();
        let debug_allowed = faults.parse_optional("DEBUG_ALLOWED_HOSTS", debug_allowed, names);
        let (token, file) = (self.debug_token.as_ref(), self.debug_token_file.as_ref());
        let token = faults.secret("DEBUG_TOKEN", token, file);
        let never = value::duration_or_never;
        let age = faults.parse("GRPC_MAX_CONNECTION_AGE", &self.grpc_max_connection_age, never);
        let grace = faults.parse(
            "GRPC_MAX_CONNECTION_AGE_GRACE",
            &self.grpc_max_connection_age_grace,
            never,
        );
        let count = value::count_within(1..=MAX_IN_FLIGHT_MAX, "4096");
        let calls_max = faults.parse("MAX_IN_FLIGHT", &self.max_in_flight, count);
        Some(Listeners {
            http: http?,
            grpc: match unix? {
                Some(path) => GrpcListen::Unix(Uds { path, mode: mode?, group: group? }),
                None => GrpcListen::Tcp(tcp?),
            },
            debug: debug?,
            allowed_hosts: allowed?.unwrap_or_default(),
            json_refunds: refunds?,
            debug_allowed_hosts: debug_allowed?.unwrap_or_default(),
            debug_token: token?.unwrap_or_default(),
            max_connection_age: age?,
            max_connection_age_grace: grace?,
            calls_max: calls_max?,
        })
    }
}

/// Parses names without ports, in the form of a `Host` header.
fn names(text: &str) -> Result<Vec<String>, Expected> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let read = |name: &str| if name == "*" { Ok(name.to_owned()) } else { value::host(name) };
    let read: Result<_, _> = names.map(read).collect();
    read.map_err(|_| {
        let expected = "names without a port, separated by commas, or *";
        Expected::new(expected, "debug.example.com")
    })
}

/// Parses permissions in octal, as `chmod` takes them.
fn mode(text: &str) -> Result<u32, Expected> {
    let is_octal = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = is_octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| Expected::new("permissions in octal, from 0 to 0777", "0660"))
}

/// Parses a group number. The highest number means no group (chown(2)).
fn group_number(text: &str) -> Result<u32, Expected> {
    let number = text.parse().ok().filter(|number| *number < u32::MAX);
    number.ok_or_else(|| Expected::new("a group's number", "1337"))
}

/// Both halves are parsed before either can fail, so that the faults of both are reported.
fn host_port(faults: &mut Faults, host: (&str, &str), port: (&str, &str)) -> Option<HostPort> {
    let host = faults.parse(host.0, host.1, value::host);
    let port = faults.parse(port.0, port.1, value::port);
    Some(HostPort::new(host?, port?))
}
