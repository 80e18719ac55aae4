//! TLS on accepted connections: the handshake, within bounds, by a configuration that can be
//! replaced while connections are open.
//!
//! The module uses `pool` of this crate, which names clients, and `io`. [`CertificateFiles`]
//! replaces the configuration when the files of certificates change.

mod handshakes;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::excerpt;
use ratelease_tls::{FileFaults, LoadedServer, ServerFiles, ServerPems};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{
    AlertDescription, Error, InvalidMessage, ServerConfig, ServerConnection,
};
use tokio_rustls::server::TlsStream;
use tracing::{debug, error, info, warn};

use crate::io::Connection;
use crate::pool::Peer;
use crate::wire_meter::Metered;
use handshakes::Handshakes;

/// Maximum number of answer bytes of a connection that TLS holds until the client reads. rustls
/// would hold 64 KiB.
const UNSENT_BYTES_MAX: usize = 16 * 1024;

/// Interval at which failures of one kind are logged.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// The name, the protocols and the advice with which a port uses TLS.
#[derive(Debug, Clone, Copy)]
pub struct TlsPort {
    /// The name of the port in the log, as in `the gRPC port`.
    pub name: &'static str,
    /// The application protocols (RFC 7301), the preferred one first.
    pub protocols: &'static [&'static [u8]],
    /// Returns the change that the operator has to make after a failure of a handshake. `None` for
    /// a failure that only the client can prevent: it is not logged as a warning.
    pub advice: fn(HandshakeFailure) -> Option<&'static str>,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The client sent something else than TLS.
    NotTls,
    /// The client sent no certificate, and needs one.
    NoCertificate,
    /// The client's certificate is not accepted.
    BadCertificate,
    /// The client does not accept our certificate.
    NotTrusted,
    /// Client and listener share no version, cipher or application protocol.
    Incompatible,
    /// The client went away, or took too long.
    Abandoned,
    /// All others.
    Other,
}

/// Secures connections. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct TlsAcceptor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    port: TlsPort,
    current: ArcSwap<LoadedServer>,
    /// Number of configurations that took the place of another one, and of those that cannot be
    /// used.
    replaced: AtomicU64,
    refused: AtomicU64,
    handshakes: Handshakes,
    completed: AtomicU64,
    failed: [AtomicU64; HandshakeFailure::ALL.len()],
    clock: Clock,
    /// When a failure of each kind was last logged, in seconds of the clock from 1; 0 means never.
    logged: [AtomicU64; HandshakeFailure::ALL.len()],
}

// === impl TlsAcceptor ===

impl TlsAcceptor {
    /// Creates an acceptor with this configuration.
    pub fn new(loaded: LoadedServer, port: TlsPort) -> Self {
        Self(Arc::new(Shared {
            current: ArcSwap::from_pointee(port.configured(loaded)),
            port,
            replaced: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            handshakes: Handshakes::default(),
            completed: AtomicU64::new(0),
            failed: Default::default(),
            clock: Clock::start(),
            logged: Default::default(),
        }))
    }

