//! Reasons why a handshake failed, with advice for the operator.

use std::io;

use tokio_rustls::rustls::{AlertDescription, Error, InvalidMessage};

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The client sent something else than TLS.
    NotTls,
    /// The client sent no certificate, and needs one.
    NoCertificate,
    /// The client's certificate is not accepted.
    BadCertificate,
    /// The client does not accept our certificate.
    NotTrusted,
    /// Client and listener share no version, cipher or application protocol.
    Incompatible,
    /// The client went away, or took too long.
    Abandoned,
    /// All others.
    Other,
}

// === impl HandshakeFailure ===

impl HandshakeFailure {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::NotTls,
        Self::NoCertificate,
        Self::BadCertificate,
        Self::NotTrusted,
        Self::Incompatible,
        Self::Abandoned,
        Self::Other,
    ];

    /// The reason for an error of a handshake.
    pub(super) fn of(error: &io::Error) -> Self {
        let Some(error) = rustls_error(error) else { return Self::Abandoned };
        match error {
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge,
            ) => Self::NotTls,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(_) => Self::BadCertificate,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible,
            Error::AlertReceived(alert) if is_of_certificate(*alert) => Self::NotTrusted,
            Error::AlertReceived(AlertDescription::CloseNotify) => Self::Abandoned,
            _ => Self::Other,
        }
    }

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::NoCertificate => "no_certificate",
            Self::BadCertificate => "bad_certificate",
            Self::NotTrusted => "not_trusted",
            Self::Incompatible => "incompatible",
            Self::Abandoned => "abandoned",
            Self::Other => "other",
        }
    }
}

/// Returns the error of rustls within an I/O error.
fn rustls_error(error: &io::Error) -> Option<&Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref().or_else(|| inner.source()?.downcast_ref())
}

/// Whether a client sends this alert when it does not accept a certificate (RFC 8446 §6.2).
fn is_of_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            // Its signature is not by the authority of that name.
            | Alert::DecryptError
    )
}
