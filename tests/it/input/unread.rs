//! Clients that do not read the answers, or do not finish their requests: the memory held for them
//! is bounded, they are disconnected, and a neighbour is served meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;

use super::{good, pod};
use crate::support::cores::one_core;
use crate::support::frames::*;
use crate::support::http;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, SHOULD_RATE_LIMIT};

/// `:status: 200` as one byte, which refers to the static table.
const STATUS_200: u8 = 0x88;

const MIB: u64 = 1 << 20;

/// Maximum growth of the process's memory by an attack, in a build with debug assertions.
const GROWTH_MAX: u64 = 16 * MIB;

/// Limit for steps that take some seconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(60);

const CONNECTIONS: usize = 40;

/// Maximum number of streams of a connection.
const STREAMS: u32 = 1023;

/// Opens connections whose window has no room for answers, and sends `bytes` on each.
async fn deaf(server: SocketAddr, connections: usize, bytes: &[u8]) -> Vec<Raw> {
    let opened = (0..connections).map(async |_| {
        let mut raw = Raw::open(server, &[(INITIAL_WINDOW_SIZE, 0)]).await;
        raw.send(bytes).await;
        raw
    });
    join_all(opened).await
}

/// Makes ten calls, and returns the peak memory of the process.
async fn served(pod: &Ratelease, neighbour: &Connection) -> u64 {
    for _ in 0..10 {
        let reply = neighbour.call(&good()).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    }
    pod.process.memory("VmHWM")
}

/// The growth of a new pod's peak memory by `attack`.
async fn growth(attack: impl AsyncFnOnce(&Ratelease) -> Vec<Raw>) -> (u64, u64) {
    let _core = one_core().await;
    let (pod, _rules) = pod().await;
    let neighbour = Connection::open(pod.grpc).await;
    let before = served(&pod, &neighbour).await;
    let attackers = attack(&pod).await;
    let after = served(&pod, &neighbour).await;
    drop(attackers);
    let calmed = pod.count("connections_calmed");
    pod.is_unharmed();
    (after - before, calmed)
}

/// The head of a request without a body, for `path`.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let head = [&[0x82, 0x86][..], &field(":path", path), &field(":authority", "localhost")];
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head.concat())
}

fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|n| 2 * n + 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_calls_that_are_not_read_end_their_connections() {
    let calls: Vec<_> = streams().flat_map(|stream| call(stream, &good())).collect();
    let (grown, calmed) = growth(async |pod| {
        let attackers = deaf(pod.grpc, CONNECTIONS, &calls).await;
        // Most are closed at once, and the few that there was room for after a while.
        let gone = async || pod.count("connections_calmed") >= CONNECTIONS as u64;
        pod.process.until("rid of them", SOON, gone).await;
        attackers
    })
    .await;
    println!("{} KiB more, {calmed} closed", grown / 1024);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn few_watches_of_a_connection_last() {
    let watch = |stream| {
        let head = frame(HEADERS, END_HEADERS, stream, &block("/grpc.health.v1.Health/Watch"));
        [head, frame(DATA, END_STREAM, stream, &[0; 5])].concat()
    };
    let watches: Vec<_> = streams().flat_map(watch).collect();
    let (grown, calmed) = growth(async |pod| {
        let opened = (0..CONNECTIONS).map(async |_| {
            let mut raw = Raw::open(pod.grpc, &[]).await;
            raw.send(&watches).await;
            let (mut lasting, mut refused) = (0, 0);
            while lasting + refused < STREAMS {
                let frame = raw.next().await.expect("the connection lives");
                lasting += u32::from(frame.kind == DATA);
                let is_end = frame.kind == HEADERS && frame.flags & END_STREAM != 0;
                refused += u32::from(is_end);
            }
            assert_eq!(lasting, 4);
            raw
        });
        join_all(opened).await
    })
    .await;
    println!("{} KiB more", grown / 1024);
    assert_eq!(calmed, 0);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
}

/// Begins calls on each of some connections, with this number of one-byte headers, each of which
/// refers to a header of the static table.
async fn half_open(path: &str, fields: usize) -> (u64, u64) {
    let head = [&block(path)[..], &vec![0x90; fields]].concat();
    let begun: Vec<_> =
        streams().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &head)).collect();
    let (grown, calmed) = growth(async |pod| {
        let opened = (0..CONNECTIONS / 2).map(async |_| {
            let mut raw = Raw::open(pod.grpc, &[]).await;
            raw.send(&begun).await;
            let ping = frame(PING, 0, 0, &[7; 8]);
            raw.send(&ping).await;
            (raw.next_of(PING).await, raw).1
        });
        join_all(opened).await
    })
    .await;
    println!("{path}, {fields} fields more: {} KiB more, {calmed} closed", grown / 1024);
    (grown, calmed)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_half_open_hold_no_headers_and_end() {
    for path in ["/grpc.health.v1.Health/Check", SHOULD_RATE_LIMIT] {
        for fields in [0, 50, 120, 484] {
            let (grown, _) = half_open(path, fields).await;
            assert!(grown < GROWTH_MAX, "{path}: {grown} bytes");
        }
    }
}

