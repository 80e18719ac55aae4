//! One connection, driven by one task, which reads answers and sends the requests that are due.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use h2::client::{Connection, SendRequest};
use http::Request;
use ratelease_engine::time::{Clock, Time};
use tokio::time::{sleep, timeout, timeout_at};

use super::call::{Call, CallResult, Failure};
use super::counts::CallCounts;
use super::draw::{self, Zipf};
use super::flags::Plan;
use super::link::{Link, Socket, connect};
use super::request::Requests;
use super::schedule::{RunTimes, Schedule};

/// Time after the end of the run in which requests in flight may still be answered.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Pause between attempts to reconnect.
const PAUSE: Duration = Duration::from_millis(100);

/// What all connections of a run share.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) head: Request<()>,
    pub(super) requests: Requests,
    pub(super) zipf: Zipf,
    pub(super) clock: Clock,
    /// One for each connection.
    pub(super) states: Vec<ConnectionState>,
    /// When the run was stopped early, in nanoseconds; `u64::MAX` if it was not.
    pub(super) stopped_at: AtomicU64,
}

/// The state of a connection that other threads use.
#[derive(Default)]
pub(super) struct ConnectionState {
    /// Wakes the connection's task.
    pub(super) due: AtomicWaker,
    /// Number of requests with a verdict so far, including the warm-up.
    pub(super) answered: AtomicU64,
    /// Number of requests without a verdict.
    pub(super) failed: AtomicU64,
}

/// One connection's part of the run.
pub(super) struct Client {
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
    /// It broke.
    Lost,
}

// === impl Shared ===

impl Shared {
    /// Ends the run at `now` unless it ends earlier. Requests in flight may still be answered.
    pub(super) fn stop(&self, now: Time) {
        self.stopped_at.fetch_min(now.nanos(), Ordering::Relaxed);
        self.wake();
    }

    /// Wakes the tasks of all connections.
    pub(super) fn wake(&self) {
        self.states.iter().for_each(|state| state.due.wake());
    }

    /// Returns when the run ends; `end` is when it should end.
    pub(super) fn end(&self, end: Time) -> Time {
        end.min(Time::from_nanos(self.stopped_at.load(Ordering::Relaxed)))
    }
}

// === impl Client ===

impl Client {
    /// # Errors
    ///
    /// As [`CallCounts::new`].
    pub(super) fn new(shared: Arc<Shared>, index: u32, span: RunTimes) -> Result<Self, String> {
        let Plan { seed, rate, connections, .. } = shared.plan;
        let pace = rate.map(|rate| super::schedule::Pace { rate, connections });
        Ok(Self {
            index: index as usize,
            span,
            schedule: Schedule::new(span, pace, index),
            rng: draw::rng(seed, index),
            counts: CallCounts::new()?,
            shared,
        })
    }

    /// Sends load until the run is over: on `link` and, if that ends, on new connections.
    pub(super) async fn run(mut self, link: Link) -> CallCounts {
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
        let state = self.shared.states.get(self.index);
        if let Some(ConnectionState { answered, failed, .. }) = state {
            let count = if matches!(outcome, CallResult::Failed(_)) { failed } else { answered };
            count.fetch_add(1, Ordering::Relaxed);
        }
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
        if let Some(state) = shared.states.get(client.index) {
            // Registered before checking what is due, so that no wake-up is missed.
            state.due.register(cx.waker());
        }
        loop {
            // Writes at once all requests that were begun below, and reads what has arrived.
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
