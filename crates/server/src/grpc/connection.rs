//! One HTTP/2 connection, directly on `h2`. Plain calls are answered in the connection's task, in
//! batches of reads and writes; one that has to wait, as any other call, gets a task, on the same
//! thread. So a reset is seen before the answer of a call that it came with.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::task::AtomicWaker;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong};
use http::Request;
use ratelease_engine::limiter::owners::{ClosedBy, Origin};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, ReusableBoxFuture};
use tonic::service::Routes;

use super::access_log::AccessLog;
use super::answered_starts::AnsweredStarts;
use super::call::{Call, Kind};
use super::context::CallContext;
use super::fallback::FallbackCall;
use super::write_coalescing::{CoalescingIo, WriteGate};
use super::{NonHttp2Clients, read_preface};
use crate::service::DecisionService;
use ratelease_listener::{ConnectionHandle, PREFACE};
use ratelease_listener::{HEADER_BYTES_MAX, KEEPALIVE_INTERVAL};

/// Maximum number of concurrent calls on one connection, and so of its tasks that wait for leases
/// or the CPU: as many as an Envoy opens on a new connection before it has read our SETTINGS. It takes
/// a refused call for an error, and repeats none. An Envoy opens a connection for each of its workers,
/// and another when one has no stream left.
const STREAMS_MAX: u32 = 1024;

/// A call without a message gets a task after this time, at the next event of its connection: there
/// is one each second.
const MESSAGE_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of calls on one connection that are not for a verdict and are not answered at
/// once: health watches, and incomplete calls. Further ones are reset. Each takes several times as
/// much memory as its stream.
const OTHERS_MAX: usize = 16;

/// Maximum number of calls of one connection that are not plain, such as those that tonic answers,
/// before other connections of its thread get their turn. Each takes as long as some ten plain calls.
const SLOW_CALLS_A_TURN: usize = 32;

/// Maximum number of streams that a client resets before they are handled; above it the connection
/// is closed (CVE-2023-44487). Envoy resets a stream whenever its timeout expires, so a stall must
/// not look like an attack: this is far above h2's default of 20.
const PENDING_RESETS_MAX: usize = 1024;

/// Maximum number of streams reset by this end because of the client's errors (CVE-2025-8671), the
/// same as in hyper.
const LOCAL_RESETS_MAX: usize = 1024;

/// Maximum number of answer bytes of one call that wait for the client to read them.
const SEND_BUFFER_MAX: usize = 256 * 1024;

/// Maximum size in bytes of one frame from a client: the least that HTTP/2 allows to set.
const FRAME_BYTES_MAX: u32 = 16 * 1024;

/// Flow control windows: maximum number of message bytes in flight to this process, of one call and
/// of all calls of a connection.
const CALL_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// A pinged connection is closed when it does not answer within this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time to answer a ping for a client that was heard of just before: as long as a client that falls
/// silent has from then on.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(80);

/// The parts needed to serve the calls of a connection. Clones share all state.
#[derive(Clone)]
pub(super) struct ConnectionContext {
    pub(super) service: DecisionService,
    pub(super) routes: Routes,
    pub(super) non_http2: NonHttp2Clients,
    /// A connection is asked to go away at this age.
    pub(super) age: Option<Duration>,
}

