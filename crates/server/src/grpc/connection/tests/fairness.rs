//! How much a connection's task reads before other connections get their turn, if its client sends
//! all the time.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::ReadBuf;
use tokio::task::yield_now;

use super::turns::{FRAME, rules};
use super::*;

/// The limit on the cost of a turn (`turn` of the listener), and one read by `h2` beyond it.
const TURN_BYTES: usize = (32 + 8) * 1024;

/// Kinds of frames, and the flag of the last one of a stream (RFC 9113 §6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(super) const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// The largest window, so that the answers of a flood fit into it.
const LARGE: [u8; 4] = [0x7f, 0xff, 0, 0];

/// What the task of a connection has done so far.
#[derive(Debug, Default)]
struct Work {
    polls: AtomicUsize,
    read: AtomicUsize,
    /// Most bytes that one poll has read.
    most: AtomicUsize,
}

/// A pipe that counts the bytes read from it.
struct Counted(DuplexStream, Arc<Work>);

/// The task of a connection.
struct Task<F>(Pin<Box<F>>, Arc<Work>);

// === impl Counted ===

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.0).poll_read(cx, buf);
        self.1.read.fetch_add(buf.filled().len() - before, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

// === impl Task ===

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = self.1.read.load(Ordering::Relaxed);
        let polled = self.0.as_mut().poll(cx);
        self.1.polls.fetch_add(1, Ordering::Relaxed);
        let read = self.1.read.load(Ordering::Relaxed) - before;
        self.1.most.fetch_max(read, Ordering::Relaxed);
        polled
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[high, middle, low, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call: fields of HPACK's static table, and literals that it does not keep.
pub(super) fn headers(stream: u32) -> Vec<u8> {
    headers_for(stream, SHOULD_RATE_LIMIT)
}

/// The headers of a call of this path.
pub(super) fn headers_for(stream: u32, path: &str) -> Vec<u8> {
    let field = |name: &[u8], value: &str| {
        [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
    };
    let path = field(&[0x04], path);
    let authority = field(&[0x01], "test");
    let content_type = field(&[0x0f, 0x10], "application/grpc");
    let block = [&[0x83, 0x86][..], &path, &authority, &content_type].concat();
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// What a client sends first: windows as large as they may be.
pub(super) fn beginning() -> Vec<u8> {
    let window = [&[0, 4][..], &LARGE].concat();
    let settings = frame(SETTINGS, 0, 0, &window);
    [PREFACE, &settings, &frame(WINDOW_UPDATE, 0, 0, &LARGE)].concat()
}

/// Serves a connection whose client has sent `bytes`.
async fn served(bytes: &[u8]) -> (DuplexStream, Arc<Work>, watch::Sender<bool>) {
    let (near, mut far) = duplex(8 << 20);
    far.write_all(bytes).await.unwrap();
    let work = Arc::new(Work::default());
    let io = ratelease_listener::Connection::standalone(Counted(near, Arc::clone(&work)));
    let (end, ended) = watch::channel(false);
    let serving = serve(io, context_of(rules(), None), ended);
    tokio::spawn(Task(Box::pin(serving), Arc::clone(&work)));
    (far, work, end)
}

/// Half-sent calls, each in a task of its own, all of which are reset before further calls.
#[tokio::test]
async fn calls_that_end_give_their_connection_no_further_turns() {
    let mut begun = beginning();
    for stream in (1..).step_by(2).take(200) {
        begun.extend(headers(stream));
        begun.extend(frame(DATA, 0, stream, &FRAME[..1]));
    }
    let (mut far, work, _end) = served(&begun).await;
    while work.read.load(Ordering::Relaxed) < begun.len() - PREFACE.len() {
        yield_now().await;
    }
    work.most.store(0, Ordering::Relaxed);
    let resets = (1..).step_by(2).take(200).map(|stream| frame(RST_STREAM, 0, stream, &CANCEL));
    let calls = (401..)
        .step_by(2)
        .take(4000)
        .map(|stream| [headers(stream), frame(DATA, END_STREAM, stream, FRAME)].concat());
    let flood: Vec<u8> = resets.chain(calls).flatten().collect();
    let all = work.read.load(Ordering::Relaxed) + flood.len();
    far.write_all(&flood).await.unwrap();
    while work.read.load(Ordering::Relaxed) < all {
        yield_now().await;
    }
    let most = work.most.load(Ordering::Relaxed);
    assert!(most <= TURN_BYTES, "{most} bytes in one poll");
}

/// A call's message comes after the headers of others, so that a turn may end between them.
#[test]
fn the_thread_looks_at_other_connections_after_a_turn() {
    const LATER: usize = 60;
    let streams: Vec<u32> = (1..).step_by(2).take(4000).collect();
    let mut flood = beginning();
    for (nth, stream) in streams.iter().enumerate() {
        flood.extend(headers(*stream));
        let earlier = nth.checked_sub(LATER).map(|nth| streams[nth]);
        flood.extend(earlier.into_iter().flat_map(|it| frame(DATA, END_STREAM, it, FRAME)));
    }
    let most = ratelease_listener::runtime_builder().build().unwrap().block_on(async {
        let (_far, work, _end) = served(&flood).await;
        let (mut most, mut before) = (0, 0);
        while work.read.load(Ordering::Relaxed) < flood.len() - PREFACE.len() {
            // It is woken after the thread has looked for I/O events.
            yield_now().await;
            let polls = work.polls.load(Ordering::Relaxed);
            most = most.max(polls - before);
            before = polls;
        }
        most
    });
    assert!(most <= 3, "{most} turns without a look at other connections");
}

/// Calls without a method that the server knows, all of which have arrived.
#[tokio::test]
async fn calls_for_tonic_leave_turns_to_other_connections() {
    const CALLS: usize = 200;
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    let counted = axum::routing::post(move || async move {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let routes = Routes::from(axum::Router::new().route(SHOULD_RATE_LIMIT, counted));
    let context = ConnectionContext { routes: routes.prepare(), ..context_of(rules(), None) };
    let mut calls = beginning();
    for stream in (1..).step_by(2).take(CALLS) {
        calls.extend(headers(stream));
        // Two messages are not a plain call.
        calls.extend(frame(DATA, END_STREAM, stream, &[FRAME, FRAME].concat()));
    }
    let (near, mut far) = duplex(8 << 20);
    far.write_all(&calls).await.unwrap();
    let (_end, ended) = watch::channel(false);
    let mut serving = pin!(serve(ratelease_listener::Connection::standalone(near), context, ended));
    let mut before = 0;
    while before < CALLS {
        let polled = poll_fn(|cx| Poll::Ready(serving.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "it ended after {before} calls");
        let now = answered.load(Ordering::Relaxed);
        assert!(now - before <= SLOW_CALLS_A_TURN, "{} calls in one turn", now - before);
        before = now;
        yield_now().await;
    }
}
