//! Where the server is, and bytes to and from it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// What a server may send ahead of our reading it, on a connection and on a stream: so much that
/// answers of a few dozen bytes never wait for it.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// A host and a port, resolved anew for each connection.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Both kinds of socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A connection, and what sends requests on it. The connection has to be polled for anything to go
/// out or come in.
pub(super) type Link = (SendRequest<Bytes>, Connection<Box<dyn Socket>, Bytes>);

// === impl Target ===

impl Target {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("expected a path behind unix:, as in unix:/run/ratelease.sock".into()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let split = text.rsplit_once(':');
        // An IPv6 address stands in brackets.
        let good = split.is_some_and(|(host, port)| {
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host_is_good = match bare {
                Some(bare) => bare.contains(':'),
                None => !host.is_empty() && !host.contains([':', '/', '[', ']']),
            };
            host_is_good && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if good {
            Ok(Self::Tcp(text.to_owned()))
        } else {
            Err("expected HOST:PORT or unix:PATH, as in 127.0.0.1:8081".into())
        }
    }

    /// What to send as `:authority`.
    pub(super) fn authority(&self) -> &str {
        match self {
            Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }

    /// Connects and sends HTTP/2's greeting. Nothing says yet that the server speaks it.
    pub(super) async fn link(&self) -> io::Result<Link> {
        let socket: Box<dyn Socket> = match self {
            Self::Tcp(address) => {
                let socket = TcpStream::connect(address).await?;
                socket.set_nodelay(true)?;
                Box::new(socket)
            }
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_window_size(STREAM_WINDOW_BYTES);
        builder.handshake(socket).await.map_err(io::Error::other)
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
