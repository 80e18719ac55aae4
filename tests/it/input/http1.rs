//! `/json` and the probes under HTTP/1.1 (RFC 9110, RFC 9112), beyond a single well-behaved client:
//! pipelines, chunked bodies, announced bodies, and heads that cannot be trusted.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::pod;
use crate::support::cores::one_core;
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, field, frame};

/// No answer of a pod takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(15);

const BODY: &str =
    r#"{"domain":"test","descriptors":[{"entries":[{"key":"plenty","value":"good"}]}]}"#;

/// Everything that the server sends for `bytes` until it closes the connection.
async fn reported(server: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut reported = Vec::new();
    let read = async {
        // A reset after the answer also ends the connection.
        let _ = stream.read_to_end(&mut reported).await;
    };
    timeout(ANSWER_MAX, read).await.unwrap_or_else(|_| panic!("no end after {bytes:?}"));
    String::from_utf8(reported).unwrap()
}

/// The only content type that is accepted.
const JSON: &str = "content-type: application/json\r\n";

/// A request that leaves the connection open.
fn kept(headers: &str, body: &str) -> String {
    format!("POST /json HTTP/1.1\r\nhost: test\r\n{JSON}{headers}\r\n{body}")
}

/// The last request of a connection.
fn posted(headers: &str, body: &str) -> String {
    kept(&format!("{headers}connection: close\r\n"), body)
}

fn length() -> String {
    format!("content-length: {}\r\n", BODY.len())
}

