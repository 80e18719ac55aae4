//! The connections of pods, which strangers may open too: bounded in number, those of one client
//! more so, and closed if they carry no stream or their pod does not answer.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use ratelease_server::accept::Peer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::transport::server::Connected;

/// Maximum number of connections, and of those of one client.
const CONNECTIONS_MAX: usize = 8192;
const CONNECTIONS_OF_PEER_MAX: usize = CONNECTIONS_MAX / 4;

/// Maximum time of a connection without a stream.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The open connections, by client. A cheap handle: clones share all state.
#[derive(Debug, Clone, Default)]
pub(super) struct Connections(Arc<Mutex<HashMap<Peer, usize>>>);

/// A place among the connections, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    all: Connections,
    peer: Peer,
}

/// A connection of a pod.
#[derive(Debug)]
pub(super) struct PodConnection<I> {
    io: I,
    pod: ConnectedPod,
    idle: Pin<Box<Sleep>>,
    had_streams: bool,
    _place: ConnectionPlace,
}

/// What a stream knows of its connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectedPod {
    /// The address of the pod.
    pub(super) address: SocketAddr,
    /// Its certificate, which the handshake has verified; `None` without TLS.
    pub(super) certificate: Option<CertificateDer<'static>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    streams: AtomicUsize,
    is_closed: AtomicBool,
    waker: AtomicWaker,
    /// Whether the connection has ended.
    ended: watch::Sender<bool>,
}

/// Keeps a connection open; it may be closed a while after the last of these is dropped.
#[derive(Debug)]
pub(super) struct StreamGuard(Arc<Shared>);

// === impl Connections ===

impl Connections {
    /// Takes a place; `None` if there are too many connections, or too many of this client.
    pub(super) fn admit(&self, address: SocketAddr) -> Option<ConnectionPlace> {
        let peer = Peer::of(Some(address.ip()));
        let mut peers = self.0.lock();
        let all: usize = peers.values().sum();
        let own = peers.entry(peer).or_default();
        if all >= CONNECTIONS_MAX || *own >= CONNECTIONS_OF_PEER_MAX {
            return None;
        }
        *own += 1;
        Some(ConnectionPlace { all: self.clone(), peer })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut peers = self.all.0.lock();
        if let Some(own) = peers.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

// === impl ConnectedPod ===

impl ConnectedPod {
    /// Notes that a stream begins.
    pub(super) fn begin_stream(&self) -> StreamGuard {
        self.shared.streams.fetch_add(1, Ordering::Relaxed);
        StreamGuard(Arc::clone(&self.shared))
    }

    /// Resolves once the connection has ended.
    pub(super) async fn ended(&self) {
        let mut ended = self.shared.ended.subscribe();
        // The sender is held by this.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Closes the connection at once, and frees what was not read of it.
    pub(super) fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.shared.waker.wake();
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
        // The connection begins to count its idle time.
        self.0.waker.wake();
    }
}

// === impl PodConnection ===

impl<I> PodConnection<I> {
    pub(super) fn new(
        io: I,
        address: SocketAddr,
        certificate: Option<CertificateDer<'static>>,
        place: ConnectionPlace,
    ) -> Self {
        let pod = ConnectedPod { address, certificate, shared: Arc::default() };
        let idle = Box::pin(sleep(IDLE_MAX));
        Self { io, pod, idle, had_streams: false, _place: place }
    }

    /// Whether the connection is to be closed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let shared = &self.pod.shared;
        shared.waker.register(cx.waker());
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let has_streams = shared.streams.load(Ordering::Relaxed) > 0;
        if std::mem::replace(&mut self.had_streams, has_streams) && !has_streams {
            self.idle = Box::pin(sleep(IDLE_MAX));
        }
        if !has_streams && self.idle.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl<I> Drop for PodConnection<I> {
    fn drop(&mut self) {
        self.pod.shared.ended.send_replace(true);
    }
}

impl<I> Connected for PodConnection<I> {
    type ConnectInfo = ConnectedPod;

    fn connect_info(&self) -> ConnectedPod {
        self.pod.clone()
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for PodConnection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_end(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PodConnection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_connections_to_others() {
        let (all, at) = (Connections::default(), |text: &str| text.parse().unwrap());
        let mut held: Vec<_> = (0..CONNECTIONS_OF_PEER_MAX)
            .map(|port| all.admit(SocketAddr::new(at("10.0.0.1"), u16::try_from(port).unwrap())))
            .collect();
        assert!(held.iter().all(Option::is_some));
        let [first, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| SocketAddr::new(at(ip), 1));
        assert!(all.admit(first).is_none() && all.admit(other).is_some());
        held.pop();
        assert!(all.admit(first).is_some());
        drop(held);
        assert!(all.0.lock().is_empty(), "clients without connections are forgotten");
    }
}
