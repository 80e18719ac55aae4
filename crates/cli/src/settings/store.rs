//! Settings for the store: the Redis that owns the counts, that of limits per second, those that
//! rules name, and TLS to all of them.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Command;
use ipnet::IpNet;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::redis::{Address, Auth, Login, RedisKind, RedisSettings};
use ratelease_engine::store::{NamedRedis, StoreSettings};
use ratelease_rules::StoreNames;
use ratelease_tls::{ClientFiles, ServerCheck};

use super::Role;
use super::fault::{Expected, Fault, Faults, flag_name};
use super::listeners::FileNames;
use super::table::{
    Names, Section, Sections, Values, optional, parsed_secret, path, secret, setting, switch,
};
use super::value;
use crate::settings;

/// Maximum number of nodes; the client of a cluster discovers the others.
const ADDRESSES_MAX: usize = 256;
/// Maximum number of networks to which redirects may be confined.
const NETWORKS_MAX: usize = 64;
/// Maximum timeout that is accepted. The one in force is lower, but the reference's 10 s must not
/// be a fault.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Maximum length of `CACHE_KEY_PREFIX`, in bytes: every key contains the prefix.
const KEY_PREFIX_BYTES_MAX: usize = 64;

settings! {
    /// One Redis, as given.
    pub(super) struct Redis in "Redis" {
        /// host:port, or the path of a socket; for a cluster, a list separated by commas; for
        /// sentinels, the name of the master and then their addresses.
        /// redis://user:password@host:port/database works too, and rediss:// for TLS [default:
        /// none, counts are kept in the memory of this process]
        "REDIS_URL" => url: Secret = secret("URL");
        /// Deployment type: single, cluster or sentinel
        "REDIS_TYPE" => topology: Topology = setting("TYPE", "single", topology);
        /// Use TLS, to every server and sentinel
        "REDIS_TLS" => is_secured: bool = switch(false);
        /// Socket type of a single server: tcp, tls or unix [default: by the form of the URL]
        "REDIS_SOCKET_TYPE" => socket_type: Option<SocketType> = optional("TYPE", socket_type);
        /// password, or user:password; only as a variable, because flags show in ps
        "REDIS_AUTH" => auth: Option<Auth> = parsed_secret("AUTH", READ_AGAIN, auth);
        /// password, or user:password, of the sentinels; only as a variable
        "REDIS_SENTINEL_AUTH" => sentinel_auth: Option<Auth> =
            parsed_secret("AUTH", READ_AGAIN, auth);
        /// Networks to which redirects of servers and sentinels are confined, such as
        /// 10.0.0.0/8,fd00::/8 [default: any address]
        "REDIS_REDIRECT_NETWORKS" => redirect_networks: Option<Vec<IpNet>> =
            optional("CIDRS", networks).added();
        /// Minimum time, a duration, for which a connection may be silent before it is replaced;
        /// longer where Redis is measured to be slower
        "REDIS_TIMEOUT" => timeout: Duration = setting("SPAN", "250ms", |text| {
            value::duration_within(text, Duration::from_millis(1)..=TIMEOUT_MAX)
        });
    }
}

/// What the help says of the file with a password.
const READ_AGAIN: &str = "; read again for each connection";

settings! {
    /// TLS to Redis.
    pub(super) struct RedisTls in "Redis" {
        /// File with the CA certificates that those of the servers must be signed by, PEM; read
        /// again for each connection, like the files below [default: the system's]
        "REDIS_TLS_CACERT" => roots: Option<PathBuf> = path("FILE");
        /// File with a client certificate and its intermediates, PEM
        "REDIS_TLS_CLIENT_CERT" => certificate: Option<PathBuf> = path("FILE");
        /// File with the key of that certificate, PEM
        "REDIS_TLS_CLIENT_KEY" => key: Option<PathBuf> = path("FILE");
        /// Accept a certificate of any name, as long as it is signed by one of the CAs
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" => accepts_any_name: bool = switch(false);
    }
}

/// The settings that name files.
const FILES: FileNames<'static> = FileNames {
    roots: "REDIS_TLS_CACERT",
    certificate: "REDIS_TLS_CLIENT_CERT",
    key: "REDIS_TLS_CLIENT_KEY",
};

