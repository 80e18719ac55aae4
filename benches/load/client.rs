//! One connection, driven by one task, which reads answers and sends the requests that are due; its
//! requests in flight, of whose answers only parts are read; and the counts of their results.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use h2::RecvStream;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use hdrhistogram::Histogram;
use http::{HeaderMap, Request, StatusCode};
use ratelease_cli::client::Target;
use ratelease_engine::time::{Clock, Time};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::flags::Plan;
use super::requests::{self, Requests, Zipf};
use super::schedule::{Pace, RunTimes, Schedule};

/// Time after the end of the run in which requests in flight may still be answered.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Pause between attempts to reconnect.
const PAUSE: Duration = Duration::from_millis(100);

/// State that all connections of a run share.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) head: Request<()>,
    pub(crate) requests: Requests,
    pub(crate) zipf: Zipf,
    pub(crate) clock: Clock,
    /// Wakes the task of each connection.
    pub(crate) due: Vec<AtomicWaker>,
    /// When the run was stopped early, in nanoseconds; `u64::MAX` if it was not.
    pub(crate) stopped_at: AtomicU64,
}

/// One connection's part of the run.
pub(crate) struct Client {
    shared: Arc<Shared>,
    index: usize,
    span: RunTimes,
    schedule: Schedule,
    rng: Rng,
    counts: CallCounts,
}

/// An open connection with its requests in flight.
struct OpenConnection {
    send: SendRequest<Bytes>,
    connection: Connection<Box<dyn Socket>, Bytes>,
    calls: FuturesUnordered<Call>,
    /// The server accepts no more requests on this connection.
    is_closing: bool,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    /// The run is over.
    Over,
    /// The server closed it gracefully, and every request was answered.
    Gone,
    /// The connection broke.
    Lost,
}

// === impl Shared ===

impl Shared {
    /// Ends the run at `now` unless it ends earlier. Requests in flight may still be answered.
    pub(crate) fn stop(&self, now: Time) {
        self.stopped_at.fetch_min(now.nanos(), Ordering::Relaxed);
        self.wake();
    }

    /// Wakes the tasks of all connections.
    pub(crate) fn wake(&self) {
        self.due.iter().for_each(AtomicWaker::wake);
    }

    /// Returns when the run ends; `end` is when it should end.
    pub(crate) fn end(&self, end: Time) -> Time {
        end.min(Time::from_nanos(self.stopped_at.load(Ordering::Relaxed)))
    }
}

// === impl Client ===

impl Client {
    /// # Errors
    ///
    /// [`CallCounts::new`] failed.
    pub(crate) fn new(shared: Arc<Shared>, index: u32, span: RunTimes) -> Result<Self, String> {
        let Plan { seed, rate, connections, .. } = shared.plan;
        let pace = rate.map(|rate| Pace { rate, connections });
        Ok(Self {
            index: index as usize,
            span,
            schedule: Schedule::new(span, pace, index),
            rng: requests::rng(seed, index),
            counts: CallCounts::new()?,
            shared,
        })
    }

    /// Sends load until the run is over: on `link` and, if that ends, on new connections.
    pub(crate) async fn run(mut self, link: Link) -> CallCounts {
        let end = self.shared.clock.instant(self.span.end + DRAIN_MAX);
        let mut link = Some(link);
        while let Some(next) = link.take() {
            let mut exchange = OpenConnection::new(next);
            let work = poll_fn(|cx| exchange.poll(&mut self, cx));
            let ended = timeout_at(end, work).await.unwrap_or(ConnectionEnd::Over);
            let why =
                if ended == ConnectionEnd::Over { Failure::Unanswered } else { Failure::Lost };
            for call in &exchange.calls {
                self.settle(call.due(), CallResult::Failed(why));
            }
            self.counts.lost += u64::from(ended == ConnectionEnd::Lost);
            if ended != ConnectionEnd::Over {
                link = timeout_at(end, self.connect()).await.ok().flatten();
            }
        }
        self.apply_stop();
        let now = self.shared.clock.now();
        while let Some(due) = self.schedule.due(now).filter(|_| self.shared.plan.rate.is_some()) {
            self.schedule.advance();
            self.settle(due, CallResult::Failed(Failure::Unsent));
        }
        self.counts
    }

