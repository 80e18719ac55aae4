//! A client that makes many calls on a new connection before it has read anything of it, as an Envoy
//! does: up to 1024, which is its own maximum. The calls wait, as they do for a first lease.

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::pod;
use crate::support::frames::{
    ACK, DATA, END_STREAM, GREETING, HEADERS, Raw, SETTINGS, WINDOW_UPDATE, begun, frame, settings,
};
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{descriptor, framed, request};

/// Calls of a connection.
const CALLS: u32 = 1024;

/// The window of a new connection (RFC 9113 §6.9.2).
const WINDOW: usize = 65_535;

/// Sends as many whole calls as there is room for in the window of a new connection, and of the others
/// the heads, before it reads anything; and then the rest. Returns how many were allowed.
async fn allowed(pod: &Ratelease, message: &[u8]) -> u32 {
    let mut stream = TcpStream::connect(pod.grpc).await.expect("the pod takes a connection");
    stream.set_nodelay(true).expect("a socket that lives");
    let data = |stream| frame(DATA, END_STREAM, stream, message);
    let streams = || (0..CALLS).map(|nth| 2 * nth + 1);
    let at_once = (WINDOW / message.len()).min(CALLS as usize);
    let whole = streams().take(at_once).flat_map(|it| [begun(it), data(it)].concat());
    let heads = streams().skip(at_once).flat_map(begun);
    let window = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    let greeting = [GREETING, &settings(&[]), &window].concat();
    let first: Vec<u8> = greeting.into_iter().chain(whole).chain(heads).collect();
    stream.write_all(&first).await.expect("a connection that lives");
    let mut raw = Raw { stream };
    assert_eq!(raw.next().await.map(|frame| frame.kind), Some(SETTINGS));
    assert!(raw.next_of(WINDOW_UPDATE).await.is_some(), "there is more room");
    let rest: Vec<u8> = streams().skip(at_once).flat_map(data).collect();
    raw.send(&[frame(SETTINGS, ACK, 0, &[]), rest].concat()).await;
    let (mut allowed, mut ended) = (0, 0);
    while ended < CALLS {
        let Some(frame) = raw.next().await else { break };
        // `overall_code: OK` behind the head of a frame.
        allowed += u32::from(frame.kind == DATA && frame.payload.get(5..7) == Some(&[8, 1]));
        ended += u32::from(frame.kind == HEADERS && frame.flags & END_STREAM != 0);
    }
    allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_a_thousand_first_calls_is_answered() {
    // The calls of more than two connections have no room to wait, see `MAX_IN_FLIGHT`.
    for (connections, key, length) in
        [(1, "paced", 1), (2, "paced", 1), (2, "paced", 400), (4, "plenty", 400)]
    {
        let (pod, _rules) = pod().await;
        let message = framed(&request("test", &[descriptor(key, "v".repeat(length))]));
        let all = join_all((0..connections).map(|_| allowed(&pod, &message))).await;
        let calmed = pod.count("connections_calmed");
        println!("{connections} connections, {length} bytes: {all:?} of {CALLS}, {calmed} closed");
        assert_eq!(all, vec![CALLS; connections], "{connections} connections, {length} bytes");
        pod.is_unharmed();
    }
}
