//! How often a connection is read and written for its calls.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use ratelease_rules::{self as rules, Source};
use tokio::io::ReadBuf;

use super::*;

const RULES: &str = "{domain: d, descriptors: [{key: k, rate_limit: {unlimited: true}}]}";

/// One descriptor (k, v) of domain d, as a gRPC frame.
pub(super) const FRAME: &[u8] = b"\0\0\0\0\x0d\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicUsize,
    writes: AtomicUsize,
}

/// A pipe that counts how often it is tried to be read, and how often it is written.
struct Counted(DuplexStream, Arc<Counts>);

// === impl Counts ===

impl Counts {
    fn take(&self) -> (usize, usize) {
        (self.reads.swap(0, Ordering::Relaxed), self.writes.swap(0, Ordering::Relaxed))
    }
}

// === impl Counted ===

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.1.reads.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

pub(super) fn rules() -> CurrentRules {
    let source = Source { name: "rules.yaml".into(), text: RULES.into() };
    let loaded = rules::load(&[source], rules::Options::default()).unwrap();
    let published = CurrentRules::new();
    published.put_in_force(Arc::new(loaded.rules));
    published
}

/// Reads and writes of the connection for `count` calls that are sent at once, after a first one.
async fn counts_of(count: usize) -> (usize, usize) {
    let (near, far) = duplex(1 << 16);
    let counts = Arc::new(Counts::default());
    let io = ratelease_listener::Connection::standalone(Counted(near, Arc::clone(&counts)));
    let (_end, ended) = watch::channel(false);
    tokio::spawn(serve(io, context_of(rules(), None), ended));
    let (mut sender, connection) = h2::client::handshake(far).await.unwrap();
    tokio::spawn(connection);
    for count in [1, count] {
        counts.take();
        sender = sender.ready().await.unwrap();
        let answers = (0..count).map(|_| {
            let request = Request::post(format!("http://test{SHOULD_RATE_LIMIT}"))
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let (answer, mut message) = sender.send_request(request, false).unwrap();
            message.send_data(Bytes::from_static(FRAME), true).unwrap();
            answer
        });
        for answer in answers.collect::<Vec<_>>() {
            let mut body = answer.await.unwrap().into_body();
            while body.data().await.is_some() {}
            assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        }
    }
    counts.take()
}

#[tokio::test]
async fn a_call_that_comes_alone_costs_three_reads_and_one_write() {
    // The first brings the call; the others find nothing, before and after the call is answered.
    assert_eq!(counts_of(1).await, (3, 1));
}

#[tokio::test]
async fn calls_that_come_together_are_answered_with_one_write() {
    assert_eq!(counts_of(20).await.1, 1);
}