    /// Returns a new connection, retrying until there is one; `None` once the run is over.
    async fn connect(&mut self) -> Option<Link> {
        let shared = Arc::clone(&self.shared);
        let Plan { target, tls, .. } = &shared.plan;
        while !self.schedule.is_over(shared.clock.now()) {
            self.apply_stop();
            if let Ok(Ok(link)) = timeout(DRAIN_MAX, connect(target, tls.as_ref())).await {
                return Some(link);
            }
            sleep(PAUSE).await;
        }
        None
    }

    /// If the run was stopped, nothing is due after that time.
    fn apply_stop(&mut self) {
        self.span.end = self.shared.end(self.span.end);
        self.schedule.end_at(self.span.end);
    }

    fn settle(&mut self, due: Time, outcome: CallResult) {
        if due >= self.span.warm {
            self.counts.add(outcome, self.shared.clock.now().since(due));
        }
    }

    fn draw(&mut self) -> Bytes {
        self.shared.requests.get(self.shared.zipf.draw(&mut self.rng))
    }
}

// === impl OpenConnection ===

impl OpenConnection {
    fn new((send, connection): Link) -> Self {
        Self { send, connection, calls: FuturesUnordered::new(), is_closing: false }
    }

    /// Ready once this connection can do no more for the run.
    fn poll(&mut self, client: &mut Client, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let shared = Arc::clone(&client.shared);
        if let Some(due) = shared.due.get(client.index) {
            // The waker is registered before the check, so that no wake-up is missed.
            due.register(cx.waker());
        }
        loop {
            // This poll writes all requests that were begun below at once, and reads the bytes that
            // have arrived.
            let ended = Pin::new(&mut self.connection).poll(cx);
            let mut broke = matches!(ended, Poll::Ready(Err(_)));
            while let Poll::Ready(Some((due, outcome))) = self.calls.poll_next_unpin(cx) {
                client.settle(due, outcome);
                broke |= outcome == CallResult::Failed(Failure::Lost);
            }
            if ended.is_ready() {
                return Poll::Ready(if broke { ConnectionEnd::Lost } else { ConnectionEnd::Gone });
            }
            client.apply_stop();
            let now = shared.clock.now();
            if now >= client.span.end + DRAIN_MAX {
                return Poll::Ready(ConnectionEnd::Over);
            }
            if self.calls.is_empty() {
                if client.schedule.is_over(now) {
                    return Poll::Ready(ConnectionEnd::Over);
                }
                if self.is_closing {
                    return Poll::Ready(ConnectionEnd::Gone);
                }
            }
            if !self.begin(client, now, cx) {
                return Poll::Pending;
            }
        }
    }

    /// Sends the requests that are due, as far as streams are free. Returns whether it sent any.
    fn begin(&mut self, client: &mut Client, now: Time, cx: &mut Context<'_>) -> bool {
        while let Some(due) = client.schedule.give_up(now) {
            client.settle(due, CallResult::Failed(Failure::Unsent));
        }
        let before = self.calls.len();
        while self.calls.len() < client.shared.plan.streams
            && !self.is_closing
            && let Some(due) = client.schedule.due(now)
            && let Poll::Ready(ready) = self.send.poll_ready(cx)
        {
            let message = client.draw();
            let head = client.shared.head.clone();
            let sent = ready.and_then(|()| self.send.send_request(head, false));
            let Ok((response, mut body)) = sent else {
                // The request remains due, for the next connection.
                self.is_closing = true;
                break;
            };
            client.schedule.advance();
            self.calls.push(Call::new(due, response));
            // If this fails, the answer reports it.
            let _ = body.send_data(message, true);
        }
        self.calls.len() > before
    }
}

// === Call ===

/// Maximum bytes of an answer. A verdict on 64 descriptors takes a few thousand.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A request whose answer is awaited.
pub(crate) struct Call {
    due: Time,
    stage: Stage,
    message: Bytes,
}

enum Stage {
    Head(ResponseFuture),
    Body(RecvStream),
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// The request may pass.
    Ok,
    /// The request is denied.
    OverLimit,
    /// There was no verdict.
    Failed(Failure),
}

