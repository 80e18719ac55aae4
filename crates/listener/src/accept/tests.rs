//! Listeners that fail, and full pools.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use tokio::io::{DuplexStream, duplex};
use tokio::time::Instant;

use super::*;

/// A listener that fails in every way before it returns a connection.
struct Failing(AtomicUsize);

impl Accept for Failing {
    type Socket = DuplexStream;
    type Io = DuplexStream;

    fn register(socket: DuplexStream) -> Result<DuplexStream> {
        Ok(socket)
    }

    async fn accept(&self) -> Result<(DuplexStream, Option<IpAddr>)> {
        match self.0.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Err(ErrorKind::ConnectionAborted.into()),
            1 | 2 => Err(Error::from_raw_os_error(24)), // EMFILE
            _ => Ok((duplex(1).0, None)),
        }
    }
}

#[tokio::test]
async fn a_connection_is_counted_until_it_is_dropped() {
    let open = OpenConnections::default();
    let failing = Failing(AtomicUsize::new(3));
    let mut connections = Box::pin(connections(failing, None, open.clone()));
    let connection = connections.next().await;
    assert_eq!(open.count(), 1);
    drop(connection);
    assert_eq!(open.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn accept_errors_are_retried_after_a_pause() {
    let failing = Failing(AtomicUsize::new(0));
    let mut connections = Box::pin(connections(failing, None, OpenConnections::default()));
    for _ in 0..3 {
        #[allow(clippy::disallowed_methods)] // paused
        let start = Instant::now();
        assert!(connections.next().await.is_some_and(|accepted| accepted.register().is_ok()));
        let waited = start.elapsed();
        assert!((RETRY_PAUSE * 2..RETRY_PAUSE * 3).contains(&waited), "{waited:?}");
    }
}

/// A listener that returns connections without end; their clients wait for nothing.
struct Endless;

impl Accept for Endless {
    type Socket = DuplexStream;
    type Io = DuplexStream;

    fn register(socket: DuplexStream) -> Result<DuplexStream> {
        Ok(socket)
    }

    async fn accept(&self) -> Result<(DuplexStream, Option<IpAddr>)> {
        yield_now().await;
        Ok((duplex(1).0, Some(Ipv4Addr::LOCALHOST.into())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_refused_only_if_no_other_ends() {
    const MAX: usize = 10;
    let open = OpenConnections::new(MAX);
    let mut connections = Box::pin(connections(Endless, None, open.clone()));
    let mut crowd = Vec::new();
    for _ in 0..MAX {
        crowd.push(connections.next().await.unwrap());
    }
    assert_eq!((open.count(), open.refused()), (MAX, 0));
    // The servers of the connections ignore requests to close.
    let mut next = connections.next();
    let limit = EVICTION_WAIT_MAX * EVICTION_WAITS * 3 / 2;
    assert!(timeout(limit, &mut next).await.is_err());
    assert_eq!((open.count(), open.refused()), (MAX, 1));
    drop(crowd.pop());
    let accepted = next.await;
    assert!(accepted.is_some());
    assert_eq!(open.count(), MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_at_the_moment_it_is_asked_to_leaves_room_for_the_new_one() {
    const CONNECTIONS: usize = 50_000;
    let open = OpenConnections::new(2);
    let connections = connections(Endless, None, open.clone()).take(CONNECTIONS);
    let serve = |accepted: Accepted<Endless>| async move {
        let serving = accepted.guard.handle().clone();
        tokio::spawn(async move {
            serving.run_until_closed().await;
            drop(accepted);
        });
    };
    connections.for_each(serve).await;
    assert_eq!(open.refused(), 0);
}

/// `Notify::notify_one` stores a notification: the one from an earlier end made the acceptor close
/// a second connection at once.
#[tokio::test(start_paused = true)]
async fn one_connection_closes_for_one_that_comes() {
    let open = OpenConnections::new(32);
    drop(open.admit(None));
    let crowd: Vec<_> = (0..32).map(|_| open.admit(None).unwrap()).collect();
    crowd.iter().for_each(|guard| guard.handle().note_answer());
    let waits = timeout(EVICTION_WAIT_MAX / 2, admit_or_evict(&open, None)).await;
    assert!(waits.is_err(), "none has ended");
    assert_eq!(open.evicted(), 1);
}
