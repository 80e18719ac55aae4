//! The settings of one Redis, as given.

mod url;

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::redis::{Address, Auth, RedisKind, RedisSettings};
use ratelease_tls::ClientFiles;

use super::fault::{Expected, Fault, Faults, file_name};
use super::group::Values;
use super::table::{
    Group, Names, OptionalSetting, Row, SecretSetting, Setting, optional, reloaded_secret, secret,
    setting, settings, switch,
};
use super::value;
use url::Tls;

/// Maximum number of nodes; the client of a cluster discovers the others.
const ADDRESSES_MAX: usize = 256;
/// Maximum number of networks to which redirects may be confined.
const NETWORKS_MAX: usize = 64;
/// Maximum timeout that is accepted. The one in force is lower, but the reference's 10 s must not
/// be a fault.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

settings! {
    /// Settings of one Redis.
    pub(super) group RedisTable("Redis");

    /// host:port, or the path of a socket; for a cluster, a list separated by commas; for
    /// sentinels, the name of the master and then their addresses.
    /// redis://user:password@host:port/database works too, and rediss:// for TLS [default: none,
    /// counts are kept in the memory of this process]
    pub(super) REDIS_URL: SecretSetting = secret("URL");
    /// Deployment type: single, cluster or sentinel
    REDIS_TYPE: Setting<Topology> = setting("TYPE", "single", topology);
    /// Use TLS, to every server and sentinel
    pub(super) REDIS_TLS: Setting<bool> = switch(false);
    /// Socket type of a single server: tcp, tls or unix [default: by the form of the URL]
    REDIS_SOCKET_TYPE: OptionalSetting<SocketType> = optional("TYPE", socket_type);
    /// password, or user:password; only as a variable, because flags show in ps
    REDIS_AUTH: SecretSetting = reloaded_secret("AUTH");
    /// password, or user:password, of the sentinels; only as a variable
    REDIS_SENTINEL_AUTH: SecretSetting = reloaded_secret("AUTH");
    /// Networks to which redirects of servers and sentinels are confined, such as
    /// 10.0.0.0/8,fd00::/8 [default: any address]
    REDIS_REDIRECT_NETWORKS: OptionalSetting<Vec<IpNet>> = optional("CIDRS", networks);
    /// Minimum time, a duration, for which a connection may be silent before it is replaced; longer
    /// where Redis is measured to be slower
    pub(super) REDIS_TIMEOUT: Setting<Duration> = setting("SPAN", "250ms", |text| {
        value::duration_within(text, Duration::from_millis(1)..=TIMEOUT_MAX)
    });
}

/// The same settings for the Redis of limits per second.
#[derive(Debug)]
pub(super) enum PerSecondRedisTable {}

impl Group for PerSecondRedisTable {
    const HEADING: &'static str = "Redis of limits per second";
    const ROWS: &'static [Row] = RedisTable::ROWS;
    const NAMES: Names = Names::PerSecond;
}

/// The settings given for one Redis.
pub(super) struct RawRedis<'a> {
    pub(super) values: &'a Values,
    /// `REDIS_URL`, or the content of its file.
    pub(super) url: &'a Secret,
    /// The files for TLS, if it is on.
    pub(super) tls: &'a ClientFiles,
}

/// `REDIS_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    Single,
    Cluster,
    Sentinel,
}

/// `REDIS_SOCKET_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketType {
    Tcp,
    /// TCP with TLS.
    Tls,
    Unix,
}

// === impl RawRedis ===

