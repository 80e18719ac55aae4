//! The listener for pods: plaintext, or TLS with certificates that are read again when they change.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ratelease_tls::{FileFaults, LoadedServer, ServerFiles, ServerPems};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tracing::{debug, warn};

use super::server::PodServer;
use super::service::DiscoveryService;

/// A pod that is gone without a word is noticed within the sum of these.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_MAX: Duration = Duration::from_secs(20);

/// Maximum number of handshakes at a time, and the maximum time of one.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

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

    /// Reads the files again if they changed. Bad ones leave the former configuration. Blocks.
    fn refresh(&mut self) {
        let pems = self.files.read();
        if pems == self.pems {
            return;
        }
        match self.files.load(&pems, UnixTime::now()) {
            Ok(loaded) => (self.pems, self.loaded) = (pems, loaded),
            Err(faults) => warn!("the certificates for pods are not replaced: {faults}"),
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
        .add_service(DiscoveryService(server));
    let serving = async move {
        match tls {
            None => router.serve_with_incoming(TcpListenerStream::new(listener)).await,
            Some(tls) => {
                let (sender, secured) = mpsc::channel(HANDSHAKES_MAX);
                let (changes, config) = watch::channel(Arc::clone(&tls.loaded.config));
                let serving = router.serve_with_incoming(ReceiverStream::new(secured));
                tokio::select! {
                    served = serving => served,
                    () = refresh(tls, changes) => Ok(()),
                    () = accept(listener, config, sender) => Ok(()),
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
async fn refresh(mut tls: PodTls, config: watch::Sender<Arc<ServerConfig>>) {
    loop {
        sleep(FILES_INTERVAL).await;
        let refreshed = spawn_blocking(move || {
            tls.refresh();
            tls
        });
        let Ok(refreshed) = refreshed.await else { return };
        tls = refreshed;
        config.send_replace(Arc::clone(&tls.loaded.config));
    }
}

/// Accepts connections and secures them; a peer that is slow holds no other one up. It does not
/// return.
async fn accept(
    listener: TcpListener,
    config: watch::Receiver<Arc<ServerConfig>>,
    secured: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!("a connection of a pod was not accepted: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&config.borrow()));
        let secured = secured.clone();
        tokio::spawn(async move {
            let _place = place;
            match timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // An error means that the process ends.
                    let _ = secured.send(Ok(stream)).await;
                }
                Ok(Err(error)) => debug!("a handshake with a pod failed: {error}"),
                Err(_) => debug!("a handshake with a pod took too long"),
            }
        });
    }
}
