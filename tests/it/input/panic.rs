//! A panic in our own code during a call: both servers run in this process, on a store that panics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ratelease_cli::settings::HealthyWith;
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Store};
use ratelease_engine::time::Clock;
use ratelease_listener::{Cores, OpenConnections};
use ratelease_rules::{self as rules, Source};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc::{self, ConnectionAge, Listener, ServerParts};
use ratelease_server::metrics::counter::Counter;
use ratelease_server::service::DecisionService;
use ratelease_sidecar::admin::Health;
use ratelease_sidecar::http::{self as pages, DecisionOptions};
use ratelease_sidecar::http::{HttpServerParts, RequestOrder, unread_answers};
use tokio::net::TcpListener;
use tonic::Code;

use super::{descriptor, hits, request};
use crate::support::http::Client;
use crate::support::raw_grpc::{Connection, Reply};

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: test
descriptors:
  - key: cursed
    rate_limit: {unit: year, requests_per_unit: 13}
  - key: five
    rate_limit: {unit: year, requests_per_unit: 5}
";

/// Panics when asked which shard owns a key of 13 requests, which is on a call's own path.
struct Cursed(MemoryStore);

impl Store for Cursed {
    fn shard(&self, ask: &Ask) -> usize {
        assert_ne!(ask.limit.requests_per_unit, 13, "panics on purpose");
        self.0.shard(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        self.0.lend(ask)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.0.beat(beat)
    }

    fn describe(&self) -> String {
        "cursed".to_owned()
    }
}

/// Both servers, run by tasks of the test's runtime.
struct Doors {
    grpc: SocketAddr,
    http: SocketAddr,
    service: DecisionService,
}

impl Doors {
    async fn open() -> Self {
        let published = Arc::new(CurrentRules::new());
        let source = Source { name: "test.yaml".to_owned(), text: RULES.into() };
        let loaded = rules::load(&[source], rules::Options::default()).unwrap();
        published.put_in_force(Arc::new(loaded.rules));
        let options = Options {
            // This test is not about waiting, and the machine may be compiling.
            wait_min: Duration::from_secs(5),
            buffer_bytes_max: 1024 * 1024,
            pod: 1,
            ..Options::default()
        };
        let store = Arc::new(Cursed(MemoryStore::system()));
        let limiter = Limiter::new(store, Clock::start(), options);
        let service = DecisionService::new(limiter, Arc::clone(&published), None, 1_000);
        let (health, _) = grpc::health();
        let (age, open) = (ConnectionAge::default(), OpenConnections::default());
        let (cores, open_http) = (Cores::current(), open.clone());
        let parts = ServerParts { service: service.clone(), health, age, open, cores, tls: None };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = listener.local_addr().unwrap();
        tokio::spawn(grpc::serve(Listener::Tcp(listener), parts, std::future::pending()));
        let routes = pages::routes(
            service.clone(),
            Health::new(published, HealthyWith::Nothing),
            DecisionOptions::default(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = listener.local_addr().unwrap();
        let unread = unread_answers();
        let parts = HttpServerParts {
            routes,
            open: open_http,
            streams_max: 128,
            order: RequestOrder::Concurrent,
            unread,
            cores: Cores::current(),
        };
        tokio::spawn(pages::serve(listener, parts, std::future::pending()));
        Self { grpc, http, service }
    }

    fn count(&self, counter: Counter) -> u64 {
        let counts = self.service.counts();
        counts.into_iter().find_map(|(it, count)| (it == counter).then_some(count)).unwrap()
    }
}

async fn call(connection: &Connection, descriptors: &[Vec<u8>]) -> Reply {
    connection.call(&request("test", descriptors)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_call_answers_internal_and_its_connection_lives() {
    let doors = Doors::open().await;
    let (faulty, neighbour) =
        (Connection::open(doors.grpc).await, Connection::open(doors.grpc).await);
    for n in 0..5 {
        let cursed = descriptor("cursed", n.to_string());
        let reply = call(&faulty, &[cursed]).await;
        assert_eq!(reply.code, Code::Internal, "{reply:?}");
        assert!(reply.reason.contains("internal error"), "{reply:?}");
        for connection in [&faulty, &neighbour] {
            let reply = call(connection, &[descriptor("five", format!("other {n}"))]).await;
            assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
        }
    }
    assert_eq!((doors.count(Counter::RequestPanics), doors.count(Counter::CallsUnderWay)), (5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_held_when_it_panicked_goes_back() {
    let doors = Doors::open().await;
    let connection = Connection::open(doors.grpc).await;
    let five = || descriptor("five", "v");
    for n in 0..20 {
        let both = [five(), descriptor("cursed", n.to_string())];
        assert_eq!(call(&connection, &both).await.code, Code::Internal);
    }
    for expected in [false, false, false, false, false, true] {
        let reply = call(&connection, &[five()]).await;
        assert_eq!(reply.is_over_limit(), Some(expected), "{reply:?}");
    }
    let look = [five(), hits(0)].concat();
    assert_eq!(call(&connection, &[look]).await.is_over_limit(), Some(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_disturbs_none_of_the_calls_beside_it() {
    let doors = Doors::open().await;
    let connection = Connection::open(doors.grpc).await;
    let calls = (0..200).map(|n| {
        let connection = connection.clone();
        let key = if n % 2 == 0 { "cursed" } else { "five" };
        tokio::spawn(
            async move { (key, call(&connection, &[descriptor(key, n.to_string())]).await) },
        )
    });
    for answered in futures_util::future::join_all(calls).await {
        match answered.unwrap() {
            ("cursed", reply) => assert_eq!(reply.code, Code::Internal, "{reply:?}"),
            (_, reply) => assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}"),
        }
    }
    assert_eq!(doors.count(Counter::RequestPanics), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_behind_json_answers_500_and_its_connection_lives() {
    let doors = Doors::open().await;
    let mut client = Client::connect(doors.http).await.unwrap();
    for n in 0..3 {
        for (key, status) in [("cursed", 500), ("five", 200)] {
            let entry = format!(r#"{{"key":"{key}","value":"{n}"}}"#);
            let body = format!(r#"{{"domain":"test","descriptors":[{{"entries":[{entry}]}}]}}"#);
            let answer = client.send("POST", "/json", &[], body).await.unwrap();
            assert_eq!(answer.status, status, "{answer:?}");
        }
    }
    assert_eq!((doors.count(Counter::RequestPanics), doors.count(Counter::CallsUnderWay)), (3, 0));
}