settings! {
    /// What all keys begin with.
    pub(super) struct KeyPrefix in "Redis" {
        /// Prefix of every key in Redis; no braces [default: none]
        "CACHE_KEY_PREFIX" => prefix: String = optional("TEXT", key_prefix);
    }
}

settings! {
    /// Whether limits per second have a Redis of their own.
    pub(super) struct PerSecond in "Redis of limits per second" {
        /// Keep limits with unit SECOND in a Redis of their own, which the flags below describe
        "REDIS_PERSECOND" => is_on: bool = switch(false);
    }
}

/// The settings of the store, of every command that looks at counts. Those of named stores follow
/// once `REDIS_STORES` is known: `with_named_stores` adds them.
#[derive(Debug)]
pub enum Store {}

impl Sections for Store {
    const SECTIONS: &'static [Section<'static>] =
        &[Redis::SECTION, RedisTls::SECTION, KeyPrefix::SECTION, PerSecond::SECTION, SECOND_REDIS];
}

/// The Redis of limits per second.
pub(super) const SECOND_REDIS: Section<'static> =
    Redis::SECTION.named("Redis of limits per second", Names::PerSecond);

/// `REDIS_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topology {
    Single,
    Cluster,
    Sentinel,
}

/// `REDIS_SOCKET_TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketType {
    Tcp,
    /// TCP with TLS.
    Tls,
    Unix,
}

// === impl Store ===

impl Store {
    /// Reads the settings, of named stores those that are in `names`. Without a URL, returns
    /// [`StoreSettings::Memory`].
    pub fn read(values: Values<'_>, names: &StoreNames, faults: &mut Faults) -> StoreSettings {
        let has_main = values.has_secret("REDIS_URL");
        let tls = RedisTls::read(values, faults);
        FILES.check_identity(tls.certificate.as_ref(), tls.key.as_ref(), faults);
        let server = if tls.accepts_any_name { ServerCheck::AnyName } else { ServerCheck::Host };
        let identity = tls.certificate.zip(tls.key);
        let tls = ClientFiles { roots: tls.roots, identity, server };
        let main = Redis::read_one(values, &tls, faults);
        let named = named_stores(values, names, has_main, &tls, faults);
        let per_second = per_second(values, has_main, &tls, faults);
        let mut all = main.iter().chain(&per_second).chain(named.iter().map(|named| &named.redis));
        if all.any(|redis| redis.tls.is_some()) {
            FILES.check(&tls, faults);
        }
        let KeyPrefix { prefix: key_prefix } = KeyPrefix::read(values, faults);
        match main {
            Some(main) => StoreSettings::Redis { main, per_second, named, key_prefix },
            None => StoreSettings::Memory,
        }
    }

    /// Returns a warning if there are settings for Redis but no Redis, or if the reference, which
    /// does not start without one, was to be replaced.
    pub(super) fn warning(role: Role, values: Values<'_>) -> Option<String> {
        // The reference's deployments set a timeout in any case.
        let mut others = Redis::SECTION.rows().filter(|row| row.name != "REDIS_TIMEOUT");
        let why = match others.any(|row| values.is_changed(row)) {
            _ if values.has_secret("REDIS_URL") => return None,
            true => " though other settings of Redis are",
            false if role == Role::Ratelimit => "",
            false => return None,
        };
        Some(format!(
            "REDIS_URL: not set{why}; counts are kept in the memory of this process and not \
             shared, so that each pod admits whole limits"
        ))
    }
}

/// Returns `CACHE_KEY_PREFIX`, for use without a resolved Redis.
pub fn key_prefix_of(values: Values<'_>) -> String {
    KeyPrefix::read(values, &mut Faults::default()).prefix
}

