//! V13: access logs, whose streams are to stay open.

use std::time::Duration;

use crate::foe::{Foes, Reading};
use crate::scene::{Plan, Scene};
use crate::support::frames::{DATA, END_HEADERS, HEADERS, WINDOW_UPDATE, block, frame};
use crate::support::raw_grpc::{bytes_field, framed, number_field};

/// The path of an access log.
const STREAM_ACCESS_LOGS: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

/// Maximum number of streams of a connection.
const STREAMS: u32 = 1023;

/// Logs of a connection, as many as it may have.
const LOGS: u32 = 16;

/// How long a connection stays.
const STAY: Duration = Duration::from_secs(60);

fn opened(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(STREAM_ACCESS_LOGS))
}

/// The first message of a log.
fn identifier() -> Vec<u8> {
    let node = bytes_field(1, bytes_field(1, "foe"));
    framed(&bytes_field(1, [node, bytes_field(2, "ratelease")].concat()))
}

/// The end of a request with this id.
fn end(id: u32) -> Vec<u8> {
    let tag = [bytes_field(1, "ratelease.id"), bytes_field(2, id.to_string())].concat();
    // The numbers of these fields take two bytes each: custom_tags is 22, access_log_type 33.
    let tags = [&[0xb2, 0x01, u8::try_from(tag.len()).expect("a short tag")], &tag[..]].concat();
    let common = [tags, vec![0x88, 0x02], number_field(0, 6)[1..].to_vec()].concat();
    bytes_field(1, bytes_field(1, common))
}

/// Streams of logs that say nothing, and one that claims 4 GiB and sends little of it.
#[tokio::test(flavor = "multi_thread")]
async fn v13a_logs_that_are_opened_and_left_hold_little() {
    let scene = Scene::start(Plan::new("V13a", "40 × 1023 access logs without entries")).await;
    // A message whose first field goes on without end.
    let half = [&[0, 0xff, 0xff, 0xff, 0xff][..], &[0x2a, 0xff, 0xff, 0xff, 0x7f]].concat();
    let half = [half, vec![b'x'; 100]].concat();
    let log = |stream| [opened(stream), frame(DATA, 0, stream, &half)].concat();
    let all: Vec<u8> = (0..STREAMS).flat_map(|nth| log(2 * nth + 1)).collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            if let Some(mut foe) = foes.greet(foes.grpc, &[], Reading::Frames).await {
                foe.send(&all).await;
                foe.stay(STAY).await;
            }
        };
        foes.crowd(40, client).await;
    });
    attacked.await.row.end();
}

/// Ends of requests that no one has started, as fast as they are read.
#[tokio::test(flavor = "multi_thread")]
async fn v13b_ends_without_end_harm_no_other_client() {
    let plan = Plan::new("V13b", "ends of unknown requests without end, 4 × 16 logs");
    let scene = Scene::start(plan).await;
    let begun: Vec<u8> = (0..LOGS)
        .flat_map(|nth| [opened(2 * nth + 1), frame(DATA, 0, 2 * nth + 1, &identifier())].concat())
        .chain(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()))
        .collect();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let Some(mut foe) = foes.greet(foes.grpc, &[], Reading::Frames).await else { return };
            if foe.send(&begun).await {
                let first = u32::try_from(nth).unwrap_or(0) << 28;
                foe.flood(|part| {
                    let ends: Vec<u8> =
                        (0..100).flat_map(|it| end(first + 100 * part + it)).collect();
                    let stream = 2 * (part % LOGS) + 1;
                    frame(DATA, 0, stream, &framed(&bytes_field(2, ends)))
                })
                .await;
            }
        };
        foes.crowd(4, client).await;
    });
    let mut row = attacked.await;
    let ends = row.pod.count("log_entries_end_unknown");
    row.row.note(&format!("{ends} ends were read"));
    row.row.holds(ends > 1000, "too few ends for a flood");
    row.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v13c_logs_byte_by_byte_harm_no_other_client() {
    let scene = Scene::start(Plan::new("V13c", "access logs byte by byte, 40 × 16")).await;
    let log = [identifier(), framed(&bytes_field(2, end(1)))].concat();
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            let Some(mut foe) = foes.greet(foes.grpc, &[], Reading::Frames).await else { return };
            let streams = || (0..LOGS).map(|nth| 2 * nth + 1);
            if !foe.send(&streams().flat_map(opened).collect::<Vec<_>>()).await {
                return;
            }
            for byte in log.iter().cycle() {
                let bytes: Vec<u8> =
                    streams().flat_map(|stream| frame(DATA, 0, stream, &[*byte])).collect();
                if foes.is_over() || !foe.send(&bytes).await {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        foes.crowd(40, client).await;
    });
    attacked.await.row.end();
}
