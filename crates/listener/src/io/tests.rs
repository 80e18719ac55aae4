//! Connections whose clients send nothing, read nothing, or send too much.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, timeout};

use super::super::OpenConnections;
use super::super::pool::PendingStreams;
use super::super::turn::{COST_MAX, HEADER_BYTE_COST};
use super::PREFACE_MAX;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

const SECOND: Duration = Duration::from_secs(1);

fn pair(max_age: Option<Duration>, bytes: usize) -> (DuplexStream, Connection<DuplexStream>) {
    let (client, server) = duplex(bytes);
    let guard = OpenConnections::default().admit(None).unwrap();
    (client, Connection::new(server, max_age, guard))
}

/// A connection, and how long it lasts for a client that sends `bytes` and nothing else.
async fn lasts(bytes: &[u8], max_age: Option<Duration>) -> (Connection<DuplexStream>, Duration) {
    let (mut client, mut connection) = pair(max_age, 1024);
    client.write_all(bytes).await.unwrap();
    #[allow(clippy::disallowed_methods)] // paused
    let start = Instant::now();
    let read = timeout(HOUR, async { while connection.read_u8().await.is_ok() {} }).await;
    let lived = start.elapsed();
    assert_eq!(read.is_err(), lived >= HOUR);
    (connection, lived)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_preface_is_cut_off() {
    for bytes in [&b""[..], b"P", b"GET /", &PREFACE[..23]] {
        for max_age in [None, Some(HOUR)] {
            let (_, lived) = lasts(bytes, max_age).await;
            assert!((PREFACE_MAX..PREFACE_MAX * 2).contains(&lived), "{bytes:?}: {lived:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_a_preface_stays_until_its_max_age() {
    for bytes in [PREFACE, &[b'x'; 24], &[b'x'; 100]] {
        let (connection, lived) = lasts(bytes, None).await;
        assert!(lived >= HOUR && connection.deadline.is_none(), "{lived:?}");
        assert_eq!(matches!(connection.protocol, Protocol::Http2(_)), bytes == PREFACE);
        for max_age in [Duration::from_secs(5), Duration::from_secs(300)] {
            let (connection, lived) = lasts(bytes, Some(max_age)).await;
            assert!((max_age..max_age + SECOND).contains(&lived), "{lived:?}");
            assert!(connection.handle().was_cut());
        }
        // A maximum age longer than the clock can represent.
        let (_, lived) = lasts(bytes, Some(Duration::MAX)).await;
        assert!(lived >= HOUR, "{lived:?}");
    }
}

/// How long a connection lasts that always has more to write.
async fn writes(protocol: &[u8], reads: impl AsyncFn(&mut DuplexStream)) -> Duration {
    let (mut client, mut connection) = pair(None, 1024);
    client.write_all(protocol).await.unwrap();
    connection.read_exact(&mut vec![0; protocol.len()]).await.unwrap();
    #[allow(clippy::disallowed_methods)] // paused
    let start = Instant::now();
    let written = async { while connection.write_all(&[0; 32 * 1024]).await.is_ok() {} };
    let read = async {
        loop {
            reads(&mut client).await;
        }
    };
    tokio::select! {
        _ = timeout(HOUR, written) => {}
        () = read => {}
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_or_too_slowly_is_cut_off() {
    for protocol in [PREFACE, b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"] {
        let never = writes(protocol, async |_| pending().await).await;
        let hardly = writes(protocol, async |client| {
            client.read_u8().await.unwrap();
            sleep(SECOND).await;
        });
        for lasted in [never, hardly.await] {
            assert!((SEND_MAX..SEND_MAX + SECOND * 2).contains(&lasted), "{lasted:?}");
        }
        let slowly = writes(protocol, async |client| {
            client.read_exact(&mut vec![0; SEND_BYTES_MIN / 4]).await.unwrap();
            sleep(SECOND * 2).await;
        });
        assert!(slowly.await >= HOUR);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_what_a_buffer_holds_is_cut_off() {
    // As TLS does, the stream takes bytes before they are sent.
    let (mut client, far) = duplex(1024);
    let mut connection =
        Connection::standalone(tokio::io::BufWriter::with_capacity(16 * 1024, far));
    for is_read in [true, false] {
        connection.write_all(&[0; 4096]).await.unwrap();
        #[allow(clippy::disallowed_methods)] // paused
        let start = Instant::now();
        let read = async {
            sleep(SECOND).await;
            if is_read {
                client.read_exact(&mut [0; 4096]).await.map(|_| ())
            } else {
                pending().await
            }
        };
        let flushed = tokio::select! {
            flushed = connection.flush() => flushed,
            _ = async { let _ = read.await; pending::<()>().await } => unreachable!(),
        };
        let waited = start.elapsed();
        let range = if is_read { SECOND..SECOND * 2 } else { SEND_MAX..SEND_MAX + SECOND * 2 };
        assert!(range.contains(&waited), "{is_read}: {waited:?}");
        assert_eq!(flushed.is_ok(), is_read, "{flushed:?}");
        assert_eq!(connection.stall.is_none(), is_read);
    }
}

/// The end of a connection sends the bytes that the stream holds.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_the_end_of_a_connection_is_cut_off() {
    let (_client, far) = duplex(1024);
    let mut connection =
        Connection::standalone(tokio::io::BufWriter::with_capacity(16 * 1024, far));
    connection.write_all(&[0; 4096]).await.unwrap();
    #[allow(clippy::disallowed_methods)] // paused
    let start = Instant::now();
    let ended = timeout(HOUR, connection.shutdown()).await.expect("it ends");
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    let waited = start.elapsed();
    assert!((SEND_MAX..SEND_MAX + SECOND * 2).contains(&waited), "{waited:?}");
}

#[tokio::test]
async fn a_flood_is_answered_with_enhance_your_calm() {
    let (mut client, mut connection) = pair(None, 1 << 20);
    client.write_all(PREFACE).await.unwrap();
    // A request, whose identifier the GOAWAY has to report as processed, and pings.
    client.write_all(&[0, 0, 0, 1, 5, 0, 0, 0, 7]).await.unwrap();
    for _ in 0..10_000 {
        client.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).await.unwrap();
    }
    let mut read = vec![0; 1 << 16];
    let error = loop {
        match connection.read(&mut read).await {
            Ok(read) => assert_ne!(read, 0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(connection.handle().was_cut());
    drop(connection);
    let mut written = Vec::new();
    client.read_to_end(&mut written).await.unwrap();
    assert_eq!(written, goaway(7));
}

#[tokio::test]
async fn frames_read_together_with_the_preface_are_counted() {
    let (mut client, mut connection) = pair(None, 1024);
    let headers = [0, 0, 0, 1, 5, 0, 0, 0, 7];
    client.write_all(&[PREFACE, &headers].concat()).await.unwrap();
    assert_eq!(connection.read(&mut [0; 100]).await.unwrap(), 33);
    assert!(matches!(&connection.protocol, Protocol::Http2(http2) if http2.last_stream() == 7));
    assert!(futures_util::poll!(pin!(connection.read_u8())).is_pending());
}

#[tokio::test]
async fn a_reader_with_more_to_read_yields_to_others() {
    let (mut client, mut connection) = pair(None, 8 * COST_MAX);
    let turn = connection.require_turns();
    client.write_all(&vec![b'x'; 4 * COST_MAX]).await.unwrap();
    let (mut read, mut turns) = (0, 0);
    while read < 4 * COST_MAX {
        let mut part = [0; COST_MAX / 4];
        match futures_util::poll!(pin!(connection.read(&mut part))) {
            Poll::Ready(part) => read += part.unwrap(),
            Poll::Pending => {
                turns += 1;
                let again = futures_util::poll!(pin!(connection.read(&mut part)));
                assert!(again.is_pending(), "what was read has not been handled");
                turn.note_handled();
            }
        }
    }
    assert_eq!(turns, 3);
}

/// A reference to a field is one byte, and takes as long to decode as a whole field.
#[tokio::test]
async fn header_blocks_end_a_turn_before_bytes_do() {
    let (mut client, mut connection) = pair(None, 8 * COST_MAX);
    let length = u16::try_from(COST_MAX / HEADER_BYTE_COST).unwrap();
    let [high, low] = length.to_be_bytes();
    let block = [&[0, high, low, 1, 5, 0, 0, 0, 1][..], &vec![0x82; length.into()]].concat();
    client.write_all(&[PREFACE, &block, &[0; 9]].concat()).await.unwrap();
    connection.read_exact(&mut vec![0; PREFACE.len() + block.len()]).await.unwrap();
    assert!(futures_util::poll!(pin!(connection.read_u8())).is_pending());
    connection.read_u8().await.unwrap();
}

/// An observer of streams that counts resets, if it watches.
struct Resets(AtomicBool, AtomicUsize);

impl StreamObserver for Resets {
    fn is_watching(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note_reset(&self, stream: u32) {
        assert_eq!(stream, 1);
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn note_answered(&self, _: u32) {}
}

#[tokio::test]
async fn an_observer_is_told_of_streams_while_it_watches() {
    let (mut client, mut connection) = pair(None, 1024);
    let resets = Arc::new(Resets(AtomicBool::new(false), AtomicUsize::new(0)));
    connection.observe_streams(resets.clone());
    let turn = connection.require_turns();
    client.write_all(&[PREFACE, &[0, 0, 0, 1, 5, 0, 0, 0, 1]].concat()).await.unwrap();
    connection.read_exact(&mut [0; 33]).await.unwrap();
    for (is_watching, seen) in [(false, 0), (true, 1), (false, 1)] {
        resets.0.store(is_watching, Ordering::Relaxed);
        assert!(!turn.has_resets());
        client.write_all(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]).await.unwrap();
        connection.read_exact(&mut [0; 13]).await.unwrap();
        assert_eq!(resets.1.load(Ordering::Relaxed), seen);
        assert!(turn.has_resets());
        turn.note_handled();
    }
}

/// A watch of the health service is an answer that has begun and does not end.
#[tokio::test]
async fn long_lived_streams_are_not_counted_as_unread_answers() {
    let open = OpenConnections::default();
    let mut others = open.admit(None).unwrap();
    others.note_pending(PendingStreams { unread: 1 << 16, ..PendingStreams::default() });
    for quiet in [4, 0] {
        let (mut client, server) = duplex(1024);
        let mut connection = Connection::new(server, None, open.admit(None).unwrap());
        let handle = connection.handle();
        let _quiet: Vec<_> = (0..quiet).filter_map(|_| handle.register_long_lived(4)).collect();
        let begun = |flags| (0..4).flat_map(move |nth| [0, 0, 0, 1, flags, 0, 0, 0, 2 * nth + 1]);
        let asked: Vec<u8> = PREFACE.iter().copied().chain(begun(5)).collect();
        client.write_all(&asked).await.unwrap();
        connection.read_exact(&mut vec![0; asked.len()]).await.unwrap();
        connection.write_all(&begun(4).collect::<Vec<u8>>()).await.unwrap();
        assert_eq!(connection.flush().await.is_ok(), quiet > 0, "{quiet} may be quiet");
    }
}
