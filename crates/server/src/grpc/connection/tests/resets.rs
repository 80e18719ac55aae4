//! Calls that their client resets before it has read the answer.

use std::collections::HashMap;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf::UInt64Value;
use pb::rate_limit_response::Code;
use prost::Message;
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture};
use ratelease_rules::{self as rules, Source};
use tokio::sync::Semaphore;

use super::fairness::{
    CANCEL, DATA, END_STREAM, HEADERS, RST_STREAM, SETTINGS, beginning, frame, headers,
};
use super::*;

const RULES: &str = "
domain: d
defaults: {failure_mode: deny}
descriptors:
- {key: many, rate_limit: {unit: year, requests_per_unit: 1000}}
- {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: cost, rate_limit: {unit: year, requests_per_unit: 5, settle: true}}
- key: slot
  rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: {for: 1h}}
";

/// A kind of frame (RFC 9113 §6), and the flag of those that acknowledge.
pub(super) const PING: u8 = 6;
pub(super) const ACK: u8 = 1;

/// An embedded store that answers an ask for each permit that it is given.
struct Paced(MemoryStore, Semaphore);

/// A client that writes its frames by hand.
pub(super) struct Client {
    far: DuplexStream,
    answers: HashMap<u32, pb::RateLimitResponse>,
}

pub(super) fn rules() -> CurrentRules {
    let source = Source { name: "rules.yaml".into(), text: RULES.into() };
    let loaded = rules::load(&[source], rules::Options::default()).unwrap();
    let published = CurrentRules::new();
    published.put_in_force(Arc::new(loaded.rules));
    published
}

/// A request with one descriptor of one entry.
fn asked(key: &str, value: &str, hits: u64) -> Vec<u8> {
    let entry =
        descriptor_pb::rate_limit_descriptor::Entry { key: key.into(), value: value.into() };
    let descriptor = descriptor_pb::RateLimitDescriptor {
        entries: vec![entry],
        hits_addend: Some(UInt64Value { value: hits }),
        ..Default::default()
    };
    let request =
        pb::RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &message].concat()
}

fn call(stream: u32, key: &str, value: &str, hits: u64) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &asked(key, value, hits));
    [headers(stream), data].concat()
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL)
}

// === impl Paced ===

impl Store for Paced {
    fn shard(&self, ask: &Ask) -> usize {
        self.0.shard(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async {
            self.1.acquire().await.unwrap().forget();
            self.0.lend(ask).await
        })
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.0.beat(beat)
    }

    fn describe(&self) -> String {
        "paced".to_owned()
    }
}

// === impl Client ===

impl Client {
    pub(super) async fn connect(context: ConnectionContext) -> Self {
        Self::connect_with(context, &beginning()).await
    }

    /// A client that sends these bytes first.
    async fn connect_with(context: ConnectionContext, beginning: &[u8]) -> Self {
        let (near, mut far) = duplex(8 << 20);
        let (end, ended) = watch::channel(false);
        tokio::spawn(async move {
            serve(ratelease_listener::Connection::standalone(near), context, ended).await;
            drop(end); // the server outlives its connections
        });
        far.write_all(beginning).await.unwrap();
        Self { far, answers: HashMap::new() }
    }

    /// A client whose 50 calls were answered, so that tokens are held for the next ones.
    async fn with_tokens() -> Self {
        let mut client = Self::connect(context_of(rules(), None)).await;
        for stream in (1..).step_by(2).take(50) {
            client.send(&call(stream, "many", "a", 1)).await;
            client.answer(stream).await;
        }
        client
    }

    /// Sends bytes, which the pipe has room for.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        // An error means that the connection was closed, which the next read finds.
        let _ = self.far.write_all(bytes).await;
    }

    /// Reads the next frame: its kind, its flags, its stream and its payload.
    pub(super) async fn next(&mut self) -> (u8, u8, u32, Vec<u8>) {
        self.try_next().await.expect("the connection lives")
    }

    /// Reads the next frame, if the connection has not ended.
    pub(super) async fn try_next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.far.read_exact(&mut head).await.ok()?;
        let [l0, l1, l2, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
        self.far.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes(stream);
        if kind == SETTINGS && flags & ACK == 0 {
            self.send(&frame(SETTINGS, ACK, 0, &[])).await;
        }
        Some((kind, flags, stream, payload))
    }

    /// Waits for the answer on `stream`.
    async fn answer(&mut self, stream: u32) -> pb::RateLimitResponse {
        loop {
            if let Some(answer) = self.answers.remove(&stream) {
                return answer;
            }
            let (kind, flags, of, payload) = self.next().await;
            if kind == DATA {
                self.answers.insert(of, pb::RateLimitResponse::decode(&payload[5..]).unwrap());
            }
            let is_error = kind == HEADERS && flags & END_STREAM != 0 && of == stream;
            assert!(!is_error || self.answers.contains_key(&stream), "an error");
        }
    }

    /// Calls, and returns whether the request passes.
    pub(super) async fn passes(&mut self, stream: u32, key: &str, value: &str, hits: u64) -> bool {
        self.send(&call(stream, key, value, hits)).await;
        self.answer(stream).await.overall_code() == Code::Ok
    }
}

