//! Connects to the server, with TLS or without. The files of TLS are read for each connection.

use std::error::Error;
use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ratelease_cli::settings::Xds;
use ratelease_rules::excerpt;
use ratelease_tls::ClientFiles;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Maximum time for a connection with its handshakes.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The part of it for one address of a host that has several.
const ADDRESS_MAX: Duration = Duration::from_secs(3);

/// A server that does not answer a ping within this time is gone.
const PING_MAX: Duration = Duration::from_secs(20);

/// The bytes of a connection.
trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for S {}

/// Connects to the server. The channel does not connect again.
///
/// # Errors
/// One line: why the server cannot be reached.
pub(super) async fn connect(settings: &Xds) -> Result<Channel, String> {
    let connected = timeout(CONNECT_MAX, Box::pin(try_connect(settings))).await;
    connected.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_MAX:?}")))
}

async fn try_connect(settings: &Xds) -> Result<Channel, String> {
    let server = &settings.server;
    let stream = dial(&server.host, server.port).await?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let stream: Box<dyn ReadWrite> = match &settings.tls {
        None => Box::new(stream),
        Some(files) => Box::new(secure(stream, files, &server.host).await?),
    };
    // tonic refuses `https` for a stream that is secured already.
    let endpoint = Endpoint::from_shared(format!("http://{server}"));
    let endpoint = endpoint.map_err(|error| innermost(&error))?;
    let endpoint = endpoint
        .http2_keep_alive_interval(settings.keepalive)
        .keep_alive_timeout(PING_MAX)
        .keep_alive_while_idle(true);
    let mut stream = Some(TokioIo::new(stream));
    let once = service_fn(move |_| {
        let stream = stream.take().ok_or(io::ErrorKind::NotConnected);
        async move { stream.map_err(io::Error::from) }
    });
    let connected = endpoint.connect_with_connector(once).await;
    connected.map_err(|error| with_hint(innermost(&error), settings))
}

/// Adds what to check to the reason why no stream could be opened. With TLS 1.3 a server refuses a
/// client without a certificate after the handshake, and the client often sees only a closed
/// connection.
pub(super) fn with_hint(why: String, settings: &Xds) -> String {
    let has_no_certificate = |files: &ClientFiles| files.identity.is_none();
    match settings.tls.as_ref().is_some_and(has_no_certificate) {
        true => format!(
            "{why}; if the server requires a client certificate, set \
             CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
        ),
        false => why,
    }
}

/// Connects to the first address of the host that answers.
async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses = lookup_host((host, port)).await.map_err(|error| error.to_string())?;
    let mut failed = "the name has no address".to_owned();
    for address in addresses {
        match timeout(ADDRESS_MAX, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error.to_string(),
            Err(_) => failed = format!("no answer within {ADDRESS_MAX:?}"),
        }
    }
    Err(failed)
}

async fn secure(
    stream: TcpStream,
    files: &ClientFiles,
    host: &str,
) -> Result<impl ReadWrite + use<>, String> {
    let files = files.clone();
    let config = spawn_blocking(move || files.load_http2()).await;
    let config = config.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let secured = TlsConnector::from(config).connect(name, stream).await;
    secured.map_err(|error| format!("TLS: {}", excerpt(&error.to_string())))
}

/// The innermost cause of an error, which is the most specific one. It may quote the server.
pub(super) fn innermost(mut error: &dyn Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    excerpt(&error.to_string())
}