    /// Replaces the configuration for later handshakes. Connections that are open, and handshakes
    /// that have begun, keep theirs. No session is ever resumed, so none goes on without a new
    /// handshake.
    pub fn replace(&self, loaded: LoadedServer) {
        self.0.current.store(Arc::new(self.0.port.configured(loaded)));
        self.0.replaced.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of times that the configuration was replaced.
    pub fn replaced(&self) -> u64 {
        self.0.replaced.load(Ordering::Relaxed)
    }

    /// Number of times that new files could not be used.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Until when the present certificate is valid, in seconds since 1970.
    pub fn not_after(&self) -> u64 {
        self.0.current.load().not_after.as_secs()
    }

    /// Number of handshakes that were completed.
    pub fn completed(&self) -> u64 {
        self.0.completed.load(Ordering::Relaxed)
    }

    /// Number of handshakes that failed for this reason.
    pub fn failed(&self, reason: HandshakeFailure) -> u64 {
        self.0.failed.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Performs the handshake with `peer`. The caller bounds its time: dropping the future gives it
    /// up. If too many handshakes are in progress, the client that has the most gives up the one
    /// that began first.
    ///
    /// # Errors
    /// Fails if the client cannot be authenticated, does not speak TLS, or is gone. The failure has
    /// been counted, and the first of each kind in ten minutes has been logged.
    pub async fn accept<I>(&self, io: I, peer: Peer) -> io::Result<TlsStream<I>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        // Counts a handshake that is dropped before its end.
        let mut outcome = Outcome { acceptor: self, failure: Some(HandshakeFailure::Abandoned) };
        let (_place, kept) = self.0.handshakes.begin(peer, self.0.clock.now());
        let config = Arc::clone(&self.0.current.load().config);
        let limit = |session: &mut ServerConnection| {
            session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        };
        let handshake = tokio_rustls::TlsAcceptor::from(config).accept_with(io, limit);
        let secured = tokio::select! {
            secured = handshake => secured,
            _ = kept => Err(io::ErrorKind::TimedOut.into()),
        };
        outcome.failure = secured.as_ref().err().map(HandshakeFailure::of);
        if let (Some(failure), Err(error)) = (outcome.failure, &secured) {
            self.log(failure, error);
        }
        secured
    }

    /// Secures a connection, within the time that it has for its first bytes.
    ///
    /// # Errors
    /// Fails as [`TlsAcceptor::accept`] does, if it takes too long, or if the connection is to be
    /// closed.
    pub async fn secure<I>(
        &self,
        io: Connection<I>,
    ) -> io::Result<Connection<TlsStream<Metered<I>>>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let peer = io.handle().peer();
        io.secured(|io| self.accept(io, peer)).await
    }

    /// Logs a failure: as a warning if an operator can prevent it and none of its kind was logged
    /// in the last ten minutes.
    fn log(&self, failure: HandshakeFailure, error: &io::Error) {
        // The error may quote the certificate of a client.
        let error = excerpt(&error.to_string());
        let TlsPort { name, advice, .. } = self.0.port;
        match advice(failure) {
            Some(advice) if self.is_due(failure) => warn!(
                "a TLS handshake with a client of {name} failed: {error}; {advice}; further ones \
                 are only counted for ten minutes"
            ),
            _ => debug!(?failure, "a TLS handshake failed: {error}"),
        }
    }

    fn is_due(&self, failure: HandshakeFailure) -> bool {
        let Some(logged) = self.0.logged.get(failure as usize) else { return false };
        let now = self.0.clock.now().since(Time::default()).as_secs() + 1;
        let last = logged.load(Ordering::Relaxed);
        let is_due = last == 0 || now - last >= LOG_INTERVAL.as_secs();
        if is_due {
            logged.store(now, Ordering::Relaxed);
        }
        is_due
    }
}

// === impl TlsPort ===

impl TlsPort {
    /// The configuration with the protocols of the port.
    fn configured(&self, loaded: LoadedServer) -> LoadedServer {
        let mut config = ServerConfig::clone(&loaded.config);
        config.alpn_protocols = self.protocols.iter().map(|it| it.to_vec()).collect();
        LoadedServer { config: Arc::new(config), ..loaded }
    }
}

/// Counts the end of a handshake when it is dropped.
struct Outcome<'a> {
    acceptor: &'a TlsAcceptor,
    failure: Option<HandshakeFailure>,
}

// === impl Outcome ===

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        let shared = &self.acceptor.0;
        let count = match self.failure {
            Some(failure) => shared.failed.get(failure as usize),
            None => Some(&shared.completed),
        };
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl HandshakeFailure ===

