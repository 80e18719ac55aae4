//! Bounds on the chain that the other side sends. rustls looks for a path to a root among all
//! certificates of a chain, and the number of attempts grows faster than linearly with their
//! number: 64 KiB of certificates made for this attack cost minutes of CPU before the handshake
//! fails.

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{CertificateError, Error};

/// Maximum number of intermediates. Chains have one or two.
const INTERMEDIATES_MAX: usize = 4;

/// Maximum bytes of the intermediates. One has two thousand at most.
const BYTES_MAX: usize = 16 * 1024;

/// Refuses a chain that is longer than any in use.
pub(crate) fn check(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    let bytes: usize = intermediates.iter().map(|it| it.len()).sum();
    match intermediates.len() <= INTERMEDIATES_MAX && bytes <= BYTES_MAX {
        true => Ok(()),
        false => Err(CertificateError::UnknownIssuer.into()),
    }
}
