//! Where one Redis is and how to log in to it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use ratelease_tls::ClientFiles;

use crate::secret::{Secret, SecretFile};

/// Connections to one Redis: to 1024 masters, to nodes that redirects name, and for discovery.
const CONNECTIONS_MAX: usize = 1024 + 128;
/// Longest DNS name in its text form (RFC 1035 §2.3.4, less the root).
const HOST_BYTES_MAX: usize = 253;

/// Where one Redis is and how to log in to it. Holds at least one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The deployment type.
    pub kind: RedisKind,
    /// Where to connect: the server, nodes of the cluster, or the sentinels.
    pub addresses: Vec<Address>,
    /// The number of the database at the servers; a cluster has only 0.
    pub database: u32,
    /// The login to the servers.
    pub login: Login,
    /// The login to the sentinels, which is separate.
    pub sentinel_login: Login,
    /// The files of TLS to all servers and sentinels over TCP; `None` for plaintext.
    pub tls: Option<ClientFiles>,
    /// Networks in which the nodes that a server or sentinel names must lie; the nodes of
    /// `addresses` may lie anywhere. With `None`, a redirect is followed to any node that the
    /// cluster lists, and any master that a map or a sentinel names is connected to.
    pub redirect_networks: Option<Vec<IpNet>>,
    /// The largest number of connections that may be open at once, including attempts in progress.
    /// Each takes a file descriptor.
    pub connections_max: usize,
    /// The least time that a connection may be silent while a command waits for its reply, before
    /// it is given up, and the least time allowed for connecting and logging in. Slower servers, as
    /// measured, get more time, up to 4 s. 1 ms to 60 s; more than 8 s count as 8 s.
    pub timeout: Duration,
}

/// The deployment types of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisKind {
    /// One server, or a proxy that looks like one.
    Single,
    /// A Redis Cluster.
    Cluster,
    /// A master and its replicas, monitored by sentinels.
    Sentinel {
        /// The name of the master at the sentinels.
        master: String,
    },
}

/// The address of one node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Host (an IPv6 address without brackets) and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// How to log in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user and password; where there is a file, its content at the start.
    pub auth: Auth,
    /// The file that holds them, read again for each connection.
    pub file: Option<SecretFile>,
}

/// The user and password of a login.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// `None` means Redis' own `default`.
    pub username: Option<String>,
    /// `None` means no login, unless there is a user.
    pub password: Option<Secret>,
}

/// The default of `REDIS_TIMEOUT`: long enough for a server that forks, and short enough that a
/// connection that silently drops all packets is replaced within half a second. For more distant
/// servers the measured round trip applies.
const TIMEOUT: Duration = Duration::from_millis(250);

// === impl RedisSettings ===

impl RedisSettings {
    /// A server, cluster or sentinels at `addresses`, without a password.
    pub fn new(kind: RedisKind, addresses: Vec<Address>) -> Self {
        Self {
            kind,
            addresses,
            database: 0,
            login: Login::default(),
            sentinel_login: Login::default(),
            tls: None,
            redirect_networks: None,
            connections_max: CONNECTIONS_MAX,
            timeout: TIMEOUT,
        }
    }
}

// === impl Login ===

impl Login {
    /// The user and password now: the content of the file, if there is one. Blocks while the file
    /// is read. An error describes the fault of the file.
    pub fn now(&self) -> Result<Auth, String> {
        let Some(file) = &self.file else { return Ok(self.auth.clone()) };
        let at = |problem: String| format!("the file {} {problem}", file.path().display());
        let secret = file.read().map_err(at)?;
        let neither = || at("holds neither password nor user:password".to_owned());
        Auth::parse(secret.reveal()).ok_or_else(neither)
    }
}

// === impl Auth ===

impl Auth {
    /// Parses `password` or `user:password`, split at the first colon as in the reference
    /// implementation.
    pub fn parse(text: &str) -> Option<Self> {
        let (username, password) = match text.split_once(':') {
            Some((user, password)) => ((!user.is_empty()).then(|| user.to_owned()), password),
            None => (None, text),
        };
        let password = (!password.is_empty()).then(|| password.into());
        password.map(|password| Self { username, password: Some(password) })
    }
}

// === impl Address ===

/// In the form used in lists of addresses: `host:port`, `[::1]:6379`, or a path.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Parses a host as users and servers write it: a DNS name or an IP address, IPv6 with or without
/// brackets.
pub fn parse_host(text: &str) -> Option<String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let is_address = bare.unwrap_or(text).parse().is_ok_and(|ip: IpAddr| {
        // Only IPv6 addresses may have brackets.
        bare.is_none() || ip.is_ipv6()
    });
    let is_name = (1..=HOST_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if is_address {
        Some(bare.unwrap_or(text).to_owned())
    } else if is_name {
        Some(text.to_owned())
    } else {
        None
    }
}

// === Addresses as Redis writes them ===

impl Address {
    /// Parses `host:port` as Redis writes it in redirects, where an IPv6 address has no brackets.
    pub(super) fn parse_redirect(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Self::of_node(host, port.parse().ok()?)
    }

    /// A node by the host that a server names: a name, an IP address, or nothing. `None` if the
    /// host is not one of these, since it is displayed and looked up.
    pub(super) fn of_node(host: &str, port: u16) -> Option<Self> {
        let host = if host.is_empty() { String::new() } else { parse_host(host)? };
        Some(Address::Tcp(host, port))
    }

    /// Returns this address, with the host of `other` if this one has none: a node that does not
    /// know the name by which clients reach it omits its host.
    pub(super) fn or_host_of(self, other: &Address) -> Self {
        match (self, other) {
            (Address::Tcp(host, port), Address::Tcp(other, _)) if host.is_empty() => {
                Address::Tcp(other.clone(), port)
            }
            (address, _) => address,
        }
    }

    /// Whether both addresses are ports of the same host.
    pub(super) fn is_on_the_host_of(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Tcp(host, _), Address::Tcp(other, _)) => host == other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_its_node() {
        let node = Address::parse_redirect("10.0.0.7:7001").unwrap();
        assert_eq!(node, Address::Tcp("10.0.0.7".into(), 7001));
        assert_eq!(Address::parse_redirect("::1:7001"), Some(Address::Tcp("::1".into(), 7001)));
        for text in ["nonsense", "a b:1", "\u{1b}[31m:1", &format!("{}:1", "a".repeat(300))] {
            assert_eq!(Address::parse_redirect(text), None, "{text:?}");
        }
        let here = Address::parse_redirect(":7002").unwrap().or_host_of(&node);
        assert_eq!(here, Address::Tcp("10.0.0.7".into(), 7002));
    }
}
