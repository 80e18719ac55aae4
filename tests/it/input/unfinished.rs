//! Messages that never end, and messages that claim to hold more than they may: their memory is
//! bounded, and neighbours on any port are served meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tonic::Code;

use super::{descriptor, good, pod, request};
use crate::support::cores::one_core;
use crate::support::frames::{DATA, END_HEADERS, HEADERS, RST_STREAM, Raw, begun, field, frame};
use crate::support::http::{self, Client};
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, Reply, SHOULD_RATE_LIMIT, bytes_field, framed, post};

const MIB: u64 = 1 << 20;

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(15);

/// Maximum memory that an attack may add, in a build without optimizations; with them it is a
/// third.
const GROWN_MAX: u64 = 40 * MIB;

/// Maximum bytes of a message.
const LONG: usize = 1 << 20;

/// Maximum memory that one long message may add.
const ONE_MESSAGE_MAX: u64 = 10 * MIB;

/// Calls of the neighbour during an attack.
const CALLS: usize = 200;

/// Half requests on connections of their own, `streams` on each: the head `head`, and a few bytes
/// of a message.
async fn halves(
    server: SocketAddr,
    connections: usize,
    streams: u32,
    head: impl Fn(u32) -> Vec<u8>,
) -> Vec<Raw> {
    let half = |n: u32| [head(2 * n + 1), frame(DATA, 0, 2 * n + 1, &[0; 5])].concat();
    let halves: Vec<_> = (0..streams).flat_map(half).collect();
    let open = join_all((0..connections).map(|_| Raw::open(server, &[])));
    let mut open = open.await;
    join_all(open.iter_mut().map(|raw| raw.send(&halves))).await;
    open
}

