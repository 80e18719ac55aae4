//! TLS to a collector: the roots to trust, and the client certificate.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Lookup, OtlpProtocol};
use crate::settings::fault::{Fault, Faults};

/// TLS for connections to a collector. Files are read once, at the start.
#[derive(Clone)]
pub struct OtlpTls(Arc<ClientConfig>);

/// The client certificate, followed by its intermediates, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Maximum bytes of a file of certificates or a key: a bundle of all roots has a few hundred
/// thousand.
const PEM_BYTES_MAX: u64 = 16 << 20;

/// Suffixes of variables, after `OTEL_EXPORTER_OTLP_`.
const ROOTS: &str = "CERTIFICATE";
const CERTIFICATE: &str = "CLIENT_CERTIFICATE";
const KEY: &str = "CLIENT_KEY";
pub(super) const ALL: [&str; 3] = [ROOTS, CERTIFICATE, KEY];

// === impl OtlpTls ===

impl OtlpTls {
    /// Resolves TLS from the environment, for a collector with this protocol.
    pub(super) fn resolve(
        lookup: &Lookup<'_>,
        protocol: OtlpProtocol,
        faults: &mut Faults,
    ) -> Option<Self> {
        let roots = roots(lookup, faults);
        let identity = identity(lookup, faults);
        let (roots, identity) = (roots?, identity?);
        let mut config = match config(roots, identity) {
            Ok(config) => config,
            Err(error) => {
                let unnamed = || (format!("OTEL_EXPORTER_OTLP_{KEY}"), String::new());
                let (name, found) = lookup.find(KEY).unwrap_or_else(unnamed);
                let problem = format!("TLS cannot be set up: {error}");
                let mend = "name the key of the certificate that is named beside it";
                faults.add(Fault::new(name, problem, mend).with_found(&found));
                return None;
            }
        };
        config.alpn_protocols = match protocol {
            OtlpProtocol::Grpc => vec![b"h2".to_vec()],
            OtlpProtocol::Http => vec![b"http/1.1".to_vec()],
        };
        Some(Self(Arc::new(config)))
    }

    /// Returns the configuration for rustls.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for OtlpTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtlpTls")
    }
}

/// Compares identity: settings are equal if they come from the same read of the files.
impl PartialEq for OtlpTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn config(
    roots: RootCertStore,
    identity: Option<Identity>,
) -> Result<ClientConfig, tokio_rustls::rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Returns the trusted root certificates: those of a file, or the system's.
fn roots(lookup: &Lookup<'_>, faults: &mut Faults) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some((name, path)) = lookup.find(ROOTS) else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let mend = "name a PEM file of those that the collector's certificate descends from";
            let name = format!("OTEL_EXPORTER_OTLP_{ROOTS}");
            faults.add(Fault::new(name, "the system has no certificates to trust", mend));
            return None;
        }
        return Some(roots);
    };
    let read = certificates(&path).and_then(|found| {
        let added = found.into_iter().try_for_each(|certificate| roots.add(certificate));
        added.map_err(|error| format!("holds a certificate that cannot be used: {error}"))
    });
    noted(read, &name, &path, faults).map(|()| roots)
}

/// Returns the client certificate; `Some(None)` for none.
fn identity(lookup: &Lookup<'_>, faults: &mut Faults) -> Option<Option<Identity>> {
    let (certificate, key) = match (lookup.find(CERTIFICATE), lookup.find(KEY)) {
        (None, None) => return Some(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (Some((name, found)), None) | (None, Some((name, found))) => {
            let problem = format!("{CERTIFICATE} and {KEY} go together, and one is missing");
            let mend = "set both, or neither";
            faults.add(Fault::new(name, problem, mend).with_found(&found));
            return None;
        }
    };
    let chain = noted(certificates(&certificate.1), &certificate.0, &certificate.1, faults);
    let read = pem(&key.1).and_then(|pem| {
        // The library's own message might quote the file.
        PrivateKeyDer::from_pem_slice(&pem).map_err(|_| "holds no private key in PEM".to_owned())
    });
    let key = noted(read, &key.0, &key.1, faults);
    Some(Some((chain?, key?)))
}

/// Returns all certificates of a file; at least one.
fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = pem(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| "holds no certificate in PEM, or a broken one".to_owned())
}

fn pem(path: &str) -> Result<Vec<u8>, String> {
    let read = || {
        let (mut file, mut pem) = (File::open(path)?, Vec::new());
        file.by_ref().take(PEM_BYTES_MAX).read_to_end(&mut pem)?;
        Ok(pem)
    };
    read().map_err(|error: std::io::Error| format!("cannot be read: {error}"))
}

/// Adds a fault under `name` if reading the file failed.
fn noted<T>(read: Result<T, String>, name: &str, path: &str, faults: &mut Faults) -> Option<T> {
    read.map_err(|problem| {
        let problem = format!("the file {problem}");
        faults.add(Fault::new(name, problem, "name a PEM file").with_found(path));
    })
    .ok()
}
