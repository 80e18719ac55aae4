//! The certificate of a port, read again when its files change. The former one stays in force while
//! the new files cannot be used.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ratelease_tls::{FileFaults, LoadedServer, ServerFiles, ServerPems};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_rustls::rustls::pki_types::UnixTime;
use tracing::{error, info};

use super::{TlsAcceptor, TlsPort};

/// Maximum number of times that the files are read until two readings agree: between the reading of
/// the certificate and that of its key, both may be replaced.
const READINGS_MAX: usize = 4;

/// The files of a port's certificate.
pub struct CertificateFiles {
    files: ServerFiles,
    /// What the files held when the certificate in force was loaded.
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

    /// What secures connections with the certificate in force.
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
