//! The connections of pods, which strangers may open too: closed if they carry no stream or their
//! pod does not answer. What a connection sends is read at a bounded rate.

use std::hash::Hash;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};
use ratelease_listener::Peer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::Streaming;
use tonic::transport::server::Connected;

use super::selection::{CertifiedNodes, Selection};
use crate::connections::ConnectionPlace;

/// Maximum time of a connection without a stream.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Messages that a connection may send at once, and how soon it may send another one. Each
/// response permits two more: its answer, and one that crosses it. A pod sends a report each
/// second, and answers.
const MESSAGES_AT_ONCE: u32 = 64;
const MESSAGE_INTERVAL: Duration = Duration::from_millis(250);
const MESSAGES_OF_RESPONSE: u32 = 2;

/// Messages beyond that which are counted: streams of a connection that wait together each read
/// one, and streams that end without a message count too. More are forgotten, so that a pod behind
/// the same proxy is read again within seconds.
const MESSAGES_OWED_MAX: u32 = 16;

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

#[derive(Debug)]
struct Shared {
    streams: AtomicUsize,
    is_closed: AtomicBool,
    waker: AtomicWaker,
    /// Whether the connection has ended.
    ended: watch::Sender<bool>,
    /// The nodes that its certificate is for.
    certified: OnceLock<Arc<CertifiedNodes>>,
    /// A hash of the id of the first node that reported hits.
    node: OnceLock<blake3::Hash>,
    clock: Clock,
    messages: Mutex<MessageBudget>,
}

/// When the connection may send as many messages at once as the bound allows.
#[derive(Debug, Default)]
struct MessageBudget {
    full_at: Time,
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

    /// The nodes that its certificate is for; none without TLS.
    pub(super) fn certified(&self, selection: &Selection) -> Arc<CertifiedNodes> {
        let of = || self.certificate.as_ref().map(|it| selection.certified_by(it));
        Arc::clone(self.shared.certified.get_or_init(|| Arc::new(of().unwrap_or_default())))
    }

    /// Identifies the pod by what it cannot choose: its certificate and its address. All clients of
    /// a proxy on this machine have an address of loopback, so that there the id of its node, which
    /// is the pod's own word, counts too: the first one of the connection.
    pub(super) fn identity<'p>(&'p self, node: &str) -> impl Hash + use<'p> {
        let ip = self.address.ip();
        let first = || self.shared.node.get_or_init(|| blake3::hash(node.as_bytes()));
        let node = ip.is_loopback().then(first);
        (self.certificate.as_deref(), Peer::of(Some(ip)), node)
    }

    /// Reads the next message of a stream, once the budget of the connection allows one. `None` at
    /// the end of the stream. Cancel safe: a message is counted when it is returned.
    pub(super) async fn message<M>(&self, stream: &mut Streaming<M>) -> Option<M> {
        loop {
            let wait = self.shared.messages.lock().wait(self.shared.clock.now());
            if wait.is_zero() {
                break;
            }
            sleep(wait).await;
        }
        let message = stream.message().await.ok().flatten();
        self.shared.messages.lock().note_message(self.shared.clock.now());
        message
    }

    /// Notes that a response is sent, which permits messages.
    pub(super) fn note_response(&self) {
        self.shared.messages.lock().note_response();
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

// === impl Shared ===

impl Shared {
    fn new() -> Self {
        Self {
            streams: AtomicUsize::default(),
            is_closed: AtomicBool::default(),
            waker: AtomicWaker::default(),
            ended: watch::Sender::default(),
            certified: OnceLock::new(),
            node: OnceLock::new(),
            clock: Clock::start(),
            messages: Mutex::default(),
        }
    }
}

// === impl MessageBudget ===

impl MessageBudget {
    /// How long until a message may be read.
    fn wait(&self, now: Time) -> Duration {
        self.full_at.since(now).saturating_sub(MESSAGE_INTERVAL * (MESSAGES_AT_ONCE - 1))
    }

    fn note_message(&mut self, now: Time) {
        let latest = now + MESSAGE_INTERVAL * (MESSAGES_AT_ONCE + MESSAGES_OWED_MAX);
        self.full_at = (self.full_at.max(now) + MESSAGE_INTERVAL).min(latest);
    }

    fn note_response(&mut self) {
        let permitted = MESSAGE_INTERVAL * MESSAGES_OF_RESPONSE;
        self.full_at = Time::default() + self.full_at.since(Time::default() + permitted);
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
        let pod = ConnectedPod { address, certificate, shared: Arc::new(Shared::new()) };
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
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn messages_beyond_the_answers_to_responses_are_read_at_a_bounded_rate() {
        let mut budget = MessageBudget::default();
        let start = Time::from_nanos(1_000_000_000);
        let mut read_at = |now: Time, most: u32| {
            (0..most)
                .take_while(|_| {
                    let may = budget.wait(now).is_zero();
                    if may {
                        budget.note_message(now);
                    }
                    may
                })
                .count()
        };
        assert_eq!(read_at(start, 1000), 64);
        assert_eq!(read_at(start + Duration::from_secs(10), 1000), 40);
        budget.note_response();
        let mut read_at = |now: Time| (budget.wait(now).is_zero(), budget.note_message(now)).0;
        let now = start + Duration::from_secs(10);
        assert_eq!([read_at(now), read_at(now), read_at(now)], [true, true, false]);
    }
    #[test]
    fn a_connection_is_read_again_within_seconds_whatever_it_has_sent() {
        let mut budget = MessageBudget::default();
        let now = Time::from_nanos(1_000_000_000);
        for _ in 0..100_000 {
            budget.note_message(now);
        }
        let wait = budget.wait(now);
        assert!(wait > Duration::from_secs(3) && wait < Duration::from_secs(6), "{wait:?}");
    }

    #[test]
    fn a_connection_reports_as_one_pod_whatever_its_nodes_are_called() {
        let connection = |ip: [u8; 4]| ConnectedPod {
            address: SocketAddr::from((ip, 1)),
            certificate: None,
            shared: Arc::new(Shared::new()),
        };
        let hasher = RandomState::new();
        let identity = |of: &ConnectedPod, node: &str| hasher.hash_one(of.identity(node));
        let (one, other) = (connection([127, 0, 0, 1]), connection([127, 0, 0, 1]));
        let first = identity(&one, "a");
        assert_eq!(identity(&one, "b"), first);
        assert_ne!(identity(&other, "b"), first, "another pod behind a proxy of this machine");
        let again = connection([127, 0, 0, 1]);
        assert_eq!(identity(&again, "a"), first, "a pod that connects again");
        let (far, far_again) = (connection([10, 0, 0, 1]), connection([10, 0, 0, 1]));
        assert_eq!(identity(&far, "a"), identity(&far_again, "b"), "its address is its own");
    }
}
