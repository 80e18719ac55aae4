//! Honest clients that send the heads of many calls before their messages, as HTTP/2 libraries do
//! under load.

use futures_util::future::join_all;

use super::{good, pod};
use crate::support::frames::{DATA, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM};
use crate::support::frames::{REFUSED_STREAM, Raw, begun, frame};
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::framed;

/// The maximum number of calls under way on a connection.
const STREAMS: u32 = 1024;

fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|nth| 2 * nth + 1)
}

fn heads(count: u32) -> Vec<u8> {
    streams(count).flat_map(begun).collect()
}

fn messages(count: u32) -> Vec<u8> {
    let message = framed(&good());
    streams(count).flat_map(|stream| frame(DATA, END_STREAM, stream, &message)).collect()
}

/// Reads until all calls have been answered, and checks that they pass.
async fn all_pass(raw: &mut Raw, count: u32) {
    let (mut passed, mut ended) = (0, 0);
    while ended < count {
        let frame = raw.next().await.expect("the connection lives");
        assert!(![RST_STREAM, GOAWAY].contains(&frame.kind), "{frame:?}");
        // A frame's head, and then `overall_code: OK`.
        passed += u32::from(frame.kind == DATA && frame.payload.get(5..7) == Some(&[8, 1]));
        ended += u32::from(frame.kind == HEADERS && frame.flags & END_STREAM != 0);
    }
    assert_eq!(passed, count);
}

async fn open(pod: &Ratelease, connections: usize) -> Vec<Raw> {
    join_all((0..connections).map(|_| Raw::open(pod.grpc, &[]))).await
}

/// The pod has read the heads, and there is nothing else to read.
#[tokio::test(flavor = "multi_thread")]
async fn four_connections_may_send_all_their_heads_first() {
    let (pod, _rules) = pod().await;
    let mut raws = open(&pod, 4).await;
    for raw in &mut raws {
        raw.send(&[heads(STREAMS - 1), frame(PING, 0, 0, &[7; 8])].concat()).await;
    }
    for raw in &mut raws {
        assert!(raw.next_of(PING).await.is_some());
    }
    for raw in &mut raws {
        raw.send(&messages(STREAMS - 1)).await;
        all_pass(raw, STREAMS - 1).await;
    }
    assert_eq!(pod.count("connections_calmed"), 0);
    pod.is_unharmed();
}

/// Messages that the pod has not read yet do not count as missing.
#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_connections_may_send_heads_and_then_messages() {
    let (pod, _rules) = pod().await;
    let mut raws = open(&pod, 8).await;
    const CALLS: u32 = 256;
    let all = [heads(CALLS), messages(CALLS)].concat();
    join_all(raws.iter_mut().map(|raw| raw.send(&all))).await;
    join_all(raws.iter_mut().map(|raw| all_pass(raw, CALLS))).await;
    assert_eq!(pod.count("connections_calmed"), 0);
    pod.is_unharmed();
}

/// The refusal comes at once, and the calls within the maximum are not disturbed.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_beyond_the_maximum_is_refused_alone() {
    let (pod, _rules) = pod().await;
    let mut raw = Raw::open(pod.grpc, &[]).await;
    let beyond = 2 * STREAMS + 1;
    raw.send(&[heads(STREAMS), begun(beyond)].concat()).await;
    let refused = raw.next_of(RST_STREAM).await.expect("a reset");
    let expected = (beyond, REFUSED_STREAM.to_be_bytes().to_vec());
    assert_eq!((refused.stream, refused.payload), expected);
    raw.send(&messages(STREAMS)).await;
    all_pass(&mut raw, STREAMS).await;
    pod.is_unharmed();
}

/// As tonic's clients send it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_end_with_an_empty_frame() {
    let (pod, _rules) = pod().await;
    let mut raws = open(&pod, 4).await;
    let message = framed(&good());
    let call = |stream| {
        let parts = [frame(DATA, 0, stream, &message), frame(DATA, END_STREAM, stream, &[])];
        [begun(stream), parts.concat()].concat()
    };
    let all: Vec<u8> = streams(256).flat_map(call).collect();
    join_all(raws.iter_mut().map(|raw| raw.send(&all))).await;
    join_all(raws.iter_mut().map(|raw| all_pass(raw, 256))).await;
    pod.is_unharmed();
}
