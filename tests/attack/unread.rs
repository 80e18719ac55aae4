//! V4: clients that send requests and do not read the answers, which accumulate in the pod.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::foe::{Foes, Reading};
use crate::messages::{DOMAIN, message};
use crate::scene::{Attacked, Plan, Scene};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, block, call, field, frame,
};
use crate::support::raw_grpc::{Connection, descriptor, framed, request};

/// A window without room for any answer.
const NO_WINDOW: [(u16, u32); 1] = [(INITIAL_WINDOW_SIZE, 0)];

/// How long a connection waits to be closed before it is opened again. Longer than the attack: the
/// memory that it holds stays held unless the pod releases it.
const STAY: Duration = Duration::from_secs(60);

/// Maximum number of streams used up at the beginning of each connection.
const STREAMS: u32 = 1023;

/// A GET without a body, in HTTP/2.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let path = [&[0x04, u8::try_from(path.len()).expect("a short path")], path.as_bytes()].concat();
    let block = [&[0x82, 0x86][..], &path, &[0x01, 4], b"test"].concat();
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

/// Opens `count` connections to `port` that request `all` and leave the answers unread.
async fn leave_unread(
    scene: Scene,
    count: usize,
    port: impl Fn(&Foes, usize) -> SocketAddr,
    all: &[u8],
) -> Attacked {
    let attack = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let server = port(foes, nth);
            // The client reads frames to see the end of the connection; the windows leave no room
            // for answers.
            if let Some(mut foe) = foes.greet(server, &NO_WINDOW, Reading::Frames).await {
                foe.send(all).await;
                foe.stay(STAY).await;
            }
        };
        foes.crowd(count, client).await;
    });
    attack.await
}

#[tokio::test(flavor = "multi_thread")]
async fn v4a_unread_pages_of_metrics_are_bounded() {
    let rules = "
  - key: labelled
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 100}
";
    let plan = Plan::new("V4a", "GET /metrics and other pages, a window of 0");
    let scene = Scene::start(plan.with_rules(rules)).await;
    // A page as long as that of a pod that has run for a while.
    let before = scene.foes(Duration::from_secs(20));
    let connection = Connection::open(before.grpc).await;
    for nth in 0..1_000 {
        let _ = before.call(&connection, &message("labelled", &format!("value-{nth}"))).await;
    }
    for addr in [before.debug, before.prometheus] {
        let page = crate::support::http::get(addr, "/metrics").await.expect("a page");
        assert_eq!(page.status, 200);
    }
    // Prometheus' port has this page alone; on the debug port the others are as expensive.
    let pages = ["/metrics", "/metrics", "/status", "/metrics", "/rlconfig"];
    let page = |nth: u32| get(2 * nth + 1, pages[nth as usize % pages.len()]);
    let all: Vec<u8> = (0..100).flat_map(page).collect();
    let port =
        |foes: &Foes, nth: usize| if nth.is_multiple_of(2) { foes.debug } else { foes.prometheus };
    leave_unread(scene, 4, port, &all).await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v4b_unread_answers_to_calls_are_bounded() {
    let scene = Scene::start(Plan::new("V4b", "40 × 1023 calls whose answers are not read")).await;
    let one = |nth| call(2 * nth + 1, &message("plenty", "unread"));
    let all: Vec<u8> = (0..STREAMS).flat_map(one).collect();
    leave_unread(scene, 40, |foes, _| foes.grpc, &all).await.row.end();
}

/// Statuses of an answer. A debug build decides a descriptor some ten times as slowly.
const STATUSES: usize = if cfg!(debug_assertions) { 50 } else { 200 };

/// Answers of many statuses each, over gRPC and HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn v4e_unread_answers_of_many_statuses_are_bounded() {
    let plan = Plan::new("V4e", "unread answers of many statuses each");
    let scene = Scene::start(plan).await;
    let message = request(DOMAIN, &vec![descriptor("plenty", "unread"); STATUSES]);
    let over_grpc = |nth: u32| call(2 * nth + 1, &message);
    let entries = r#"{"entries":[{"key":"plenty","value":"v"}]}"#;
    let json =
        format!(r#"{{"domain":"attack","descriptors":[{}]}}"#, vec![entries; STATUSES].join(","));
    let block = [block("/json"), field("content-type", "application/json")].concat();
    let over_json = |nth: u32| {
        let head = frame(HEADERS, END_HEADERS, 2 * nth + 1, &block);
        [head, frame(DATA, END_STREAM, 2 * nth + 1, json.as_bytes())].concat()
    };
    let grpc: Vec<u8> = (0..STREAMS).flat_map(over_grpc).collect();
    // The windows of a connection have room for this many.
    let http: Vec<u8> = (0..6).flat_map(over_json).collect();
    let attack = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let (to, all) =
                if nth.is_multiple_of(2) { (foes.grpc, &grpc) } else { (foes.http, &http) };
            if let Some(mut foe) = foes.greet(to, &NO_WINDOW, Reading::Frames).await {
                foe.send(all).await;
                foe.stay(STAY).await;
            }
        };
        foes.crowd(100, client).await;
    });
    attack.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v4c_unread_health_watches_are_bounded() {
    let scene = Scene::start(Plan::new("V4c", "40 × 1023 health Watch without a reader")).await;
    let watch = |nth: u32| {
        let head = frame(HEADERS, END_HEADERS, 2 * nth + 1, &block("/grpc.health.v1.Health/Watch"));
        [head, frame(DATA, END_STREAM, 2 * nth + 1, &framed(&[]))].concat()
    };
    let all: Vec<u8> = (0..STREAMS).flat_map(watch).collect();
    leave_unread(scene, 40, |foes, _| foes.grpc, &all).await.row.end();
}

