//! TLS on accepted connections: the handshake, within bounds, by a configuration that can be
//! replaced while connections are open.
//!
//! Of this crate it uses only `pool`, which names clients, and `io`. `renewal` replaces the
//! configuration when the files of certificates change.

mod failure;
mod handshakes;
mod renewal;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::excerpt;
use ratelease_tls::LoadedServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::{ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use crate::io::Connection;
use crate::pool::Peer;
use crate::wire_meter::Metered;
pub use failure::HandshakeFailure;
use handshakes::Handshakes;
pub use renewal::CertificateFiles;

/// Maximum number of answer bytes of a connection that TLS holds until the client reads. rustls
/// would hold 64 KiB.
const UNSENT_BYTES_MAX: usize = 16 * 1024;

/// Interval at which failures of one kind are logged.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// The name, the protocols and the advice with which a port uses TLS.
#[derive(Debug, Clone, Copy)]
pub struct TlsPort {
    /// What it is called in the log, as in `the gRPC port`.
    pub name: &'static str,
    /// The application protocols (RFC 7301), the preferred one first.
    pub protocols: &'static [&'static [u8]],
    /// What the operator has to change after a failure of a handshake; `None` for those that are
    /// not logged as warnings, since only the client can prevent them.
    pub advice: fn(HandshakeFailure) -> Option<&'static str>,
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
        // It may quote the certificate of a client.
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
