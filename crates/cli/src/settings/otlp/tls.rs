//! TLS to a collector: the roots to trust, and the client certificate.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ratelease_tls::{ALPN_HTTP2, ClientFiles, FileRole, ServerCheck};
use tokio_rustls::rustls::ClientConfig;

use super::{Lookup, OtlpProtocol};
use crate::settings::fault::{Fault, Faults};
use crate::settings::tls::add_faults;

/// TLS for connections to a collector. Files are read once, at the start.
#[derive(Clone)]
pub struct OtlpTls(Arc<ClientConfig>);

/// Suffixes of variables, after `OTEL_EXPORTER_OTLP_`.
const ROOTS: &str = "CERTIFICATE";
const CERTIFICATE: &str = "CLIENT_CERTIFICATE";
const KEY: &str = "CLIENT_KEY";
pub(super) const ALL: [&str; 3] = [ROOTS, CERTIFICATE, KEY];

// === impl OtlpTls ===

impl OtlpTls {
    /// Resolves TLS from the environment, for a collector with this protocol. A client certificate
    /// that has expired is left to the collector: it must not keep the process from its requests.
    pub(super) fn resolve(
        lookup: &Lookup<'_>,
        protocol: OtlpProtocol,
        faults: &mut Faults,
    ) -> Option<Self> {
        let roots = lookup.find(ROOTS).map(|(_, path)| path.into());
        let identity = identity(lookup, faults);
        let is_complete = identity.is_some();
        let identity = identity.flatten();
        let files = ClientFiles { roots, identity, server: ServerCheck::Host };
        let loaded = files.load(&files.read(), None);
        let named_by = |role| {
            let suffix = match role {
                FileRole::Roots => ROOTS,
                FileRole::Certificate => CERTIFICATE,
                FileRole::Key => KEY,
            };
            let unset = || format!("OTEL_EXPORTER_OTLP_{suffix}");
            lookup.find(suffix).map_or_else(unset, |(name, _)| name)
        };
        let loaded = loaded.map_err(|found| add_faults(found, named_by, faults));
        let mut config = loaded.ok().filter(|_| is_complete)?;
        config.alpn_protocols = match protocol {
            OtlpProtocol::Grpc => vec![ALPN_HTTP2.to_vec()],
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

/// Returns the files of the client certificate and its key; `Some(None)` for none.
fn identity(lookup: &Lookup<'_>, faults: &mut Faults) -> Option<Option<(PathBuf, PathBuf)>> {
    match (lookup.find(CERTIFICATE), lookup.find(KEY)) {
        (None, None) => Some(None),
        (Some((_, certificate)), Some((_, key))) => Some(Some((certificate.into(), key.into()))),
        (Some((name, found)), None) | (None, Some((name, found))) => {
            let problem = format!("{CERTIFICATE} and {KEY} go together, and one is missing");
            let mend = "set both, or neither";
            faults.add(Fault::new(name, problem, mend).with_found(&found));
            None
        }
    }
}
