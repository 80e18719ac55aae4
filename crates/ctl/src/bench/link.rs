//! Bytes to and from the server.

use std::io;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use ratelease_cli::target::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// What a server may send ahead of our reading it, on a connection and on a stream: so much that
/// answers of a few dozen bytes never wait for it.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Both kinds of socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A connection, and what sends requests on it. The connection has to be polled for anything to go
/// out or come in.
pub(super) type Link = (SendRequest<Bytes>, Connection<Box<dyn Socket>, Bytes>);

/// What to send `target` as `:authority`.
pub(super) fn authority(target: &Target) -> &str {
    match target {
        Target::Tcp(address) => address,
        Target::Unix(_) => "localhost",
    }
}

/// Connects to `target` and sends HTTP/2's greeting. Nothing says yet that the server speaks it.
pub(super) async fn connect(target: &Target) -> io::Result<Link> {
    let socket: Box<dyn Socket> = match target {
        Target::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            Box::new(socket)
        }
        Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
    };
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_window_size(STREAM_WINDOW_BYTES);
    builder.handshake(socket).await.map_err(io::Error::other)
}
