//! The parts of certificates that rustls leaves to its user: the end of their validity, a bound on
//! a chain, and certificates that rustls does not read or accept.
//!
//! Go and OpenSSL accept two kinds of certificates of a server or a client that rustls does not:
//! certificates of version 1, as `openssl x509 -req` makes them, and certificates that may sign
//! others, as `openssl req -x509` makes them.
//!
//! Such a certificate is rewritten as one that rustls reads: of version 3, and not of a CA. rustls
//! then checks its validity, its purpose, its name and the handshake. The issuer's signature is
//! checked here, on the original bytes.

use std::borrow::Cow;
use std::time::Duration;

use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore};

/// The first second of the year 10000, in seconds since 1970: no certificate can name it (RFC 5280
/// §4.1.2.5).
const AFTER_ALL: u64 = 253_402_300_800;

/// Until when `certificate` is valid. rustls tells the end only in the error for a certificate that
/// has expired, so it is asked about a time at which every certificate has. The error, which
/// follows the words "the file", is the reason why it is not valid at `now`.
pub(crate) fn not_after(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<UnixTime, String> {
    let unusable = |error| format!("holds a certificate that cannot be used: {error}");
    let readable = readable(certificate);
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

/// Maximum number of intermediates. Chains have one or two.
const INTERMEDIATES_MAX: usize = 4;

/// Maximum bytes of the intermediates. One has two thousand at most.
const INTERMEDIATES_BYTES_MAX: usize = 16 * 1024;

/// Refuses a chain that is longer than any in use. rustls looks for a path to a root among all
/// certificates of a chain, and the number of attempts grows faster than linearly with their
/// number: 64 KiB of certificates made for this attack cost minutes of CPU before the handshake
/// fails.
pub(crate) fn check_chain(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    let bytes: usize = intermediates.iter().map(|it| it.len()).sum();
    match intermediates.len() <= INTERMEDIATES_MAX && bytes <= INTERMEDIATES_BYTES_MAX {
        true => Ok(()),
        false => Err(CertificateError::UnknownIssuer.into()),
    }
}

/// Tag of a sequence in DER (X.690 §8).
const SEQUENCE: u8 = 0x30;
/// Tag of a string of bits in DER (X.690 §8).
const BIT_STRING: u8 = 0x03;
/// Tag of an integer in DER (X.690 §8).
const INTEGER: u8 = 0x02;
/// Tag of the version of a certificate (RFC 5280 §4.1).
const VERSION: u8 = 0xa0;
/// Tag of the extensions of a certificate (RFC 5280 §4.1).
const EXTENSIONS: u8 = 0xa3;

/// The version 3, with its tag; a certificate of version 1 does not name it.
const VERSION_3: [u8; 5] = [VERSION, 3, INTEGER, 1, 2];

/// The name of the extension that says whether a certificate is of a CA (RFC 5280 §4.2.1.9), as an
/// extension begins with it.
const BASIC_CONSTRAINTS: [u8; 5] = [0x06, 3, 0x55, 0x1d, 0x13];

/// The parts of a certificate.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// The bytes that the issuer signed.
    signed: &'a [u8],
    /// The content of the algorithm of its signature.
    algorithm: &'a [u8],
    signature: &'a [u8],
    /// The content of the issuer's name.
    issuer: &'a [u8],
    /// From the serial number to the key.
    fields: &'a [u8],
    /// The content of the list of extensions; empty without any.
    extensions: &'a [u8],
    /// The algorithm and the signature, with their tags.
    tail: &'a [u8],
}

/// One value of DER.
struct Value<'a> {
    content: &'a [u8],
    /// With tag and length.
    whole: &'a [u8],
}

/// `certificate`, or what rustls can read of it.
pub(crate) fn readable<'a>(certificate: &'a CertificateDer<'a>) -> Cow<'a, CertificateDer<'a>> {
    if ParsedCertificate::try_from(certificate).is_ok() {
        return Cow::Borrowed(certificate);
    }
    Parts::parse(certificate).map_or(Cow::Borrowed(certificate), |it| Cow::Owned(it.as_leaf()))
}

// === impl Parts ===

impl<'a> Parts<'a> {
    /// Reads a certificate of version 1 or 3; `None` for all else.
    pub(crate) fn parse(certificate: &'a [u8]) -> Option<Self> {
        let content = only(certificate, SEQUENCE)?;
        let (body, tail) = next(content, SEQUENCE)?;
        let (algorithm, rest) = next(tail, SEQUENCE)?;
        let signature = only(rest, BIT_STRING)?.strip_prefix(&[0])?;
        let fields = body.content.strip_prefix(&VERSION_3);
        let has_version = fields.is_some();
        let start = fields.unwrap_or(body.content);
        let (_serial, rest) = next(start, INTEGER)?;
        let (_algorithm, rest) = next(rest, SEQUENCE)?;
        let (issuer, rest) = next(rest, SEQUENCE)?;
        let (_validity, rest) = next(rest, SEQUENCE)?;
        let (_subject, rest) = next(rest, SEQUENCE)?;
        let (_key, rest) = next(rest, SEQUENCE)?;
        let extensions = match rest {
            [] => rest,
            _ if has_version => only(only(rest, EXTENSIONS)?, SEQUENCE)?,
            _ => return None,
        };
        let fields = start.get(..start.len() - rest.len())?;
        let signed = body.whole;
        let algorithm = algorithm.content;
        let issuer = issuer.content;
        Some(Self { signed, algorithm, signature, issuer, fields, extensions, tail })
    }

