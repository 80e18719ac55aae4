//! Certificates made for a test.

use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, date_time_ymd,
};

/// A certificate and its key, in PEM.
pub(crate) struct Paper {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// A root certificate, and the certificates that it has signed for a server and a client.
pub(crate) struct Papers {
    pub(crate) root: String,
    pub(crate) server: Paper,
    pub(crate) client: Paper,
    issuer: Issuer<'static, KeyPair>,
}

/// The name in the certificates of clients.
pub(crate) const CLIENT: &str = "client.test";

// === impl Papers ===

impl Papers {
    /// Creates certificates with this name or address of the server.
    pub(crate) fn new(server: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Each authority has a name of its own, which is not that of what it signs.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name = named(&format!("authority {number}"));
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let (server, client) =
            (sign(&issuer, server, [1975, 4096]), sign(&issuer, CLIENT, [1975, 4096]));
        Self { root: pem_of(&root), server, client, issuer }
    }

    /// Signs another certificate of this name.
    pub(crate) fn another(&self, name: &str) -> Paper {
        sign(&self.issuer, name, [1975, 4096])
    }

    /// Signs a certificate that has expired.
    pub(crate) fn expired(&self, name: &str) -> Paper {
        sign(&self.issuer, name, [1975, 2020])
    }
}

/// Signs a certificate that is valid from the beginning of one year to that of another.
fn sign(issuer: &Issuer<'_, KeyPair>, name: &str, [from, to]: [i32; 2]) -> Paper {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name = named(name);
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    let cert = params.signed_by(&key, issuer).unwrap();
    Paper { cert: pem_of(&cert), key: pem("PRIVATE KEY", &key.serialize_der()) }
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn pem_of(cert: &Certificate) -> String {
    pem("CERTIFICATE", cert.der())
}

/// Encodes as RFC 7468 by hand: rcgen's own encoder would add a second base64 crate.
fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |bytes: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(*bytes.get(at).unwrap_or(&0)));
        let sign = |at: usize| char::from(ALPHABET[bits >> (18 - 6 * at) & 63]);
        (0..4).map(move |at| if at > bytes.len() { '=' } else { sign(at) }).collect::<String>()
    };
    // 48 bytes make a line of 64 characters.
    let lines = der.chunks(48).map(|line| line.chunks(3).map(four).collect::<String>());
    let body = lines.collect::<Vec<_>>().join("\n");
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}
