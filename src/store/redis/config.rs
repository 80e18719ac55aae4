//! Where the Redis servers are, and how to be let in.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What [`RedisStore::spawn`](super::RedisStore::spawn) needs to know.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// How the servers stand to each other.
    pub kind: RedisKind,
    /// The server (the first address counts), any nodes of the cluster, or the sentinels.
    pub addresses: Vec<Address>,
    /// User of the access control list; `None` is the server's `default` user.
    pub username: Option<String>,
    /// Password for the servers that hold the counts.
    pub password: Option<Password>,
    /// Password for the sentinels.
    pub sentinel_password: Option<Password>,
    /// For one attempt to connect: the name looked up, the handshake and the login done.
    pub connect_timeout: Duration,
    /// Put before the name of every key; often empty.
    pub key_prefix: String,
}

/// How the Redis servers stand to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisKind {
    /// One server.
    Single,
    /// Redis Cluster: the keys' slots are spread over several masters.
    Cluster,
    /// One master, found by asking sentinels for it.
    Sentinel {
        /// The name that the sentinels know the master by.
        master: String,
    },
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host name or IP address, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// A password, which nothing prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

// === impl RedisConfig ===

impl RedisConfig {
    /// A server, cluster or sentinels at `addresses` without a password.
    pub fn new(kind: RedisKind, addresses: Vec<Address>) -> Self {
        Self {
            kind,
            addresses,
            username: None,
            password: None,
            sentinel_password: None,
            connect_timeout: CONNECT_TIMEOUT,
            key_prefix: String::new(),
        }
    }
}

/// Long enough for a TCP handshake whose first packet was lost in one zone; crates.md measured that
/// a longer one only lengthens the outage of a node that is gone.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

// === impl Address ===

impl Address {
    /// Parses `host:port` as Redis writes it in redirects; an IPv6 address has no brackets there.
    pub(super) fn parse_redirect(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Address::Tcp(host.to_owned(), port.parse().ok()?))
    }

    /// This address, with `other`'s host where this one names none: a node that does not know the
    /// name by which clients reach it leaves the host out.
    pub(super) fn or_host_of(self, other: &Address) -> Self {
        match (self, other) {
            (Address::Tcp(host, port), Address::Tcp(other, _)) if host.is_empty() => {
                Address::Tcp(other.clone(), port)
            }
            (address, _) => address,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

// === impl Password ===

impl Password {
    /// Takes the password as it is.
    pub fn new(password: impl Into<String>) -> Self {
        Self(password.into())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
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
        assert_eq!(Address::parse_redirect("nonsense"), None);
        let here = Address::parse_redirect(":7002").unwrap().or_host_of(&node);
        assert_eq!(here, Address::Tcp("10.0.0.7".into(), 7002));
    }

    #[test]
    fn nothing_prints_a_password() {
        let mut config = RedisConfig::new(RedisKind::Single, vec![Address::Tcp("db".into(), 6379)]);
        config.password = Some(Password::new("hunter2"));
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
