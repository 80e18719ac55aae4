//! Which name a server must have.

use tokio_rustls::rustls::pki_types::ServerName;

/// Which name a server's certificate must have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServerCheck {
    /// The host that is connected to.
    #[default]
    Host,
    /// This one, whatever the host is.
    Name(ServerName<'static>),
    /// Any. The certificate must still descend from the roots.
    AnyName,
}
