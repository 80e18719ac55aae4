//! The end of the process: health fails first, calls under way finish, leases are given back, and
//! no client can delay it beyond the drain timeout.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use descriptor_pb::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use futures_util::{StreamExt, stream};
use pb::rate_limit_service_client::RateLimitServiceClient;
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{PATIENT, QUICK_END, RULES, SOON, Waiting, request, rules, status};
use crate::support::http::Client;
use crate::support::now;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, Reply, SHOULD_RATE_LIMIT, framed, post};
use crate::support::redis::Server;

/// The limit of `plenty`.
const PLENTY: u32 = 4_000_000_000;

/// A quarter of this is notice, and half is for calls under way.
const DRAIN: (&str, &str) = ("DRAIN_TIMEOUT", "4s");

/// Leaves time for a test to act while calls are under way, on a busy machine too.
const LONG_DRAIN: (&str, &str) = ("DRAIN_TIMEOUT", "10s");

/// Makes a call, and checks that it is answered.
async fn decided(connection: &Connection, value: &str) -> Reply {
    connection.call(&request("plenty", value, &[])).await
}

/// The remaining tokens of `plenty`, as a pod that has not asked for any yet sees them.
async fn remaining(redis: &Server, value: &str) -> u32 {
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &redis_at(redis)).await;
    let mut client = RateLimitServiceClient::new(Connection::open(pod.grpc).await.channel());
    let entry = Entry { key: "plenty".into(), value: value.into() };
    let look = descriptor_pb::RateLimitDescriptor {
        entries: vec![entry],
        hits_addend: Some(envoy_types::pb::google::protobuf::UInt64Value { value: 0 }),
        ..Default::default()
    };
    let request =
        pb::RateLimitRequest { domain: "test".into(), descriptors: vec![look], hits_addend: 0 };
    let response = client.should_rate_limit(request).await.unwrap().into_inner();
    response.statuses[0].limit_remaining
}

