//! R17: panics in our own code. They are injected into parts that a test cannot replace in the
//! binary, so the gRPC server, the limiter and the rule watcher of this row run in the test's
//! process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Store};
use ratelease_engine::time::Clock;
use ratelease_listener::{Cores, OpenConnections};
use ratelease_rules::{self as rules, Pace, Source};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc::{self, ConnectionAge, Listener, ServerParts};
use ratelease_server::service::DecisionService;
use ratelease_sidecar::rule_source::watch::{Compiled, Load, WatchPaths, Watcher};
use ratelease_sidecar::supervise::Supervisor;
use tokio::net::TcpListener;

use crate::row::Row;
use crate::stage::{time_until, turn};
use crate::stand::{Rules, file, rule};
use crate::support::now;
use crate::support::raw_grpc::{Connection, framed, post};

/// The limit on a machine that also compiles; the promise is 100 ms.
const RESTARTED_MAX: Duration = Duration::from_millis(500);

/// Panics on demand, in the path of a request or in that of the lease task.
#[derive(Default)]
struct Armed {
    shard: AtomicBool,
    exchange: AtomicBool,
}

struct Cursed {
    inner: MemoryStore,
    armed: Arc<Armed>,
}

impl Store for Cursed {
    fn shard(&self, ask: &Ask) -> usize {
        assert!(!self.armed.shard.swap(false, Ordering::Relaxed), "panics on purpose in a request");
        self.inner.shard(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        assert!(
            !self.armed.exchange.swap(false, Ordering::Relaxed),
            "panics on purpose in a lease"
        );
        self.inner.lend(ask)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.inner.beat(beat)
    }

    fn describe(&self) -> String {
        "cursed".to_owned()
    }
}

/// Opens a gRPC server with a limiter on that store.
async fn open(armed: Arc<Armed>, published: Arc<CurrentRules>) -> Connection {
    let options = Options {
        // A lease may be late on a busy machine, and must not be mistaken for one that never comes.
        wait_min: Duration::from_secs(5),
        buffer_bytes_max: 1 << 20,
        pod: 1,
        ..Options::default()
    };
    let store = Arc::new(Cursed { inner: MemoryStore::system(), armed });
    let limiter = Limiter::new(store, Clock::start(), options);
    let service = DecisionService::new(limiter, published, None, 1000);
    let (health, _) = grpc::health();
    let (age, open) = (ConnectionAge::default(), OpenConnections::default());
    let parts = ServerParts { service, health, age, open, cores: Cores::current(), tls: None };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    tokio::spawn(grpc::serve(Listener::Tcp(listener), parts, std::future::pending()));
    Connection::open(addr).await
}

/// The code of the answer to a request for a key of its own.
async fn code(connection: &Connection, key: u32) -> tonic::Code {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as pb;
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use prost::Message;
    let entry = pb::rate_limit_descriptor::Entry { key: "path".into(), value: format!("/{key}") };
    let descriptor = pb::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request =
        RateLimitRequest { domain: "r17".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let body = futures_util::stream::iter([framed(&request.encode_to_vec())]);
    let head = post(crate::support::raw_grpc::SHOULD_RATE_LIMIT);
    connection.request(head, body).await.expect("the connection lives").code
}

/// Panics on a text that asks for it.
struct Reader(std::path::PathBuf);

impl Load for Reader {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let text = std::fs::read(self.0.join("rules.yaml")).map_err(|error| error.to_string())?;
        Ok(vec![Arc::new(Source { name: "rules.yaml".to_owned(), text })])
    }

    fn compile(&mut self, sources: &[Arc<Source>], _: &Pace) -> Result<Compiled, Vec<String>> {
        let cursed = sources.iter().any(|source| source.text.starts_with(b"# panic"));
        assert!(!cursed, "panics on purpose in the watcher");
        let sources: Vec<Source> = sources.iter().map(|source| Source::clone(source)).collect();
        let loaded = rules::load(&sources, rules::Options::default());
        let rules = loaded.map_err(|_| vec!["faulty".to_owned()])?.rules;
        Ok(Compiled { rules, ..Compiled::default() })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_parts_of_the_process_panic() {
    let _turn = turn().await;
    let promise = "request: one INTERNAL, the next is OK; lease: its key gets the failure mode, \
                   others are lent to; tasks: restarted within 100 ms and counted; watcher: the \
                   last good rules stay";
    let mut row = Row::new("R17", "panic in a request, a lease, a task and the watcher", promise);
    // With `error`, an answer without a lease differs from one with a lease.
    let mode = "defaults: {failure_mode: error}\n";
    let good = format!("{mode}{}", file("r17", &[rule("path", None, 1000)]));
    let files = Rules::new(&good);
    let published = Arc::new(CurrentRules::new());
    let paths = WatchPaths { dir: files.path().to_owned(), root: None };
    let reader = Reader(files.path().to_owned());
    let watched = Watcher::spawn(paths, reader, Arc::clone(&published), None).await;
    let (_watcher, first) = watched.expect("a watch");
    first.expect("good rules");
    let armed = Arc::new(Armed::default());
    let connection = open(Arc::clone(&armed), Arc::clone(&published)).await;
    row.holds(code(&connection, 0).await == tonic::Code::Ok, "it does not work at all");

    armed.shard.store(true, Ordering::Relaxed);
    let (panicked, next) = (code(&connection, 1).await, code(&connection, 2).await);
    row.holds(panicked == tonic::Code::Internal, &format!("the request got {panicked:?}"));
    row.holds(next == tonic::Code::Ok, &format!("the next request got {next:?}"));

    armed.exchange.store(true, Ordering::Relaxed);
    // The lease never comes, and the failure mode answers with an error. Other keys still get
    // leases.
    let (without, next) = (code(&connection, 3).await, code(&connection, 4).await);
    row.holds(without == tonic::Code::Unavailable, &format!("without its lease: {without:?}"));
    row.holds(next == tonic::Code::Ok, &format!("after a panic of the lease task: {next:?}"));

    files.replace("# panic\n");
    let refused = async || published.loads_failed() > 0;
    let reported = time_until(Duration::from_secs(5), refused).await;
    row.holds(reported.is_some(), "the watcher's panic was not counted");
    row.holds(code(&connection, 5).await == tonic::Code::Ok, "the last good rules are gone");
    files.replace(&format!("# again\n{good}"));
    let accepted = async || published.loads_ok() > 1;
    let reported = time_until(Duration::from_secs(5), accepted).await;
    row.holds(reported.is_some(), "the watcher is gone");

    let restarted = restarts(&mut row).await;
    row.recovered(restarted, RESTARTED_MAX);
    row.end();
}

/// Time from a task's panic to its next start.
async fn restarts(row: &mut Row) -> Duration {
    let (began, mut starts) = tokio::sync::mpsc::channel(8);
    let is_first = Arc::new(AtomicBool::new(true));
    let supervisor = Supervisor::default();
    let kept = supervisor.clone().run("panics on purpose", move || {
        let (began, is_first) = (began.clone(), Arc::clone(&is_first));
        async move {
            let _ = began.send(now()).await;
            assert!(!is_first.swap(false, Ordering::Relaxed), "panics on purpose in a task");
            std::future::pending::<()>().await;
        }
    });
    let task = tokio::spawn(kept);
    let first = starts.recv().await.expect("a first start");
    let second = tokio::time::timeout(Duration::from_secs(5), starts.recv()).await;
    row.holds(supervisor.restarts() > 0, "the restart was not counted");
    task.abort();
    second.ok().flatten().map_or(Duration::MAX, |second| second.duration_since(first))
}