/// Rules whose `/rlconfig` has some hundred KiB.
fn many_rules() -> TempDir {
    let rules = TempDir::new().unwrap();
    let rule = |n| format!("  - {{key: k{n}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n");
    let text: String = (0..5000).map(rule).collect();
    std::fs::write(rules.path().join("many.yaml"), format!("domain: d\ndescriptors:\n{text}"))
        .unwrap();
    rules
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_are_not_read_give_way_to_those_that_are() {
    let _core = one_core().await;
    let rules = many_rules();
    let pod = Ratelease::start(rules.path(), &[], &[]).await;
    let page = http::get(pod.debug, "/rlconfig").await.unwrap().body.len() as u64;
    assert!(page > MIB / 4);
    let connections = (128 * MIB).div_ceil(8 * page);
    let before = pod.process.memory("VmHWM");
    let pages: Vec<_> = (0..16).flat_map(|n| get(2 * n + 1, "/rlconfig")).collect();
    let mut attackers = Vec::new();
    for n in 0..connections {
        attackers.extend(deaf(pod.debug, 1, &pages).await);
        if n % 4 == 0 {
            let read = http::get(pod.debug, "/rlconfig").await.expect("an answer beside them");
            assert_eq!(read.status, 200);
        }
        // As many as may be under way are answered, and no more.
        let attacker = attackers.last_mut().unwrap();
        for _ in 0..8 {
            if attacker.next_of(HEADERS).await.is_none() {
                break;
            }
        }
    }
    let grown = pod.process.memory("VmHWM") - before;
    println!("{connections} x 8 pages of {page} bytes: {} KiB more", grown / 1024);
    assert!(grown < 2 * GROWTH_MAX, "{grown} bytes");
    // The remaining ones end as well, after a while.
    let gone = async || pod.count("debug_connections") <= 1;
    pod.process.until("rid of them", SOON, gone).await;
    assert_eq!(http::get(pod.debug, "/rlconfig").await.unwrap().status, 200);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_live_page_is_not_held_by_those_who_do_not_read_it() {
    const PLACES: usize = ratelease_sidecar::admin::live::LISTENERS_MAX;
    let (pod, _rules) = pod().await;
    let mut deaf = deaf(pod.debug, PLACES, &get(1, "/live/events")).await;
    let is_ok = |frame: Frame| frame.payload.first() == Some(&STATUS_200);
    for raw in &mut deaf {
        assert!(raw.next_of(HEADERS).await.is_some_and(is_ok), "there is a place for it");
    }
    let status = async || {
        let mut raw = Raw::open(pod.debug, &[]).await;
        raw.send(&get(1, "/live/events")).await;
        raw.next_of(HEADERS).await.is_some_and(is_ok)
    };
    pod.process.until("listening to another client", SOON, status).await;
    pod.is_unharmed();
}

/// As an Envoy with its default timeout does while this process stalls.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_calls_all_end_by_a_reset_is_not_cut_off_at_the_rate_of_an_envoy() {
    let (pod, _rules) = pod().await;
    let mut raw = Raw::open(pod.grpc, &[]).await;
    let neighbour = Connection::open(pod.grpc).await;
    // As many as a connection may have, and as many a second as a worker of Envoy makes.
    for round in 0..25_u32 {
        let streams: Vec<_> = (0..1024).map(|n| 2 * (1024 * round + n) + 1).collect();
        let begun: Vec<_> = streams
            .iter()
            .flat_map(|&stream| frame(HEADERS, END_HEADERS, stream, &block(SHOULD_RATE_LIMIT)))
            .collect();
        raw.send(&begun).await;
        tokio::time::sleep(Duration::from_millis(80)).await; // the timeout
        let resets: Vec<_> =
            streams.iter().flat_map(|&it| frame(RST_STREAM, 0, it, &[0, 0, 0, 8])).collect();
        raw.send(&[resets, frame(PING, 0, 0, &[7; 8])].concat()).await;
    }
    raw.send(&frame(PING, 0, 0, &[9; 8])).await;
    loop {
        let frame = raw.next().await.expect("the connection lives");
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.kind == PING && frame.payload == [9; 8] {
            break;
        }
    }
    assert_eq!(neighbour.call(&good()).await.is_over_limit(), Some(false));
    assert_eq!(pod.count("connections_calmed"), 0);
    pod.is_unharmed();
}
