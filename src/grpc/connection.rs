//! One HTTP/2 connection, straight on `h2`. Plain calls are answered in its own task, one batch of
//! reads and writes after the other; the rest get a task each.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::service::Routes;

use super::call::{Call, Step};
use super::cork::{Cork, Corked};
use super::greeting::{self, Strangers};
use super::headers;
use super::rest;
use super::rest::Rest;
use super::wire::SHOULD_RATE_LIMIT;
use crate::accept::{self, ConnectionHandle, Half, PREFACE, TurnHandle};
use crate::accept::{HEADER_BYTES_MAX, KEEPALIVE_INTERVAL};
use crate::intake::{Intake, Peer};

/// Calls under way on one connection at most. A connection's calls are read and get a task each
/// before any of them runs, so that this bounds what one connection can have waiting for the CPU.
/// An Envoy opens a connection for each of its workers, and another when one has no stream left.
/// With each call waiting 5 ms for a lease, this many are 51 000 a second.
const STREAMS_MAX: u32 = 256;

/// Header fields that a call may keep while its message is on its way. A client of gRPC sends six,
/// and what tracers add.
const FIELDS_FEW: usize = 16;

/// Calls of one connection that are not for a verdict and are not answered at once, at most:
/// watches of the health service, and calls that are not whole. One more is reset. Each takes
/// several times as much memory as its stream.
const OTHERS_MAX: usize = 16;

/// Streams that a client reset before they were handled, at most, before the connection is closed
/// (CVE-2023-44487). Envoy resets a stream whenever its timeout strikes, so a stall must not look
/// like an attack: this many is far above h2's own 20.
const PENDING_RESETS_MAX: usize = 1024;

/// Streams reset here because of the client's faults at most (CVE-2025-8671), as hyper has it.
const LOCAL_RESETS_MAX: usize = 1024;

/// Bytes of answers that wait for the client to read them, of one call at most.
const SEND_BUFFER_MAX: usize = 256 * 1024;

/// Bytes of one frame that a client may send: the least that HTTP/2 allows to offer.
const FRAME_BYTES_MAX: u32 = 16 * 1024;

/// Bytes of messages on their way to us, of one call and of all of them.
const CALL_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// A connection that was probed is closed when it does not answer in time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// What serves a connection's calls. Clones share everything.
#[derive(Clone)]
pub(super) struct Inside {
    pub(super) intake: Intake,
    pub(super) routes: Routes,
    pub(super) strangers: Strangers,
    /// A connection is asked to go away after this.
    pub(super) age: Option<Duration>,
}

type Accepted = Option<Result<(Request<RecvStream>, SendResponse<Bytes>), h2::Error>>;

/// Serves a connection until its client closes it, until its pool needs its place or its client
/// does more than it may, or until `stop` is true and every call has been answered.
pub(super) async fn serve<I>(
    mut io: accept::Connection<I>,
    inside: Inside,
    mut stop: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let handle = io.handle();
    let greeted = tokio::select! {
        greeted = greeting::read(&mut io, &inside.strangers) => greeted,
        // Who has not said what it wants is owed nothing.
        _ = stop.wait_for(|stop| *stop) => None,
        () = handle.told_to_go() => None,
    };
    if greeted.is_none() {
        return;
    }
    let (cork, turn) = (Cork::default(), io.wait_for_handling());
    let io = Corked::new(io, cork.clone(), PREFACE);
    let mut flow = Flow { cork, turn, handle: handle.clone(), unread: VecDeque::new() };
    let Ok(mut connection) = builder().handshake(io).await else { return };
    let mut silence = pin!(silence(connection.ping_pong()));
    let mut told_to_go = pin!(async {
        tokio::select! {
            () = old(inside.age) => {}
            () = handle.told_to_go() => {}
            // An error says that the sender is gone, with whoever served.
            _ = stop.wait_for(|stop| *stop) => {}
        }
    });
    let mut over = pin!(handle.over());
    let mut is_leaving = false;
    let peer = Peer::new();
    let by = (&inside.intake, &peer);
    let (mut calls, mut others) = (JoinSet::new(), JoinSet::new());
    loop {
        tokio::select! {
            next = poll_fn(|cx| flow.next(&mut connection, by, cx)) => match next {
                Some(call) => {
                    let Some((call, half)) = prepared(call, &handle) else { continue };
                    let is_for_verdict = call.request.uri().path() == SHOULD_RATE_LIMIT;
                    let mut served = Box::pin(rest::serve(call, half, inside.routes.clone()));
                    if is_for_verdict {
                        calls.spawn(served);
                    } else if futures_util::poll!(&mut served).is_pending()
                        && others.len() < OTHERS_MAX
                    {
                        others.spawn(served);
                    }
                }
                None => return,
            },
            Some(_) = calls.join_next(), if !calls.is_empty() => {}
            Some(_) = others.join_next(), if !others.is_empty() => {}
            () = &mut silence => return,
            () = &mut over => return,
            () = &mut told_to_go, if !is_leaving => {
                is_leaving = true;
                connection.graceful_shutdown();
            }
        }
    }
}

