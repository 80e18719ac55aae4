//! Reads PEM files (RFC 7468), takes certificates and keys from them, and reports the faults of a
//! file. Errors are phrased to follow the words "the file", and quote nothing of it.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, InconsistentKeys, RootCertStore};

use crate::certificate;

/// Maximum bytes of a file: a bundle of all public roots has a few hundred thousand.
const BYTES_MAX: u64 = 16 << 20;

/// The bytes of a file, or why it cannot be read.
pub(crate) type Content = Result<Vec<u8>, String>;

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// Our own certificate, followed by its intermediates.
    Certificate,
    /// The private key of that certificate.
    Key,
    /// The certificates from which the other side's must descend.
    Roots,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// The purpose of the file.
    pub role: FileRole,
    /// The path, as given; `None` for the roots of the system.
    pub path: Option<PathBuf>,
    /// The fault, phrased to follow the words "the file". The text quotes nothing of the file.
    pub problem: String,
}

/// The files that cannot be used, of all that one configuration needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileFaults(Vec<FileFault>);

// === impl FileFaults ===

impl FileFaults {
    /// Adds a fault of a file if reading it failed.
    pub(crate) fn note<T>(
        &mut self,
        read: Result<T, String>,
        role: FileRole,
        path: Option<&Path>,
    ) -> Option<T> {
        let add =
            |problem| self.0.push(FileFault { role, path: path.map(Path::to_owned), problem });
        read.map_err(add).ok()
    }
}

/// One line.
impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, fault) in self.0.iter().enumerate() {
            let separator = if nth == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileFaults {}

impl IntoIterator for FileFaults {
    type Item = FileFault;
    type IntoIter = std::vec::IntoIter<FileFault>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

// === impl FileFault ===

/// A line that names the file.
impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "the file {} {}", path.display(), self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Content {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    // A pipe would be waited for.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
    let file = file.map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err("has more than 16 MiB".to_owned());
    }
    Ok(bytes)
}

/// The certificates of a file; at least one.
pub(crate) fn certificates(content: &Content) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes(content)?).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| "holds no certificate in PEM, or a broken one".to_owned())
}

/// The private key of a file, in PKCS#8, PKCS#1 or SEC1.
pub(crate) fn key(content: &Content) -> Result<PrivateKeyDer<'static>, String> {
    // The library's own message might quote the file.
    let none = |_| "holds no private key in PEM".to_owned();
    PrivateKeyDer::from_pem_slice(bytes(content)?).map_err(none)
}

/// The certificates of a file as those to trust.
pub(crate) fn roots(content: &Content) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(content)? {
        let unusable = |error| format!("holds a certificate that cannot be used: {error}");
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

/// A certificate with its intermediates and its key, to be shown to the other side. rustls does the
/// same for certificates that it can read.
///
/// # Errors
/// The key cannot be used, or is the key of another certificate.
pub(crate) fn identity(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<SingleCertAndKey>, Error> {
    let key = ring::default_provider().key_provider.load_private_key(key)?;
    if let (Some(of_key), Some(first)) = (key.public_key(), chain.first()) {
        let readable = certificate::readable(first);
        let of_certificate = ParsedCertificate::try_from(&*readable)?;
        if of_key != of_certificate.subject_public_key_info() {
            return Err(InconsistentKeys::KeyMismatch.into());
        }
    }
    Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))))
}

fn bytes(content: &Content) -> Result<&[u8], String> {
    content.as_deref().map_err(Clone::clone)
}
