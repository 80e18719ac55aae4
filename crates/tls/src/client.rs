//! The configuration of a client.

mod check;
mod server_check;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::alpn::ALPN_HTTP2;
use crate::fault::{FileFaults, FileRole};
use crate::pem::{self, Content};
use crate::server::unusable_key;
use crate::validity;
pub use check::ServerCheck;
use server_check::ServerChain;

/// The files that a client of a server with TLS is configured by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificates that the server's must descend from; `None` for those of the system.
    pub roots: Option<PathBuf>,
    /// The client's certificate, followed by its intermediates, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Which name the server's certificate must have.
    pub server: ServerCheck,
}

/// What these files held at one time, or why they could not be read.
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

    /// Makes a configuration of what the files held. Without a file of roots, it reads those of the
    /// system. If `now` is given, the client's certificate has to be valid then.
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
        validity::not_after(first, now)?;
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