impl RawRedis<'_> {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<RedisSettings> {
        let topology = self.values.get(&REDIS_TYPE, faults);
        let socket_type = self.values.optional(&REDIS_SOCKET_TYPE, faults);
        let servers = self.auth(&REDIS_AUTH, faults);
        let sentinels = self.auth(&REDIS_SENTINEL_AUTH, faults);
        let redirect_networks = self.values.optional(&REDIS_REDIRECT_NETWORKS, faults);
        let timeout = self.values.get(&REDIS_TIMEOUT, faults);
        let tls = self.values.get(&REDIS_TLS, faults);
        let nodes = self.nodes(topology?, socket_type?, faults)?;
        let is_secured = tls? || nodes.tls == Tls::On || socket_type? == Some(SocketType::Tls);
        if is_secured && nodes.addresses.iter().any(|at| matches!(at, Address::Unix(_))) {
            let name = self.values.name(&REDIS_TLS.row);
            let problem = "a Unix socket has no TLS";
            faults.add(Fault::new(&*name, problem, "unset it, or name host:port in the URL"));
            return None;
        }
        // Credentials in the URLs are for the nodes that the URLs name; a separate setting
        // overrides them.
        let is_sentinel = topology == Some(Topology::Sentinel);
        let (of_servers, of_sentinels) =
            if is_sentinel { (None, nodes.auth) } else { (nodes.auth, None) };
        let (username, password) = split(servers?.or(of_servers));
        let (sentinel_username, sentinel_password) = split(sentinels?.or(of_sentinels));
        Some(RedisSettings {
            username,
            password,
            sentinel_username,
            sentinel_password,
            auth_file: self.values.secret_file(&REDIS_AUTH).cloned(),
            sentinel_auth_file: self.values.secret_file(&REDIS_SENTINEL_AUTH).cloned(),
            tls: is_secured.then(|| self.tls.clone()),
            redirect_networks: redirect_networks?,
            timeout: timeout?,
            database: nodes.database,
            ..RedisSettings::new(nodes.kind, nodes.addresses)
        })
    }

    /// Parses the nodes of the URL setting. If that fails, adds a fault.
    fn nodes(
        &self,
        topology: Topology,
        socket_type: Option<SocketType>,
        faults: &mut Faults,
    ) -> Option<Nodes> {
        let (problem, example) = match self.nodes_of(topology, socket_type) {
            Ok(nodes) => return Some(nodes),
            Err(problem) => problem,
        };
        let name = self.values.name(&REDIS_URL.row);
        let mut fault = Fault::new(&*name, problem, format!("as in {name}={example}"));
        // With a user or a scheme the text may contain a password, wherever the fault is; and a
        // file may contain anything.
        let text = self.url.reveal();
        let is_in_file = self.values.secret_file(&REDIS_URL).is_some();
        if !is_in_file && !text.contains('@') && !text.contains("://") {
            fault = fault.with_found(text);
        }
        faults.add(fault);
        None
    }

    /// Parses the nodes of the URL setting. The error is the problem and an example without it.
    fn nodes_of(
        &self,
        topology: Topology,
        socket_type: Option<SocketType>,
    ) -> Result<Nodes, (String, &'static str)> {
        let is_unix = socket_type == Some(SocketType::Unix);
        match topology {
            Topology::Single => self.single(socket_type).map_err(|problem| {
                (problem, if is_unix { "/run/redis/redis.sock" } else { "redis:6379" })
            }),
            Topology::Cluster => {
                self.cluster().map_err(|problem| (problem, "redis-0:6379,redis-1:6379"))
            }
            Topology::Sentinel => sentinels(self.url.reveal())
                .map_err(|problem| (problem, "mymaster,sentinel-0:26379,sentinel-1:26379")),
        }
    }

    fn cluster(&self) -> Result<Nodes, String> {
        let nodes = list(self.url.reveal(), RedisKind::Cluster, url::REDIS_PORT)?;
        if nodes.database != 0 {
            let name = self.values.name(&REDIS_TYPE.row);
            return Err(format!(
                "a cluster has database 0 only; leave the number out, or set {name}=single"
            ));
        }
        Ok(nodes)
    }

    fn single(&self, socket_type: Option<SocketType>) -> Result<Nodes, String> {
        let text = self.url.reveal();
        let endpoint = url::endpoint(text, url::REDIS_PORT).map_err(|problem| {
            if text.contains(',') {
                let name = self.values.name(&REDIS_TYPE.row);
                format!("several addresses need {name}=cluster or sentinel")
            } else {
                problem.to_owned()
            }
        })?;
        let name = self.values.name(&REDIS_SOCKET_TYPE.row);
        match (&endpoint.address, socket_type) {
            (Address::Tcp(..), Some(SocketType::Unix)) => {
                Err(format!("{name}=unix needs the path of a socket, beginning with /"))
            }
            (Address::Unix(_), Some(SocketType::Tcp | SocketType::Tls)) => {
                Err(format!("{name}=tcp or tls needs host:port, not a path"))
            }
            _ => Ok(Nodes {
                kind: RedisKind::Single,
                addresses: vec![endpoint.address],
                auth: endpoint.auth,
                database: endpoint.database.unwrap_or_default(),
                tls: endpoint.tls,
            }),
        }
    }

    fn auth(&self, setting: &SecretSetting, faults: &mut Faults) -> Option<Option<Auth>> {
        let secret = self.values.secret(setting, faults)?;
        let name = self.values.name(&setting.row);
        let is_in_file = self.values.secret_file(setting).is_some();
        let name = if is_in_file { file_name(&name).into() } else { name };
        faults.parse_secret(&name, secret.as_ref(), parse_auth)
    }
}

