//! Keeps the certificate of the gRPC port up to date: reads its files again when they change, and
//! keeps the former one in force if the new ones cannot be used.
//!
//! Uses `file_watch`; `app` starts it. It has a thread of its own, which blocks; without TLS there
//! is none.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ratelease_listener::tls::{CertificateFiles, HandshakeFailure, TlsAcceptor, TlsPort};
use ratelease_server::metrics::counter::{Count, Counter};
use ratelease_tls::{ALPN_HTTP2, FileFaults, ServerFiles};
use tracing::dispatcher;

use crate::file_watch::WATCHED;
use crate::file_watch::{Cause, FsWatch, WatchSet, next_cause};

/// A running watch of the files; dropping it ends the watch.
#[derive(Debug)]
pub struct CertificateWatch {
    wake: SyncSender<()>,
    is_stopping: Arc<AtomicBool>,
    acceptor: TlsAcceptor,
}

/// The reason why there is no certificate to start with.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Files that cannot be used.
    #[error("the gRPC port has no certificate: {0}")]
    Files(FileFaults),
    /// The thread cannot be started.
    #[error("the certificate of the gRPC port cannot be watched: {0}")]
    Thread(#[from] io::Error),
}

struct Watch {
    files: CertificateFiles,
    /// Their absolute paths.
    paths: Vec<PathBuf>,
    fs_watch: FsWatch,
    wake: Receiver<()>,
    is_stopping: Arc<AtomicBool>,
}

const GRPC_PORT: TlsPort =
    TlsPort { name: "the gRPC port", protocols: &[ALPN_HTTP2], advice: advice_for };

/// What the operator has to change after a failed handshake.
const fn advice_for(failure: HandshakeFailure) -> Option<&'static str> {
    match failure {
        HandshakeFailure::NotTls => Some("give Envoy's cluster for it a transport_socket with TLS"),
        HandshakeFailure::NoCertificate => {
            Some("give Envoy's TLS context a client certificate, or unset GRPC_CLIENT_TLS_CACERT")
        }
        HandshakeFailure::BadCertificate => {
            Some("check the client's certificate, GRPC_CLIENT_TLS_CACERT, GRPC_CLIENT_TLS_SAN")
        }
        HandshakeFailure::NotTrusted => {
            Some("check that the client trusts the CA of GRPC_SERVER_TLS_CERT, and calls its name")
        }
        HandshakeFailure::Incompatible => {
            Some("the client needs TLS 1.2 or 1.3, and h2 if it uses ALPN")
        }
        HandshakeFailure::Abandoned => None,
        HandshakeFailure::Other => Some("nothing is known about it"),
    }
}

// === impl CertificateWatch ===

impl CertificateWatch {
    /// Loads the certificate of `files` and watches them. Blocks while the files are read.
    ///
    /// # Errors
    /// Fails if the files cannot be used, or if the thread cannot be started.
    pub fn start(files: ServerFiles) -> Result<Self, CertificateError> {
        let files = CertificateFiles::load(files, GRPC_PORT);
        let files = files.map_err(CertificateError::Files)?;
        let acceptor = files.acceptor().clone();
        let (waker, wake) = sync_channel(1);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let paths: io::Result<_> = files.paths().map(std::path::absolute).collect();
        let watch = Watch {
            paths: paths?,
            files,
            fs_watch: FsWatch::new(waker.clone()),
            wake,
            is_stopping: Arc::clone(&is_stopping),
        };
        // The thread logs to the same subscriber as its starter.
        let log = dispatcher::get_default(Clone::clone);
        let run = move || dispatcher::with_default(&log, || watch.run());
        thread::Builder::new().name("ratelease-certs".to_owned()).spawn(run)?;
        Ok(Self { wake: waker, is_stopping, acceptor })
    }

    /// What secures connections with the certificate in force.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }
}

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // If a wake-up is pending already, it serves for this one too.
        let _ = self.wake.try_send(());
    }
}

// === impl Watch ===

impl Watch {
    fn run(mut self) {
        let mut cause = Cause::Event;
        loop {
            // After a panic, which the log shows, the files must still be read again.
            let _ = catch_unwind(AssertUnwindSafe(|| self.renew(cause)));
            let waited = self.wake.recv_timeout(WATCHED.poll);
            match next_cause(waited, &self.wake, WATCHED, &self.is_stopping) {
                Some(next) => cause = next,
                None => return,
            }
        }
    }

    fn renew(&mut self, cause: Cause) {
        self.arm(cause);
        if cause == Cause::Poll && self.files.have_changed() {
            // No event reported this change, so a watch may have ended.
            self.arm(Cause::Event);
        }
        self.files.renew();
    }

    fn arm(&mut self, cause: Cause) {
        self.fs_watch.arm(cause, || WatchSet::files(self.paths.iter().map(|path| &**path)));
    }
}

/// The counts of handshakes and of certificates since the process began, and the end of the
/// certificate in force.
pub(crate) fn counts(acceptor: &TlsAcceptor) -> Vec<Count> {
    let failed = HandshakeFailure::ALL
        .into_iter()
        .map(|reason| (Counter::failed(reason), acceptor.failed(reason)));
    let mut counts = vec![
        (Counter::Handshakes, acceptor.completed()),
        (Counter::CertificatesReplaced, acceptor.replaced()),
        (Counter::CertificatesRefused, acceptor.refused()),
        (Counter::CertificateNotAfter, acceptor.not_after()),
    ];
    counts.extend(failed);
    counts
}