fn redis_at(redis: &Server) -> [(&'static str, &'static str); 6] {
    // Leaked, which costs the test a few bytes.
    let addr = format!("127.0.0.1:{}", redis.port()).leak();
    let kind = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_TYPE", "single")];
    // This test is not about waiting, and the machine may be compiling.
    [
        kind[0],
        kind[1],
        ("REDIS_URL", addr),
        ("LEASE_MAX_WAIT", "5s"),
        ("REDIS_TIMEOUT", "5s"),
        DRAIN,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn on_each_signal_health_fails_first_and_calls_under_way_finish() {
    let rules = rules(RULES);
    for signal in ["TERM", "INT", "HUP"] {
        let pod = Ratelease::start(rules.path(), &[], &[LONG_DRAIN, PATIENT]).await;
        let connection = Connection::open(pod.grpc).await;
        let mut health = HealthClient::new(Connection::open(pod.grpc).await.channel());
        let named = HealthCheckRequest { service: "ratelimit".into() };
        let mut watch = async || {
            let watched = health.watch(named.clone()).await.unwrap().into_inner();
            watched.map(|reported| reported.unwrap().status().as_str_name())
        };
        let mut watched = watch().await;
        // The pod is ready a moment before its health watch reports it.
        while watched.next().await.expect("a watch goes on") != "SERVING" {}
        assert_eq!(decided(&connection, signal).await.is_over_limit(), Some(false));
        let waiting = Waiting::begin(&connection, "held_6s", "grpc").await;
        let json = waiting_json(&pod).await;
        let both = async || pod.count("calls_under_way") == 2;
        pod.process.until("with both calls", SOON, both).await;

        pod.process.signal(signal);
        assert_eq!(watched.next().await, Some("NOT_SERVING"), "{signal}");
        let mut late = watch().await;
        assert_eq!(late.next().await, Some("NOT_SERVING"), "{signal}");
        for watched in [&mut watched, &mut late] {
            assert_eq!(watched.next().await, None, "{signal}: no watch holds up the end");
        }
        assert_eq!(status(pod.http, "/healthcheck").await, 500);
        assert_eq!(status(pod.http, "/readyz").await, 503);
        assert_eq!(status(pod.http, "/livez").await, 200);
        assert_eq!(waiting.answer().await.unwrap().is_over_limit(), Some(false), "{signal}");
        assert_eq!(json.await.unwrap(), 200, "{signal}");
        assert_eq!(pod.process.exit(SOON).await, 0, "{signal}");
        assert!(!pod.process.log().contains("cut off"), "{}", pod.process.log());
        pod.ended_unharmed();
    }
}

/// As [`Waiting`], over `/json`: returns the status of the second answer.
async fn waiting_json(pod: &Ratelease) -> JoinHandle<u16> {
    let body =
        r#"{"domain":"test","descriptors":[{"entries":[{"key":"held_6s","value":"json"}]}]}"#;
    let mut client = Client::connect(pod.http).await.unwrap();
    assert_eq!(client.send("POST", "/json", &[], body).await.unwrap().status, 200);
    tokio::spawn(async move { client.send("POST", "/json", &[], body).await.unwrap().status })
}

#[tokio::test(flavor = "multi_thread")]
async fn unspent_leases_are_back_after_the_end() {
    let redis = Server::start(&[]);
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &redis_at(&redis)).await;
    let connection = Connection::open(pod.grpc).await;
    for _ in 0..37 {
        assert_eq!(decided(&connection, "back").await.is_over_limit(), Some(false));
    }
    // Asked of the pod itself: it gives back what it does not use before another pod has started.
    let leased = pod.status()["leases"]["tokens_granted"].as_u64();
    assert!(leased > Some(37), "it leases more than it spends: {leased:?}");
    assert_eq!(pod.stop().await, 0);
    assert_eq!(remaining(&redis, "back").await, PLENTY - 37);
}

/// The server is not responsible for calls that can no longer connect, but for each call on an open
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_no_call_fails_and_no_token_is_lost() {
    const CLIENTS: usize = 8;
    const CALLS_MIN: u32 = 300;
    // The second and third are hyper's errors for a call that came after its connection had closed,
    // and for one that was still queued then. The fourth is h2's for a call above the last stream
    // that GOAWAY names.
    const UNSENT: [&str; 4] = [
        "Connection refused",
        "operation was canceled: connection was not ready",
        "operation was canceled: connection closed",
        "connection error received: not a result of an error",
    ];
    let redis = Server::start(&[]);
    let rules = rules(RULES);
    for round in 0..3 {
        let value = format!("load {round}");
        let pod = Ratelease::start(rules.path(), &[], &redis_at(&redis)).await;
        let allowed = Arc::new(AtomicU32::new(0));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let connection = Connection::open(pod.grpc).await;
            let (message, allowed) = (request("plenty", &value, &[]), Arc::clone(&allowed));
            clients.spawn(async move {
                loop {
                    let body = stream::iter([framed(&message)]);
                    match connection.request(post(SHOULD_RATE_LIMIT), body).await {
                        Ok(reply) => {
                            assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
                            allowed.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => break error,
                    }
                }
            });
        }
        let loaded = async || allowed.load(Ordering::Relaxed) >= CALLS_MIN;
        pod.process.until("under load", SOON, loaded).await;
        assert_eq!(pod.stop().await, 0);
        for error in clients.join_all().await {
            assert!(UNSENT.iter().any(|unsent| error.contains(unsent)), "{error}");
        }
        let allowed = allowed.load(Ordering::Relaxed);
        assert_eq!(remaining(&redis, &value).await, PLENTY - allowed, "{allowed} allowed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_lasts_too_long_is_cut_off_and_leases_still_go_back() {
    let redis = Server::start(&[]);
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &redis_at(&redis)).await;
    let connection = Connection::open(pod.grpc).await;
    let waiting = Waiting::begin(&connection, "held_30s", "cut").await;
    // These do not end either: HTTP headers, and the HTTP/2 preface.
    let mut dribbling = TcpStream::connect(pod.http).unwrap();
    dribbling.write_all(b"GET /livez HTTP/1.1\r\nhost: te").unwrap();
    let silent = TcpStream::connect(pod.grpc).unwrap();
    for _ in 0..5 {
        assert_eq!(decided(&connection, "cut").await.is_over_limit(), Some(false));
    }
    let signalled = now();
    assert_eq!(pod.stop().await, 0);
    let took = signalled.elapsed();
    // Without a bound the head of an HTTP request alone may take 10 s.
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{took:?}");
    assert!(waiting.answer().await.is_err());
    assert_eq!(remaining(&redis, "cut").await, PLENTY - 5);
    drop((dribbling, silent));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_that_never_close_do_not_delay_the_drain() {
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &[("DRAIN_TIMEOUT", "20s"), PATIENT]).await;
    let connection = Connection::open(pod.grpc).await;
    assert_eq!(decided(&connection, "idle").await.is_over_limit(), Some(false));
    let mut kept = Vec::new();
    for addr in [pod.http, pod.debug] {
        let mut client = Client::connect(addr).await.unwrap();
        client.get("/", &[]).await.unwrap();
        // The second has sent nothing.
        kept.extend([client, Client::connect(addr).await.unwrap()]);
    }
    let signalled = now();
    assert_eq!(pod.stop().await, 0);
    let took = signalled.elapsed();
    // The notice is a quarter, and calls under way may take until three quarters are over.
    assert!(took < Duration::from_secs(10), "{took:?}: {}", pod.process.log());
    assert!(!pod.process.log().contains("cut off"), "{}", pod.process.log());
    drop(kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let rules = rules(RULES);
    for (first, second) in [("TERM", "TERM"), ("TERM", "INT"), ("INT", "TERM"), ("INT", "INT")] {
        let pod = Ratelease::start(rules.path(), &[], &[("DRAIN_TIMEOUT", "60s"), PATIENT]).await;
        let connection = Connection::open(pod.grpc).await;
        let waiting = Waiting::begin(&connection, "held_6s", "v").await;
        decided(&connection, "v").await;
        pod.process.signal(first);
        pod.says("/healthcheck", 500).await;
        pod.process.signal(second);
        // The notice alone takes longer than this waits.
        assert_eq!(pod.process.exit(SOON).await, 130, "{first}, {second}");
        let log = pod.process.log();
        let reported = "WARN ratelease: a second signal: ending at once, leases end";
        assert!(log.contains(reported), "{first}, {second}: {log}");
        drop(waiting);
    }
}

/// As the first process of a container, it would not even be killed: the kernel drops signals that
/// such a process does not handle.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_the_start_ends_the_process_in_order() {
    // Doubles the rules until loading them takes so long that the signal arrives before the end.
    for doublings in 0..5 {
        let rules = many_rules(30_000 << doublings);
        let pod = Ratelease::spawn(rules.path(), &[], &[QUICK_END]);
        // Listeners are bound first, so that rules are still being read at that time.
        let bound = async || tokio::net::TcpStream::connect(pod.debug).await.is_ok();
        pod.process.until("bound", SOON, bound).await;
        pod.process.signal("TERM");
        assert_eq!(pod.process.exit(SOON).await, 0, "{}", pod.log());
        pod.ended_unharmed();
        if pod.logged("rules loaded").is_empty() {
            return;
        }
    }
    panic!("the rules were loaded each time before the signal came");
}

fn many_rules(count: usize) -> TempDir {
    let rule = |n| format!("  - {{key: k{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    rules(&format!("domain: test\ndescriptors:\n{}", (0..count).map(rule).collect::<String>()))
}

/// `GRPC_MAX_CONNECTION_AGE`: the client gets a GOAWAY first, and is disconnected only after the
/// grace period.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_connection_is_asked_to_go_and_may_finish_its_calls() {
    const AGE: Duration = Duration::from_secs(3);
    const GRACE: Duration = Duration::from_secs(5);
    let rules = rules(RULES);
    let env = [("GRPC_MAX_CONNECTION_AGE", "3s"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "5s"), PATIENT];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    let open = || Connection::open(pod.grpc);
    // A busy machine may take long to open them: each is at most as old as the first of these says,
    // and at least as old as the second.
    let before = now();
    let (idle, finishing, endless) = (open().await, open().await, open().await);
    let opened = now();
    let soon = Waiting::begin(&finishing, "held_6s", "age").await;
    let late = Waiting::begin(&endless, "held_30s", "age").await;
    let body = || stream::iter([framed(&request("plenty", "age", &[]))]);
    while idle.request(post(SHOULD_RATE_LIMIT), body()).await.is_ok() {
        assert!(opened.elapsed() < AGE + GRACE / 2, "not asked to go at its age");
    }
    assert!(before.elapsed() > AGE / 2, "asked to go after {:?}", before.elapsed());
    assert_eq!(soon.answer().await.unwrap().is_over_limit(), Some(false));
    let answered = late.answer().await;
    assert!(answered.is_err(), "after {:?}: {answered:?}", before.elapsed());
    let cut = before.elapsed();
    assert!(cut >= AGE + GRACE / 2, "cut off after {cut:?}");
    let cut = opened.elapsed();
    assert!(cut < AGE + GRACE * 3 / 2, "cut off after {cut:?}");
    pod.is_unharmed();
}