/// Reads the Redis of limits per second, if they have one.
fn per_second(
    values: Values<'_>,
    has_main: bool,
    tls: &ClientFiles,
    faults: &mut Faults,
) -> Option<RedisSettings> {
    if !PerSecond::read(values, faults).is_on {
        return None;
    }
    if !has_main {
        let fix = "set REDIS_URL, or unset REDIS_PERSECOND";
        faults.add(Fault::new("REDIS_PERSECOND", "there is no Redis for other limits", fix));
    }
    let values = values.named(Names::PerSecond);
    if !values.has_secret("REDIS_URL") {
        let fix = "set it or --redis-persecond-url, as in REDIS_PERSECOND_URL=redis:6379";
        faults.add(Fault::new("REDIS_PERSECOND_URL", "REDIS_PERSECOND needs it", fix));
        return None;
    }
    Redis::read_one(values, tls, faults)
}

/// Reads the Redis of each store that rules may name.
fn named_stores(
    values: Values<'_>,
    names: &StoreNames,
    has_main: bool,
    tls: &ClientFiles,
    faults: &mut Faults,
) -> Vec<NamedRedis> {
    let read = |name: &str| {
        let values = values.named(Names::Store(name));
        let variable = values.name("REDIS_URL");
        if !has_main {
            // A tool may be given the names that rules may use, without any Redis.
            if Redis::SECTION.rows().any(|row| values.is_changed(row)) {
                let fix = "set REDIS_URL, or unset this store's settings";
                let problem = "there is no Redis for limits that name no store";
                faults.add(Fault::new(variable, problem, fix));
            }
            return None;
        }
        if !values.has_secret("REDIS_URL") {
            let problem = format!("REDIS_STORES names {name}, which needs it");
            let fix = format!("set it or {}, as in {variable}=redis:6379", flag_name(&variable));
            faults.add(Fault::new(variable, problem, fix));
            return None;
        }
        let redis = Redis::read_one(values, tls, faults)?;
        Some(NamedRedis { name: name.into(), redis })
    };
    names.iter().filter_map(read).collect()
}

/// Returns the names of stores that the command line or else the environment gives; none if they
/// are faulty, which is reported where the setting is read.
pub(crate) fn store_names(args: &[OsString], env: &dyn Fn(&str) -> Option<String>) -> StoreNames {
    let flag = flag_name("REDIS_STORES");
    let mut given = env("REDIS_STORES");
    let mut texts = args.iter().map(|arg| arg.to_string_lossy());
    while let Some(arg) = texts.next() {
        match arg.strip_prefix(&*flag) {
            Some("") => given = texts.next().map(Into::into),
            Some(rest) if rest.starts_with('=') => given = Some(rest[1..].to_owned()),
            _ => {}
        }
    }
    StoreNames::parse(&given.unwrap_or_default()).unwrap_or_default()
}

/// Adds the flags of named stores to a command that has those of [`Store`].
pub(crate) fn with_named_stores(command: Command, names: &StoreNames) -> Command {
    if command.get_arguments().all(|arg| arg.get_id() != "REDIS_PERSECOND") {
        return command;
    }
    names.iter().fold(command, |command, name| {
        let section = Redis::SECTION.named("Redis of named stores", Names::Store(name));
        section.hidden().add_to(command)
    })
}

// === impl Redis ===

impl Redis {
    /// Reads one Redis; `None` if it has no URL, or its nodes are not known.
    fn read_one(
        values: Values<'_>,
        tls: &ClientFiles,
        faults: &mut Faults,
    ) -> Option<RedisSettings> {
        let given = Self::read(values, faults);
        let decisive = ["REDIS_URL", "REDIS_TYPE", "REDIS_SOCKET_TYPE"];
        let is_faulty = decisive.into_iter().any(|row| faults.has(&values.name(row)));
        if is_faulty || !values.has_secret("REDIS_URL") {
            return None;
        }
        let nodes = given.nodes(values, faults)?;
        let is_secured =
            given.is_secured || nodes.is_secured || given.socket_type == Some(SocketType::Tls);
        if is_secured && nodes.addresses.iter().any(|at| matches!(at, Address::Unix(_))) {
            let problem = "a Unix socket has no TLS";
            let fix = "unset it, or name host:port in the URL";
            faults.add(Fault::new(values.name("REDIS_TLS"), problem, fix));
            return None;
        }
        // Credentials in the URLs are for the nodes that the URLs name; a separate setting
        // overrides them.
        let is_sentinel = given.topology == Topology::Sentinel;
        let of_nodes = |is_theirs: bool| nodes.auth.clone().filter(|_| is_theirs);
        let login = |row, auth: Option<Auth>, is_theirs| Login {
            auth: auth.or_else(|| of_nodes(is_theirs)).unwrap_or_default(),
            file: values.secret_file(row).cloned(),
        };
        Some(RedisSettings {
            login: login("REDIS_AUTH", given.auth, !is_sentinel),
            sentinel_login: login("REDIS_SENTINEL_AUTH", given.sentinel_auth, is_sentinel),
            tls: is_secured.then(|| tls.clone()),
            redirect_networks: given.redirect_networks,
            timeout: given.timeout,
            database: nodes.database,
            ..RedisSettings::new(nodes.kind, nodes.addresses)
        })
    }