#[track_caller]
fn assert_served(reported: &str, times: usize) {
    assert_eq!(reported.matches("HTTP/1.1 200 OK\r\n").count(), times, "{reported}");
    assert_eq!(reported.matches(r#""overallCode":"OK""#).count(), times, "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_come_in_any_form() {
    let (pod, _rules) = pod().await;
    let (first, second) = BODY.split_at(20);
    let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
    let chunks = [chunk(first), chunk(second), "0\r\n\r\n".to_owned()].concat();
    let trailed = [chunk(BODY), "0\r\nx-any: x\r\n\r\n".to_owned()].concat();
    let chunked = "transfer-encoding: chunked\r\n";
    for (headers, body) in [
        (&length()[..], BODY),
        (chunked, &chunks),
        (chunked, &trailed),
        // The client offers an upgrade to HTTP/2, which the server ignores.
        (&(length() + "connection: upgrade\r\nupgrade: h2c\r\n"), BODY),
    ] {
        assert_served(&reported(pod.http, &posted(headers, body)).await, 1);
    }
    let pipeline = kept(&length(), BODY) + &kept(chunked, &chunks) + &posted(&length(), BODY);
    assert_served(&reported(pod.http, &pipeline).await, 3);
    let old = posted(&length(), BODY).replace("HTTP/1.1", "HTTP/1.0");
    let reported = reported(pod.http, &old).await;
    assert!(reported.starts_with("HTTP/1.0 200 OK\r\n"), "{reported}");
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_announced_is_asked_for() {
    let (pod, _rules) = pod().await;
    let mut stream = TcpStream::connect(pod.http).await.unwrap();
    let headers = length() + "expect: 100-continue\r\n";
    stream.write_all(posted(&headers, "").as_bytes()).await.unwrap();
    let mut reported = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    timeout(ANSWER_MAX, stream.read_exact(&mut reported)).await.unwrap().unwrap();
    assert_eq!(reported, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(BODY.as_bytes()).await.unwrap();
    let mut reported = String::new();
    timeout(ANSWER_MAX, stream.read_to_string(&mut reported)).await.unwrap().unwrap();
    assert_served(&reported, 1);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_answered_without_a_body() {
    let (pod, _rules) = pod().await;
    for (request, status) in [
        ("HEAD /healthcheck", 200),
        ("HEAD /livez", 200),
        ("HEAD /readyz", 200),
        ("HEAD /json", 405), // as GET: there is nothing to decide
        ("HEAD /nothing", 404),
    ] {
        let asked = format!("{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        let reported = reported(pod.http, &asked).await;
        assert!(reported.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {reported}");
        assert!(reported.ends_with("\r\n\r\n"), "{request}: {reported}");
    }
    let asked = "POST /livez HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    let reported = reported(pod.http, asked).await;
    assert!(
        reported.starts_with("HTTP/1.1 405 ") && reported.contains("allow: GET,HEAD"),
        "{reported}"
    );
    pod.is_unharmed();
}

/// Where a head can be read in two ways, a proxy in front of us may see two requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_can_be_read_in_two_ways_is_not_served_twice() {
    let (pod, _rules) = pod().await;
    let smuggled = posted(&length(), BODY);
    let chunked = "transfer-encoding: chunked\r\n";
    for headers in [
        "content-length: 3\r\ncontent-length: 4\r\n".to_owned(),
        "content-length: +3\r\n".to_owned(),
        "content-length: -3\r\n".to_owned(),
        "content-length: 18446744073709551616\r\n".to_owned(),
        "transfer-encoding: chunked, identity\r\n".to_owned(),
        "transfer-encoding: gzip\r\n".to_owned(),
        format!("{chunked}host : x\r\n"),
        "x-any: x\ny: z\r\0\n".to_owned(),
        format!("x-long: {}\r\n", "v".repeat(1 << 20)),
        "x: y\r\n".repeat(10_000),
    ] {
        let reported = reported(pod.http, &posted(&headers, &smuggled)).await;
        let name = &headers[..headers.len().min(60)];
        let status = reported.split(' ').nth(1).unwrap_or_default();
        assert!(["400", "431", "501", ""].contains(&status), "{name:?}: {reported}");
        assert_eq!(
            reported.matches("HTTP/1.1 ").count(),
            usize::from(!status.is_empty()),
            "{name:?}"
        );
    }
    // Both headers: the chunks count (RFC 9112 §6.3), and the connection ends with them.
    let both = kept(&format!("{}{chunked}", length()), &format!("0\r\n\r\n{smuggled}"));
    let reported = reported(pod.http, &both).await;
    assert!(reported.starts_with("HTTP/1.1 400 "), "{reported}");
    for chunk in ["x\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "3\r\nabcd\r\n"] {
        let reported = self::reported(pod.http, &posted(chunked, chunk)).await;
        assert!(!reported.contains("200 OK"), "{chunk:?}: {reported}");
    }
    assert_served(&self::reported(pod.http, &posted(&length(), BODY)).await, 1);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_served_over_http_2_as_well() {
    let (pod, _rules) = pod().await;
    let mut raw = Raw::open(pod.http, &[]).await;
    let named = [field(":path", "/json"), field(":authority", "test")].concat();
    let head = [&[0x83, 0x86], &named[..], &field("content-type", "application/json")].concat();
    let request =
        [frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, END_STREAM, 1, BODY.as_bytes())];
    raw.send(&request.concat()).await;
    let answer = raw.next_of(DATA).await.expect("an answer");
    let text = String::from_utf8(answer.payload).unwrap();
    assert!(text.contains(r#""overallCode":"OK""#), "{text}");
    pod.is_unharmed();
}

/// An unfinished head is kept up to the maximum length of a head, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn half_heads_take_no_more_room_than_heads_may() {
    const CONNECTIONS: usize = 100;
    /// A head of 16 KiB, twice for a growing buffer, and the memory of a connection without it.
    const EACH_MAX: u64 = 80 * 1024;
    let (pod, _rules) = pod().await;
    let _core = one_core().await;
    let before = pod.process.memory("VmRSS");
    let head = format!("GET /livez HTTP/1.1\r\nhost: test\r\nx-long: {}", "v".repeat(350_000));
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(pod.http).await.unwrap();
        // The server may refuse the head before all is written.
        let _ = timeout(ANSWER_MAX, stream.write_all(head.as_bytes())).await.unwrap();
        open.push(stream);
    }
    // By then, the server has read all of it, or has stopped reading.
    for _ in 0..20 {
        assert_served(&reported(pod.http, &posted(&length(), BODY)).await, 1);
    }
    let each = pod.process.memory("VmHWM").saturating_sub(before) / CONNECTIONS as u64;
    println!("{each} bytes for each half head");
    assert!(each < EACH_MAX, "{each} bytes for each half head");
    drop(open);
    pod.is_unharmed();
}
