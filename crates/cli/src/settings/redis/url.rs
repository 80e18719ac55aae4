//! Parses the address of a Redis: `host:port`, a path, or a URL with user and password: `redis://`,
//! or `rediss://` for TLS.
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
        return Ok(Endpoint { address: Address::Unix(path), auth: None, tls: Tls::Off });
    }
    let (rest, tls) = match text.strip_prefix("rediss://") {
        Some(rest) => (Some(rest), Tls::On),
        None => (text.strip_prefix("redis://"), Tls::Off),
    };
    let (authority, auth) = match rest {
        Some(rest) => authority(rest)?,
        None if text.contains("://") => {
            return Err("the scheme is not redis://, rediss:// or unix://");
        }
        None if text.contains('@') => {
            return Err("a user or password needs redis:// before it, or a setting of its own");
        }
        None => (text, None),
    };
    let (host, port) = split_port(authority, port)?;
    let host = value::host(host).map_err(|_| "the host is not a name or an IP address")?;
    Ok(Endpoint { address: Address::Tcp(host, port), auth, tls })
}

/// Splits `user:password@host:port/database`.
fn authority(rest: &str) -> Result<(&str, Option<Auth>), &'static str> {
    // Split at the last `@`, because people write passwords that contain one; `/` and `?` can only
    // follow it.
    let (userinfo, rest) = match rest.rsplit_once('@') {
        Some((userinfo, rest)) => (Some(userinfo), rest),
        None => (None, rest),
    };
    if rest.contains('?') {
        return Err("parameters behind ? are not supported; each has a setting of its own");
    }
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !matches!(database, "" | "0") {
        return Err("only database 0 is supported, as in Redis Cluster");
    }
    Ok((authority, userinfo.map(credentials).transpose()?))
}

fn credentials(userinfo: &str) -> Result<Auth, &'static str> {
    let (user, password) =
        userinfo.split_once(':').ok_or("expected user:password or :password before @")?;
    let unescape =
        |text| percent_decode(text).ok_or("a % before @ is not followed by two hex digits");
    let (user, password) = (unescape(user)?, unescape(password)?);
    if password.is_empty() {
        return Err("the password before @ is empty");
    }
    let username = (!user.is_empty()).then_some(user);
    Ok(Auth { username, password: Some(password.into()) })
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
