//! Certificates made for a test.

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};

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
}

// === impl Papers ===

impl Papers {
    /// Creates certificates with this name or address of the server.
    pub(crate) fn new(server: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let sign = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let cert = params.signed_by(&key, &issuer).unwrap();
            Paper { cert: pem_of(&cert), key: pem("PRIVATE KEY", &key.serialize_der()) }
        };
        Self { root: pem_of(&root), server: sign(server), client: sign("client.test") }
    }
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
