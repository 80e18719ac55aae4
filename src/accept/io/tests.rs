//! Connections whose clients say nothing, read nothing, or say too much.

use std::pin::pin;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use super::super::OpenConnections;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

const SECOND: Duration = Duration::from_secs(1);

fn pair(life: Option<Duration>, bytes: usize) -> (DuplexStream, Connection<DuplexStream>) {
    let (client, server) = duplex(bytes);
    let guard = OpenConnections::default().admit(None).unwrap();
    (client, Connection::new(server, life, guard))
}

/// A connection, and how long it lasts for a client that sends `bytes` and no more.
async fn lasts(bytes: &[u8], life: Option<Duration>) -> (Connection<DuplexStream>, Duration) {
    let (mut client, mut connection) = pair(life, 1024);
    client.write_all(bytes).await.unwrap();
    #[allow(clippy::disallowed_methods)] // paused
    let start = Instant::now();
    let read = timeout(HOUR, async { while connection.read_u8().await.is_ok() {} }).await;
    let lived = start.elapsed();
    assert_eq!(read.is_err(), lived >= HOUR);
    (connection, lived)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_say_what_it_wants_is_cut_off() {
    for bytes in [&b""[..], b"P", b"GET /", &PREFACE[..23]] {
        for life in [None, Some(HOUR)] {
            let (_, lived) = lasts(bytes, life).await;
            assert!((PREFACE_MAX..PREFACE_MAX * 2).contains(&lived), "{bytes:?}: {lived:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_lives_as_long_as_it_may() {
    for bytes in [PREFACE, &[b'x'; 24], &[b'x'; 100]] {
        let (connection, lived) = lasts(bytes, None).await;
        assert!(lived >= HOUR && connection.end.is_none(), "{lived:?}");
        assert_eq!(matches!(connection.speaks, Speaks::Http2(_)), bytes == PREFACE);
        for life in [Duration::from_secs(5), Duration::from_secs(300)] {
            let (_, lived) = lasts(bytes, Some(life)).await;
            assert!((life..life + SECOND).contains(&lived), "{lived:?}");
        }
        // Longer than the clock can count.
        let (_, lived) = lasts(bytes, Some(Duration::MAX)).await;
        assert!(lived >= HOUR, "{lived:?}");
    }
}

/// How long a connection lasts on which there is always more to write.
async fn writes(speaks: &[u8], reads: impl AsyncFn(&mut DuplexStream)) -> Duration {
    let (mut client, mut connection) = pair(None, 1024);
    client.write_all(speaks).await.unwrap();
    connection.read_exact(&mut vec![0; speaks.len()]).await.unwrap();
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
async fn a_client_that_does_not_read_or_hardly_does_is_cut_off() {
    for speaks in [PREFACE, b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"] {
        let never = writes(speaks, async |_| std::future::pending().await).await;
        let hardly = writes(speaks, async |client| {
            client.read_u8().await.unwrap();
            sleep(SECOND).await;
        });
        for lasted in [never, hardly.await] {
            assert!((SEND_MAX..SEND_MAX + SECOND * 2).contains(&lasted), "{lasted:?}");
        }
        let slowly = writes(speaks, async |client| {
            client.read_exact(&mut vec![0; SEND_BYTES_MIN / 4]).await.unwrap();
            sleep(SECOND * 2).await;
        });
        assert!(slowly.await >= HOUR);
    }
}

#[tokio::test]
async fn a_flood_is_answered_with_the_word_to_calm_down() {
    let (mut client, mut connection) = pair(None, 1 << 20);
    client.write_all(PREFACE).await.unwrap();
    // A request, of which the client shall hear that it was taken, and pings.
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
    drop(connection);
    let mut told = Vec::new();
    client.read_to_end(&mut told).await.unwrap();
    assert_eq!(told, goaway(7));
}

#[tokio::test]
async fn what_follows_the_preface_in_one_read_is_counted() {
    let (mut client, mut connection) = pair(None, 1024);
    let headers = [0, 0, 0, 1, 5, 0, 0, 0, 7];
    client.write_all(&[PREFACE, &headers].concat()).await.unwrap();
    assert_eq!(connection.read(&mut [0; 100]).await.unwrap(), 33);
    assert!(matches!(&connection.speaks, Speaks::Http2(ledger) if ledger.last_stream() == 7));
    assert!(futures_util::poll!(pin!(connection.read_u8())).is_pending());
}