/// The reason why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// gRPC returned an error with this code.
    Grpc(u16),
    /// HTTP returned an error with this status, or the answer is not gRPC.
    NotGrpc(u16),
    /// An answer without an overall code, or one that does not decode.
    NoVerdict,
    /// The stream was reset.
    Reset,
    /// The connection ended.
    Lost,
    /// The run ended before the answer arrived.
    Unanswered,
    /// No stream became free in time to send the request.
    Unsent,
}

// === impl Call ===

impl Call {
    pub(crate) fn new(due: Time, response: ResponseFuture) -> Self {
        Self { due, stage: Stage::Head(response), message: Bytes::new() }
    }

    /// Returns when the request was due.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Appends to the message. It arrives in one piece unless it is very long.
    fn take_in(&mut self, data: Bytes) {
        if self.message.is_empty() {
            self.message = data;
        } else if self.message.len() < ANSWER_BYTES_MAX {
            let mut joined = BytesMut::from(self.message.as_ref());
            joined.extend_from_slice(&data);
            self.message = joined.freeze();
        }
    }

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Result<CallResult, h2::Error>> {
        loop {
            match &mut self.stage {
                Stage::Head(response) => {
                    let response = ready!(Pin::new(response).poll(cx))?;
                    if let Some(refusal) = refusal(response.status(), response.headers()) {
                        return Poll::Ready(Ok(refusal));
                    }
                    self.stage = Stage::Body(response.into_body());
                }
                Stage::Body(body) => match ready!(body.poll_data(cx)) {
                    Some(data) => {
                        let data = data?;
                        body.flow_control().release_capacity(data.len())?;
                        self.take_in(data);
                    }
                    None => {
                        let trailers = ready!(body.poll_trailers(cx))?.unwrap_or_default();
                        return Poll::Ready(Ok(outcome(&self.message, &trailers)));
                    }
                },
            }
        }
    }
}

impl Future for Call {
    type Output = (Time, CallResult);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match ready!(self.poll_outcome(cx)) {
            Ok(outcome) => outcome,
            Err(error) if error.is_reset() => CallResult::Failed(Failure::Reset),
            Err(_) => CallResult::Failed(Failure::Lost),
        };
        Poll::Ready((self.due, outcome))
    }
}

/// Returns the result if the head alone decides it, because no message follows.
fn refusal(status: StatusCode, headers: &HeaderMap) -> Option<CallResult> {
    match code(headers) {
        Some(0) | None if status == StatusCode::OK => None,
        Some(code) if code != 0 => Some(CallResult::Failed(Failure::Grpc(code))),
        _ => Some(CallResult::Failed(Failure::NotGrpc(status.as_u16()))),
    }
}

fn outcome(message: &[u8], trailers: &HeaderMap) -> CallResult {
    match code(trailers) {
        Some(0) => match overall_code(message) {
            Some(1) => CallResult::Ok,
            Some(2) => CallResult::OverLimit,
            _ => CallResult::Failed(Failure::NoVerdict),
        },
        Some(code) => CallResult::Failed(Failure::Grpc(code)),
        None => CallResult::Failed(Failure::NotGrpc(StatusCode::OK.as_u16())),
    }
}