    /// Parses the nodes of the URL. If that fails, adds a fault.
    fn nodes(&self, values: Values<'_>, faults: &mut Faults) -> Option<Nodes> {
        let text = self.url.reveal();
        let type_name = values.name("REDIS_TYPE");
        let (nodes, example) = match self.topology {
            Topology::Single if self.socket_type == Some(SocketType::Unix) => {
                (self.single(values), "/run/redis/redis.sock")
            }
            Topology::Single => (self.single(values), "redis:6379"),
            Topology::Cluster => (cluster(text, &type_name), "redis-0:6379,redis-1:6379"),
            Topology::Sentinel => (sentinels(text), "mymaster,sentinel-0:26379,sentinel-1:26379"),
        };
        let add_fault = |problem| {
            let name = values.name("REDIS_URL");
            let fault = Fault::new(&*name, problem, format!("as in {name}={example}"));
            // With a user or a scheme the text may contain a password, wherever the fault is; and a
            // file may contain anything.
            let is_in_file = values.secret_file("REDIS_URL").is_some();
            let may_show = !is_in_file && !text.contains('@') && !text.contains("://");
            faults.add(if may_show { fault.with_found(text) } else { fault });
        };
        nodes.map_err(add_fault).ok()
    }

    fn single(&self, values: Values<'_>) -> Result<Nodes, String> {
        let text = self.url.reveal();
        let endpoint = endpoint(text, REDIS_PORT).map_err(|problem| {
            if text.contains(',') {
                let name = values.name("REDIS_TYPE");
                format!("several addresses need {name}=cluster or sentinel; one is expected here")
            } else {
                problem.to_owned()
            }
        })?;
        let name = values.name("REDIS_SOCKET_TYPE");
        match (&endpoint.address, self.socket_type) {
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
                is_secured: endpoint.is_secured,
            }),
        }
    }
}

/// The nodes of a URL setting.
struct Nodes {
    kind: RedisKind,
    addresses: Vec<Address>,
    auth: Option<Auth>,
    database: u32,
    is_secured: bool,
}

fn cluster(text: &str, type_name: &str) -> Result<Nodes, String> {
    let nodes = list(text, RedisKind::Cluster, REDIS_PORT)?;
    if nodes.database != 0 {
        return Err(format!(
            "a cluster has database 0 only; leave the number out, or set {type_name}=single"
        ));
    }
    Ok(nodes)
}

fn sentinels(text: &str) -> Result<Nodes, String> {
    let needs = "expected the name of the master, then host:port of each sentinel";
    let (master, list_text) = text.split_once(',').ok_or(needs)?;
    let master = master.trim();
    if master.is_empty() || master.contains([':', '/']) {
        return Err(needs.to_owned());
    }
    list(list_text, RedisKind::Sentinel { master: master.to_owned() }, SENTINEL_PORT)
}