#[tokio::test]
async fn a_call_whose_reset_came_with_it_is_not_charged() {
    let mut client = Client::with_tokens().await;
    let given_up: Vec<u8> = (101..)
        .step_by(2)
        .take(20)
        .flat_map(|stream| [call(stream, "many", "a", 1), reset(stream)].concat())
        .collect();
    client.send(&[given_up, call(201, "many", "a", 1)].concat()).await;
    assert_eq!(client.answer(201).await.statuses[0].limit_remaining, 1000 - 51);
}

#[tokio::test]
async fn a_message_behind_its_head_and_with_a_reset_is_not_charged() {
    let mut client = Client::with_tokens().await;
    client.send(&headers(101)).await;
    client.send(&call(103, "many", "other", 1)).await;
    client.answer(103).await;
    let message = frame(DATA, END_STREAM, 101, &asked("many", "a", 1));
    client.send(&[message, reset(101), call(105, "many", "other", 1)].concat()).await;
    client.answer(105).await;
    client.send(&call(201, "many", "a", 1)).await;
    assert_eq!(client.answer(201).await.statuses[0].limit_remaining, 1000 - 51);
}

#[tokio::test]
async fn a_cost_whose_reset_came_with_it_is_charged() {
    let mut client = Client::connect(context_of(rules(), None)).await;
    client.send(&[call(1, "cost", "a", 10), reset(1)].concat()).await;
    // A settlement is on its way to the store for a moment.
    let is_charged = async {
        for stream in (3..).step_by(2) {
            if !client.passes(stream, "cost", "a", 0).await {
                return;
            }
        }
    };
    timeout(Duration::from_secs(10), is_charged).await.expect("it is counted");
}

/// The connection's task reads the reset while the lease is there already.
#[tokio::test]
async fn a_reset_goes_before_a_lease_that_came_at_the_same_time() {
    let store = Arc::new(Paced(MemoryStore::system(), Semaphore::new(0)));
    let mut client = Client::connect(context_on(store.clone(), rules(), None)).await;
    for nth in 0..40_u32 {
        let (value, given_up, next) = (nth.to_string(), 4 * nth + 1, 4 * nth + 3);
        client.send(&call(given_up, "one", &value, 1)).await;
        // Until it waits for the lease.
        for _ in 0..20 {
            yield_now().await;
        }
        client.send(&reset(given_up)).await;
        store.1.add_permits(1);
        for _ in 0..20 {
            yield_now().await;
        }
        store.1.add_permits(1);
        assert!(client.passes(next, "one", &value, 1).await, "{nth}: the first took the token");
        store.1.forget_permits(usize::MAX);
    }
}

#[tokio::test]
async fn a_start_whose_call_is_reset_after_the_answer_is_undone() {
    let mut client = Client::connect(context_of(rules(), None)).await;
    assert!(client.passes(1, "slot", "a", 1).await);
    assert!(!client.passes(3, "slot", "b", 1).await);
    client.send(&reset(1)).await;
    assert!(client.passes(5, "slot", "c", 1).await);
}

#[tokio::test(start_paused = true)]
async fn a_reset_after_an_acknowledged_ping_undoes_nothing() {
    let mut client = Client::connect(context_of(rules(), None)).await;
    assert!(client.passes(1, "slot", "a", 1).await);
    let payload = loop {
        if let (PING, 0, _, payload) = client.next().await {
            break payload;
        }
    };
    client.send(&frame(PING, ACK, 0, &payload)).await;
    for stream in [3, 5] {
        assert!(client.passes(stream, "many", "a", 1).await, "the acknowledgement is handled");
    }
    client.send(&reset(1)).await;
    assert!(!client.passes(7, "slot", "b", 1).await);
}

/// Its window has no room for the answer, and nothing of the start is waited for.
#[tokio::test]
async fn a_connection_that_breaks_undoes_the_start_whose_answer_was_not_written() {
    let context = context_of(rules(), None);
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let first = [PREFACE, &no_window].concat();
    let mut deaf = Client::connect_with(context.clone(), &first).await;
    deaf.send(&call(1, "slot", "a", 1)).await;
    while deaf.next().await.0 != HEADERS {}
    let mut next = Client::connect(context).await;
    assert!(!next.passes(1, "slot", "b", 1).await);
    drop(deaf);
    let is_freed = async {
        for stream in (3..).step_by(2) {
            if next.passes(stream, "slot", &stream.to_string(), 1).await {
                return;
            }
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(2), is_freed).await.expect("sooner than its Envoy is waited for");
}

/// An Envoy of which nothing was started is pinged when it is silent only.
#[tokio::test(start_paused = true)]
async fn plain_calls_cause_no_pings() {
    let mut client = Client::connect(context_of(rules(), None)).await;
    client.send(&call(1, "many", "a", 1)).await;
    client.answer(1).await;
    let quiet = KEEPALIVE_INTERVAL / 4;
    let pinged = async { while client.next().await.0 != PING {} };
    assert!(timeout(quiet, pinged).await.is_err());
}