/// Half of them as browsers ask, and half over HTTP/2 with a window of zero.
#[tokio::test(flavor = "multi_thread")]
async fn v4d_listeners_that_do_not_read_leave_live_to_others() {
    let plan = Plan::new("V4d", "40 listeners of /live/events that do not read");
    // A page may be slow for some seconds before another client gets its place.
    let scene = Scene::start(plan.lasting(Duration::from_secs(14))).await;
    let mut heard = false;
    let attack = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let ask = b"GET /live/events HTTP/1.1\r\nhost: test\r\n\r\n";
            // Fewer than there are places, since the kernel accepts minutes of events for them.
            let is_http1 = nth.is_multiple_of(5);
            let foe = match is_http1 {
                true => foes.connect(foes.debug, Reading::Nothing).await,
                false => foes.greet(foes.debug, &NO_WINDOW, Reading::Frames).await,
            };
            let Some(mut foe) = foe else { return };
            match is_http1 {
                true => foe.send(ask).await,
                false => foe.send(&get(1, "/live/events")).await,
            };
            // The client does not reconnect: to stop that, the pod would have to count places per
            // client.
            foe.stay(STAY).await;
            foes.rest().await;
        };
        let honest = async {
            tokio::time::sleep(Duration::from_secs(1)).await; // by then the places are taken
            while !foes.is_over() && !heard {
                heard = hears(foes.debug).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::join!(foes.crowd(40, client), honest);
    });
    let mut row = attack.await.row;
    row.holds(heard, "an honest listener of /live was refused");
    row.end();
}

/// Whether a new listener receives the current state.
async fn hears(debug: SocketAddr) -> bool {
    let listened = async {
        let mut stream = TcpStream::connect(debug).await.ok()?;
        stream.write_all(b"GET /live/events HTTP/1.1\r\nhost: test\r\n\r\n").await.ok()?;
        let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            text.extend_from_slice(&buffer[..count]);
            if text.windows(13).any(|it| it == b"event: status") {
                return Some(true);
            }
        }
        None
    };
    let listened = tokio::time::timeout(Duration::from_secs(2), listened).await;
    listened.ok().flatten().unwrap_or(false)
}

/// V6: a header enters the HPACK table once, and each reference to it costs one byte.
#[tokio::test(flavor = "multi_thread")]
async fn v6_references_to_headers_cost_what_they_weigh() {
    let path = "/grpc.health.v1.Health/Check";
    refer("V6", "20 × 1023 half-open calls of 470 references", path, |foes, _| foes.grpc).await;
}

/// The same on the HTTP ports.
#[tokio::test(flavor = "multi_thread")]
async fn v6b_references_to_headers_cost_what_they_weigh_on_every_port() {
    let port = |foes: &Foes, nth: usize| [foes.http, foes.debug, foes.prometheus][nth % 3];
    refer("V6b", "470 references each, on the ports of HTTP", "/json", port).await;
}

async fn refer(name: &str, attack: &str, path: &str, port: fn(&Foes, usize) -> SocketAddr) {
    let scene = Scene::start(Plan::new(name, attack)).await;
    let define = [0x40, 1, b'x', 0];
    let half = |nth: u32| {
        let table: &[u8] = if nth == 0 { &define } else { &[] };
        // Index 62 is the newest entry of the table.
        let block = [&block(path)[..], table, &[0xbe; 470]].concat();
        frame(HEADERS, END_HEADERS, 2 * nth + 1, &block)
    };
    let all: Vec<u8> = (0..STREAMS).flat_map(half).collect();
    let attack = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            if let Some(mut foe) = foes.greet(port(foes, nth), &[], Reading::Frames).await {
                foe.send(&all).await;
                foe.stay(Duration::from_secs(3)).await;
            }
        };
        foes.crowd(20, client).await;
    });
    attack.await.row.end();
}

/// H5: header blocks that are far too long, or have far too many headers.
#[tokio::test(flavor = "multi_thread")]
async fn h5b_long_header_blocks_are_refused() {
    let scene = Scene::start(Plan::new("H5b", "header blocks of 1 MB and of 10 000 headers")).await;
    let long = field("x-long", &"v".repeat(100)).repeat(150);
    let many = field("x", "y").repeat(10_000);
    let attack = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let Some(mut foe) = foes.greet(foes.grpc, &[], Reading::Frames).await else { return };
            let payload = if nth.is_multiple_of(2) { long.repeat(64) } else { many.clone() };
            let mut pieces = payload.chunks(16_384).peekable();
            let mut kind = HEADERS;
            while let Some(piece) = pieces.next() {
                let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
                if !foe.send(&frame(kind, flags, 1, piece)).await {
                    return;
                }
                kind = crate::support::frames::CONTINUATION;
            }
            foe.stay(Duration::from_millis(200)).await;
        };
        foes.crowd(8, client).await;
    });
    let mut row = attack.await.row;
    let refused = row.refused();
    row.holds(refused > 0, "no such call was refused");
    row.end();
}
