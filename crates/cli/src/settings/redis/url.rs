//! Parses the address of a Redis: `host:port`, a path, or a URL with user, password and database:
//! `redis://`, or `rediss://` for TLS.
//!
//! Errors name the problem and never quote the text, which may contain a password.

use super::super::value;
use super::{Address, Auth};

/// Default port of a server.
pub(super) const REDIS_PORT: u16 = 6379;
/// Default port of a sentinel.
pub(super) const SENTINEL_PORT: u16 = 26379;

/// The parts of one address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) auth: Option<Auth>,
    /// The number of the database, if it is given.
    pub(super) database: Option<u32>,
    /// Whether the scheme asks for TLS.
    pub(super) tls: Tls,
}

/// Whether connections are secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tls {
    Off,
    On,
}

/// Parses one address; `port` is the default port.
pub(super) fn endpoint(text: &str, port: u16) -> Result<Endpoint, &'static str> {
    if let Some(path) = text.strip_prefix("unix://").or(text.starts_with('/').then_some(text)) {
        let path = value::socket_path(path).map_err(|_| "the socket's path is too long")?;
        let address = Address::Unix(path);
        return Ok(Endpoint { address, auth: None, database: None, tls: Tls::Off });
    }
    let (rest, tls) = match text.strip_prefix("rediss://") {
        Some(rest) => (Some(rest), Tls::On),
        None => (text.strip_prefix("redis://"), Tls::Off),
    };
    let Location { authority, auth, database } = match rest {
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
    Ok(Endpoint { address: Address::Tcp(host, port), auth, database, tls })
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
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
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
    let (user, password) = (unescape(user)?, unescape(password)?);
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
