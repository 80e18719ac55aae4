//! TLS to servers. The configuration is made again when its files have changed: they are read for
//! each connection, like the files of passwords.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_tls::{ClientFiles, ClientPems};
use redis::RedisError;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::threads::Threads;

/// What to check when a handshake fails.
const HINT: &str = "check REDIS_TLS_CACERT, the client certificate, and the names of the server's";

/// What to check when the other side does not answer a handshake, or not with TLS: a plain port
/// waits for the end of a command, replies with an error, or closes the connection.
const HINT_PLAIN: &str = "if that port has no TLS, unset REDIS_TLS and use redis://";

/// What rustls calls a refusal by the other side.
const ALERT: &str = "received fatal alert";

/// How servers are authenticated, and how this process is.
#[derive(Debug)]
pub(super) struct Tls {
    files: ClientFiles,
    loaded: Mutex<Option<Loaded>>,
}

/// What the files held when they were last good, and the configuration made of it.
struct Loaded {
    pems: ClientPems,
    config: Arc<ClientConfig>,
    /// What was wrong with the files later, as it was logged last.
    fault: String,
}

/// Adds what to check to an error of a connection that is the server's refusal of our certificate:
/// with TLS 1.3 it arrives after the handshake.
pub(super) fn with_hint(error: RedisError) -> RedisError {
    if !error.is_io_error() || !error.to_string().contains(ALERT) {
        return error;
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, format!("TLS: {error}; {HINT}")).into()
}

// === impl Tls ===

impl Tls {
    pub(super) fn new(files: ClientFiles) -> Self {
        Self { files, loaded: Mutex::new(None) }
    }

    /// The configuration by what the files hold now. Blocks.
    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        let pems = self.files.read();
        let mut loaded = self.loaded.lock();
        if let Some(known) = loaded.as_ref().filter(|known| known.pems == pems) {
            return Ok(Arc::clone(&known.config));
        }
        // Whether the certificate has expired is for the server to say, by its own clock.
        let faults = match self.files.load(&pems, None) {
            Ok(config) => {
                let config = Arc::new(config);
                *loaded = Some(Loaded { pems, config: Arc::clone(&config), fault: String::new() });
                return Ok(config);
            }
            Err(faults) => faults.to_string(),
        };
        let Some(former) = &mut *loaded else { return Err(io::Error::other(faults)) };
        // A certificate and its key may be replaced one after the other.
        if former.fault != faults {
            tracing::error!("the former certificates are used for Redis: {faults}");
            former.fault = faults;
        }
        Ok(Arc::clone(&former.config))
    }

    /// Performs the handshake with the server `host`, until `deadline`. Files are read on
    /// `threads`.
    pub(super) async fn secure(
        self: &Arc<Self>,
        stream: TcpStream,
        host: &str,
        threads: &Threads,
        deadline: Instant,
    ) -> io::Result<TlsStream<TcpStream>> {
        let failed = |error: &dyn std::fmt::Display| aborted(&format!("{error}; {HINT}"));
        let of = Arc::clone(self);
        let config = threads.run(move || of.config()).await?.map_err(|error| failed(&error))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
        let handshake = TlsConnector::from(config).connect(name, stream);
        match tokio::time::timeout_at(deadline, Box::pin(handshake)).await {
            Ok(Ok(secured)) => Ok(secured),
            Ok(Err(error)) if is_plain(&error) => Err(aborted(&format!("{error}; {HINT_PLAIN}"))),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => {
                let text = format!("TLS: no answer in time; {HINT_PLAIN}");
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        }
    }
}

fn aborted(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, format!("TLS: {text}"))
}

/// Whether a handshake failed in a way in which one with a plain port does.
fn is_plain(error: &io::Error) -> bool {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(rustls::Error::InvalidMessage(_)) => true,
        Some(_) => false,
        None => true,
    }
}

/// Shows nothing of the keys.
impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loaded")
    }
}
