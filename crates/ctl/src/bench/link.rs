//! Connects to the server over HTTP/2.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use ratelease_cli::target::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Window of a connection and of a stream: the bytes that a server may send before they are read.
/// It is so large that answers of a few dozen bytes never wait for it.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// A TCP or a Unix socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A connection and its request sender. Nothing is sent or received unless the connection is
/// polled.
pub(super) type Link = (SendRequest<Bytes>, Connection<Box<dyn Socket>, Bytes>);

/// Returns the `:authority` for requests to `target`.
pub(super) fn authority(target: &Target) -> &str {
    match target {
        Target::Tcp(address) => address,
        Target::Unix(_) => "localhost",
    }
}

/// Connects to `target`, with TLS if there is a configuration, and sends the HTTP/2 preface.
/// Success does not mean that the server speaks HTTP/2.
pub(super) async fn connect(target: &Target, tls: Option<&Arc<ClientConfig>>) -> io::Result<Link> {
    let socket: Box<dyn Socket> = match target {
        Target::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            match tls {
                Some(config) => Box::new(secure(socket, config, address).await?),
                None => Box::new(socket),
            }
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

async fn secure(
    socket: TcpStream,
    config: &Arc<ClientConfig>,
    address: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(config)).connect(name, socket).await
}
