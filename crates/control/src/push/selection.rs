//! Which domains a pod may have: by the names of its certificate, and by the id that it gives.

use std::collections::{BTreeMap, BTreeSet};

use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ParsedCertificate;

/// Which domains a node gets, by its name; one that is not named gets all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection(pub BTreeMap<String, Vec<String>>);

/// The nodes of a [`Selection`] that a certificate is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CertifiedNodes(Vec<String>);

// === impl Selection ===

impl Selection {
    /// The nodes that this certificate is for: those whose names its subject alternative names
    /// cover, as DNS names or IP addresses. The handshake has verified the certificate.
    pub(super) fn certified_by(&self, certificate: &CertificateDer<'_>) -> CertifiedNodes {
        let Ok(certificate) = ParsedCertificate::try_from(certificate) else {
            return CertifiedNodes::default();
        };
        let is_for = |name: &&String| {
            ServerName::try_from(name.as_str())
                .is_ok_and(|name| verify_server_name(&certificate, &name).is_ok())
        };
        CertifiedNodes(self.0.keys().filter(is_for).cloned().collect())
    }

    /// Whether there are domains that a pod may not have.
    pub(super) fn is_limited(&self, nodes: &CertifiedNodes, id: &str) -> bool {
        self.0.contains_key(id) || !nodes.0.is_empty()
    }

    /// The domains that a pod may have; `None` for all. The id is what the pod says, so that it
    /// only ever takes domains away from those that the certificate allows.
    pub(super) fn allowed(&self, nodes: &CertifiedNodes, id: &str) -> Option<BTreeSet<&str>> {
        let of = |name: &str| self.0.get(name).into_iter().flatten().map(String::as_str);
        let named = self.0.contains_key(id).then(|| of(id).collect::<BTreeSet<_>>());
        if nodes.0.is_empty() {
            return named;
        }
        let certified: BTreeSet<_> = nodes.0.iter().flat_map(|name| of(name)).collect();
        Some(match named {
            Some(named) => certified.intersection(&named).copied().collect(),
            None => certified,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        made.cert.der().clone()
    }

    #[test]
    fn a_pod_cannot_say_another_id_than_its_certificate_has() {
        let named = |name: &str, domain: &str| (name.to_owned(), vec![domain.to_owned()]);
        let selection = Selection(BTreeMap::from([
            named("edge.shop", "shop"),
            named("edge.bank", "bank"),
            named("no name of DNS", "bank"),
        ]));
        let shop = selection.certified_by(&certificate(&["edge.shop"]));
        assert_eq!(shop, CertifiedNodes(vec!["edge.shop".into()]));
        let allows = |nodes: &CertifiedNodes, id: &str, domain: &str| {
            selection.allowed(nodes, id).is_none_or(|it| it.contains(domain))
        };
        for id in ["edge.shop", "another", ""] {
            assert!(allows(&shop, id, "shop") && !allows(&shop, id, "bank"), "{id}");
        }
        // Another id gives nothing, and takes away.
        assert!(!allows(&shop, "edge.bank", "bank") && !allows(&shop, "edge.bank", "shop"));
        let both = selection.certified_by(&certificate(&["edge.shop", "edge.bank"]));
        assert!(allows(&both, "", "shop") && allows(&both, "", "bank"));
        assert!(!allows(&both, "", "other"));
        // Without a certificate that is named, the id is a filter.
        let other = selection.certified_by(&certificate(&["other"]));
        assert_eq!(selection.allowed(&other, "other"), None);
        assert!(allows(&other, "edge.shop", "shop") && !allows(&other, "edge.shop", "bank"));
    }
}