fn json_begun(stream: u32) -> Vec<u8> {
    let named = [field(":path", "/json"), field(":authority", "test")].concat();
    let block = [&[0x83, 0x86], &named[..], &field("content-type", "application/json")].concat();
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// Checks that every call of a neighbour is answered, whether its key is known or not, on every
/// port.
async fn serves_on(pod: &Ratelease, neighbour: &Connection) {
    for n in 0..CALLS {
        let unknown = request("test", &[descriptor("three", n.to_string())]);
        for message in [good(), unknown] {
            let reply = neighbour.call(&message).await;
            assert_eq!(reply.is_over_limit(), Some(false), "{n}: {reply:?}");
        }
    }
    let reply = Connection::open(pod.grpc).await.call(&good()).await;
    assert_eq!(reply.is_over_limit(), Some(false), "a new connection: {reply:?}");
    for page in ["/livez", "/readyz", "/healthcheck"] {
        assert_eq!(http::get(pod.http, page).await.unwrap().status, 200, "{page}");
    }
    let body = r#"{"domain":"test","descriptors":[{"entries":[{"key":"plenty"}]}]}"#;
    let mut client = Client::connect(pod.http).await.unwrap();
    assert_eq!(client.send("POST", "/json", &[], body).await.unwrap().status, 200);
}

/// Runs an `attack` of thousands of half requests, beside a neighbour.
async fn withstands(attack: impl AsyncFn(&Ratelease) -> Vec<Raw>) {
    let _core = one_core().await;
    let (pod, _rules) = pod().await;
    let neighbour = Connection::open(pod.grpc).await;
    serves_on(&pod, &neighbour).await;
    let before = pod.process.memory("VmRSS");
    let open = attack(&pod).await;
    serves_on(&pod, &neighbour).await;
    let grown = pod.process.memory("VmHWM") - before;
    println!("{} KiB more at most, {} refused", grown / 1024, pod.count("shed"));
    assert!(grown < GROWN_MAX, "{grown} bytes");
    // The calls end by themselves, though their connections stay open.
    let over = async || pod.count("message_bytes") == 0;
    pod.process.until("done with the half requests", SOON, over).await;
    serves_on(&pod, &neighbour).await;
    drop(open);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn half_calls_on_the_grpc_port_keep_no_other_client_out() {
    withstands(async |pod| {
        let mut open = halves(pod.grpc, 17, 255, begun).await;
        assert!(open[16].next_of(RST_STREAM).await.is_some(), "more than a few are refused");
        open
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_requests_on_the_http_port_keep_no_other_client_out() {
    withstands(async |pod| {
        let open = halves(pod.http, 64, 16, json_begun).await;
        // Refused for lack of room for messages, or by the limits of their connections.
        let counts = ["shed", "connections_calmed", "connections_evicted"];
        let refused = async || counts.iter().any(|name| pod.count(name) > 0);
        pod.process.until("refusing half requests", SOON, refused).await;
        open
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_not_whole_in_time_ends_its_own_request_only() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let head = "POST /json HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
                content-length: 80\r\n\r\n{";
    client.write(head.as_bytes()).await.unwrap();
    for begun in [&framed(&good())[..9], &[]] {
        let half = stream::iter([begun.to_vec()]).chain(stream::pending());
        let reply = connection.request(post(SHOULD_RATE_LIMIT), half).await.unwrap();
        assert_eq!(reply.code, Code::DeadlineExceeded, "{reply:?}");
        assert!(reply.reason.contains("the message was not complete within 2s"), "{reply:?}");
        assert_eq!(connection.call(&good()).await.is_over_limit(), Some(false));
    }
    let answer = client.answer().await.unwrap();
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(answer.body.contains("the body was not complete within 2s"), "{answer:?}");
    assert_eq!(pod.count("message_bytes"), 0);
    pod.is_unharmed();
}

fn assert_refused(reply: &Reply, reason: &str) {
    assert_eq!(reply.code, Code::InvalidArgument, "{reply:?}");
    assert!(reply.reason.contains(reason), "{reply:?}");
}

/// Two bytes each, each of which once took 250 bytes in decoded form.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_empty_descriptors_costs_no_more_than_its_bytes() {
    let _core = one_core().await;
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let (length, domain) = (LONG - 100, bytes_field(1, "test"));
    let long = [domain, bytes_field(3, vec![0; length])].concat();
    // The first long message makes buffers grow, which is not what the test measures.
    assert_eq!(connection.call(&long).await.code, Code::Internal);
    let before = pod.process.memory("VmRSS");
    let descriptors = [0x12, 0].repeat(length / 2);
    let entries = bytes_field(2, [0x0a, 0].repeat(length / 2));
    for _ in 0..3 {
        assert_refused(&connection.call(&descriptors).await, "more descriptors in one request");
        assert_refused(&connection.call(&entries).await, "descriptor 0 has more entries");
    }
    let grown = pod.process.memory("VmHWM").saturating_sub(before);
    println!("{} KiB more for {} KiB", grown / 1024, length / 1024);
    assert!(grown < ONE_MESSAGE_MAX, "{grown} bytes");
    assert_eq!(connection.call(&good()).await.is_over_limit(), Some(false));
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn json_of_empty_objects_costs_no_more_than_its_bytes() {
    let _core = one_core().await;
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let list = |of: &str| vec![of; (LONG - 200) / (of.len() + 1)].join(",");
    let bodies = [
        (format!(r#"{{"descriptors":[{}]}}"#, list("{}")), "more descriptors than the 256"),
        (format!(r#"{{"descriptors":[{{"entries":[{}]}}]}}"#, list("{}")), "more entries than"),
        (format!(r#"{{"hitsAddend":[{}]}}"#, list("0")), "invalid type: sequence"),
        (format!(r#"{{"{}":1}}"#, list("x")), "unknown field"),
    ];
    assert_eq!(client.send("POST", "/json", &[], list("x")).await.unwrap().status, 400);
    let before = pod.process.memory("VmRSS");
    for (body, reason) in bodies {
        let answer = client.send("POST", "/json", &[], body).await.unwrap();
        assert_eq!(answer.status, 400, "{reason}");
        assert!(answer.body.contains(reason) && answer.body.len() < 512, "{reason}: {answer:?}");
    }
    let grown = pod.process.memory("VmHWM").saturating_sub(before);
    println!("{} KiB more", grown / 1024);
    assert!(grown < ONE_MESSAGE_MAX, "{grown} bytes");
    pod.is_unharmed();
}