fn code(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Returns `RateLimitResponse.overall_code`, field 1, from a message with gRPC's prefix. Every
/// encoder in use writes fields in order, so this field is first.
fn overall_code(message: &[u8]) -> Option<u8> {
    const OVERALL_CODE: u8 = 1 << 3;
    match message {
        [0, _, _, _, _, OVERALL_CODE, code, ..] => Some(*code),
        _ => None,
    }
}

// === Counts ===

/// Lower end of the latency histogram: 100 ns.
const NANOS_MIN: u64 = 100;

/// Upper end of the latency histogram: a day. Longer latencies count as a day.
const NANOS_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Significant digits of the latency histogram.
const DIGITS: u8 = 3;

/// Counts of the measured requests.
#[derive(Debug, Clone)]
pub(crate) struct CallCounts {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    pub(crate) failures: BTreeMap<Failure, u64>,
    /// Connections that ended before the run.
    pub(crate) lost: u64,
    /// Latency of every request, in nanoseconds; an unanswered request counts with the time that it
    /// waited.
    pub(crate) latency: Histogram<u64>,
}

// === impl CallCounts ===

impl CallCounts {
    /// # Errors
    ///
    /// The histogram's bounds are invalid; they are constants that are valid.
    pub(crate) fn new() -> Result<Self, String> {
        let latency = Histogram::new_with_bounds(NANOS_MIN, NANOS_MAX, DIGITS);
        Ok(Self {
            ok: 0,
            over_limit: 0,
            failures: BTreeMap::new(),
            lost: 0,
            latency: latency.map_err(|error| error.to_string())?,
        })
    }

    /// Adds a request with this outcome and latency.
    fn add(&mut self, outcome: CallResult, latency: Duration) {
        match outcome {
            CallResult::Ok => self.ok += 1,
            CallResult::OverLimit => self.over_limit += 1,
            CallResult::Failed(failure) => *self.failures.entry(failure).or_default() += 1,
        }
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the counts of another connection.
    ///
    /// # Errors
    ///
    /// The histograms have different bounds. Histograms of one run have equal bounds.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), String> {
        self.ok += other.ok;
        self.over_limit += other.over_limit;
        self.lost += other.lost;
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.latency.add(&other.latency).map_err(|error| error.to_string())
    }

    /// Returns the number of requests without a verdict.
    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Returns the number of all requests.
    pub(crate) fn requests(&self) -> u64 {
        self.ok + self.over_limit + self.failed()
    }
}

// === Link ===

/// Window of a connection: the bytes that a server may send before the client reads them. The
/// window is so large that answers of a few dozen bytes never wait for it.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;

/// Window of a stream, large enough for the same reason.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// A TCP or a Unix socket.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A connection and its request sender. Nothing is sent or received unless the connection is
/// polled.
pub(crate) type Link = (SendRequest<Bytes>, Connection<Box<dyn Socket>, Bytes>);

/// Connects to `target`, with TLS if there is a configuration, and sends the HTTP/2 preface.
/// Success does not mean that the server speaks HTTP/2.
pub(crate) async fn connect(target: &Target, tls: Option<&Arc<ClientConfig>>) -> io::Result<Link> {
    let socket: Box<dyn Socket> = match target {
        Target::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            match tls {
                Some(config) => Box::new(secure(socket, config, address).await?),
                None => Box::new(socket),
            }
        }
        Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
    };
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_window_size(STREAM_WINDOW_BYTES);
    builder.handshake(socket).await.map_err(io::Error::other)
}

async fn secure(
    socket: TcpStream,
    config: &Arc<ClientConfig>,
    address: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(config)).connect(name, socket).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static(code),
        )])
    }

    #[test]
    fn a_verdict_is_the_overall_code_under_status_0() {
        for (message, trailers, expected) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], status("0"), CallResult::Ok),
            (&[0, 0, 0, 0, 4, 8, 2, 18, 0], status("0"), CallResult::OverLimit),
            (&[0, 0, 0, 0, 2, 8, 0], status("0"), CallResult::Failed(Failure::NoVerdict)),
            (&[0, 0, 0, 0, 0], status("0"), CallResult::Failed(Failure::NoVerdict)),
            (&[], status("0"), CallResult::Failed(Failure::NoVerdict)),
            (&[0, 0, 0, 0, 2, 8, 1], status("14"), CallResult::Failed(Failure::Grpc(14))),
            (&[0, 0, 0, 0, 2, 8, 1], HeaderMap::new(), CallResult::Failed(Failure::NotGrpc(200))),
        ] {
            assert_eq!(outcome(message, &trailers), expected, "{message:?} {trailers:?}");
        }
    }

    #[test]
    fn a_head_may_say_all_there_is() {
        let ok = StatusCode::OK;
        assert_eq!(refusal(ok, &HeaderMap::new()), None);
        assert_eq!(refusal(ok, &status("12")), Some(CallResult::Failed(Failure::Grpc(12))));
        let gone = refusal(StatusCode::NOT_FOUND, &HeaderMap::new());
        assert_eq!(gone, Some(CallResult::Failed(Failure::NotGrpc(404))));
    }
}
