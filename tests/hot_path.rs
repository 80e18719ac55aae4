//! The hot path does not allocate. A test binary of its own, since it counts every allocation.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use ratelease_cli::settings::{self, Identity, Otlp, OtlpCompression, OtlpProtocol, Tracing};
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::time::Clock;
use ratelease_otlp::origin::Origin;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::{self as rules, Source};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc;
use ratelease_server::hot_keys::HotKeys;
use ratelease_server::metrics::Meters;
use ratelease_server::observe::{Observers, Samples};
use ratelease_server::request::Transport;
use ratelease_server::service::{Caller, DecisionService, Owner, Peer};
use ratelease_server::trace::Tracer;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const RULES: &str = "
domain: d
descriptors:
  - key: tenant
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 4000000000, name: per_user}
";

const ROUNDS: usize = 20;
const DECISIONS: u64 = 1_000;

fn service() -> DecisionService {
    let options = Options {
        wait_min: Duration::from_secs(5),
        buffer_bytes_max: 1024 * 1024,
        hasher: KeyHasher::new("secret"),
        ..Options::default()
    };
    let limiter = Limiter::new(Arc::new(MemoryStore::system()), Clock::start(), options);
    let source = Source { name: "hot.yaml".into(), text: RULES.into() };
    let loaded = rules::load(&[source], rules::Options::default()).unwrap();
    let published = Arc::new(CurrentRules::new());
    published.put_in_force(Arc::new(loaded.rules));
    let sample = NonZeroU32::new(4).unwrap();
    let hot_keys =
        HotKeys::new(settings::HotKeys { is_on: true, sample, values: false }, limiter.clock());
    let meters = Some(Meters::default());
    let observers = Observers { meters, hot_keys, ..Observers::default() };
    DecisionService::new(limiter, published, None, 64).observed_by(observers)
}

/// A gRPC frame: one descriptor of two entries.
fn frame() -> Vec<u8> {
    let entry = |key: &str, value: &str| descriptor_pb::rate_limit_descriptor::Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = descriptor_pb::RateLimitDescriptor {
        entries: vec![entry("tenant", "shop"), entry("user", "user-12345678")],
        ..Default::default()
    };
    let request =
        pb::RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &message].concat()
}

#[tokio::test]
async fn a_decision_from_frame_to_frame_allocates_nothing() {
    let profiler = dhat::Profiler::builder().testing().build();
    allocates_nothing(service()).await;
    // Samples and spans are on, but cover none of these decisions.
    allocates_nothing(service().observed_by(rare())).await;
    // Called here, since there can be only one profiler.
    what_a_message_claims_to_hold_is_not_allocated();
    drop(profiler);
}

/// A MiB of descriptors of two bytes each, and of entries.
fn what_a_message_claims_to_hold_is_not_allocated() {
    const MIB: usize = 1024 * 1024;
    let entries = [0x0a, 0].repeat(MIB / 2);
    let length = [0x80, 0x80, 0x40]; // their length, as a varint
    for message in [[0x12, 0].repeat(MIB / 2), [&[0x12], &length[..], &entries].concat()] {
        let before = dhat::HeapStats::get();
        assert!(grpc::read(&message).is_err());
        let after = dhat::HeapStats::get();
        let bytes = after.total_bytes - before.total_bytes;
        println!("{bytes} bytes allocated before the message was refused");
        assert!(bytes < MIB as u64 / 4, "{bytes} bytes");
    }
}

/// Observers that record almost no decision.
fn rare() -> Observers {
    let clock = Clock::start();
    let endpoint = "http://127.0.0.1:1/v1/traces".parse().unwrap();
    let (protocol, timeout) = (OtlpProtocol::Http, Duration::from_secs(1));
    let (headers, compression) = (HeaderMap::new(), OtlpCompression::None);
    let otlp = Otlp { protocol, endpoint, tls: None, headers, timeout, compression };
    let (name, namespace, instance) = Default::default();
    let origin = Origin::new(Identity { name, namespace, instance, attributes: Vec::new() });
    let tracer = Tracer::new(&origin, Some(Tracing { rate: f32::MIN_POSITIVE, otlp }), clock);
    let samples = Samples::new(f32::MIN_POSITIVE, false, clock);
    let meters = Some(Meters::default());
    Observers { meters, tracer, samples, hot_keys: HotKeys::default() }
}

async fn allocates_nothing(service: DecisionService) {
    let frame = frame();
    let mut answer = BytesMut::with_capacity(256);
    let peer = Peer::new();
    // The first asks the store.
    answer_frame(&service, &peer, &frame, &mut answer).await;
    // A decision may ask ahead for the next lease, or wait for it, and asking allocates, which is
    // not measured here. By far most rounds do not ask.
    let mut allocated = u64::MAX;
    for _ in 0..ROUNDS {
        let in_round = allocated_in_a_round(&service, &peer, &frame, &mut answer).await;
        allocated = allocated.min(in_round);
    }
    let answered = pb::RateLimitResponse::decode(&answer[5..]).unwrap();
    assert_eq!(answered.statuses[0].current_limit.as_ref().unwrap().name, "per_user");
    assert_eq!(allocated, 0);
}

/// Answers a frame with a frame, as a connection does.
async fn answer_frame(service: &DecisionService, peer: &Peer, frame: &[u8], answer: &mut BytesMut) {
    let request = grpc::read(&frame[5..]).unwrap();
    let caller = Caller { transport: Transport::Grpc, peer, patience: None, owner: Owner::UNKNOWN };
    let answered = service.answer(&caller, &request, |made| grpc::frame(made, answer));
    service.catch_panic(Transport::Grpc, answered).await.unwrap().unwrap();
}

/// Number of allocations in a round of decisions.
async fn allocated_in_a_round(
    service: &DecisionService,
    peer: &Peer,
    frame: &[u8],
    answer: &mut BytesMut,
) -> u64 {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let headers = HeaderMap::from_iter([(
        HeaderName::from_static("traceparent"),
        HeaderValue::from_static(parent),
    )]);
    let before = dhat::HeapStats::get();
    for _ in 0..DECISIONS {
        answer.clear();
        assert!(service.begin(Transport::Grpc, &headers).is_none());
        // Sampling may pick one, in many rounds.
        drop(service.begin(Transport::Grpc, &HeaderMap::new()));
        answer_frame(service, peer, frame, answer).await;
    }
    dhat::HeapStats::get().total_blocks - before.total_blocks
}