impl HandshakeFailure {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::NotTls,
        Self::NoCertificate,
        Self::BadCertificate,
        Self::NotTrusted,
        Self::Incompatible,
        Self::Abandoned,
        Self::Other,
    ];

    /// The reason for an error of a handshake.
    fn of(error: &io::Error) -> Self {
        let Some(error) = rustls_error(error) else { return Self::Abandoned };
        match error {
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge,
            ) => Self::NotTls,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(_) => Self::BadCertificate,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible,
            Error::AlertReceived(alert) if is_of_certificate(*alert) => Self::NotTrusted,
            Error::AlertReceived(AlertDescription::CloseNotify) => Self::Abandoned,
            _ => Self::Other,
        }
    }

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::NoCertificate => "no_certificate",
            Self::BadCertificate => "bad_certificate",
            Self::NotTrusted => "not_trusted",
            Self::Incompatible => "incompatible",
            Self::Abandoned => "abandoned",
            Self::Other => "other",
        }
    }
}

/// Returns the error of rustls within an I/O error.
fn rustls_error(error: &io::Error) -> Option<&Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref().or_else(|| inner.source()?.downcast_ref())
}

/// Whether a client sends this alert when it does not accept a certificate (RFC 8446 §6.2).
fn is_of_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            // The signature of the certificate is not by the authority of that name.
            | Alert::DecryptError
    )
}

// The certificate of a port, read again when its files change. The former one stays in force while
// the new files cannot be used.

/// Maximum number of times that the files are read until two readings agree: between the reading of
/// the certificate and the reading of its key, both may be replaced.
const READINGS_MAX: usize = 4;

/// The files of a port's certificate.
pub struct CertificateFiles {
    files: ServerFiles,
    /// The contents of the files when the certificate in force was loaded.
    in_force: ServerPems,
    /// The last fault that was logged, so that each is logged once.
    last_fault: String,
    acceptor: TlsAcceptor,
}

// === impl CertificateFiles ===

impl CertificateFiles {
    /// Loads the certificate. Blocks.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn load(files: ServerFiles, port: TlsPort) -> Result<Self, FileFaults> {
        let (in_force, loaded) = load(&files);
        let acceptor = TlsAcceptor::new(loaded?, port);
        Ok(Self { files, in_force, last_fault: String::new(), acceptor })
    }

    /// Returns the acceptor that secures connections with the certificate in force.
    pub fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    /// The paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.paths()
    }

    /// Whether the files hold something else than the certificate in force. Blocks.
    pub fn have_changed(&self) -> bool {
        self.files.read() != self.in_force
    }

    /// Replaces the certificate if the files are new and good. Files that cannot be used are tried
    /// again each time: a certificate may become valid. Blocks.
    pub fn renew(&mut self) {
        let name = self.acceptor.0.port.name;
        if !self.have_changed() {
            let has_expired = self.acceptor.not_after() < UnixTime::now().as_secs();
            if has_expired && self.is_new("expired") {
                error!("the certificate of {name} has expired; clients refuse it");
            }
            return;
        }
        let (pems, loaded) = load(&self.files);
        match loaded {
            Ok(loaded) => {
                let not_after = loaded.not_after.as_secs();
                self.acceptor.replace(loaded);
                self.in_force = pems;
                info!(not_after, "{name} has a new certificate");
                self.last_fault.clear();
            }
            Err(faults) => {
                let faults = faults.to_string();
                if self.is_new(&faults) {
                    error!("the former certificate of {name} stays in force: {faults}");
                    self.acceptor.0.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Renews it at this interval, and does not return.
    pub async fn renew_forever(mut self, interval: Duration) {
        loop {
            sleep(interval).await;
            let renewed = spawn_blocking(move || {
                self.renew();
                self
            });
            // An error means that the process ends.
            let Ok(renewed) = renewed.await else { return };
            self = renewed;
        }
    }

    /// Whether a fault is another one than the last; it is the last one from then on.
    fn is_new(&mut self, fault: &str) -> bool {
        let is_new = self.last_fault != fault;
        fault.clone_into(&mut self.last_fault);
        is_new
    }
}

/// Reads the files until two readings agree, and loads the contents.
fn load(files: &ServerFiles) -> (ServerPems, Result<LoadedServer, FileFaults>) {
    let mut pems = files.read();
    for _ in 1..READINGS_MAX {
        let again = files.read();
        if again == pems {
            break;
        }
        pems = again;
    }
    let loaded = files.load(&pems, UnixTime::now());
    (pems, loaded)
}
