//! The stream of events: the number of listeners, and how a stream ends.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::shop;
use crate::support::http;
use crate::support::ratelease::Ratelease;
use crate::support::shop::Shop;

/// [`ratelease_sidecar::admin::live::LISTENERS_MAX`].
const LISTENERS_MAX: usize = ratelease_sidecar::admin::live::LISTENERS_MAX;

/// Limit for steps that take a second or two, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// A connection that listens: the text received so far ends with `until`.
struct Listener {
    stream: TcpStream,
    heard: String,
}

impl Listener {
    async fn open(pod: &Ratelease) -> Self {
        let mut stream = TcpStream::connect(pod.debug).await.unwrap();
        let request =
            "GET /live/events HTTP/1.1\r\nhost: test\r\naccept: text/event-stream\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut listener = Self { stream, heard: String::new() };
        listener.hears("event: status", 1).await;
        listener
    }

    /// Reads until it has received `what` `times` times.
    async fn hears(&mut self, what: &str, times: usize) {
        let heard = async {
            while self.heard.matches(what).count() < times {
                assert!(self.read().await > 0, "the stream ended before {what}: {}", self.heard);
            }
        };
        timeout(SOON, heard).await.expect(what);
    }

    /// Number of bytes that have arrived; 0 at the end.
    async fn read(&mut self) -> usize {
        let mut bytes = vec![0; 1 << 16];
        let read = self.stream.read(&mut bytes).await.unwrap_or(0);
        self.heard += &String::from_utf8_lossy(&bytes[..read]);
        read
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_each_second_after_the_last_minutes() {
    let Shop { pod, .. } = &shop().await;
    let mut listener = Listener::open(pod).await;
    listener.hears("event: status", 3).await;
    let heard = &listener.heard;
    assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
    assert!(heard.contains("content-type: text/event-stream\r\n"), "{heard}");
    assert!(heard.contains("cache-control: no-store\r\n"), "{heard}");
    let (history, status) = (heard.find("event: history"), heard.find("event: status"));
    assert!(history.is_some() && history < status, "{heard}");
}

/// Pages open at any time within a second, alone or beside others.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_opens_makes_no_entry_and_no_rate_of_less_than_half_a_second() {
    let Shop { pod, .. } = &shop().await;
    let mut listeners = Vec::new();
    for wait in [0, 130, 270, 610, 40] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        listeners.push(Listener::open(pod).await);
    }
    drop(listeners.drain(..3));
    for listener in &mut listeners {
        listener.hears("event: status", 4).await;
    }
    listeners.push(Listener::open(pod).await);
    let newest = listeners.last_mut().unwrap();
    newest.hears("event: status", 3).await;
    let data = |heard: &str, name: &str| -> Vec<serde_json::Value> {
        let lines = heard.lines().filter_map(|line| line.strip_prefix("data: "));
        let lines = lines.filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|it: &serde_json::Value| it.is_array() == (name == "history")).collect()
    };
    for listener in &listeners {
        let status = data(&listener.heard, "status");
        let uptime = |it: &serde_json::Value| it["uptime_seconds"].as_f64().unwrap();
        let gaps = status.windows(2).map(|two| uptime(&two[1]) - uptime(&two[0]));
        let gaps: Vec<_> = gaps.collect();
        assert!(gaps.iter().all(|gap| *gap >= 0.45), "{gaps:?}");
        for entry in data(&listener.heard, "history").iter().flat_map(|it| it.as_array().unwrap()) {
            assert!(entry["seconds"].as_f64().unwrap() >= 0.5, "{entry}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_listener_too_many_is_refused_until_another_has_left() {
    let Shop { pod, .. } = &shop().await;
    let mut crowd = Vec::new();
    for _ in 0..LISTENERS_MAX {
        crowd.push(Listener::open(pod).await);
    }
    let refused = http::get(pod.debug, "/live/events").await.unwrap();
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("close one of them"), "{}", refused.body);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(http::get(pod.debug, "/live").await.unwrap().status, 200, "other pages go on");
    drop(crowd.pop());
    // The server notices when it next sends something.
    let room = async || {
        let mut stream = TcpStream::connect(pod.debug).await.unwrap();
        let request = "GET /live/events HTTP/1.1\r\nhost: test\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        &answer == b"HTTP/1.1 200"
    };
    pod.process.until("taking another listener", SOON, room).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_the_drain_and_do_not_hold_it_up() {
    let Shop { pod, .. } = &shop().await;
    let mut listener = Listener::open(pod).await;
    // It no longer reads.
    let _stuck = Listener::open(pod).await;
    pod.process.signal("TERM");
    let ended = async { while listener.read().await > 0 {} };
    timeout(SOON, ended).await.expect("an end of the stream");
    // The last piece of a chunked body: the body was ended, not cut off.
    assert!(listener.heard.ends_with("\r\n0\r\n\r\n"), "{}", listener.heard);
    assert_eq!(pod.process.exit(SOON).await, 0);
    let log = pod.process.log();
    assert!(!log.contains("cut off"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_what_it_may_do_and_the_index_names_it() {
    let Shop { pod, .. } = &shop().await;
    let page = http::get(pod.debug, "/live").await.unwrap();
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let index = http::get(pod.debug, "/").await.unwrap().body;
    assert!(index.contains("\n/live "), "{index}");
}
