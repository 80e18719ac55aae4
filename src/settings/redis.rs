//! Where one Redis is and how to log in to it.

mod url;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::fault::{Expected, Fault, Faults};
use super::secret::{Secret, SecretFile};
use super::value;

/// Nodes that may be named; a cluster's client finds the others by itself.
const ADDRESSES_MAX: usize = 256;
/// Connections to one Redis: to 1024 masters, to nodes that redirects name, and to look for them.
const CONNECTIONS_MAX: usize = 1024 + 128;
/// Networks that redirects may be confined to.
const NETWORKS_MAX: usize = 64;
/// Longest that may be given, though less counts: the reference's 10 s are no fault.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Where one Redis is and how to log in to it. Holds at least one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// How its nodes hang together.
    pub kind: RedisKind,
    /// Where to connect: the server, nodes of the cluster, or the sentinels.
    pub addresses: Vec<Address>,
    /// The user to log in as; `None` is Redis' own `default`.
    pub username: Option<String>,
    /// The password of the servers; `None` does not log in.
    pub password: Option<Secret>,
    /// The user to log in to the sentinels as.
    pub sentinel_username: Option<String>,
    /// The password of the sentinels, which is not that of the servers.
    pub sentinel_password: Option<Secret>,
    /// What holds the user and password of the servers, read again for each connection: `username`
    /// and `password` are what it held at the start.
    pub auth_file: Option<SecretFile>,
    /// The same of the sentinels.
    pub sentinel_auth_file: Option<SecretFile>,
    /// Where nodes must lie that a server or sentinel sends us to; those of `addresses` may lie
    /// anywhere. `None` to follow a redirect to any node that the cluster lists, and to connect to
    /// any master that a map or a sentinel names.
    pub redirect_networks: Option<Vec<IpNet>>,
    /// Connections that may be open at once, those under way with them. Each is a file.
    pub connections_max: usize,
    /// How long a connection may be silent, at least, with a command waiting for its reply, before
    /// it is given up; and the least that connecting and logging in may take. More is waited for a
    /// server that was measured to be slower, up to 4 s. 1 ms to 60 s; more than 8 s count as 8 s.
    pub timeout: Duration,
}

/// How the nodes of a Redis hang together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisKind {
    /// One server, or a proxy that looks like one.
    Single,
    /// A Redis Cluster.
    Cluster,
    /// A master and its replicas, looked after by sentinels.
    Sentinel {
        /// The name under which the sentinels know the master.
        master: String,
    },
}

/// Where one node listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Host (an IPv6 address without brackets) and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// What was given for one Redis, under names that begin with `prefix`.
pub(super) struct RawRedis<'a> {
    pub(super) prefix: &'static str,
    pub(super) kind: &'a str,
    pub(super) socket_type: Option<&'a str>,
    pub(super) url: &'a Secret,
    pub(super) url_file: Option<&'a SecretFile>,
    pub(super) auth: Option<&'a Secret>,
    pub(super) auth_file: Option<&'a SecretFile>,
    pub(super) sentinel_auth: Option<&'a Secret>,
    pub(super) sentinel_auth_file: Option<&'a SecretFile>,
    pub(super) redirect_networks: Option<&'a str>,
    pub(super) timeout: &'a str,
}

/// Who to log in as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Auth {
    /// `None` is Redis' own `default`.
    pub(crate) username: Option<String>,
    /// `None` does not log in, unless there is a user.
    pub(crate) password: Option<Secret>,
}

/// `REDIS_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    Single,
    Cluster,
    Sentinel,
}

/// The default of `REDIS_TIMEOUT`: long enough for a server that forks, and short enough for
/// a connection that became a black hole to be replaced within half a second. What is farther away
/// is measured and waited for.
const TIMEOUT: Duration = Duration::from_millis(250);

// === impl RedisSettings ===

impl RedisSettings {
    /// A server, cluster or sentinels at `addresses`, without a password.
    pub fn new(kind: RedisKind, addresses: Vec<Address>) -> Self {
        Self {
            kind,
            addresses,
            username: None,
            password: None,
            sentinel_username: None,
            sentinel_password: None,
            auth_file: None,
            sentinel_auth_file: None,
            redirect_networks: None,
            connections_max: CONNECTIONS_MAX,
            timeout: TIMEOUT,
        }
    }

    /// Who to log in to the servers as, by what the file holds now if there is one. Blocks while it
    /// is read. An error says what is wrong with it.
    pub(crate) fn auth_now(&self) -> Result<Auth, String> {
        let (username, password) = (self.username.clone(), self.password.clone());
        auth_now(self.auth_file.as_ref(), Auth { username, password })
    }

