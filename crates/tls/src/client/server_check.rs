//! The check of a server's certificate: of the chain's size, the chain, and a name.
//!
//! A chain is accepted that rustls accepts. Besides, where a file holds the certificates to trust,
//! a server's certificate is accepted that is one of them, or that one of them has signed without
//! an intermediate, of whatever version and whether or not it may sign others: Go and OpenSSL
//! accept these too.

use std::borrow::Cow;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::check::ServerCheck;
use crate::chain;
use crate::leaf::{self, Parts};
use crate::validity;

/// Requires a certificate that descends from the roots and has a name.
#[derive(Debug)]
pub(super) struct ServerChain {
    roots: RootCertStore,
    /// The certificates of the file of roots; empty for those of the system.
    named: Vec<CertificateDer<'static>>,
    check: ServerCheck,
    algorithms: WebPkiSupportedAlgorithms,
}

// === impl ServerChain ===

impl ServerChain {
    pub(super) fn new(
        roots: RootCertStore,
        named: Vec<CertificateDer<'static>>,
        check: ServerCheck,
    ) -> Self {
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
        match validity::error_at(&ParsedCertificate::try_from(&leaf)?, now) {
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
        chain::check(intermediates)?;
        let leaf = leaf::readable(end_entity);
        let certificate = ParsedCertificate::try_from(&*leaf)?;
        let descends = match leaf {
            Cow::Borrowed(_) => verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &self.roots,
                intermediates,
                now,
                self.algorithms.all,
            ),
            // What its issuer signed is not what rustls reads.
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
        verify_tls12_signature(message, &leaf::readable(certificate), signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, &leaf::readable(certificate), signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