/// Serves a connection until its client closes it, its place is needed, or its client exceeds a
/// limit, or until `stop` is true and every call has been answered.
pub(super) async fn serve<I>(
    mut io: ratelease_listener::Connection<I>,
    context: ConnectionContext,
    mut stop: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let handle = io.handle();
    // What is only of the beginning is boxed, so that it takes no memory while the connection
    // lives.
    let preface = tokio::select! {
        preface = Box::pin(read_preface(&mut io, &context.non_http2)) => preface,
        // A client that has sent no preface yet is dropped without notice.
        _ = stop.wait_for(|stop| *stop) => None,
        () = handle.close_requested() => None,
    };
    if preface.is_none() {
        return;
    }
    let gate = WriteGate::default();
    let mut calls = Calls::new(&context, &mut io, gate.clone());
    let answered = Arc::clone(&calls.context.answered);
    let io = CoalescingIo::new(io, gate, PREFACE);
    let Ok(mut connection) = Box::pin(builder().handshake(io)).await else { return };
    let mut events = Events::new();
    events.push(Box::pin(async {
        tokio::select! {
            () = reached_age(context.age) => {}
            () = handle.close_requested() => {}
            // An error means that the sender is gone, together with the server.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        Event::Leave
    }));
    events.push(Box::pin(async {
        handle.run_until_closed().await;
        Event::End(ClosedBy::Server)
    }));
    events.push(Box::pin(async {
        tokio::select! {
            () = silent(&handle) => Event::PingDue(KEEPALIVE_TIMEOUT),
            () = answered.ping_due() => Event::PingDue(PATIENT_TIMEOUT),
        }
    }));
    let by = loop {
        tokio::select! {
            // The calls are polled last: once they are pending, the turn is over and the task has
            // to wait. If another branch were ready after it, the loop would begin a further turn
            // at once.
            biased;
            Some(event) = events.next() => match event {
                Event::PingDue(patience) => if let Some(pings) = connection.ping_pong() {
                    events.push(Box::pin(ping(pings, patience, &answered)));
                },
                Event::Leave => {
                    calls.leave();
                    connection.graceful_shutdown();
                }
                Event::End(by) => break by,
            },
            by = poll_fn(|cx| calls.poll(&mut connection, cx)) => break by,
        }
    };
    calls.context.note_closed(by);
    drop(connection);
    // They read the data that had arrived before the end, and then find the end.
    while calls.logs.join_next().await.is_some() {}
}

/// What happens to a connection besides its calls.
enum Event {
    /// From now on its client is pinged: nothing was answered on it for a while, or an answer has
    /// granted the start of a request. It is given so long to answer the first ping.
    PingDue(Duration),
    /// It is to end after its calls have finished.
    Leave,
    /// The connection is to end at once: this end closes it, or finds the client gone.
    End(ClosedBy),
}

/// The events to come. Only those that have been woken are polled, and calls wake none of them.
type Events<'a> = FuturesUnordered<BoxFuture<'a, Event>>;

/// The calls of a connection, which are read and answered batch by batch.
struct Calls {
    context: Arc<CallContext>,
    routes: Routes,
    handle: ConnectionHandle,
    waker: H2Waker,
    gate: WriteGate,
    /// Calls of which only the headers have been read. The message may still arrive, for example
    /// after the headers of other calls.
    awaiting_message: VecDeque<Call>,
    /// The calls for a verdict that take longer.
    waiting: JoinSet<()>,
    /// Other calls that take longer.
    others: JoinSet<()>,
    /// Access logs.
    logs: JoinSet<()>,
    /// Ends the access logs, if there were any.
    logs_end: Option<CancellationToken>,
    /// Whether the connection is to end after its calls have finished.
    is_leaving: bool,
}

// === impl Calls ===

impl Calls {
    fn new<I>(
        context: &ConnectionContext,
        io: &mut ratelease_listener::Connection<I>,
        gate: WriteGate,
    ) -> Self {
        let service = context.service.clone();
        let answered = Arc::new(AnsweredStarts::new(service.starts().clone()));
        io.observe_streams(answered.clone());
        let origin = io.handle().address().map_or(Origin::Socket, |it| {
            Origin::Address(it.to_canonical()) // as for `Peer`
        });
        let context_of_calls = CallContext::new(service, io.require_turns(), answered, origin);
        Self {
            context: Arc::new(context_of_calls),
            routes: context.routes.clone(),
            handle: io.handle(),
            waker: H2Waker::new(),
            gate,
            awaiting_message: VecDeque::new(),
            waiting: JoinSet::new(),
            others: JoinSet::new(),
            logs: JoinSet::new(),
            logs_end: None,
            is_leaving: false,
        }
    }

    /// From now on the connection ends once its calls have finished.
    fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Answers the calls that have arrived; ready at the connection's end, with who has closed it.
    /// Answers are held back while there are calls that have been read already.
    ///
    /// The loop is bounded: a client that waits for its answers has no more calls than streams. The
    /// amount read before other connections get their turn is limited (`turn` of the listener), and
    /// so is the number of calls that are not plain.
    fn poll<I>(
        &mut self,
        connection: &mut Connection<CoalescingIo<I>, Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<ClosedBy>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let waker = self.waker.waker();
        let h2 = &mut Context::from_waker(&waker);
        self.waker.detach();
        // Whether all calls that were read are answered, as far as they can be: then the answers
        // are sent.
        let mut is_answered = false;
        let mut slow_calls = 0;
        loop {
            if !is_answered && slow_calls >= SLOW_CALLS_A_TURN {
                // The task is woken after its thread has looked for I/O events.
                let _ = pin!(yield_now()).poll(cx);
                return Poll::Pending;
            }
            self.gate.set_closed(!is_answered);
            if is_answered {
                // Only this poll can be the last one. What happens in an earlier one must not wake
                // the task: it would run again before its thread looks at other connections.
                self.waker.attach(cx);
            }
            let accepted = match connection.poll_accept(h2) {
                Poll::Ready(accepted) => accepted,
                Poll::Pending if is_answered => {
                    self.context.turn.note_handled();
                    for tasks in [&mut self.waiting, &mut self.others, &mut self.logs] {
                        while let Poll::Ready(Some(_)) = tasks.poll_join_next(cx) {}
                    }
                    self.end_logs_last();
                    return Poll::Pending;
                }
                Poll::Pending => {
                    self.answer_awaiting_message(h2);
                    is_answered = true;
                    continue;
                }
            };
            self.waker.detach();
            let (request, respond) = match accepted {
                Some(Ok(call)) => call,
                ended => return Poll::Ready(self.closed_by(ended.and_then(Result::err))),
            };
            let is_last = u32::from(respond.stream_id()) == self.context.turn.newest_stream();
            slow_calls += usize::from(self.begin(request, respond, h2));
            is_answered = is_last && self.awaiting_message.is_empty();
        }
    }

    /// Begins a call that has just been accepted. Returns whether it is not plain.
    fn begin(
        &mut self,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        h2: &mut Context<'_>,
    ) -> bool {
        let kind = Call::new(request, respond).read(&self.context, h2);
        let is_slow = matches!(kind, Kind::Fallback(_) | Kind::AccessLog(_));
        match kind {
            Kind::Unknown(call) => {
                self.awaiting_message.push_back(call.into_waiting(self.context.service.now()));
            }
            known => self.answer(known),
        }
        is_slow
    }

    /// Looks again at the calls whose messages had not arrived. A call goes to tonic if its
    /// message has not arrived after [`MESSAGE_WAIT`].
    fn answer_awaiting_message(&mut self, h2: &mut Context<'_>) {
        if self.awaiting_message.is_empty() {
            return; // as for nearly all batches: the clock is not read
        }
        let now = self.context.service.now();
        for _ in 0..self.awaiting_message.len() {
            let Some(call) = self.awaiting_message.pop_front() else { return };
            match call.read(&self.context, h2) {
                Kind::Unknown(call) if call.waited(now) >= MESSAGE_WAIT => {
                    self.answer(call.into_fallback(&self.context, Bytes::new()));
                }
                Kind::Unknown(call) => self.awaiting_message.push_back(call),
                known => self.answer(known),
            }
        }
    }

    /// Answers a call here if it need not wait, else in a task: while leases are late, thousands
    /// of calls may come that are refused at once, and a task takes more memory than its call.
    fn answer(&mut self, call: Kind) {
        match call {
            Kind::Plain(call) => {
                let waiting = call.answer_at_once(&self.context);
                let answer = waiting.map(|call| call.answer(Arc::clone(&self.context)));
                if let Some(answer) = answer.and_then(poll_once) {
                    self.waiting.spawn(answer);
                }
            }
            Kind::Fallback(call) => self.answer_by_tonic(*call),
            Kind::AccessLog(call) => self.read_log(call),
            Kind::Unknown(_) | Kind::Ended => {}
        }
    }

    /// Reads the access log that `call` has opened, in a task.
    fn read_log(&mut self, call: Call) {
        let end = self.logs_end.get_or_insert_default();
        if let Some(log) = AccessLog::begin(call, &self.context, &self.handle, end) {
            self.logs.spawn(log.read());
        }
    }

    /// Ends the access logs, if the connection is to end and all calls for a verdict have finished.
    fn end_logs_last(&self) {
        if let Some(end) = &self.logs_end
            && self.is_leaving
            && self.waiting.is_empty()
            && self.awaiting_message.is_empty()
        {
            end.cancel();
        }
    }

    /// The end that has closed the connection, by the error with which that has ended, if any.
    fn closed_by(&self, error: Option<h2::Error>) -> ClosedBy {
        let was_refused = error.is_some_and(|error| {
            tracing::debug!(%error, "a connection failed");
            error.is_library() // `h2` does not go on with such a client
        });
        match self.is_leaving || was_refused || self.handle.was_cut() {
            true => ClosedBy::Server,
            false => ClosedBy::Client,
        }
    }

    /// Has tonic answer `call`. Drops it if there are too many others.
    fn answer_by_tonic(&mut self, call: FallbackCall) {
        let is_for_verdict = call.is_for_verdict();
        let answered = call.answer(&self.context, &self.handle, self.routes.clone());
        let mut served = Box::pin(answered);
        if served.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        if is_for_verdict {
            self.waiting.spawn(served);
            return;
        }
        while self.others.try_join_next().is_some() {}
        if self.others.len() < OTHERS_MAX {
            self.others.spawn(served);
        }
    }
}

thread_local! {
    /// The memory in which the answers of this thread's connections are polled first, one after
    /// the other.
    static ANSWER: Cell<Option<ReusableBoxFuture<'static, ()>>> = const { Cell::new(None) };
}

/// Polls `answer` once, without an allocation unless it has to wait: then returns it.
fn poll_once(
    answer: impl Future<Output = ()> + Send + 'static,
) -> Option<ReusableBoxFuture<'static, ()>> {
    let mut polled = match ANSWER.take() {
        Some(mut polled) => {
            polled.set(answer);
            polled
        }
        None => ReusableBoxFuture::new(answer),
    };
    // The task that it gets polls it again: no waker is needed before.
    if polled.poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        return Some(polled);
    }
    ANSWER.set(Some(polled));
    None
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_MAX)
        .initial_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

