//! Invalid replies, or replies to other asks: cut, absurd, out of order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_engine::counter::RedisFailure;
use ratelease_engine::store::StoreError;
use ratelease_engine::store::redis::RedisStore;

use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected, count, exchange, one, patient, until_granted};

/// A server that replies `absurd` to the first ask, on its first connection, and grants five tokens
/// to each later ask.
async fn absurd_once(absurd: Act) -> (Scripted, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let absurd = Arc::new(std::sync::Mutex::new(Some(absurd)));
    let act = {
        let asked = Arc::clone(&asked);
        move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            let act = absurd.lock().unwrap().take().unwrap_or_else(|| Act::Say(grant_of(5)));
            async { act }
        }
    };
    (Scripted::start(act).await, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_cut_is_no_reply() {
    // Cut at every possible place, the last time after its last number.
    let whole = grant_of(5);
    for cut in 0..whole.len() {
        let (server, asked) = absurd_once(Act::SayAndLeave(whole[..cut].into())).await;
        let store = connected(patient(server.config())).await;
        let lost = one(&*store, ask(10, 5, 0)).await;
        assert!(matches!(lost, Err(StoreError::Unreachable(_))), "cut at {cut}: {lost:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "cut at {cut}: not sent again");
        assert_eq!(count(&*store, RedisFailure::Lost), 1, "cut at {cut}");
        if cut % 10 == 0 {
            until_granted(&*store, ask(10, 5, 0), 10).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_the_script_cannot_give_ends_the_connection() {
    let seen: String = grant_of(11);
    for absurd in [
        "+OK\r\n",
        ":5\r\n",
        "_\r\n",
        "$-1\r\n",
        "*0\r\n",
        "*7\r\n:5\r\n:5\r\n:5\r\n$1\r\nx\r\n:0\r\n:0\r\n:0\r\n",
        "*7\r\n:-5\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
        "*7\r\n:5\r\n:9223372036854775807\r\n:1\r\n:5\r\n:0\r\n:0\r\n:0\r\n",
        "*1\r\n*1\r\n*1\r\n:1\r\n",
        // More tokens than were asked for.
        &seen,
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "*2147483647\r\n:1\r\n:x\r\n",
        "-MOVED nowhere\r\n",
    ] {
        let (server, asked) = absurd_once(Act::Say(absurd.into())).await;
        let store = connected(patient(server.config())).await;
        let garbled = one(&*store, ask(10, 5, 0)).await;
        assert!(matches!(garbled, Err(StoreError::MalformedReply(_))), "{absurd:?}: {garbled:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{absurd:?}: not sent again");
        assert_eq!(count(&*store, RedisFailure::MalformedReply), 1, "{absurd:?}");
        until_granted(&*store, ask(10, 5, 0), 10).await;
        assert_eq!(server.connections(), 2, "{absurd:?}");
    }
}

/// After one invalid reply, the next may well belong to another ask.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_more_is_believed_on_a_connection_that_gave_an_absurd_reply() {
    let asked = AtomicU64::new(0);
    let act = move |_| {
        let nth = asked.fetch_add(1, Ordering::Relaxed);
        async move {
            // So that both asks are under way before the first reply.
            tokio::time::sleep(Duration::from_millis(50)).await;
            if nth == 0 {
                return Act::Say(":7\r\n".into());
            }
            Act::Say(grant_of(5))
        }
    };
    let server = Scripted::start(act).await;
    let store = connected(patient(server.config())).await;
    let replies = exchange(&*store, &[ask(10, 5, 0), ask(10, 5, 0)]).await;
    assert!(matches!(replies[0], Err(StoreError::MalformedReply(_))), "{replies:?}");
    assert!(matches!(replies[1], Err(StoreError::Unreachable(_))), "{replies:?}");
    assert_eq!(count(&*store, RedisFailure::Lost), 1, "it was on its way");
    until_granted(&*store, ask(10, 5, 0), 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_every_connection_is_connected_to_less_and_less_often() {
    let server = Scripted::start(|_| async { Act::SayAndLeave(String::new()) }).await;
    let store = RedisStore::spawn(server.config(), "");
    let asking = async {
        loop {
            let _ = one(&*store, ask(10, 1, 0)).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(3), asking).await;
    // 0, 100, 300, 700, 1500 ms, each wait up to half shorter.
    assert!((3..=10).contains(&server.connections()), "{}", server.connections());
}