/// What is read and written on a connection, batch by batch.
struct Flow {
    cork: Cork,
    turn: TurnHandle,
    handle: ConnectionHandle,
    /// Calls of which only the head has been read, and in which second. The message may be on its
    /// way, such as after the heads of other calls.
    unread: VecDeque<Unread>,
}

struct Unread {
    call: Call,
    /// Of the connection, when the head was read.
    second: u32,
}

// === impl Flow ===

impl Flow {
    /// Answers calls until one comes that takes longer; `None` at the connection's end. Answers
    /// are held back while there are calls that have been read already.
    ///
    /// It does not go on for ever: a client that waits for its answers has no more calls than
    /// streams, and what is read before others have their turn is bounded (`accept::turn`).
    fn next<I>(
        &mut self,
        connection: &mut Connection<Corked<I>, Bytes>,
        by: (&Intake, &Peer),
        cx: &mut Context<'_>,
    ) -> Poll<Option<Rest>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            self.cork.hold();
            let accepted = match connection.poll_accept(cx) {
                Poll::Ready(accepted) => accepted,
                Poll::Pending => {
                    if let Some(rest) = self.answer_unread(by, cx) {
                        return Poll::Ready(Some(rest));
                    }
                    self.cork.release();
                    match connection.poll_accept(cx) {
                        Poll::Ready(accepted) => accepted,
                        Poll::Pending => {
                            self.turn.note_handled();
                            return Poll::Pending;
                        }
                    }
                }
            };
            let Some((request, mut respond)) = begun(accepted) else { return Poll::Ready(None) };
            if headers::are_too_many(request.headers()) {
                headers::refuse(&mut respond);
                continue;
            }
            match (Call { request, respond }).answer(by.0, by.1, cx) {
                Step::Done => {}
                Step::Unread(call) => self.unread.push_back(Unread::new(call, &self.handle)),
                Step::Rest(rest) => return Poll::Ready(Some(rest)),
            }
        }
    }

    /// Looks again at the calls whose messages had not come. One that does not come in the same
    /// second, while nothing else is to be read, takes longer.
    fn answer_unread(
        &mut self,
        (intake, peer): (&Intake, &Peer),
        cx: &mut Context<'_>,
    ) -> Option<Rest> {
        let second = self.handle.second();
        for _ in 0..self.unread.len() {
            let unread = self.unread.pop_front()?;
            match unread.call.answer(intake, peer, cx) {
                Step::Done => {}
                Step::Rest(rest) => return Some(rest),
                Step::Unread(call) if self.turn.is_idle() && unread.second != second => {
                    return Some(call.hand_on(intake, peer, None));
                }
                Step::Unread(call) => self.unread.push_back(Unread { call, ..unread }),
            }
        }
        None
    }
}

// === impl Unread ===

impl Unread {
    /// Many headers take more room than the rest of the call.
    fn new(mut call: Call, handle: &ConnectionHandle) -> Self {
        if call.request.headers().len() > FIELDS_FEW {
            headers::keep_those_read(call.request.headers_mut());
        }
        Self { call, second: handle.second() }
    }
}

/// `call` without what nobody reads any more, and a place for it if it is not whole; `None` if
/// there is none, and the call is reset. Its client may try again: nothing was done.
fn prepared(mut call: Rest, handle: &ConnectionHandle) -> Option<(Rest, Option<Half>)> {
    headers::keep_those_read(call.request.headers_mut());
    call.request.extensions_mut().insert(handle.clone());
    if call.request.body().is_whole() {
        return Some((call, None));
    }
    match handle.half() {
        Some(half) => Some((call, Some(half))),
        None => {
            call.respond.send_reset(Reason::REFUSED_STREAM);
            None
        }
    }
}

/// An error ends the connection: it is the client's, or the network's.
fn begun(accepted: Accepted) -> Option<(Request<RecvStream>, SendResponse<Bytes>)> {
    accepted?.inspect_err(|error| tracing::debug!(%error, "a connection broke")).ok()
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

/// Resolves once the other end no longer answers.
async fn silence(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return pending().await };
    loop {
        sleep(KEEPALIVE_INTERVAL).await;
        if !matches!(timeout(KEEPALIVE_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Resolves once a connection has lived for `age`.
async fn old(age: Option<Duration>) {
    match age {
        Some(age) => sleep(age).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
