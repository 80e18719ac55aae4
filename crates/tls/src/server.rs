//! The configuration of a listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::{self, kx_group};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{
    NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::certificate;
use crate::pem::{self, Content, FileFaults, FileRole};

/// The name of HTTP/2 as an application protocol (RFC 7301), which gRPC needs (RFC 9113 §3.2).
pub const ALPN_HTTP2: &[u8] = b"h2";

/// The files that a gRPC listener with TLS is configured by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates from which a client's must descend; `None` if clients need none.
    pub client_roots: Option<PathBuf>,
    /// A DNS name or an IP address that the certificates of clients must have, if they need one.
    pub client_name: Option<ServerName<'static>>,
}

/// The contents of these files at one time, or why they could not be read.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerPems {
    certificate: Content,
    key: Content,
    client_roots: Option<Content>,
}

/// A configuration that connections can be accepted with.
#[derive(Debug, Clone)]
pub struct LoadedServer {
    /// The configuration, with HTTP/2 as the only protocol.
    pub config: Arc<ServerConfig>,
    /// Until when the certificate is valid.
    pub not_after: UnixTime,
}

// === impl ServerPems ===

impl ServerPems {
    /// A certificate with its intermediates, and its key, that are kept elsewhere than in files.
    pub fn new(certificate: Vec<u8>, key: Vec<u8>) -> Self {
        Self { certificate: Ok(certificate), key: Ok(key), client_roots: None }
    }
}

// === impl ServerFiles ===

impl ServerFiles {
    /// The paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let Self { certificate, key, client_roots, client_name: _ } = self;
        [Some(certificate), Some(key), client_roots.as_ref()].into_iter().flatten().map(|it| &**it)
    }

    /// Reads the files. Blocks.
    pub fn read(&self) -> ServerPems {
        ServerPems {
            certificate: pem::read(&self.certificate),
            key: pem::read(&self.key),
            client_roots: self.client_roots.as_deref().map(pem::read),
        }
    }

    /// Makes a configuration from the contents of the files, at the time `now`.
    ///
    /// # Errors
    /// Each file that cannot be used: one that cannot be read, no PEM, another kind of content, a
    /// certificate that is not valid at `now`, a key of another certificate.
    pub fn load(&self, pems: &ServerPems, now: UnixTime) -> Result<LoadedServer, FileFaults> {
        let mut faults = FileFaults::default();
        let chain = pem::certificates(&pems.certificate)
            .and_then(|chain| Ok((valid_until(&chain, now)?, chain)));
        let chain = faults.note(chain, FileRole::Certificate, Some(&self.certificate));
        let key = faults.note(pem::key(&pems.key), FileRole::Key, Some(&self.key));
        let clients = match &pems.client_roots {
            Some(content) => pem::roots(content).and_then(|it| self.client_check(it)).map(Some),
            None => Ok(None),
        };
        let clients = faults.note(clients, FileRole::Roots, self.client_roots.as_deref());
        let (Some((not_after, chain)), Some(key), Some(clients)) = (chain, key, clients) else {
            return Err(faults);
        };
        let config = config(clients, chain, key).map_err(|error| unusable_key(&error));
        let config = faults.note(config, FileRole::Key, Some(&self.key)).ok_or(faults)?;
        Ok(LoadedServer { config: Arc::new(config), not_after })
    }

    fn client_check(&self, roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, String> {
        // Clients are not told the names of the roots: the list of a large file does not fit into a
        // handshake, and Envoys have one certificate to show anyway.
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .clear_root_hint_subjects()
            .build();
        let chain = chain.map_err(|error| format!("cannot be used: {error}"))?;
        Ok(Arc::new(ClientCheck { chain, name: self.client_name.clone() }))
    }
}

/// The end of the validity of the first certificate, which is the listener's own.
fn valid_until(chain: &[CertificateDer<'_>], now: UnixTime) -> Result<UnixTime, String> {
    chain.first().ok_or_else(String::new).and_then(|first| certificate::not_after(first, now))
}

/// Why a key that was read cannot be used.
pub(crate) fn unusable_key(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => "holds the key of another certificate".to_owned(),
        error => format!("holds a key that cannot be used: {error}"),
    }
}

/// The algorithms of a listener. Of the key exchanges only the fast ones: a client chooses which
/// one it makes a listener do.
fn provider() -> Arc<CryptoProvider> {
    let kx_groups = vec![kx_group::X25519, kx_group::SECP256R1];
    Arc::new(CryptoProvider { kx_groups, ..ring::default_provider() })
}

fn config(
    clients: Option<Arc<dyn ClientCertVerifier>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, Error> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(pem::identity(chain, key)?);
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    // A session that is resumed would not be asked for a certificate, which may have expired since.
    // Connections last for hours, so a handshake saved is worth little.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The check of a client's certificate: of the chain's size, the chain, and a name.
///
/// Requires a certificate that descends from the roots and has the name, if one is given.
#[derive(Debug)]
struct ClientCheck {
    chain: Arc<dyn ClientCertVerifier>,
    name: Option<ServerName<'static>>,
}

impl ClientCertVerifier for ClientCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        certificate::check_chain(intermediates)?;
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        if let Some(name) = &self.name {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
