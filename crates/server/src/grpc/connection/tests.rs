//! Connections in virtual time, over pipes.

mod deadline;
mod fairness;
mod h2_waker;
mod logs;
mod owners;
mod resets;
mod turns;

use std::sync::Arc;

use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::Store;
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::time::Clock;
use ratelease_engine::verdict::Modes;
use ratelease_rules::key::KeyHasher;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::current_rules::CurrentRules;
use crate::grpc::fallback::{RateLimitService, SHOULD_RATE_LIMIT};

/// Capacity of a pipe in bytes: less than the answers to a few frames.
const PIPE_BYTES: usize = 64;

const HOUR: Duration = Duration::from_secs(3600);

/// The parts of a server without rules.
fn context(age: Option<Duration>) -> ConnectionContext {
    context_of(CurrentRules::new(), age)
}

/// The parts of a server with these rules.
fn context_of(rules: CurrentRules, age: Option<Duration>) -> ConnectionContext {
    context_on(Arc::new(MemoryStore::system()), rules, age)
}

/// The parts of a server with these rules, whose limiter runs.
fn running(rules: CurrentRules, age: Option<Duration>) -> ConnectionContext {
    let limiter = limiter_on(Arc::new(MemoryStore::system()));
    let runs = limiter.clone();
    tokio::spawn(async move { runs.run().await });
    context_with(limiter, rules, age)
}

/// The parts of a server with these rules, on this store.
fn context_on(
    store: Arc<dyn Store>,
    rules: CurrentRules,
    age: Option<Duration>,
) -> ConnectionContext {
    context_with(limiter_on(store), rules, age)
}

fn limiter_on(store: Arc<dyn Store>) -> Limiter {
    let options = Options {
        wait_min: Duration::from_millis(5),
        buffer_bytes_max: 1 << 20,
        pod: 1,
        hasher: KeyHasher::new(""),
        modes: Modes::default(),
        unix_start: Duration::ZERO,
        ..Options::default()
    };
    Limiter::new(store, Clock::start(), options)
}

fn context_with(limiter: Limiter, rules: CurrentRules, age: Option<Duration>) -> ConnectionContext {
    let service = DecisionService::new(limiter, Arc::new(rules), None, 10);
    let routes = Routes::new(RateLimitService::new(service.clone())).prepare();
    ConnectionContext { service, routes, non_http2: NonHttp2Clients::default(), age }
}

/// How long a connection lasts whose other end `client` has.
async fn lasts<C>(age: Option<Duration>, client: impl FnOnce(DuplexStream) -> C) -> Duration
where
    C: Future<Output = ()>,
{
    let (near, far) = duplex(PIPE_BYTES);
    let (_end, ended) = watch::channel(false);
    #[allow(clippy::disallowed_methods)] // paused
    let start = tokio::time::Instant::now();
    let serving =
        timeout(HOUR, serve(ratelease_listener::Connection::standalone(near), context(age), ended));
    tokio::select! {
        _ = serving => {}
        () = client(far) => unreachable!("a client stays"),
    }
    start.elapsed()
}

/// A client that answers pings and makes a call now and then.
async fn calling(far: DuplexStream) {
    let (sender, connection) = h2::client::handshake(far).await.unwrap();
    let calls = async {
        loop {
            sleep(HOUR / 10).await;
            let request = Request::get("http://test/healthcheck").body(()).unwrap();
            let mut sender = sender.clone().ready().await.unwrap();
            let (answer, _) = sender.send_request(request, true).unwrap();
            answer.await.unwrap();
        }
    };
    tokio::select! {
        ended = connection => panic!("{ended:?}"),
        () = calls => {}
    }
}

/// A client that answers pings, as every HTTP/2 client does.
async fn polite(far: DuplexStream) {
    let (_sender, connection) = h2::client::handshake(far).await.unwrap();
    let _ = connection.await;
    pending::<()>().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_calls_stays_and_an_idle_one_is_asked_to_close() {
    assert!(lasts(None, calling).await >= HOUR);
    let idle = Duration::from_secs(600);
    let lasted = lasts(None, polite).await;
    assert!((idle..idle + KEEPALIVE_TIMEOUT).contains(&lasted), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_pings_is_closed() {
    let silent = |mut far: DuplexStream| async move {
        far.write_all(PREFACE).await.unwrap();
        let mut read = [0; 1024];
        while far.read(&mut read).await.is_ok_and(|read| read > 0) {}
        pending::<()>().await;
    };
    // Sends its settings, and pings whose answers it never reads.
    let deaf = |mut far: DuplexStream| async move {
        far.write_all(&[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()).await.unwrap();
        while far.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).await.is_ok() {}
        pending::<()>().await;
    };
    let given_up = KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT;
    let lasted = lasts(None, silent).await;
    assert!((given_up..given_up * 2).contains(&lasted), "{lasted:?}");
    assert!(lasts(None, deaf).await < given_up);
}

#[tokio::test(start_paused = true)]
async fn a_connection_at_its_max_age_is_asked_to_close() {
    for age in [Duration::from_secs(1), HOUR / 8] {
        let lasted = lasts(Some(age), polite).await;
        assert!((age..age + KEEPALIVE_TIMEOUT).contains(&lasted), "{lasted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_calls_closes_at_once_on_stop() {
    for greets in [true, false] {
        let (near, far) = duplex(PIPE_BYTES);
        let (end, ended) = watch::channel(false);
        let served = tokio::spawn(serve(
            ratelease_listener::Connection::standalone(near),
            context(None),
            ended,
        ));
        let client = tokio::spawn(async move {
            match greets {
                true => polite(far).await,
                false => (far, pending::<()>().await).1,
            }
        });
        sleep(Duration::from_secs(1)).await;
        end.send_replace(true);
        assert!(timeout(Duration::from_secs(1), served).await.is_ok(), "greets: {greets}");
        client.abort();
    }
}

/// A watch whose message comes after its headers, and whose answer does not end.
#[tokio::test]
async fn a_complete_message_is_no_longer_counted_as_incomplete() {
    let (near, far) = duplex(1 << 16);
    let io = ratelease_listener::Connection::standalone(near);
    let handle = io.handle();
    // Takes all places but one.
    let mut taken: Vec<_> = std::iter::from_fn(|| handle.register_incomplete()).collect();
    taken.pop();
    let (health, _standing) = crate::grpc::health();
    let watches = tonic_health::pb::health_server::HealthServer::new(health);
    let context = ConnectionContext { routes: Routes::new(watches).prepare(), ..context(None) };
    let (_end, ended) = watch::channel(false);
    let serving = tokio::spawn(serve(io, context, ended));
    let (sender, connection) = h2::client::handshake(far).await.unwrap();
    let client = tokio::spawn(connection);
    let request = Request::post("http://test/grpc.health.v1.Health/Watch")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (answer, mut message) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    message.send_data(Bytes::from_static(&[0; 2]), false).unwrap();
    let is_taken = async {
        while handle.register_incomplete().is_some() {
            yield_now().await;
        }
    };
    timeout(HOUR, is_taken).await.expect("a place is taken by half a message");
    message.send_data(Bytes::from_static(&[0; 3]), true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
    assert!(handle.register_incomplete().is_some(), "its place is free, and it goes on");
    client.abort();
    serving.abort();
}
