//! Connects to a gRPC server, with or without TLS.

use std::error::Error;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ratelease_tls::{ClientFiles, ServerCheck};
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::out::CliError;
use crate::target::Target;

/// Maximum bytes of a certificate or key file: a bundle of all roots has a few hundred thousand.
const PEM_BYTES_MAX: u64 = 16 << 20;

/// How the connection is secured.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Use TLS; implied by each flag below
    #[arg(long)]
    tls: bool,
    /// CA certificates that the server's certificate must be signed by, PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate, with its intermediate certificates, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Name that the server's certificate must have [default: the host of the target]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

// === impl Target ===

impl Target {
    /// Connects.
    ///
    /// # Errors
    /// A file cannot be read, or the server cannot be reached in time. The error says why and what
    /// to check.
    pub async fn connect(
        &self,
        tls: Option<ClientTlsConfig>,
        within: Duration,
    ) -> Result<Channel, CliError> {
        let uri = match self {
            Self::Tcp(address) if tls.is_some() => format!("https://{address}"),
            Self::Tcp(address) => format!("http://{address}"),
            Self::Unix(path) => format!("unix:{}", path.display()),
        };
        let failed = |error: &dyn Error| {
            CliError::new(format_args!("{self}: cannot be reached: {}", root(error)))
        };
        let mut endpoint = Endpoint::from_shared(uri).map_err(|error| failed(&error))?;
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls).map_err(|error| {
                CliError::new(format_args!("the TLS flags cannot be used: {}", root(&error)))
            })?;
        }
        match tokio::time::timeout(within, endpoint.connect()).await {
            Ok(connected) => connected.map_err(|error| failed(&error)),
            Err(_) => Err(self.late(within)),
        }
    }

    /// Returns the error for a server that did not answer in time.
    pub fn late(&self, within: Duration) -> CliError {
        CliError::new(format_args!("{self}: no answer within {within:?}; --timeout waits longer"))
    }

    /// Returns the error for a status other than OK.
    pub fn refused(&self, status: &tonic::Status) -> CliError {
        let (code, reason) = (status.code(), status.message());
        match status.source() {
            Some(source) if code == Code::Unknown || code == Code::Unavailable => {
                CliError::new(format_args!("{self}: the connection broke: {}", root(source)))
            }
            _ => CliError::new(format_args!("{self}: answered {code:?}: {reason}")),
        }
    }
}

/// Returns the innermost cause of an error, which is the most specific one, with the message of
/// TLS.
fn root(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

// === impl TlsFlags ===

impl TlsFlags {
    /// Returns whether the flags ask for TLS.
    pub fn is_on(&self) -> bool {
        let Self { tls, ca, cert, key: _, server_name } = self;
        *tls || ca.is_some() || cert.is_some() || server_name.is_some()
    }

    /// Returns the files of the flags, for connections that tonic does not make; `None` for no TLS.
    ///
    /// # Errors
    /// `--server-name` is neither a DNS name nor an IP address.
    pub fn files(&self) -> Result<Option<ClientFiles>, CliError> {
        if !self.is_on() {
            return Ok(None);
        }
        let name = self.server_name.clone().map(ServerName::try_from).transpose();
        let name = name.map_err(|error| CliError::new(format_args!("--server-name: {error}")))?;
        Ok(Some(ClientFiles {
            roots: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
            server: name.map_or(ServerCheck::Host, ServerCheck::Name),
        }))
    }

    /// Builds the TLS configuration of the flags; `None` for no TLS.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn config(&self) -> Result<Option<ClientTlsConfig>, CliError> {
        let Self { ca, cert, key, server_name, .. } = self;
        if !self.is_on() {
            return Ok(None);
        }
        let mut config = ClientTlsConfig::new();
        config = match ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(pem(path)?)),
            None => config.with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (cert, key) {
            config = config.identity(Identity::from_pem(pem(cert)?, pem(key)?));
        }
        if let Some(name) = server_name {
            config = config.domain_name(name);
        }
        Ok(Some(config))
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |why: &dyn fmt::Display| CliError::new(format_args!("{}: {why}", path.display()));
    let length = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > PEM_BYTES_MAX {
        return Err(failed(&"too long for certificates"));
    }
    let pem = fs::read(path).map_err(|error| failed(&error))?;
    // A file without a PEM block is skipped silently later, and no certificate would be trusted.
    if !pem.windows(11).any(|text| text == b"-----BEGIN ") {
        return Err(failed(&"holds nothing in PEM, which begins with -----BEGIN"));
    }
    Ok(pem)
}
