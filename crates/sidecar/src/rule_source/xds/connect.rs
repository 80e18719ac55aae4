//! Connects to the server, with TLS or without. The files of TLS are read for each connection.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ratelease_cli::settings::Xds;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::excerpt;
use ratelease_tls::ClientFiles;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use tracing::warn;

/// Maximum time for a connection with its handshakes.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The part of it for one address of a host that has several.
const ADDRESS_MAX: Duration = Duration::from_secs(3);

/// A server that does not answer a ping within this time is gone.
const PING_MAX: Duration = Duration::from_secs(20);

/// A server that speaks to pods every 20 s, as ratelease-control does, and that has been silent for
/// this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A server pings if it spoke so often in a row after a silence of about that length.
const HEARTBEATS_MIN: u32 = 2;
const HEARTBEAT_GAPS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(45);

/// Says when a server speaks first, and ends a connection to one that pinged and has become silent.
/// Pings of the pod would cost the connection with many servers, which take them for an attack.
struct Monitored<S> {
    stream: S,
    clock: Clock,
    /// Told when the server speaks first.
    first: Option<oneshot::Sender<()>>,
    /// Whether the server may be one that pings.
    may_ping: bool,
    /// When the server spoke last.
    last: Time,
    heartbeats: u32,
    silence: Pin<Box<Sleep>>,
}

/// The bytes of a connection.
trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for S {}

/// Warns of a server that anyone on the way to it can stand in for.
pub fn warn_of_plaintext(settings: &Xds) {
    let server = &settings.server;
    let address = server.host.parse::<IpAddr>();
    let is_loopback = server.host == "localhost" || address.is_ok_and(|it| it.is_loopback());
    if !settings.is_secured && !is_loopback {
        warn!(
            "the xDS server {server} is not authenticated, so that another one could send rules in \
             its place; set CONFIG_GRPC_XDS_SERVER_USE_TLS"
        );
    }
}

/// Connects to the server. The channel does not connect again.
///
/// # Errors
/// One line: why the server cannot be reached.
pub async fn connect(settings: &Xds) -> Result<Channel, String> {
    let connected = timeout(CONNECT_MAX, Box::pin(try_connect(settings))).await;
    connected.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_MAX:?}")))
}

async fn try_connect(settings: &Xds) -> Result<Channel, String> {
    let server = &settings.server;
    let stream = dial(&server.host, server.port).await?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let stream: Box<dyn ReadWrite> = match settings.tls() {
        None => Box::new(stream),
        Some(files) => Box::new(secure(stream, &files, &server.host).await?),
    };
    // Only a server of ratelease's own type may be ratelease-control.
    let (stream, first) = Monitored::new(stream, settings.own_rules);
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
    let channel = connected.map_err(|error| with_hint(innermost(&error), settings))?;
    // The kernel takes connections of a process that hangs; only its SETTINGS show that it lives.
    match first.await {
        Ok(()) => Ok(channel),
        Err(_) => Err(with_hint("the connection was closed".to_owned(), settings)),
    }
}

// === impl Monitored ===

impl<S> Monitored<S> {
    /// The stream, and what resolves when the server speaks first; it fails if the stream ends before.
    fn new(stream: S, may_ping: bool) -> (Self, oneshot::Receiver<()>) {
        let clock = Clock::start();
        let silence = Box::pin(sleep(SILENCE_MAX));
        let (first, spoken) = oneshot::channel();
        let (first, last) = (Some(first), Time::default());
        (Self { stream, clock, first, may_ping, last, heartbeats: 0, silence }, spoken)
    }

    /// Notes that the server spoke.
    fn note_received(&mut self) {
        if let Some(first) = self.first.take() {
            let _ = first.send(()); // the connection may have been given up
        }
        let now = self.clock.now();
        let gap = now.since(std::mem::replace(&mut self.last, now));
        if HEARTBEAT_GAPS.contains(&gap) {
            self.heartbeats += 1;
        } else if gap > *HEARTBEAT_GAPS.end() {
            self.heartbeats = 0;
        }
        self.silence.as_mut().reset(self.clock.instant(now + SILENCE_MAX));
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Monitored<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.note_received();
        }
        let pings = self.may_ping && self.heartbeats >= HEARTBEATS_MIN;
        if read.is_pending() && pings && self.silence.as_mut().poll(cx).is_ready() {
            let why = format!("the server, which pinged before, was silent for {SILENCE_MAX:?}");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Monitored<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Adds what to check to the reason why no stream could be opened. With TLS 1.3 a server refuses a
/// client without a certificate after the handshake, and the client often sees only a closed
/// connection.
pub fn with_hint(why: String, settings: &Xds) -> String {
    let has_no_certificate = |files: &ClientFiles| files.identity.is_none();
    match settings.tls().as_ref().is_some_and(has_no_certificate) {
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
pub fn innermost(mut error: &dyn Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    excerpt(&error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Whether a read ends with an error within an hour after the server spoke at these gaps.
    async fn ends_after(gaps: &[u64]) -> Option<Duration> {
        let (mut server, pod) = duplex(64);
        let (mut pod, _) = Monitored::new(pod, true);
        let clock = Clock::start();
        for gap in gaps {
            sleep(Duration::from_secs(*gap)).await;
            server.write_all(b"ping").await.unwrap();
            pod.read_exact(&mut [0; 4]).await.unwrap();
        }
        let silent_since = clock.now();
        let read = timeout(Duration::from_secs(3600), pod.read_u8()).await;
        read.ok().map(|read| {
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
            clock.now().since(silent_since)
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_pinged_and_is_silent_for_a_minute_is_gone() {
        for gaps in [&[20, 20][..], &[0, 0, 20, 20, 0, 1], &[300, 20, 20, 20]] {
            let ended = ends_after(gaps).await.expect("an end");
            assert!(ended.abs_diff(SILENCE_MAX) < Duration::from_secs(1), "{gaps:?}: {ended:?}");
        }
        // One that sends rules now and then, and one that has become silent in another way.
        for gaps in [&[][..], &[0], &[1, 1, 1], &[20], &[300, 300, 300], &[20, 20, 300]] {
            assert_eq!(ends_after(gaps).await, None, "{gaps:?}");
        }
    }

    /// The kernel accepts connections in the name of a process that was stopped.
    #[tokio::test]
    async fn a_server_that_accepts_and_says_nothing_is_not_connected() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let (monitored, first) = Monitored::new(TcpStream::connect(address).await.unwrap(), false);
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut monitored = monitored;
        let read = tokio::spawn(async move { monitored.read_u8().await });
        let mut first = first;
        assert!(timeout(Duration::from_millis(100), &mut first).await.is_err(), "silent");
        accepted.write_all(b"s").await.unwrap();
        first.await.expect("it has spoken");
        assert_eq!(read.await.unwrap().unwrap(), b's');
    }
}
