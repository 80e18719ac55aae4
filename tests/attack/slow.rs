//! H7: clients that send a few bytes now and then, so that they never seem idle.

use std::time::Duration;

use crate::foe::{Foe, Foes, Reading};
use crate::messages::message;
use crate::scene::{Plan, Scene};
use crate::support::frames::{DATA, GREETING, begun, frame};
use crate::support::raw_grpc::framed;

/// Interval between two bytes.
const EVERY: Duration = Duration::from_millis(200);

/// Sends the bytes one by one.
async fn dribble(foe: &mut Foe, foes: &Foes, bytes: &[u8]) {
    for byte in bytes {
        if foes.is_over() || !foe.send(&[*byte]).await {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h7a_prefaces_byte_by_byte_harm_no_other_client() {
    let scene = Scene::start(Plan::new("H7a", "HTTP/2, TLS and HTTP/1 begun byte by byte")).await;
    // The beginning of a ClientHello, on a port without TLS.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let to = if nth.is_multiple_of(2) { foes.grpc } else { foes.http };
            let Some(mut foe) = foes.connect(to, Reading::Bytes).await else { return };
            match nth % 3 {
                0 => dribble(&mut foe, foes, GREETING).await,
                1 => dribble(&mut foe, foes, &hello).await,
                _ => dribble(&mut foe, foes, b"GET /livez HTTP/1.1\r\nhost: test\r\nx: ").await,
            }
        };
        foes.crowd(120, client).await;
    });
    attacked.await.row.end();
}

/// Each connection holds as much of a head as the pod accepts.
#[tokio::test(flavor = "multi_thread")]
async fn h7b_half_heads_of_http_1_hold_little() {
    let scene = Scene::start(Plan::new("H7b", "HTTP/1 heads of 360 KB that do not end")).await;
    let line = format!("x: {}\r\n", "v".repeat(4_000));
    let head = format!("GET /livez HTTP/1.1\r\nhost: test\r\n{}", line.repeat(90));
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let to = [foes.http, foes.debug, foes.prometheus][nth % 3];
            let Some(mut foe) = foes.connect(to, Reading::Bytes).await else { return };
            if foe.send(head.as_bytes()).await {
                foe.stay(Duration::from_secs(60)).await;
            }
        };
        foes.crowd(120, client).await;
    });
    attacked.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn h7c_messages_byte_by_byte_refuse_no_call() {
    let scene = Scene::start(Plan::new("H7c", "messages byte by byte, 20 × 200 calls")).await;
    let message = framed(&message("plenty", "slow and steady"));
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            let Some(mut foe) = foes.greet(foes.grpc, &[], Reading::Frames).await else { return };
            let streams = || (0..200).map(|nth| 2 * nth + 1);
            let heads: Vec<u8> = streams().flat_map(begun).collect();
            if !foe.send(&heads).await {
                return;
            }
            for byte in &message {
                let bytes: Vec<u8> =
                    streams().flat_map(|stream| frame(DATA, 0, stream, &[*byte])).collect();
                if foes.is_over() || !foe.send(&bytes).await {
                    return;
                }
                tokio::time::sleep(EVERY).await;
            }
        };
        foes.crowd(20, client).await;
    });
    attacked.await.row.end();
}
