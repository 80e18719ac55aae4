//! The end of the process, frame by frame for an HTTP/2 client: its calls are answered, or GOAWAY
//! tells it to retry them elsewhere (RFC 9113 §6.8), and connections that would not be served are
//! refused.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{PATIENT, RULES, SOON, request, rules};
use crate::support::frames::{
    ACK, DATA, END_STREAM, Frame, GOAWAY, HEADERS, NO_ERROR, PING, Raw, call, frame,
};
use crate::support::now;
use crate::support::ratelease::Ratelease;

/// A quarter of this is notice, and half is for calls under way: that leaves time for a test to
/// act.
const LONG_DRAIN: (&str, &str) = ("DRAIN_TIMEOUT", "12s");

/// The maximum stream identifier.
const ANY_STREAM: u32 = u32::MAX >> 1;

fn message() -> Vec<u8> {
    request("plenty", "goaway", &[])
}

/// Reads until a call on `stream` has its complete answer, including trailers.
async fn answer(raw: &mut Raw, stream: u32) {
    let mut has_message = false;
    loop {
        match raw.next().await.expect("the connection lives until the answer is there") {
            Frame { kind: DATA, stream: it, .. } if it == stream => has_message = true,
            Frame { kind: HEADERS, flags, stream: it, .. }
                if it == stream && flags & END_STREAM != 0 =>
            {
                assert!(has_message, "an error");
                return;
            }
            other => assert_ne!(other.kind, GOAWAY, "{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_lost_and_the_last_one_is_named() {
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &[LONG_DRAIN, PATIENT]).await;
    let mut raw = Raw::open(pod.grpc, &[]).await;
    // Answered after six seconds, in the middle of the time for calls after the notice.
    let held = request("held_6s", "goaway", &[]);
    raw.send(&call(1, &held)).await;
    answer(&mut raw, 1).await;
    raw.send(&call(3, &held)).await;
    raw.send(&call(5, &message())).await;
    answer(&mut raw, 5).await;

    pod.process.signal("TERM");
    let notice = raw.next_of(GOAWAY).await.expect("asked to go away");
    assert_eq!((notice.last_stream(), notice.reason()), (ANY_STREAM, NO_ERROR));
    // New connections are refused, while calls are still under way.
    let refused = async || TcpStream::connect(pod.grpc).await.is_err();
    pod.process.until("refusing connections", SOON, refused).await;
    // Calls that were sent before the client received the notice are served.
    raw.send(&call(7, &message())).await;
    let probe = raw.next_of(PING).await.expect("asked whether it has heard");
    answer(&mut raw, 7).await;
    raw.send(&frame(PING, ACK, 0, &probe.payload)).await;
    let last = raw.next_of(GOAWAY).await.expect("given the last stream");
    assert_eq!((last.last_stream(), last.reason()), (7, NO_ERROR));
    // Calls above the last stream are not started: the client may retry them elsewhere.
    raw.send(&call(9, &message())).await;
    answer(&mut raw, 3).await;
    while let Some(frame) = raw.next().await {
        assert_ne!(frame.stream, 9, "{frame:?}");
    }
    assert_eq!(pod.process.exit(SOON).await, 0);
    pod.ended_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_have_sent_nothing_do_not_delay_the_drain() {
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &[LONG_DRAIN, PATIENT]).await;
    let mut silent = Vec::new();
    for said in [&b""[..], b"PRI * HTTP/2"] {
        let mut stream = TcpStream::connect(pod.grpc).await.unwrap();
        stream.write_all(said).await.unwrap();
        silent.push(stream);
    }
    let accepted = async || pod.count("grpc_connections") == 2;
    pod.process.until("serving both", SOON, accepted).await;
    pod.process.signal("TERM");
    let signalled = now();
    assert_eq!(pod.process.exit(Duration::from_secs(18)).await, 0);
    let took = signalled.elapsed();
    assert!(took < Duration::from_secs(11), "{took:?}");
    assert!(!pod.process.log().contains("cut off"), "{}", pod.process.log());
}