/// Parses a comma-separated list of nodes. All must have the same credentials and database, as far
/// as these are given, and TLS or not.
fn list(text: &str, kind: RedisKind, port: u16) -> Result<Nodes, String> {
    let mut addresses = Vec::new();
    let mut auth = None;
    let mut database = None;
    let mut is_secured = false;
    for (at, item) in text.split(',').map(str::trim).enumerate() {
        let number = at + 1;
        if number > ADDRESSES_MAX {
            return Err(format!("more than {ADDRESSES_MAX} addresses"));
        }
        let endpoint =
            endpoint(item, port).map_err(|problem| format!("address {number}: {problem}"))?;
        if matches!(endpoint.address, Address::Unix(_)) {
            return Err(format!("address {number}: nodes of a list are host:port, not paths"));
        }
        if at > 0 && is_secured != endpoint.is_secured {
            return Err(format!("address {number}: rediss:// is for all of them, or for none"));
        }
        is_secured = endpoint.is_secured;
        let differs = |what| format!("address {number}: its {what} differs from those before it");
        join(&mut auth, endpoint.auth).map_err(|()| differs("user or password"))?;
        join(&mut database, endpoint.database).map_err(|()| differs("database"))?;
        addresses.push(endpoint.address);
    }
    Ok(Nodes { kind, addresses, auth, database: database.unwrap_or_default(), is_secured })
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

/// Parses networks, such as `10.0.0.0/8`, or single addresses.
fn networks(text: &str) -> Result<Option<Vec<IpNet>>, Expected> {
    let network = |item: &str| item.parse().or_else(|_| item.parse::<IpAddr>().map(IpNet::from));
    let networks: Result<Vec<_>, _> = text.split(',').map(str::trim).map(network).collect();
    match networks {
        Ok(networks) if networks.len() <= NETWORKS_MAX => Ok(Some(networks)),
        _ => {
            let what = "networks, or addresses, separated by commas";
            Err(Expected::new(what).example("10.0.0.0/8"))
        }
    }
}

fn topology(text: &str) -> Result<Topology, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "single" => Ok(Topology::Single),
        "cluster" => Ok(Topology::Cluster),
        "sentinel" => Ok(Topology::Sentinel),
        _ => Err(Expected::new("single, cluster or sentinel").example("cluster")),
    }
}

fn socket_type(text: &str) -> Result<Option<SocketType>, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Some(SocketType::Tcp)),
        "tls" => Ok(Some(SocketType::Tls)),
        "unix" => Ok(Some(SocketType::Unix)),
        _ => Err(Expected::new("tcp, tls or unix").example("tcp")),
    }
}

fn auth(text: &str) -> Result<Option<Auth>, Expected> {
    match Auth::parse(text) {
        Some(auth) => Ok(Some(auth)),
        None => Err(Expected::new("a password, or user:password").example("user:password")),
    }
}

/// Refuses braces, which would replace the hash tag that determines the slot of a key in the
/// cluster.
fn key_prefix(text: &str) -> Result<String, Expected> {
    if text.len() > KEY_PREFIX_BYTES_MAX || text.contains(['{', '}']) {
        let what = format!("at most {KEY_PREFIX_BYTES_MAX} bytes without braces");
        return Err(Expected::new(what).example("shop:"));
    }
    Ok(text.to_owned())
}

// An address of a Redis: `host:port`, a path, or a URL with user, password and database, which is
// `redis://`, or `rediss://` for TLS. Errors name the problem and never quote the text, which may
// contain a password.

/// Default port of a server.
const REDIS_PORT: u16 = 6379;
/// Default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;

/// The parts of one address.
struct Endpoint {
    address: Address,
    auth: Option<Auth>,
    /// The number of the database, if it is given.
    database: Option<u32>,
    /// Whether the scheme asks for TLS.
    is_secured: bool,
}

/// Parses one address; `port` is the default port.
fn endpoint(text: &str, port: u16) -> Result<Endpoint, &'static str> {
    if let Some(path) = text.strip_prefix("unix://").or(text.starts_with('/').then_some(text)) {
        let path = value::socket_path(path).map_err(|_| "the socket's path is too long")?;
        let address = Address::Unix(path);
        return Ok(Endpoint { address, auth: None, database: None, is_secured: false });
    }
    let secured = text.strip_prefix("rediss://");
    let Location { authority, auth, database } = match secured.or(text.strip_prefix("redis://")) {
        Some(rest) => location(rest)?,
        None if text.contains("://") => {
            return Err("the scheme is not redis://, rediss:// or unix://");
        }
        None if text.contains('@') => {
            return Err("a user or password needs redis:// before it, or a setting of its own");
        }
        None => Location { authority: text, auth: None, database: None },
    };
    let (host, port) = split_port(authority, port)?;
    let host = value::host(host).map_err(|_| "the host is not a name or an IP address")?;
    let address = Address::Tcp(host, port);
    Ok(Endpoint { address, auth, database, is_secured: secured.is_some() })
}

