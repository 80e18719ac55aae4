//! The address of a gRPC server.

use std::fmt;
use std::path::PathBuf;

use crate::fetch;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A host and a port; the host is resolved for each connection.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

// === impl Target ===

impl Target {
    /// Parses `HOST:PORT` or `unix:PATH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path behind unix:, as in unix:/run/ratelease.sock".into()),
            Some(path) => Ok(Self::Unix(path.into())),
            None if fetch::host_port(text).is_ok() => Ok(Self::Tcp(text.to_owned())),
            None => Err("expected HOST:PORT or unix:PATH, as in 127.0.0.1:8081".into()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_with_a_port_or_a_socket() {
        for good in ["127.0.0.1:8081", "[::1]:8081", "ratelimit.shop:1", "unix:/a", "unix:b"] {
            assert_eq!(Target::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "8081", ":8081", "a:", "a:0", "a:65536", "::1:80", "http://a:80", "unix:"] {
            assert!(Target::parse(bad).is_err_and(|error| error.starts_with("expected ")), "{bad}");
        }
    }
}