/// Resolves once nothing was answered for half of [`KEEPALIVE_INTERVAL`] or more. Until then the
/// answers show that the client is there, and `h2` need not look for pings each time it is polled.
async fn silent(handle: &ConnectionHandle) {
    loop {
        sleep(KEEPALIVE_INTERVAL).await;
        if handle.idle_time() >= KEEPALIVE_INTERVAL / 2 {
            return;
        }
    }
}

/// Pings the client at intervals, and when answers have granted starts. Resolves once it no longer
/// answers: it is gone.
async fn ping(mut pings: PingPong, mut patience: Duration, answered: &AnsweredStarts) -> Event {
    loop {
        let ping = answered.begin_ping();
        if !matches!(timeout(patience, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return Event::End(ClosedBy::Client);
        }
        answered.acknowledge(ping);
        patience = tokio::select! {
            () = sleep(KEEPALIVE_INTERVAL) => KEEPALIVE_TIMEOUT,
            () = answered.ping_due() => PATIENT_TIMEOUT,
        };
    }
}

/// Resolves once a connection has reached `age`.
async fn reached_age(age: Option<Duration>) {
    match age {
        Some(age) => sleep(age).await,
        None => pending().await,
    }
}

// === The waker that `h2` gets of the task of a connection ===
//
// `h2` wakes the task whenever it is given an answer, so that the task writes it. A task that
// answers calls itself polls `h2` afterwards in any case: with its own waker it would run twice
// for each call.

/// Wakes the task of a connection while the task is attached.
#[derive(Debug)]
struct H2Waker {
    task: Arc<AttachedTask>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct AttachedTask(AtomicWaker);

// === impl H2Waker ===

impl H2Waker {
    fn new() -> Self {
        let task = Arc::new(AttachedTask::default());
        Self { waker: Waker::from(Arc::clone(&task)), task }
    }

    /// The waker to poll `h2` with.
    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Attaches the task of `cx`, which is then to poll `h2`: events before that poll are seen by
    /// it, and those after it wake the task.
    fn attach(&self, cx: &Context<'_>) {
        self.task.0.register(cx.waker());
    }

    /// Detaches the task, which is going to attach itself and to poll `h2` again before it waits.
    fn detach(&self) {
        drop(self.task.0.take());
    }
}

// === impl AttachedTask ===

impl Wake for AttachedTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests;
