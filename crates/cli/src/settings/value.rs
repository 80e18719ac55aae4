//! Parses values as the reference does: Go's durations and booleans, hosts, ports, names.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ratelease_engine::store::redis::parse_host;
use ratelease_rules::parse_duration;

use super::fault::Expected;

/// Maximum length of a Unix socket's path: `sun_path` of unix(7), less its NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// An address to listen on or connect to: a name or an IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A DNS name, or an IPv4 or IPv6 address without brackets.
    pub host: String,
    /// Port; 0 to listen on any free one.
    pub port: u16,
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub fn boolean(text: &str) -> Result<bool, Expected> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(Expected::new("true or false (also t, f, 1, 0)").example("true")),
    }
}

/// Parses a duration within `range`.
pub fn duration_within(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, Expected> {
    parse_duration(text).filter(|span| range.contains(span)).ok_or_else(|| {
        let least = range.start();
        let most = range.end();
        Expected::new(format!("a duration from {least:?} to {most:?} with its unit"))
    })
}

/// Parses a duration; 0 means "without end".
pub(super) fn duration_or_never(text: &str) -> Result<Option<Duration>, Expected> {
    parse_duration(text)
        .map(|span| (!span.is_zero()).then_some(span))
        .ok_or_else(|| Expected::new("a duration with its unit, or 0 for none"))
}

/// Parses a whole number within `range`.
pub fn count_within<T>(text: &str, range: RangeInclusive<T>) -> Result<T, Expected>
where
    T: FromStr + PartialOrd + Display,
{
    text.parse().ok().filter(|count| range.contains(count)).ok_or_else(|| {
        let least = range.start();
        let most = range.end();
        Expected::new(format!("a whole number from {least} to {most}"))
    })
}

/// Units of a size, in bytes.
pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
pub(super) const GIB: usize = 1 << 30;

/// Parses a number of bytes within `range`, such as `65536`, `512KiB`, `64MiB` or `2GiB`. Other
/// units are refused because the meaning of 64 MB, or 64 M, is ambiguous.
pub(super) fn size_within(text: &str, range: RangeInclusive<usize>) -> Result<usize, Expected> {
    let units = [("KiB", KIB), ("MiB", MIB), ("GiB", GIB)];
    let named = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = named.unwrap_or((text, 1));
    // `parse` would accept `+5`.
    let digits = Some(number).filter(|number| number.bytes().all(|b| b.is_ascii_digit()));
    let bytes = digits.and_then(|digits| digits.parse::<usize>().ok()?.checked_mul(unit));
    bytes.filter(|bytes| range.contains(bytes)).ok_or_else(|| {
        let least = shown(*range.start());
        let most = shown(*range.end());
        Expected::new(format!("a size from {least} to {most}, in bytes or with KiB, MiB or GiB"))
    })
}

/// Formats a size in the largest unit of which it is a multiple.
fn shown(bytes: usize) -> String {
    let units = [("GiB", GIB), ("MiB", MIB), ("KiB", KIB)];
    let whole = units.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.map_or(bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Parses a TCP port.
pub(super) fn port(text: &str) -> Result<u16, Expected> {
    text.parse().map_err(|_| Expected::new("a port from 0 to 65535"))
}

/// Parses a DNS name or an IP address, IPv6 with or without brackets.
pub(super) fn host(text: &str) -> Result<String, Expected> {
    let expected = || Expected::new("an IP address or a host name, without a port");
    parse_host(text).ok_or_else(expected)
}

/// Parses a ratio from 0 to 1.
pub(super) fn ratio(text: &str) -> Result<f32, Expected> {
    text.parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| Expected::new("a number from 0 to 1"))
}

/// Parses the path of a Unix socket.
pub(super) fn socket_path(text: &str) -> Result<PathBuf, Expected> {
    if text.len() > SOCKET_PATH_BYTES_MAX {
        let what = format!("a path of at most {SOCKET_PATH_BYTES_MAX} bytes for a socket");
        return Err(Expected::new(what).example("/run/ratelease/rls.sock"));
    }
    Ok(PathBuf::from(text))
}

/// Parses the name of an HTTP header and keeps its case.
pub(super) fn header_name(text: &str) -> Result<String, Expected> {
    match http::HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            let what = "an HTTP header name (letters, digits and !#$%&'*+-.^_`|~)";
            Err(Expected::new(what))
        }
    }
}

// === impl HostPort ===

impl HostPort {
    /// Makes an address from a host, without brackets, and a port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Returns the address at which to call a listener of this address: loopback if the host means
    /// all interfaces.
    #[must_use]
    pub fn reachable(self) -> Self {
        match self.host.as_str() {
            "0.0.0.0" => Self::new("127.0.0.1", self.port),
            "::" => Self::new("::1", self.port),
            _ => self,
        }
    }
}

/// Prints the address as in a URL: an IPv6 address is in brackets.
impl Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
