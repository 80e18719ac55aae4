//! A decision of a connection, from frame to frame, and the protocol's part of it.

use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;

use bytes::BytesMut;
use criterion::{Criterion, criterion_group};
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::store::StoreError;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc;
use ratelease_server::request::Transport;
use ratelease_server::service::{Answer, Caller, DecisionService, Peer};

use super::{Bench, TURN, compile, deep, users};

criterion_group!(benches, frame);

/// Maximum calls under way, none of which waits here.
const CALLS_MAX: usize = 64;

/// Bytes of a gRPC frame before the message.
const PREFIX_BYTES: usize = 5;

/// One descriptor of two entries.
fn frame(criterion: &mut Criterion) {
    let frames: Vec<_> = users(1).iter().map(|user| framed(user)).collect();
    let bench = Bench::new(&deep(1));
    let service = service(&bench);
    let _entered = bench.runtime.enter();
    criterion.bench_function("frame/decode", |bencher| {
        bencher.iter(|| black_box(grpc::read(black_box(&frames[0][PREFIX_BYTES..]))));
    });
    encode(criterion, &bench, &frames[0]);
    let mut bytes = BytesMut::with_capacity(1024);
    let peer = Peer::new();
    let caller =
        Caller { transport: Transport::Grpc, peer: &peer, patience: None, owner: Owner::UNKNOWN };
    let mut answer = |at: usize| {
        bytes.clear();
        if at.is_multiple_of(TURN) {
            bench.runtime.block_on(tokio::task::yield_now());
        }
        let frame = black_box(&frames[at % frames.len()]);
        let request = grpc::read(&frame[PREFIX_BYTES..]).expect("a plain request");
        let answered = service.answer(&caller, &request, |made| grpc::frame(made, &mut bytes));
        // The lease is used up now and then.
        bench.when_polled(pin!(answered)).expect("the store is here");
    };
    criterion.bench_function("frame/decode, decide, encode", |bencher| {
        let mut at = 0_usize;
        bencher.iter(|| {
            answer(at);
            at = at.wrapping_add(1);
        });
    });
}

fn encode(criterion: &mut Criterion, bench: &Bench, frame: &[u8]) {
    let request = grpc::read(&frame[PREFIX_BYTES..]).expect("a plain request");
    let (now, admit) = (bench.limiter.clock().now(), || Ok::<_, StoreError>(()));
    let verdict = bench.runtime.block_on(bench.limiter.decide(
        &bench.rules,
        &request,
        now,
        None,
        Owner::UNKNOWN,
        admit,
    ));
    let answer = Answer { verdict: verdict.expect("the store is here"), headers: Vec::new() };
    let mut bytes = BytesMut::with_capacity(1024);
    criterion.bench_function("frame/encode", |bencher| {
        bencher.iter(|| {
            bytes.clear();
            grpc::frame(black_box(&answer), &mut bytes);
            black_box(bytes.len())
        });
    });
}

fn service(bench: &Bench) -> DecisionService {
    let published = Arc::new(CurrentRules::new());
    published.put_in_force(Arc::new(compile(&deep(1))));
    DecisionService::new(bench.limiter.clone(), published, None, CALLS_MAX)
}

/// A frame with a request for `user`: field by field, with the numbers of `rls.proto`.
fn framed(user: &str) -> Vec<u8> {
    let entries = [entry("part_0", "all"), entry("user", user)];
    let descriptor: Vec<u8> = entries.iter().flat_map(|entry| field(1, entry)).collect();
    let message = [field(1, b"d"), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], &message].concat()
}

fn entry(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, value.as_bytes())].concat()
}

/// A field of bytes, fewer than 128 of them.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("few bytes");
    [&[number << 3 | 2, length], bytes].concat()
}
