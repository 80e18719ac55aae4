//! The certificate of the webhook that the injector makes itself: an authority that signs one
//! certificate and is then forgotten, so that no key of an authority is kept anywhere.

use std::path::PathBuf;
use std::time::Duration;

use ratelease_tls::{LoadedServer, ServerFiles, ServerPems};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;

/// By how much clocks may differ.
const SKEW: Duration = Duration::from_secs(300);
/// The part of its lifetime after which a certificate is replaced: two of three.
const LEFT_PARTS: u32 = 3;

/// A certificate with its key and the authorities that clients are to trust, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Papers {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// The authority of the certificate first.
    pub(crate) roots: Vec<u8>,
}

/// What certificates are to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// DNS names, at least one.
    pub(crate) names: Vec<String>,
    pub(crate) lifetime: Duration,
}

// === impl Papers ===

impl Papers {
    /// Makes a certificate that is valid from `now`. The authority of `old` stays trusted, since
    /// other injectors serve with its certificate until they see the new one.
    ///
    /// # Errors
    /// Fails if a name is none, or without random numbers.
    pub(crate) fn make(
        wanted: &Wanted,
        now: UnixTime,
        old: Option<&Self>,
    ) -> Result<Self, rcgen::Error> {
        // A certificate whose issuer has its own name would count as self-signed.
        let name = format!("ratelease-injector authority {}", now.as_secs());
        let mut authority = params(name, Vec::new(), wanted, now)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let mut roots = authority.self_signed(&authority_key)?.pem().into_bytes();
        if let Some(old) = old {
            roots.extend_from_slice(old.own_root());
        }
        let name = "ratelease-injector".to_owned();
        let mut leaf = params(name, wanted.names.clone(), wanted, now)?;
        leaf.use_authority_key_identifier_extension = true;
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key))?;
        Ok(Self {
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            roots,
        })
    }

    /// The authority of this certificate: the first of the roots, as text.
    fn own_root(&self) -> &[u8] {
        const END: &[u8] = b"-----END CERTIFICATE-----\n";
        let text = self.roots.as_slice();
        let end = text.windows(END.len()).position(|window| window == END);
        end.map_or(&[], |end| &text[..end + END.len()])
    }

    /// The configuration to serve with.
    ///
    /// # Errors
    /// Why these have to be replaced: they cannot be used, do not belong together, have another
    /// name than is wanted, or end soon.
    pub(crate) fn load(&self, wanted: &Wanted, now: UnixTime) -> Result<LoadedServer, String> {
        let pems = ServerPems::new(self.certificate.clone(), self.key.clone());
        let files = ServerFiles {
            certificate: PathBuf::from("tls.crt"),
            key: PathBuf::from("tls.key"),
            client_roots: None,
            client_name: None,
        };
        let loaded = files.load(&pems, now).map_err(|faults| faults.to_string())?;
        self.verify(wanted, now)?;
        let left = loaded.not_after.as_secs().saturating_sub(now.as_secs());
        if left < (wanted.lifetime / LEFT_PARTS).as_secs() {
            return Err(format!("ends in {left} s"));
        }
        Ok(loaded)
    }

    /// As the API server will.
    fn verify(&self, wanted: &Wanted, now: UnixTime) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(&self.roots) {
            let root = root.map_err(|_| "has an authority that is no PEM".to_owned())?;
            roots.add(root).map_err(|error| format!("has an unusable authority: {error}"))?;
        }
        let certificate = CertificateDer::from_pem_slice(&self.certificate);
        let certificate = certificate.map_err(|_| "is no PEM".to_owned())?;
        let parsed = ParsedCertificate::try_from(&certificate).map_err(|it| it.to_string())?;
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms)
            .map_err(|error| format!("is not of its authority: {error}"))?;
        for name in &wanted.names {
            let name = ServerName::try_from(name.as_str()).map_err(|error| error.to_string())?;
            verify_server_name(&parsed, &name)
                .map_err(|_| format!("is not for {}", name.to_str()))?;
        }
        Ok(())
    }
}

fn params(
    name: String,
    names: Vec<String>,
    wanted: &Wanted,
    now: UnixTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    let now = Duration::from_secs(now.as_secs());
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(SKEW);
    params.not_after = epoch + now + wanted.lifetime;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    /// 2026-01-01.
    const NOW: u64 = 1_767_225_600;

    fn at(days: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(NOW + days * DAY.as_secs()))
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { names: vec![name.to_owned()], lifetime: 90 * DAY }
    }

    fn why(papers: &Papers, wanted: &Wanted, now: UnixTime) -> String {
        papers.load(wanted, now).expect_err("has to be replaced")
    }

    #[test]
    fn a_certificate_is_kept_for_two_thirds_of_its_lifetime() {
        let wanted = wanted("injector.limits.svc");
        let papers = Papers::make(&wanted, at(0), None).unwrap();
        assert_eq!(papers.load(&wanted, at(0)).unwrap().not_after, at(90));
        assert!(papers.load(&wanted, at(59)).is_ok());
        assert_eq!(why(&papers, &wanted, at(61)), "ends in 2505600 s");
        assert!(why(&papers, &wanted, at(91)).contains("has expired"));
    }

    #[test]
    fn what_cannot_be_served_is_replaced() {
        let wanted = wanted("a.svc");
        let papers = Papers::make(&wanted, at(0), None).unwrap();
        let other = Papers::make(&wanted, at(0), None).unwrap();
        let now = at(1);
        let of_other_name =
            Wanted { names: vec!["a.svc".into(), "b.svc".into()], lifetime: wanted.lifetime };
        assert_eq!(why(&papers, &of_other_name, now), "is not for b.svc");
        let mixed = Papers { key: other.key.clone(), ..papers.clone() };
        assert!(why(&mixed, &wanted, now).contains("the key of another certificate"));
        let mixed = Papers { roots: other.roots, ..papers };
        assert!(why(&mixed, &wanted, now).starts_with("is not of its authority: "));
        let none = Papers { certificate: Vec::new(), key: Vec::new(), roots: Vec::new() };
        assert!(why(&none, &wanted, now).contains("holds no certificate in PEM"));
    }

    #[test]
    fn the_former_authority_stays_trusted_and_the_one_before_does_not() {
        let wanted = wanted("a.svc");
        let first = Papers::make(&wanted, at(0), None).unwrap();
        let second = Papers::make(&wanted, at(60), Some(&first)).unwrap();
        let third = Papers::make(&wanted, at(80), Some(&second)).unwrap();
        let served_by = |papers: &Papers, roots: &Papers| {
            Papers { roots: roots.roots.clone(), ..papers.clone() }.verify(&wanted, at(81))
        };
        assert_eq!(served_by(&first, &second), Ok(()));
        assert_eq!(served_by(&second, &second), Ok(()));
        assert_eq!(served_by(&second, &third), Ok(()));
        assert!(served_by(&first, &third).is_err());
    }
}
