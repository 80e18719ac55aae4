//! V1: calls that begin and do not go on. Each holds a place that an honest call may need.

use std::time::Duration;

use crate::foe::{Foe, Foes, Reading};
use crate::messages::message;
use crate::scene::{Plan, Scene};
use crate::support::frames::{DATA, END_HEADERS, HEADERS, begun, block, frame};
use crate::support::raw_grpc::framed;

/// How long a connection waits for its calls to be ended before it is opened anew.
const STAY: Duration = Duration::from_secs(3);

/// Streams of a connection at most, on `PORT` and for gRPC.
const HTTP_STREAMS: u32 = 128;
const GRPC_STREAMS: u32 = 256;

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
    let scene = Scene::start(Plan::new("V1b", "half-open calls on the gRPC port")).await;
    // Three bytes of each message: enough to be a call that goes on.
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
