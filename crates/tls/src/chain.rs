//! Bounds on the chain that the other side sends. rustls looks for a path to a root among all
//! certificates of a chain, and the number of attempts grows with a power of theirs: 64 KiB of
//! certificates that are made for that cost minutes, before anybody is authenticated.

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{CertificateError, Error};

/// Maximum number of intermediates. Chains have one or two.
const INTERMEDIATES_MAX: usize = 4;

/// Maximum bytes of the intermediates. One has two thousand at most.
const BYTES_MAX: usize = 16 * 1024;

/// Refuses a chain that is longer than any that is meant well.
pub(crate) fn check(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    let bytes: usize = intermediates.iter().map(|it| it.len()).sum();
    match intermediates.len() <= INTERMEDIATES_MAX && bytes <= BYTES_MAX {
        true => Ok(()),
        false => Err(CertificateError::UnknownIssuer.into()),
    }
}
