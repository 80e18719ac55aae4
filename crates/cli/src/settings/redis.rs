//! The settings of one Redis, as given.

mod url;

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratelease_engine::secret::{Secret, SecretFile};
use ratelease_engine::store::redis::{Address, Auth, RedisKind, RedisSettings};

use super::fault::{Expected, Fault, Faults};
use super::value;

/// Maximum number of nodes; the client of a cluster discovers the others.
const ADDRESSES_MAX: usize = 256;
/// Maximum number of networks to which redirects may be confined.
const NETWORKS_MAX: usize = 64;
/// Maximum timeout that is accepted. The one in force is lower, but the reference's 10 s must not
/// be a fault.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The settings given for one Redis, under names that begin with `prefix`.
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

/// `REDIS_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    Single,
    Cluster,
    Sentinel,
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
                // With a user or a scheme the text may contain a password, wherever the fault is;
                // and a file may contain anything.
                let text = self.url.reveal();
                let is_in_file = given(self.url_file).is_some();
                if !is_in_file && !text.contains('@') && !text.contains("://") {
                    fault = fault.with_found(text);
                }
                faults.add(fault);
                return None;
            }
        };
        // Credentials in the URLs are for the nodes that the URLs name; a separate setting
        // overrides them.
        let is_sentinel = topology == Some(Topology::Sentinel);
        let (of_servers, of_sentinels) =
            if is_sentinel { (None, places.auth) } else { (places.auth, None) };
        let (username, password) = split(servers?.or(of_servers));
        let (sentinel_username, sentinel_password) = split(sentinel?.or(of_sentinels));
        Some(RedisSettings {
            username,
            password,
            sentinel_username,
            sentinel_password,
            auth_file: given(self.auth_file).cloned(),
            sentinel_auth_file: given(self.sentinel_auth_file).cloned(),
            redirect_networks: redirect_networks?,
            timeout: timeout?,
            ..RedisSettings::new(places.kind, places.addresses)
        })
    }

    /// Parses the nodes of the URL setting. The error is the problem and an example without it.
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

/// The nodes of a URL setting.
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

/// Parses a comma-separated list of nodes. All must have the same credentials.
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

/// Returns the file if one is named.
fn given(file: Option<&SecretFile>) -> Option<&SecretFile> {
    file.filter(|file| !file.is_empty())
}

/// Parses networks, such as `10.0.0.0/8`, or single addresses.
fn networks(text: &str) -> Result<Vec<IpNet>, Expected> {
    let network = |item: &str| item.parse().or_else(|_| item.parse::<IpAddr>().map(IpNet::from));
    let networks: Result<Vec<_>, _> = text.split(',').map(str::trim).map(network).collect();
    let expected = || Expected::new("networks, or addresses, parted by commas", "10.0.0.0/8");
    networks.ok().filter(|networks| networks.len() <= NETWORKS_MAX).ok_or_else(expected)
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

fn parse_auth(text: &str) -> Result<Auth, Expected> {
    let expected = || Expected::new("a password, or user:password", "user:password");
    Auth::parse(text).ok_or_else(expected)
}