/// The nodes of a URL setting.
struct Nodes {
    kind: RedisKind,
    addresses: Vec<Address>,
    auth: Option<Auth>,
    database: u32,
    tls: Tls,
}

fn sentinels(text: &str) -> Result<Nodes, String> {
    let needs = "expected the name of the master, then host:port of each sentinel";
    let (master, list_text) = text.split_once(',').ok_or(needs)?;
    let master = master.trim();
    if master.is_empty() || master.contains([':', '/']) {
        return Err(needs.to_owned());
    }
    list(list_text, RedisKind::Sentinel { master: master.to_owned() }, url::SENTINEL_PORT)
}

/// Parses a comma-separated list of nodes. All must have the same credentials and database, as far
/// as these are given, and TLS or not.
fn list(text: &str, kind: RedisKind, port: u16) -> Result<Nodes, String> {
    let (mut addresses, mut auth, mut database, mut tls) = (Vec::new(), None, None, Tls::Off);
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
        if at > 0 && tls != endpoint.tls {
            return Err(format!("address {place}: rediss:// is for all of them, or for none"));
        }
        tls = endpoint.tls;
        let differs = |what| format!("address {place}: its {what} differs from those before it");
        join(&mut auth, endpoint.auth).map_err(|()| differs("user or password"))?;
        join(&mut database, endpoint.database).map_err(|()| differs("database"))?;
        addresses.push(endpoint.address);
    }
    Ok(Nodes { kind, addresses, auth, database: database.unwrap_or_default(), tls })
}

/// Adds what one address gives to what those before it gave. Fails if both give something else.
fn join<T: PartialEq>(known: &mut Option<T>, found: Option<T>) -> Result<(), ()> {
    match (&*known, found) {
        (Some(first), Some(other)) if *first != other => Err(()),
        (None, found) => {
            *known = found;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn split(auth: Option<Auth>) -> (Option<String>, Option<Secret>) {
    auth.map_or((None, None), |auth| (auth.username, auth.password))
}

/// Parses networks, such as `10.0.0.0/8`, or single addresses.
fn networks(text: &str) -> Result<Vec<IpNet>, Expected> {
    let network = |item: &str| item.parse().or_else(|_| item.parse::<IpAddr>().map(IpNet::from));
    let networks: Result<Vec<_>, _> = text.split(',').map(str::trim).map(network).collect();
    let expected =
        || Expected::new("networks, or addresses, separated by commas").example("10.0.0.0/8");
    networks.ok().filter(|networks| networks.len() <= NETWORKS_MAX).ok_or_else(expected)
}

fn topology(text: &str) -> Result<Topology, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "single" => Ok(Topology::Single),
        "cluster" => Ok(Topology::Cluster),
        "sentinel" => Ok(Topology::Sentinel),
        _ => Err(Expected::new("single, cluster or sentinel").example("cluster")),
    }
}

fn socket_type(text: &str) -> Result<SocketType, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(SocketType::Tcp),
        "tls" => Ok(SocketType::Tls),
        "unix" => Ok(SocketType::Unix),
        _ => Err(Expected::new("tcp, tls or unix").example("tcp")),
    }
}

fn parse_auth(text: &str) -> Result<Auth, Expected> {
    let expected = || Expected::new("a password, or user:password").example("user:password");
    Auth::parse(text).ok_or_else(expected)
}