    /// The same for the sentinels.
    pub(crate) fn sentinel_auth_now(&self) -> Result<Auth, String> {
        let (username, password) = (self.sentinel_username.clone(), self.sentinel_password.clone());
        auth_now(self.sentinel_auth_file.as_ref(), Auth { username, password })
    }
}

fn auth_now(file: Option<&SecretFile>, given: Auth) -> Result<Auth, String> {
    let Some(file) = file else { return Ok(given) };
    let at = |problem: String| format!("the file {} {problem}", file.path().display());
    let secret = file.read().map_err(at)?;
    parse_auth(secret.reveal())
        .map_err(|_| at("holds neither password nor user:password".to_owned()))
}

// === impl RawRedis ===

impl RawRedis<'_> {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<RedisSettings> {
        let name = |suffix: &str| format!("{}{suffix}", self.prefix);
        let topology = faults.parse(&name("TYPE"), self.kind, topology);
        let is_unix = faults.parse_optional(&name("SOCKET_TYPE"), self.socket_type, socket_is_unix);
        let servers = auth_of(&name("AUTH"), self.auth, self.auth_file, faults);
        let (sentinel_auth, sentinel_file) = (self.sentinel_auth, self.sentinel_auth_file);
        let sentinel = auth_of(&name("SENTINEL_AUTH"), sentinel_auth, sentinel_file, faults);
        let redirect = name("REDIRECT_NETWORKS");
        let redirect_networks = faults.parse_optional(&redirect, self.redirect_networks, networks);
        let span = value::duration_within(Duration::from_millis(1)..=TIMEOUT_MAX, "250ms");
        let timeout = faults.parse(&name("TIMEOUT"), self.timeout, span);
        let places = match self.places(topology?, is_unix?) {
            Ok(places) => places,
            Err((problem, example)) => {
                let url = name("URL");
                let mut fault = Fault::new(&url, problem, format!("as in {url}={example}"));
                // With a user or scheme there may be a password in it, wherever the fault lies; and
                // in a file, anything.
                let text = self.url.reveal();
                let is_in_file = given(self.url_file).is_some();
                if !is_in_file && !text.contains('@') && !text.contains("://") {
                    fault = fault.with_found(text);
                }
                faults.add(fault);
                return None;
            }
        };
        // What the URLs say of logging in is for the nodes they name; the setting of its own beats
        // it.
        let is_sentinel = topology == Some(Topology::Sentinel);
        let (of_servers, of_sentinels) =
            if is_sentinel { (None, places.auth) } else { (places.auth, None) };
        let (username, password) = split(servers?.or(of_servers));
        let (sentinel_username, sentinel_password) = split(sentinel?.or(of_sentinels));
        Some(RedisSettings {
            kind: places.kind,
            addresses: places.addresses,
            username,
            password,
            sentinel_username,
            sentinel_password,
            auth_file: given(self.auth_file).cloned(),
            sentinel_auth_file: given(self.sentinel_auth_file).cloned(),
            redirect_networks: redirect_networks?,
            connections_max: CONNECTIONS_MAX,
            timeout: timeout?,
        })
    }

    /// What the URL setting names. An error is the problem and an example that has none.
    fn places(&self, topology: Topology, unix: Option<bool>) -> Result<Places, (String, &str)> {
        match topology {
            Topology::Single => self.single(unix).map_err(|problem| {
                let example =
                    if unix == Some(true) { "/run/redis/redis.sock" } else { "redis:6379" };
                (problem, example)
            }),
            Topology::Cluster => list(self.url.reveal(), RedisKind::Cluster, url::REDIS_PORT)
                .map_err(|problem| (problem, "redis-0:6379,redis-1:6379")),
            Topology::Sentinel => sentinels(self.url.reveal())
                .map_err(|problem| (problem, "mymaster,sentinel-0:26379,sentinel-1:26379")),
        }
    }

    fn single(&self, unix: Option<bool>) -> Result<Places, String> {
        let text = self.url.reveal();
        let endpoint = url::endpoint(text, url::REDIS_PORT).map_err(|problem| {
            if text.contains(',') {
                format!("several addresses need {}TYPE=cluster or sentinel", self.prefix)
            } else {
                problem.to_owned()
            }
        })?;
        match (&endpoint.address, unix) {
            (Address::Tcp(..), Some(true)) => Err(format!(
                "{}SOCKET_TYPE=unix needs the path of a socket, beginning with /",
                self.prefix
            )),
            (Address::Unix(_), Some(false)) => {
                Err(format!("{}SOCKET_TYPE=tcp needs host:port, not a path", self.prefix))
            }
            _ => Ok(Places {
                kind: RedisKind::Single,
                addresses: vec![endpoint.address],
                auth: endpoint.auth,
            }),
        }
    }
}

