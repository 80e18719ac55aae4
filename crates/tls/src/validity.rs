//! When a certificate is valid. rustls tells the end only in the error for a certificate that has
//! expired, so it is asked about a time at which every certificate has.

use std::time::Duration;

use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore};

use crate::leaf;

/// The first second of the year 10000, in seconds since 1970: no certificate can name it (RFC 5280
/// §4.1.2.5).
const AFTER_ALL: u64 = 253_402_300_800;

/// Until when `certificate` is valid. The error, which follows the words "the file", is the reason
/// why it is not valid at `now`.
pub(crate) fn not_after(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<UnixTime, String> {
    let unusable = |error| format!("holds a certificate that cannot be used: {error}");
    let readable = leaf::readable(certificate);
    let parsed = ParsedCertificate::try_from(&*readable).map_err(unusable)?;
    match error_at(&parsed, now) {
        Some(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            return Err("holds a certificate that has expired".to_owned());
        }
        Some(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            return Err("holds a certificate that is not valid yet".to_owned());
        }
        _ => {}
    }
    let end = UnixTime::since_unix_epoch(Duration::from_secs(AFTER_ALL));
    match error_at(&parsed, end) {
        Some(CertificateError::ExpiredContext { not_after, .. }) => Ok(not_after),
        _ => Err("holds a certificate without an end of its validity".to_owned()),
    }
}

/// Why `certificate` would not be accepted from a server at `time`; `UnknownIssuer` if there is
/// nothing else. Its validity is checked before its issuer, which is never found.
pub(crate) fn error_at(
    certificate: &ParsedCertificate<'_>,
    time: UnixTime,
) -> Option<CertificateError> {
    let roots = RootCertStore::empty();
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    let verified =
        verify_server_cert_signed_by_trust_anchor(certificate, &roots, &[], time, algorithms);
    match verified {
        Err(Error::InvalidCertificate(error)) => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// 2026-01-01.
    const NOW: u64 = 1_767_225_600;

    fn check(from: i32, to: i32) -> Result<UnixTime, String> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        not_after(certificate.der(), UnixTime::since_unix_epoch(Duration::from_secs(NOW)))
    }

    #[test]
    fn the_end_is_returned_while_the_certificate_is_valid() {
        assert_eq!(check(2025, 2027).unwrap().as_secs(), NOW + 365 * 86_400);
        assert_eq!(check(2025, 9999).unwrap().as_secs(), AFTER_ALL - 365 * 86_400);
        assert_eq!(check(2024, 2025).unwrap_err(), "holds a certificate that has expired");
        assert_eq!(check(2027, 2028).unwrap_err(), "holds a certificate that is not valid yet");
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        let nonsense = CertificateDer::from(vec![0x30, 0x03, 1, 2, 3]);
        let error = not_after(&nonsense, UnixTime::since_unix_epoch(Duration::ZERO)).unwrap_err();
        assert!(error.starts_with("holds a certificate that cannot be used"), "{error}");
    }
}
