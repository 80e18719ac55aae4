//! The connections of pods, which strangers may open too: closed if they carry no stream or their
//! pod does not answer.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::transport::server::Connected;

use crate::connections::ConnectionPlace;

/// Maximum time of a connection without a stream.
const IDLE_MAX: Duration = Duration::from_secs(10);

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
