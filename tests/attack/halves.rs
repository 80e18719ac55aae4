//! V1: calls that begin and do not go on. Each holds a permit that an honest call may need.

use std::time::Duration;

use crate::foe::{Foe, Foes, Reading};
use crate::messages::message;
use crate::scene::{Plan, Scene};
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, begun, block, frame};
use crate::support::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// How long a connection waits for the pod to end its calls before it is opened again.
const STAY: Duration = Duration::from_secs(3);

/// Maximum number of streams of a connection on `PORT`.
const HTTP_STREAMS: u32 = 128;

/// Maximum number of streams of a connection for gRPC.
const GRPC_STREAMS: u32 = 1024;

/// Connections of V1e. A debug build reads so many heads for seconds on a busy machine: longer than
/// a probe waits.
const CLIENTS: usize = if cfg!(debug_assertions) { 30 } else { 100 };

fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|nth| 2 * nth + 1)
}

/// Opens a connection, and sends `calls` on it.
async fn hold(foes: &Foes, to: std::net::SocketAddr, calls: &[u8]) -> Option<Foe> {
    let mut foe = foes.greet(to, &[], Reading::Frames).await?;
    foe.send(calls).await.then_some(foe)
}

#[tokio::test(flavor = "multi_thread")]
async fn v1a_half_open_posts_on_port_refuse_no_call() {
    let scene = Scene::start(Plan::new("V1a", "half-open POSTs of /json on PORT")).await;
    let post = |stream| frame(HEADERS, END_HEADERS, stream, &block("/json"));
    let calls: Vec<u8> = streams(HTTP_STREAMS).flat_map(post).collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            if let Some(mut foe) = hold(foes, foes.http, &calls).await {
                foe.stay(STAY).await;
            }
        };
        foes.crowd(40, client).await;
    });
    attacked.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v1b_half_open_calls_on_the_grpc_port_refuse_no_call() {
    half_open(Plan::new("V1b", "half-open calls on the gRPC port")).await;
}

/// Begins as many calls as connections have room for, and ends none.
pub async fn half_open(plan: Plan<'_>) {
    let scene = Scene::start(plan).await;
    // Three bytes of each message: enough to count as a call in progress.
    let part = &framed(&message("plenty", "half"))[..3];
    let half = |stream| [begun(stream), frame(DATA, 0, stream, part)].concat();
    let calls: Vec<u8> = streams(GRPC_STREAMS).flat_map(half).collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            if let Some(mut foe) = hold(foes, foes.grpc, &calls).await {
                foe.stay(STAY).await;
            }
        };
        foes.crowd(20, client).await;
    });
    attacked.await.row.end();
}

/// Each message lacks its last byte, so that the pod holds what it has received.
#[tokio::test(flavor = "multi_thread")]
async fn v1c_long_messages_that_lack_their_end_hold_little() {
    let scene = Scene::start(Plan::new("V1c", "calls of 60 KB that lack their last byte")).await;
    let whole = framed(&message("plenty", &"v".repeat(60_000)));
    let part = &whole[..whole.len() - 1];
    let half = |stream| {
        let data = part.chunks(16_000).flat_map(|piece| frame(DATA, 0, stream, piece));
        [begun(stream), data.collect()].concat()
    };
    // As many calls as the window of a connection has room for.
    let calls: Vec<u8> = streams(17).flat_map(half).collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            if let Some(mut foe) = hold(foes, foes.grpc, &calls).await {
                foe.stay(STAY).await;
            }
        };
        foes.crowd(60, client).await;
    });
    attacked.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v1d_half_bodies_on_port_in_http_1_hold_little_and_refuse_no_call() {
    let scene = Scene::start(Plan::new("V1d", "half bodies of /json in HTTP/1")).await;
    let head = "POST /json HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
                content-length: 900001\r\n\r\n";
    let long = format!("{head}{}", "v".repeat(900_000));
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let Some(mut foe) = foes.connect(foes.http, Reading::Bytes).await else { return };
            // Some calls occupy permits, the others memory.
            let half = if nth.is_multiple_of(8) { &*long } else { head };
            if foe.send(half.as_bytes()).await {
                foe.stay(STAY).await;
            }
        };
        foes.crowd(400, client).await;
    });
    attacked.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v1e_calls_without_messages_take_no_tasks() {
    let attack = format!("{CLIENTS} × 1023 calls without messages");
    without_messages(Plan::new("V1e", &attack)).await;
}

/// Sends whole calls without a message: each is complete with its head.
async fn without_messages(plan: Plan<'_>) {
    let scene = Scene::start(plan).await;
    let head = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &grpc_block());
    let calls: Vec<u8> = streams(GRPC_STREAMS - 1).flat_map(head).collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            if let Some(mut foe) = hold(foes, foes.grpc, &calls).await {
                foe.stay(Duration::from_millis(100)).await;
            }
        };
        foes.crowd(CLIENTS, client).await;
    });
    attacked.await.row.end();
}

/// Half-open calls on connections that always have more to be read.
#[tokio::test(flavor = "multi_thread")]
async fn v1f_half_open_calls_count_while_their_clients_go_on() {
    let scene =
        Scene::start(Plan::new("V1f", "40 × 1000 half-open calls, and frames without end")).await;
    let halves: Vec<u8> = streams(1000)
        .flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &grpc_block()))
        .collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            if let Some(mut foe) = hold(foes, foes.grpc, &halves).await {
                // Frames of an unknown type, of the maximum length.
                foe.flood(|_| frame(0xbe, 0, 0, &[0; 16_000])).await;
            }
        };
        foes.crowd(40, client).await;
    });
    attacked.await.row.end();
}

/// The head of a plain call.
fn grpc_block() -> Vec<u8> {
    block(SHOULD_RATE_LIMIT)
}
