//! Keeps the certificate of the gRPC port up to date: reads its files again when they change, and
//! keeps the former one in force if the new ones cannot be used.
//!
//! Uses `file_watch`; `app` starts it. It has a thread of its own, which blocks; without TLS there
//! is none.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ratelease_engine::time::Clock;
use ratelease_listener::tls::{HandshakeFailure, TlsAcceptor};
use ratelease_server::metrics::counter::{Count, Counter};
use ratelease_tls::{FileFaults, LoadedServer, ServerFiles, ServerPems};
use tokio_rustls::rustls::pki_types::UnixTime;
use tracing::{dispatcher, error, info};

use crate::file_watch::WATCHED;
use crate::file_watch::{Cause, FsWatch, WatchSet, next_cause};

/// Maximum number of times that the files are read until two readings agree: between the reading of
/// the certificate and that of its key, both may be replaced.
const READINGS_MAX: usize = 4;

/// A running watch of the files; dropping it ends the watch.
#[derive(Debug)]
pub struct CertificateWatch {
    wake: SyncSender<()>,
    is_stopping: Arc<AtomicBool>,
    counts: CertificateCounts,
}

/// Counts of handshakes and of certificates, by their outcome. A cheap handle: clones share the
/// counts.
#[derive(Debug, Clone)]
pub struct CertificateCounts {
    acceptor: TlsAcceptor,
    replaced: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
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
    files: ServerFiles,
    /// Their absolute paths.
    paths: Vec<PathBuf>,
    fs_watch: FsWatch,
    wake: Receiver<()>,
    is_stopping: Arc<AtomicBool>,
    /// What the files held when the certificate in force was loaded.
    in_force: ServerPems,
    /// The last fault that was logged, so that each is logged once.
    last_fault: String,
    counts: CertificateCounts,
}

// === impl CertificateWatch ===

impl CertificateWatch {
    /// Loads the certificate of `files` and watches them. Blocks while the files are read.
    ///
    /// # Errors
    /// Fails if the files cannot be used, or if the thread cannot be started.
    pub fn start(files: ServerFiles, clock: Clock) -> Result<Self, CertificateError> {
        let (pems, loaded) = load(&files);
        let counts = CertificateCounts {
            acceptor: TlsAcceptor::new(loaded.map_err(CertificateError::Files)?, clock),
            replaced: Arc::default(),
            refused: Arc::default(),
        };
        let (waker, wake) = sync_channel(1);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let paths: io::Result<_> = files.paths().map(std::path::absolute).collect();
        let watch = Watch {
            files,
            paths: paths?,
            fs_watch: FsWatch::new(waker.clone()),
            wake,
            is_stopping: Arc::clone(&is_stopping),
            in_force: pems,
            last_fault: String::new(),
            counts: counts.clone(),
        };
        // The thread logs to the same subscriber as its starter.
        let log = dispatcher::get_default(Clone::clone);
        let run = move || dispatcher::with_default(&log, || watch.run());
        thread::Builder::new().name("ratelease-certs".to_owned()).spawn(run)?;
        Ok(Self { wake: waker, is_stopping, counts })
    }

    /// What secures connections with the certificate in force.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.counts.acceptor.clone()
    }

    /// The counts of handshakes and of certificates.
    pub fn counts(&self) -> CertificateCounts {
        self.counts.clone()
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
            let _ = catch_unwind(AssertUnwindSafe(|| self.reload(cause)));
            let waited = self.wake.recv_timeout(WATCHED.poll);
            match next_cause(waited, &self.wake, WATCHED, &self.is_stopping) {
                Some(next) => cause = next,
                None => return,
            }
        }
    }

    /// Replaces the certificate if the files are new and good. Files that cannot be used are tried
    /// again at each reading: a certificate may become valid.
    fn reload(&mut self, cause: Cause) {
        self.arm(cause);
        if self.files.read() == self.in_force {
            return self.note_expiry();
        }
        if cause == Cause::Poll {
            // No event reported this change, so a watch may have ended.
            self.arm(Cause::Event);
        }
        let (pems, loaded) = load(&self.files);
        match loaded {
            Ok(loaded) => {
                let not_after = loaded.not_after.as_secs();
                info!(not_after, "the gRPC port has a new certificate");
                self.counts.acceptor.replace(loaded);
                self.counts.replaced.fetch_add(1, Ordering::Relaxed);
                self.in_force = pems;
                self.last_fault.clear();
            }
            Err(faults) => {
                let faults = faults.to_string();
                if self.is_new(&faults) {
                    error!("the former certificate of the gRPC port stays in force: {faults}");
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn arm(&mut self, cause: Cause) {
        self.fs_watch.arm(cause, || WatchSet::files(self.paths.iter().map(|path| &**path)));
    }

    fn note_expiry(&mut self) {
        let has_expired = self.counts.acceptor.not_after() < UnixTime::now().as_secs();
        if has_expired && self.is_new("expired") {
            error!("the certificate of the gRPC port has expired; clients refuse it");
        }
    }

    /// Whether a fault is another one than the last; it is the last one from then on.
    fn is_new(&mut self, fault: &str) -> bool {
        let is_new = self.last_fault != fault;
        fault.clone_into(&mut self.last_fault);
        is_new
    }
}

/// Reads the files until two readings agree, and loads what they hold.
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

// === impl CertificateCounts ===

impl CertificateCounts {
    /// The counts since the process began, and the end of the certificate in force.
    pub fn counts(&self) -> Vec<Count> {
        let Self { acceptor, replaced, refused } = self;
        let failed = HandshakeFailure::ALL
            .into_iter()
            .map(|reason| (Counter::HandshakesFailed(reason), acceptor.failed(reason)));
        let mut counts = vec![
            (Counter::Handshakes, acceptor.completed()),
            (Counter::CertificatesReplaced, replaced.load(Ordering::Relaxed)),
            (Counter::CertificatesRefused, refused.load(Ordering::Relaxed)),
            (Counter::CertificateNotAfter, acceptor.not_after()),
        ];
        counts.extend(failed);
        counts
    }
}
