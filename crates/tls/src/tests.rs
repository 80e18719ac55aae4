//! Certificates made for a test.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// An authority that signs certificates.
pub(crate) struct Authority {
    root: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().to_vec();
        Self { root, issuer: Issuer::new(params, key) }
    }

    /// Writes the root certificate.
    pub(crate) fn write_root(&self, dir: &Path) -> PathBuf {
        write(dir, "ca.crt", "CERTIFICATE", &self.root)
    }

    /// Signs a certificate of this name, valid from 1975 to this year, and writes it with its key.
    pub(crate) fn write_paper(&self, dir: &Path, name: &str, until: i32) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(1975, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let certificate =
            write(dir, &format!("{name}-{until}.crt"), "CERTIFICATE", certificate.der());
        let file = format!("{name}-{until}.key");
        (certificate, write(dir, &file, "PRIVATE KEY", &key.serialize_der()))
    }
}

/// A CA certificate of this name, by an issuer of that name, who has not signed it.
pub(crate) fn unsigned_ca(name: &str, issuer: &str) -> CertificateDer<'static> {
    let named = |name: &str| {
        let mut named = DistinguishedName::new();
        named.push(DnType::CommonName, name);
        named
    };
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = named(issuer);
    let issuer = Issuer::new(params.clone(), KeyPair::generate().unwrap());
    params.distinguished_name = named(name);
    let key = KeyPair::generate().unwrap();
    params.signed_by(&key, &issuer).unwrap().der().clone()
}

/// Writes a PEM file.
pub(crate) fn write(dir: &Path, name: &str, label: &str, der: &[u8]) -> PathBuf {
    let path = dir.join(name);
    let body = STANDARD.encode(der);
    fs::write(&path, format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")).unwrap();
    path
}
