//! Access logs on a connection: which are read, how they end, and what outlives what.

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::data::accesslog::v3::{AccessLogCommon, HttpAccessLogEntry};
use envoy_types::pb::envoy::service::accesslog::v3 as pb;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, StatusCode};
use pb::stream_access_logs_message::{HttpAccessLogEntries, Identifier, LogEntries};
use prost::Message;
use tokio::task::JoinHandle;

use super::fairness::{
    CANCEL, DATA, END_STREAM, HEADERS, RST_STREAM, beginning, frame, headers_for,
};
use super::resets::{ACK, PING};
use super::turns::rules;
use super::*;
use crate::metrics::counter::Counter;

const PATH: &str = "http://test/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

/// A connection of an Envoy.
struct Envoy {
    sender: SendRequest<Bytes>,
    service: DecisionService,
    /// Ends with the connection.
    driver: JoinHandle<Result<(), h2::Error>>,
    end: watch::Sender<bool>,
}

/// One log, and its answer.
struct Stream {
    body: SendStream<Bytes>,
    answer: h2::client::ResponseFuture,
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

/// The message that begins a log of this name.
fn identifier(log_name: &str) -> Bytes {
    let node = Some(Node { id: "envoy".into(), ..Default::default() });
    let identifier = Some(Identifier { node, log_name: log_name.into() });
    framed(&pb::StreamAccessLogsMessage { identifier, log_entries: None }.encode_to_vec())
}

/// A message with an end for each of these ids.
fn ends(ids: &[&str]) -> Bytes {
    let entry = |id: &&str| HttpAccessLogEntry {
        common_properties: Some(AccessLogCommon {
            custom_tags: [("ratelease.id".to_owned(), (*id).to_owned())].into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let entries = HttpAccessLogEntries { log_entry: ids.iter().map(entry).collect() };
    let log_entries = Some(LogEntries::HttpLogs(entries));
    framed(&pb::StreamAccessLogsMessage { identifier: None, log_entries }.encode_to_vec())
}

// === impl Envoy ===

impl Envoy {
    async fn connect(age: Option<Duration>) -> Self {
        let context = context_of(rules(), age);
        let service = context.service.clone();
        let (near, far) = duplex(1 << 20);
        let (end, ended) = watch::channel(false);
        tokio::spawn(serve(ratelease_listener::Connection::standalone(near), context, ended));
        let (sender, connection) = h2::client::handshake(far).await.unwrap();
        Self { sender, service, driver: tokio::spawn(connection), end }
    }

    /// Opens a log that sends `first`.
    async fn open(&mut self, first: Bytes) -> Stream {
        let request = Request::post(PATH).header("content-type", "application/grpc");
        let mut sender = self.sender.clone().ready().await.unwrap();
        let (answer, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data(first, false).unwrap();
        Stream { body, answer }
    }

    fn count(&self, counter: Counter) -> u64 {
        let counts = self.service.counts();
        counts.iter().find(|(of, _)| *of == counter).map(|(_, count)| *count).unwrap()
    }

    /// Waits until `counter` has this value.
    async fn until(&self, counter: Counter, value: u64) {
        let reached = async {
            while self.count(counter) != value {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let seen = timeout(Duration::from_secs(30), reached).await;
        seen.unwrap_or_else(|_| panic!("{counter:?} is {}", self.count(counter)));
    }
}

// === impl Stream ===

impl Stream {
    /// The gRPC status with which the log is answered.
    async fn status(self) -> String {
        let (_body, status) = self.open_status().await;
        status
    }

    /// The gRPC status, and the stream, on which more may be sent.
    async fn open_status(self) -> (SendStream<Bytes>, String) {
        let Self { body, answer } = self;
        let response = answer.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let (head, rest) = response.into_parts();
        let of = |headers: &HeaderMap| {
            let status = headers.get("grpc-status")?;
            Some(status.to_str().unwrap().to_owned())
        };
        let status = match of(&head.headers) {
            Some(status) => status,
            None => of(&trailers(rest).await).expect("a status"),
        };
        (body, status)
    }
}

async fn trailers(mut rest: RecvStream) -> HeaderMap {
    while let Some(data) = rest.data().await {
        assert_eq!(data.unwrap(), Bytes::from_static(&[0; 5]), "an empty answer");
    }
    rest.trailers().await.unwrap().expect("trailers")
}

#[tokio::test]
async fn entries_are_counted_by_what_they_are_taken_for() {
    let mut envoy = Envoy::connect(None).await;
    let mut log = envoy.open(identifier("ratelease")).await;
    envoy.until(Counter::LogStreams, 1).await;
    // A message in three parts, with two ends that no start is open of, and one without an id.
    let message = ends(&["a", "b", ""]);
    for part in [0..3, 3..20, 20..message.len()] {
        log.body.send_data(message.slice(part), false).unwrap();
    }
    envoy.until(Counter::LogEndsUnknown, 2).await;
    envoy.until(Counter::LogEntriesWithoutId, 1).await;
    log.body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(log.status().await, "0");
    envoy.until(Counter::LogStreams, 0).await;
}

#[tokio::test]
async fn entries_of_other_logs_are_ignored() {
    let mut envoy = Envoy::connect(None).await;
    let mut log = envoy.open(identifier("access")).await;
    log.body.send_data(ends(&["a"]), false).unwrap();
    envoy.until(Counter::LogEntriesOtherLog, 1).await;
    assert_eq!(envoy.count(Counter::LogStreams), 0);
}

#[tokio::test]
async fn a_log_that_cannot_be_read_is_answered_with_the_reason() {
    let mut envoy = Envoy::connect(None).await;
    for (message, status) in [
        (Bytes::from_static(&[1, 0, 0, 0, 9, 1]), "12"), // compressed
        (framed(&[0x10, 1]), "13"),                      // no such message
        (ends(&["a"]), "3"),                             // nobody's
    ] {
        assert_eq!(envoy.open(message).await.status().await, status);
    }
    let mut log = envoy.open(identifier("ratelease")).await;
    log.body.send_data(ends(&["a"]).slice(..9), true).unwrap();
    assert_eq!(log.status().await, "13", "half a message");
    assert_eq!(envoy.count(Counter::LogStreamsMalformed), 4);
    envoy.until(Counter::LogStreams, 0).await;
}

#[tokio::test]
async fn logs_above_the_maximum_are_refused_and_do_not_count_as_watches() {
    let mut envoy = Envoy::connect(None).await;
    let mut logs = Vec::new();
    for _ in 0..16 {
        logs.push(envoy.open(identifier("ratelease")).await);
    }
    envoy.until(Counter::LogStreams, 16).await;
    assert_eq!(envoy.open(identifier("ratelease")).await.status().await, "8");
    assert_eq!(envoy.count(Counter::LogStreamsRefused), 1);
    drop(logs.pop());
    envoy.until(Counter::LogStreams, 15).await;
    let mut log = envoy.open(identifier("ratelease")).await;
    log.body.send_data(ends(&["a"]), false).unwrap();
    envoy.until(Counter::LogEndsUnknown, 1).await;
}

/// Neither the time for requests to be finished nor that for answers ends a log, and the connection is
/// not idle.
#[tokio::test(start_paused = true)]
async fn logs_that_send_nothing_last() {
    let mut envoy = Envoy::connect(None).await;
    let mut logs = Vec::new();
    for _ in 0..12 {
        logs.push(envoy.open(identifier("ratelease")).await);
    }
    envoy.until(Counter::LogStreams, 12).await;
    sleep(HOUR).await;
    logs[0].body.send_data(ends(&["a"]), false).unwrap();
    envoy.until(Counter::LogEndsUnknown, 1).await;
    assert!(!envoy.driver.is_finished());
    assert_eq!(envoy.count(Counter::LogStreams), 12);
}

#[tokio::test(start_paused = true)]
async fn a_log_is_read_after_its_answer_until_its_client_ends_it() {
    for is_drain in [false, true] {
        let age = (!is_drain).then_some(HOUR);
        let mut envoy = Envoy::connect(age).await;
        let log = envoy.open(identifier("ratelease")).await;
        envoy.until(Counter::LogStreams, 1).await;
        if is_drain {
            envoy.end.send_replace(true);
        }
        let (mut body, status) = log.open_status().await;
        assert_eq!(status, "0");
        // Entries that were on their way.
        body.send_data(ends(&["a", "b"]), false).unwrap();
        envoy.until(Counter::LogEndsUnknown, 2).await;
        body.send_data(Bytes::new(), true).unwrap();
        let ended = timeout(Duration::from_millis(500), envoy.driver).await;
        ended.expect("the connection ends with its last stream").unwrap().unwrap();
    }
}

/// As an Envoy does that has read the answer: the connection has no stream left then.
#[tokio::test]
async fn entries_that_come_with_the_end_of_the_connection_are_read() {
    let context = context_of(rules(), None);
    let service = context.service.clone();
    let (near, mut far) = duplex(1 << 20);
    let (end, ended) = watch::channel(false);
    let serving =
        tokio::spawn(serve(ratelease_listener::Connection::standalone(near), context, ended));
    let opened = [headers_for(1, PATH.trim_start_matches("http://test")), {
        frame(DATA, 0, 1, &identifier("ratelease"))
    }];
    far.write_all(&[beginning(), opened.concat()].concat()).await.unwrap();
    while !service.counts().contains(&(Counter::LogStreams, 1)) {
        yield_now().await;
    }
    end.send_replace(true);
    // Until it is answered, and asked whether it has heard.
    let (mut is_answered, mut is_asked) = (false, false);
    while !(is_answered && is_asked) {
        let mut head = [0; 9];
        far.read_exact(&mut head).await.unwrap();
        let [l0, l1, l2, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
        far.read_exact(&mut payload).await.unwrap();
        is_answered |= kind == HEADERS && flags & END_STREAM != 0;
        if kind == PING {
            far.write_all(&frame(PING, ACK, 0, &payload)).await.unwrap();
            is_asked = true;
        }
    }
    let last = [frame(DATA, 0, 1, &ends(&["a", "b"])), frame(RST_STREAM, 0, 1, &CANCEL)];
    far.write_all(&last.concat()).await.unwrap();
    serving.await.unwrap();
    let counts = service.counts();
    assert!(counts.contains(&(Counter::LogEndsUnknown, 2)), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_end_its_log_delays_no_drain() {
    let mut envoy = Envoy::connect(None).await;
    let log = envoy.open(identifier("ratelease")).await;
    envoy.until(Counter::LogStreams, 1).await;
    envoy.end.send_replace(true);
    let (_body, status) = log.open_status().await;
    assert_eq!(status, "0");
    timeout(Duration::from_secs(2), envoy.driver).await.expect("it ends").unwrap().unwrap();
}
