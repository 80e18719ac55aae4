//! The listener for pods: plaintext, or TLS with certificates that are read again when they change.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ratelease_engine::time::Clock;
use ratelease_listener::Peer;
use ratelease_listener::tls::TlsAcceptor;
use ratelease_tls::{FileFaults, LoadedServer, ServerFiles, ServerPems};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tracing::{debug, warn};

use super::connections::PodConnection;
use super::server::PodServer;
use super::service::{Discovery, LoadReports, PodService};
use crate::connections::Connections;

/// Maximum number of connections, and of those of one client.
const CONNECTIONS_MAX: usize = 8192;
const CONNECTIONS_OF_PEER_MAX: usize = CONNECTIONS_MAX / 4;

/// A pod that is gone without a word is noticed within the sum of these.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_MAX: Duration = Duration::from_secs(20);

/// Maximum time of a handshake. Of too many at a time, the slow ones and those of the client that
/// has the most are given up.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Maximum number of streams of a connection; a pod has one for rules and one for reports.
const STREAMS_MAX: u32 = 4;

/// Bytes that a pod may send before they are read, of a stream and of a connection.
const WINDOW_BYTES: u32 = 64 << 10;

/// Maximum bytes of the headers of a call.
const HEAD_BYTES_MAX: u32 = 16 << 10;

/// Interval at which the files are looked at.
const FILES_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted, such as without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// TLS for pods, who need certificates.
pub struct PodTls {
    files: ServerFiles,
    pems: ServerPems,
    loaded: LoadedServer,
}

// === impl PodTls ===

impl PodTls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn load(files: ServerFiles) -> Result<Self, FileFaults> {
        let pems = files.read();
        let loaded = files.load(&pems, UnixTime::now())?;
        Ok(Self { files, pems, loaded })
    }

    /// Reads the files again, and returns whether the configuration is a new one. Bad files leave
    /// the former one. Blocks.
    fn refresh(&mut self) -> bool {
        let pems = self.files.read();
        if pems == self.pems {
            return false;
        }
        match self.files.load(&pems, UnixTime::now()) {
            Ok(loaded) => {
                (self.pems, self.loaded) = (pems, loaded);
                true
            }
            Err(faults) => {
                warn!("the certificates for pods are not replaced: {faults}");
                false
            }
        }
    }
}

/// Serves pods until `stop` resolves.
///
/// # Errors
/// Fails if the listener fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<PodTls>,
    server: PodServer,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let router = Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_MAX))
        .tcp_nodelay(true)
        .http2_max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(PodService::<Discovery>::new(server.clone()))
        .add_service(PodService::<LoadReports>::new(server));
    let connections = Connections::new(CONNECTIONS_MAX, CONNECTIONS_OF_PEER_MAX);
    let serving = async move {
        match tls {
            None => {
                let (sender, ready) = mpsc::channel(1);
                tokio::select! {
                    served = router.serve_with_incoming(ReceiverStream::new(ready)) => served,
                    () = accept(listener, connections, sender) => Ok(()),
                }
            }
            Some(tls) => {
                let (sender, ready) = mpsc::channel(1);
                let acceptor = TlsAcceptor::new(tls.loaded.clone(), Clock::start());
                tokio::select! {
                    served = router.serve_with_incoming(ReceiverStream::new(ready)) => served,
                    () = refresh(tls, acceptor.clone()) => Ok(()),
                    () = accept_secured(listener, connections, acceptor, sender) => Ok(()),
                }
            }
        }
    };
    // Streams last for days, so that the end does not wait for them: pods connect to another one.
    tokio::select! {
        served = serving => served,
        () = stop => Ok(()),
    }
}

/// Reads the files again now and then. It does not return.
async fn refresh(mut tls: PodTls, acceptor: TlsAcceptor) {
    loop {
        sleep(FILES_INTERVAL).await;
        let refreshed = spawn_blocking(move || {
            let is_new = tls.refresh();
            (tls, is_new)
        });
        let Ok((refreshed, is_new)) = refreshed.await else { return };
        tls = refreshed;
        if is_new {
            acceptor.replace(tls.loaded.clone());
        }
    }
}

/// Accepts connections without TLS. It does not return.
async fn accept(
    listener: TcpListener,
    connections: Connections,
    ready: mpsc::Sender<io::Result<PodConnection<TcpStream>>>,
) {
    loop {
        let (stream, address) = next(&listener).await;
        if let Some(place) = connections.admit(address) {
            // An error means that the process ends.
            let _ = ready.send(Ok(PodConnection::new(stream, address, None, place))).await;
        }
    }
}

/// Accepts connections and secures them; a peer that is slow holds no other one up. It does not
/// return.
async fn accept_secured(
    listener: TcpListener,
    connections: Connections,
    acceptor: TlsAcceptor,
    ready: mpsc::Sender<io::Result<PodConnection<TlsStream<TcpStream>>>>,
) {
    loop {
        let (stream, address) = next(&listener).await;
        let Some(place) = connections.admit(address) else { continue };
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        tokio::spawn(async move {
            let handshake = acceptor.accept(stream, Peer::of(Some(address.ip())));
            // The acceptor logs and counts failures.
            let Ok(Ok(stream)) = timeout(HANDSHAKE_MAX, handshake).await else { return };
            let certificates = stream.get_ref().1.peer_certificates();
            let certificate = certificates.and_then(|it| it.first()).cloned();
            let certificate = certificate.map(CertificateDer::into_owned);
            let _ = ready.send(Ok(PodConnection::new(stream, address, certificate, place))).await;
        });
    }
}

/// Waits for the next connection.
async fn next(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Fails only if the connection is broken already; the next read reports that.
                let _ = stream.set_nodelay(true);
                return (stream, address);
            }
            Err(error) => {
                debug!("a connection of a pod was not accepted: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
