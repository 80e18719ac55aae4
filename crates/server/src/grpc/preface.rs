//! Reads the client's preface before any HTTP/2 state is set up, so that clients that came to the
//! wrong port are recognised, and the log tells their operator how to correct that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tracing::{debug, warn};

use ratelease_listener::PREFACE;

/// Limits on reading what a client without HTTP/2 has sent already before the connection is closed:
/// unread data would cause a reset, and the client would not see an orderly end.
const LINGER_BYTES_MAX: usize = 16 * 1024;
const LINGER_MAX: Duration = Duration::from_millis(500);

/// Remembers which kinds of such clients came, so that each kind is logged once: they come back. A
/// cheap handle: clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct NonHttp2Clients(Arc<LoggedOnce>);

#[derive(Debug, Default)]
struct LoggedOnce {
    tls: AtomicBool,
    http1: AtomicBool,
}

/// A client that does not speak HTTP/2, classified by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tls,
    Http1,
    Other,
}

/// The type of a TLS record that holds a handshake (RFC 8446 §5.1): the first byte from every TLS
/// client.
const TLS_HANDSHAKE: u8 = 22;

/// Reads the preface and nothing more. Returns `None` if other bytes arrive, which are reported to
/// `non_http2`, or if the connection ends.
pub(super) async fn read<I>(io: &mut I, non_http2: &NonHttp2Clients) -> Option<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let mut read = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        length += match io.read(read.get_mut(length..)?).await {
            Ok(0) | Err(_) => return None,
            Ok(more) => more,
        };
        let read = read.get(..length)?;
        if !PREFACE.starts_with(read) {
            non_http2.log_once(Protocol::of(read));
            let _ = timeout(LINGER_MAX, linger(io)).await;
            return None;
        }
    }
    Some(())
}

/// Shuts the connection down and reads the data that is still in flight.
async fn linger<I: AsyncRead + AsyncWrite + Unpin>(io: &mut I) {
    // An error means that the client is gone, so there is no data in flight.
    let _ = io.shutdown().await;
    let mut rest = [0; 1024];
    let mut read = 0;
    while read < LINGER_BYTES_MAX {
        match io.read(&mut rest).await {
            Ok(0) | Err(_) => return,
            Ok(more) => read += more,
        }
    }
}

// === impl NonHttp2Clients ===

impl NonHttp2Clients {
    fn log_once(&self, protocol: Protocol) {
        let is_first = |seen: &AtomicBool| !seen.swap(true, Ordering::Relaxed);
        match protocol {
            Protocol::Tls if is_first(&self.0.tls) => warn!(
                "a client speaks TLS to the gRPC port, which has none: set GRPC_SERVER_USE_TLS, or \
                 remove the transport_socket of Envoy's cluster for it; such connections are \
                 closed; this is logged once"
            ),
            Protocol::Http1 if is_first(&self.0.http1) => warn!(
                "a client speaks HTTP/1 to the gRPC port: set http2_protocol_options on Envoy's \
                 cluster for it; /json and the probes of HTTP are on PORT; such connections are \
                 closed; this is logged once"
            ),
            other => debug!(?other, "a client of the gRPC port does not speak HTTP/2"),
        }
    }
}

// === impl Protocol ===

impl Protocol {
    fn of(read: &[u8]) -> Self {
        match read {
            [TLS_HANDSHAKE, ..] => Self::Tls,
            // A request of HTTP/1 begins with its method.
            [b'A'..=b'Z', ..] => Self::Http1,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Returns the result for a client that sends `pieces`, and the bytes that are left to read.
    async fn read_from(pieces: &[&[u8]]) -> (Option<()>, NonHttp2Clients, Vec<u8>) {
        let (mut client, mut server) = tokio::io::duplex(1024);
        let non_http2 = NonHttp2Clients::default();
        let sent = async move {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (result, ()) = tokio::join!(read(&mut server, &non_http2), sent);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        (result, non_http2, rest)
    }

    #[tokio::test]
    async fn a_preface_is_read_in_pieces_and_nothing_after_it() {
        let (first, last) = PREFACE.split_at(1);
        for pieces in [&[PREFACE, b"more"][..], &[first, last, b"more"]] {
            let (result, _, rest) = read_from(pieces).await;
            assert_eq!((result, &rest[..]), (Some(()), &b"more"[..]));
        }
        let (result, ..) = read_from(&[&PREFACE[..23]]).await;
        assert_eq!(result, None, "the client is gone");
    }

    #[tokio::test]
    async fn other_protocols_are_recognised_by_their_first_bytes() {
        for (pieces, expected) in [
            (&[&b"\x16\x03\x01\x02\x00\x01"[..]][..], (true, false)),
            (&[b"\x16"], (true, false)),
            (&[b"GET / HTTP/1.1\r\n\r\n"], (false, true)),
            (&[b"P", b"OST /json HTTP/1.1\r\n"], (false, true)),
            (&[b"PRI * HTTP/2.0\r\n\r\nxx"], (false, true)),
            (&[b"*1\r\n$4\r\nPING\r\n"], (false, false)),
            (&[&[0; 100]], (false, false)),
        ] {
            let (result, non_http2, _) = read_from(pieces).await;
            let LoggedOnce { tls, http1 } = &*non_http2.0;
            let seen = (tls.load(Ordering::Relaxed), http1.load(Ordering::Relaxed));
            assert_eq!((result, seen), (None, expected), "{pieces:?}");
        }
    }
}