/// What a URL setting names.
struct Places {
    kind: RedisKind,
    addresses: Vec<Address>,
    auth: Option<Auth>,
}

fn sentinels(text: &str) -> Result<Places, String> {
    let needs = "a sentinel setting names the master, then host:port of each sentinel";
    let (master, list_text) = text.split_once(',').ok_or(needs)?;
    let master = master.trim();
    if master.is_empty() || master.contains([':', '/']) {
        return Err(needs.to_owned());
    }
    list(list_text, RedisKind::Sentinel { master: master.to_owned() }, url::SENTINEL_PORT)
}

/// A comma-separated list of nodes. All of them are logged in to alike.
fn list(text: &str, kind: RedisKind, port: u16) -> Result<Places, String> {
    let mut places = Places { kind, addresses: Vec::new(), auth: None };
    for (at, item) in text.split(',').map(str::trim).enumerate() {
        let place = at + 1;
        if place > ADDRESSES_MAX {
            return Err(format!("more than {ADDRESSES_MAX} addresses"));
        }
        let endpoint =
            url::endpoint(item, port).map_err(|problem| format!("address {place}: {problem}"))?;
        if matches!(endpoint.address, Address::Unix(_)) {
            return Err(format!("address {place}: nodes of a list are host:port, not paths"));
        }
        match (&places.auth, endpoint.auth) {
            (Some(first), Some(other)) if *first != other => {
                return Err(format!("address {place}: another user or password than before it"));
            }
            (None, found) => places.auth = found,
            _ => {}
        }
        places.addresses.push(endpoint.address);
    }
    Ok(places)
}

fn split(auth: Option<Auth>) -> (Option<String>, Option<Secret>) {
    auth.map_or((None, None), |auth| (auth.username, auth.password))
}

fn auth_of(
    name: &str,
    auth: Option<&Secret>,
    file: Option<&SecretFile>,
    faults: &mut Faults,
) -> Option<Option<Auth>> {
    let secret = faults.secret(name, auth, file)?;
    let name = if given(file).is_some() { format!("{name}_FILE") } else { name.to_owned() };
    faults.parse_secret(&name, secret.as_ref(), parse_auth)
}

/// A file that is named.
fn given(file: Option<&SecretFile>) -> Option<&SecretFile> {
    file.filter(|file| !file.is_empty())
}

/// Networks as `10.0.0.0/8`, or single addresses.
fn networks(text: &str) -> Result<Vec<IpNet>, Expected> {
    let network = |item: &str| item.parse().or_else(|_| item.parse::<IpAddr>().map(IpNet::from));
    let networks: Result<Vec<_>, _> = text.split(',').map(str::trim).map(network).collect();
    let expected = || Expected::new("networks, or addresses, parted by commas", "10.0.0.0/8");
    networks.ok().filter(|networks| networks.len() <= NETWORKS_MAX).ok_or_else(expected)
}

/// A host as a server names one: a DNS name or an IP address without brackets.
pub(crate) fn parse_host(text: &str) -> Option<String> {
    value::host(text).ok()
}

fn topology(text: &str) -> Result<Topology, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "single" => Ok(Topology::Single),
        "cluster" => Ok(Topology::Cluster),
        "sentinel" => Ok(Topology::Sentinel),
        _ => Err(Expected::new("single, cluster or sentinel", "cluster")),
    }
}

fn socket_is_unix(text: &str) -> Result<bool, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(false),
        "unix" => Ok(true),
        "tls" => Err(Expected::new("tcp or unix (TLS to Redis is not supported yet)", "tcp")),
        _ => Err(Expected::new("tcp or unix", "tcp")),
    }
}

/// `password` or `user:password`, parted at the first colon as in the reference.
fn parse_auth(text: &str) -> Result<Auth, Expected> {
    let (username, password) = match text.split_once(':') {
        Some((user, password)) => ((!user.is_empty()).then(|| user.to_owned()), password),
        None => (None, text),
    };
    if password.is_empty() {
        return Err(Expected::new("a password, or user:password", "user:password"));
    }
    Ok(Auth { username, password: Some(password.into()) })
}

/// As in a list of addresses: `host:port`, `[::1]:6379`, or a path.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