/// What a URL has behind its scheme.
struct Location<'a> {
    authority: &'a str,
    auth: Option<Auth>,
    database: Option<u32>,
}

/// The parameters of a URL that name what may also stand before them. The latter wins, as in the
/// reference's client.
#[derive(Default)]
struct Parameters {
    username: Option<String>,
    password: Option<String>,
    database: Option<u32>,
}

/// Splits `user:password@host:port/database?db=…&username=…&password=…`.
fn location(rest: &str) -> Result<Location<'_>, &'static str> {
    // Split at the last `@`, because people write passwords that contain one; `/` and `?` can only
    // follow it.
    let (userinfo, rest) = match rest.rsplit_once('@') {
        Some((userinfo, rest)) => (Some(userinfo), rest),
        None => (None, rest),
    };
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let mut parameters = parameters(query)?;
    let database = if path.is_empty() { parameters.database } else { Some(database(path)?) };
    if let Some(userinfo) = userinfo {
        let (user, password) = credentials(userinfo)?;
        parameters.username = user.or(parameters.username);
        parameters.password = Some(password);
    }
    let Parameters { username, password, .. } = parameters;
    if username.is_some() && password.is_none() {
        return Err("a user needs a password");
    }
    let auth = password.map(|password| Auth { username, password: Some(password.into()) });
    Ok(Location { authority, auth, database })
}

fn parameters(query: &str) -> Result<Parameters, &'static str> {
    let mut parameters = Parameters::default();
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let unescape = || percent_decode(value).ok_or("a % behind ? needs two hex digits");
        match name {
            "db" | "username" | "password" | "" if value.is_empty() => {}
            "db" => parameters.database = Some(database(&unescape()?)?),
            "username" => parameters.username = Some(unescape()?),
            "password" => parameters.password = Some(unescape()?),
            _ => {
                return Err("of the parameters behind ?, only db, username and password are known");
            }
        }
    }
    Ok(parameters)
}

/// Parses the number of a database. How many there are is the server's to say.
fn database(text: &str) -> Result<u32, &'static str> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_number && *number <= DATABASE_MAX);
    number.ok_or("the database is not a number, as in redis://host:6379/3")
}

/// The greatest number that Redis reads.
const DATABASE_MAX: u32 = i32::MAX.cast_unsigned();

/// Splits `user:password`.
fn credentials(userinfo: &str) -> Result<(Option<String>, String), &'static str> {
    let (user, password) =
        userinfo.split_once(':').ok_or("expected user:password or :password before @")?;
    let unescape =
        |text| percent_decode(text).ok_or("a % before @ is not followed by two hex digits");
    let user = unescape(user)?;
    let password = unescape(password)?;
    if password.is_empty() {
        return Err("the password before @ is empty");
    }
    Ok(((!user.is_empty()).then_some(user), password))
}

fn split_port(authority: &str, port: u16) -> Result<(&str, u16), &'static str> {
    let bare_v6 = authority.ends_with(']');
    let (host, port_text) = match authority.rsplit_once(':') {
        Some((host, port_text)) if !bare_v6 => (host, Some(port_text)),
        _ => (authority, None),
    };
    if host.contains(':') && !host.starts_with('[') {
        return Err("an IPv6 address must be in brackets, as in [::1]:6379");
    }
    let port = match port_text {
        Some(text) => value::port(text).ok().filter(|port| *port > 0),
        None => Some(port),
    };
    Ok((host, port.ok_or("the port is not a number from 1 to 65535")?))
}

/// Decodes `%40` to `@`, and so on (RFC 3986 §2.1).
fn percent_decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut hex = || char::from(bytes.next()?).to_digit(16);
        decoded.push(u8::try_from(hex()? * 16 + hex()?).ok()?);
    }
    String::from_utf8(decoded).ok()
}