    /// The certificate as one of version 3 that may not sign others.
    pub(crate) fn as_leaf(&self) -> CertificateDer<'static> {
        let mut kept = Vec::new();
        let mut rest = self.extensions;
        while let Some((extension, others)) = next(rest, SEQUENCE) {
            if !extension.content.starts_with(&BASIC_CONSTRAINTS) {
                kept.extend_from_slice(extension.whole);
            }
            rest = others;
        }
        // Bytes that are no extension are left for rustls to refuse.
        kept.extend_from_slice(rest);
        let mut body = [&VERSION_3, self.fields].concat();
        if !kept.is_empty() {
            body.extend(wrapped(EXTENSIONS, &wrapped(SEQUENCE, &kept)));
        }
        let mut content = wrapped(SEQUENCE, &body);
        content.extend_from_slice(self.tail);
        wrapped(SEQUENCE, &content).into()
    }

    /// Whether `issuer` has signed it. One with constraints on names never counts.
    pub(crate) fn is_signed_by(
        &self,
        issuer: &TrustAnchor<'_>,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> bool {
        if issuer.name_constraints.is_some() || issuer.subject.as_ref() != self.issuer {
            return false;
        }
        let Some((of_key, key)) = next(&issuer.subject_public_key_info, SEQUENCE) else {
            return false;
        };
        let key = only(key, BIT_STRING).and_then(|bits| bits.strip_prefix(&[0]));
        let Some(key) = key else { return false };
        algorithms.all.iter().any(|algorithm| {
            algorithm.signature_alg_id().as_ref() == self.algorithm
                && algorithm.public_key_alg_id().as_ref() == of_key.content
                && algorithm.verify_signature(key, self.signed, self.signature).is_ok()
        })
    }
}

/// The content of the one value that `input` holds.
fn only(input: &[u8], tag: u8) -> Option<&[u8]> {
    next(input, tag).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value.content)
}

/// The first value of `input`, which must have this tag, and what follows.
fn next(input: &[u8], tag: u8) -> Option<(Value<'_>, &[u8])> {
    let (&found, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    // Certificates are shorter than 64 KiB.
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*bytes)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    let whole = input.get(..input.len() - rest.len())?;
    (found == tag).then_some((Value { content, whole }, rest))
}

/// A value of this tag and content.
fn wrapped(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
    let bytes = length.get(significant..).unwrap_or_default();
    let mut value = vec![tag];
    if content.len() >= 0x80 {
        value.push(0x80 | u8::try_from(bytes.len()).unwrap_or_default());
    }
    value.extend_from_slice(bytes);
    value.extend_from_slice(content);
    value
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(is_ca: bool) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(3));
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn is_signed_by(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'static>) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(issuer.clone()).unwrap();
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Parts::parse(certificate).unwrap().is_signed_by(&roots.roots[0], &algorithms)
    }

    #[test]
    fn a_certificate_is_rewritten_without_its_right_to_sign_and_keeps_all_else() {
        for is_ca in [true, false] {
            let original = certificate(is_ca);
            let leaf = Parts::parse(&original).unwrap().as_leaf();
            assert!(ParsedCertificate::try_from(&leaf).is_ok());
            let shorter = original.len() - leaf.len();
            assert_eq!(shorter > 0, is_ca, "{shorter} bytes are gone");
            assert_eq!(leaf, Parts::parse(&leaf).unwrap().as_leaf(), "there is no more to change");
            assert!(is_signed_by(&original, &original));
            assert_eq!(is_signed_by(&leaf, &original), !is_ca, "this was not signed");
            assert!(!is_signed_by(&original, &certificate(is_ca)), "another of the same name");
        }
    }

    /// Bytes of an unauthenticated peer.
    #[test]
    fn a_damaged_certificate_is_never_taken_for_the_signed_one() {
        let original = certificate(true);
        for at in 0..original.len() {
            assert!(Parts::parse(&original[..at]).is_none(), "cut at {at}");
            for flip in [1, 0x80, 0xff] {
                let mut damaged = original.to_vec();
                damaged[at] ^= flip;
                let Some(parts) = Parts::parse(&damaged) else { continue };
                parts.as_leaf();
                let damaged = CertificateDer::from(damaged.clone());
                assert!(!is_signed_by(&damaged, &original), "{flip} at {at}");
            }
        }
    }

    #[test]
    fn lengths_are_written_as_they_are_read() {
        for length in [0, 1, 127, 128, 255, 256, 65_535] {
            let content = vec![7; length];
            let value = wrapped(SEQUENCE, &content);
            assert_eq!(only(&value, SEQUENCE), Some(&*content), "{length}");
            assert_eq!(only(&value, INTEGER), None);
        }
    }

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
