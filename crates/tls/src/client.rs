//! The configuration of a client.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{
    Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::certificate::{self, Parts};
use crate::pem::{self, Content, FileFaults, FileRole};
use crate::server::ALPN_HTTP2;
use crate::server::unusable_key;

/// The files that a client of a server with TLS is configured by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificates from which the server's must descend; `None` for the roots of the system.
    pub roots: Option<PathBuf>,
    /// The client's certificate, followed by its intermediates, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have.
    pub server: ServerCheck,
}

/// The name that a server's certificate must have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServerCheck {
    /// The host that is connected to.
    #[default]
    Host,
    /// This one, whatever the host is.
    Name(ServerName<'static>),
    /// Any. The certificate must still descend from the roots.
    AnyName,
}

/// The contents of these files at one time, or why they could not be read.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientPems {
    roots: Option<Content>,
    identity: Option<(Content, Content)>,
}

/// A client certificate with its intermediates, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

// === impl ClientFiles ===

impl ClientFiles {
    /// Reads the files. Blocks.
    pub fn read(&self) -> ClientPems {
        let identity = self.identity.as_ref();
        ClientPems {
            roots: self.roots.as_deref().map(pem::read),
            identity: identity.map(|(certificate, key)| (pem::read(certificate), pem::read(key))),
        }
    }

    /// Makes a configuration from the contents of the files. Without a file of roots, it reads the
    /// roots of the system. If `now` is given, the client's certificate has to be valid then.
    ///
    /// # Errors
    /// Each file that cannot be used.
    pub fn load(
        &self,
        pems: &ClientPems,
        now: Option<UnixTime>,
    ) -> Result<ClientConfig, FileFaults> {
        let mut faults = FileFaults::default();
        let roots = match &pems.roots {
            Some(content) => pem::roots(content).and_then(|roots| {
                let named = pem::certificates(content)?;
                Ok((roots, named))
            }),
            None => system_roots().map(|roots| (roots, Vec::new())),
        };
        let roots = faults.note(roots, FileRole::Roots, self.roots.as_deref());
        let (certificate, key) = self.identity.as_ref().map(|(of, key)| (of, key)).unzip();
        let identity = match &pems.identity {
            Some((chain, content)) => {
                let chain = chain_of(chain, now);
                let chain = faults.note(chain, FileRole::Certificate, certificate.map(|it| &**it));
                let of = faults.note(pem::key(content), FileRole::Key, key.map(|it| &**it));
                chain.zip(of).map(Some)
            }
            None => Some(None),
        };
        let (Some(roots), Some(identity)) = (roots, identity) else { return Err(faults) };
        let config = self.config(roots, identity).map_err(|error| unusable_key(&error));
        faults.note(config, FileRole::Key, key.map(|it| &**it)).ok_or(faults)
    }

    /// Reads the files and makes a configuration for HTTP/2 of them, as [`ClientFiles::load`] does.
    /// An expired client certificate is no fault: that is for the server to say, by its own clock.
    /// Blocks.
    ///
    /// # Errors
    /// Each file that cannot be used.
    pub fn load_http2(&self) -> Result<Arc<ClientConfig>, FileFaults> {
        let mut config = self.load(&self.read(), None)?;
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        Ok(Arc::new(config))
    }

    fn config(
        &self,
        (roots, named): (RootCertStore, Vec<CertificateDer<'static>>),
        identity: Option<Identity>,
    ) -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?;
        let check = Arc::new(ServerChain::new(roots, named, self.server.clone()));
        let builder = builder.dangerous().with_custom_certificate_verifier(check);
        let mut config = match identity {
            Some((chain, key)) => builder.with_client_cert_resolver(pem::identity(chain, key)?),
            None => builder.with_no_client_auth(),
        };
        // A server could fill the memory with tickets; connections are few, and last.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// A chain whose first certificate is valid at `now`, if that is given.
fn chain_of(
    content: &Content,
    now: Option<UnixTime>,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = pem::certificates(content)?;
    if let (Some(first), Some(now)) = (chain.first(), now) {
        certificate::not_after(first, now)?;
    }
    Ok(chain)
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("the system has no certificates to trust".to_owned());
    }
    Ok(roots)
}

/// The check of a server's certificate: of the chain's size, the chain, and a name.
///
/// A chain that rustls accepts is accepted. Where a file holds the certificates to trust, two more
/// server's certificates are accepted, as Go and OpenSSL do: a certificate of the file, and one
/// that a certificate of the file has signed without an intermediate. The version of the server's
/// certificate does not matter, nor whether it may sign others.
#[derive(Debug)]
struct ServerChain {
    roots: RootCertStore,
    /// The certificates of the file of roots; empty for the roots of the system.
    named: Vec<CertificateDer<'static>>,
    check: ServerCheck,
    algorithms: WebPkiSupportedAlgorithms,
}

// === impl ServerChain ===

impl ServerChain {
    fn new(roots: RootCertStore, named: Vec<CertificateDer<'static>>, check: ServerCheck) -> Self {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Self { roots, named, check, algorithms }
    }

    /// Accepts a certificate that is named, or that a named one has signed.
    fn check_named(&self, end_entity: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        let unknown = Error::from(CertificateError::UnknownIssuer);
        if self.named.is_empty() {
            return Err(unknown);
        }
        let parts = Parts::parse(end_entity).ok_or_else(|| unknown.clone())?;
        let leaf = parts.as_leaf();
        match certificate::error_at(&ParsedCertificate::try_from(&leaf)?, now) {
            Some(CertificateError::UnknownIssuer) => {}
            Some(other) => return Err(other.into()),
            None => return Err(unknown),
        }
        let is_named = self.named.iter().any(|named| named == end_entity);
        let mut anchors = self.roots.roots.iter();
        let is_trusted =
            is_named || anchors.any(|anchor| parts.is_signed_by(anchor, &self.algorithms));
        if is_trusted { Ok(()) } else { Err(unknown) }
    }
}

impl ServerCertVerifier for ServerChain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        certificate::check_chain(intermediates)?;
        let leaf = certificate::readable(end_entity);
        let certificate = ParsedCertificate::try_from(&*leaf)?;
        let descends = match leaf {
            Cow::Borrowed(_) => verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &self.roots,
                intermediates,
                now,
                self.algorithms.all,
            ),
            // The bytes that the issuer signed are not the bytes that rustls reads.
            Cow::Owned(_) => Err(CertificateError::UnknownIssuer.into()),
        };
        if let Err(why) = descends {
            let named = self.check_named(end_entity, now);
            named.map_err(|of_named| match why {
                // That it may sign others is no longer the reason.
                Error::InvalidCertificate(CertificateError::Other(_)) => of_named,
                Error::InvalidCertificate(CertificateError::UnknownIssuer) => of_named,
                why => why,
            })?;
        }
        match &self.check {
            ServerCheck::Host => verify_server_name(&certificate, host)?,
            ServerCheck::Name(name) => verify_server_name(&certificate, name)?,
            ServerCheck::AnyName => {}
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            &certificate::readable(certificate),
            signature,
            &self.algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            &certificate::readable(certificate),
            signature,
            &self.algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
