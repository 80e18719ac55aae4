//! Tasks that run beside the calls. The supervisor restarts each task when it ends; dropping a task
//! ends it for good, and an HTTP listener also ends once it is asked to stop.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_engine::limiter::Limiter;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tracing::warn;

use super::wait_until_set;
use crate::admin::Health;
use crate::admin::live::Live;
use crate::http::{self, HttpServerParts};
use crate::rule_source::snapshot::Snapshot;
use crate::supervise::Supervisor;
use crate::telemetry::push::Push;
use crate::telemetry::statsd::StatsdPush;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc::HealthHandle;

/// Supervised tasks; dropping this ends them.
pub struct Background {
    tasks: JoinSet<()>,
    supervisor: Supervisor,
}

/// An HTTP listener: what it serves, and when it stops.
#[derive(Clone)]
pub struct HttpServer {
    pub parts: HttpServerParts,
    /// True once no more connections are to be accepted.
    pub stop: watch::Receiver<bool>,
    /// Where connections are accepted.
    pub runtime: Handle,
}

/// A listener that a restarted task can take again, until it is removed.
type SharedListener = Arc<Mutex<Option<std::net::TcpListener>>>;

// === impl Background ===

impl Background {
    pub fn new(supervisor: &Supervisor) -> Self {
        Self { tasks: JoinSet::new(), supervisor: supervisor.clone() }
    }

    /// Keeps gRPC's health service in step with `/healthcheck`.
    pub fn spawn_health(
        &mut self,
        published: Arc<CurrentRules>,
        health: Health,
        handle: HealthHandle,
    ) {
        self.spawn("health", (published, health, handle), follow_health);
    }

    /// Maintains the leases of `limiter` and its requests for more.
    pub fn spawn_limiter(&mut self, published: Arc<CurrentRules>, limiter: Limiter) {
        self.spawn("rules", (published, limiter.clone()), follow_rules);
        let task = |limiter: Limiter| async move { limiter.run_heartbeats().await };
        self.spawn("heartbeat", limiter.clone(), task);
        let task = |limiter: Limiter| async move { limiter.run_eviction().await };
        self.spawn("tidy", limiter.clone(), task);
        let task = |limiter: Limiter| async move { limiter.run_idle_returns().await };
        self.spawn("idle", limiter.clone(), task);
        let task = |limiter: Limiter| async move { limiter.run_holds().await };
        self.spawn("holds", limiter.clone(), task);
        let task = |limiter: Limiter| async move { limiter.run_orders().await };
        self.spawn("orders", limiter, task);
    }

    /// Counts each second for the live page.
    pub fn spawn_live(&mut self, live: Live) {
        self.spawn("live", live, Live::run);
    }

    /// Sends metrics to their collector, in `runtime`.
    pub fn spawn_push(&mut self, push: Push, runtime: &Handle) {
        let task = move || push.clone().run();
        self.tasks.spawn_on(self.supervisor.clone().run("metrics", task), runtime);
    }

    /// Sends counts to statsd, in `runtime`.
    pub fn spawn_statsd(&mut self, push: StatsdPush, runtime: &Handle) {
        let task = move || push.clone().run();
        self.tasks.spawn_on(self.supervisor.clone().run("statsd", task), runtime);
    }

    /// Writes the rules that come into force, and the pod counts that `limiter` receives.
    pub fn spawn_snapshot(&mut self, snapshot: Arc<Snapshot>, limiter: Limiter) {
        self.spawn("snapshot", Arc::clone(&snapshot), Snapshot::run);
        let follow = |(snapshot, limiter): (Arc<Snapshot>, Limiter)| async move {
            snapshot.track_pods(|| limiter.pods_by_domain()).await;
        };
        self.spawn("pods", (snapshot, limiter), follow);
    }

    /// Serves `server` until it is asked to stop and every request has been answered.
    pub fn serve(
        &mut self,
        name: &'static str,
        listener: TcpListener,
        server: HttpServer,
    ) -> io::Result<()> {
        let listener: SharedListener = Arc::new(Mutex::new(Some(listener.into_std()?)));
        let stop = server.stop.clone();
        let runtime = server.runtime.clone();
        let serve = move || serve_http(name, Arc::clone(&listener), server.clone());
        let supervisor = self.supervisor.clone();
        let served = supervisor.run_until(name, move || *stop.borrow(), serve);
        self.tasks.spawn_on(served, &runtime);
        Ok(())
    }

    /// Aborts every task.
    pub fn abort(&mut self) {
        self.tasks.abort_all();
    }

    /// Resolves once every task has ended; tasks that end only by being dropped never do.
    pub async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    fn spawn<W, F>(&mut self, name: &'static str, state: W, task: impl Fn(W) -> F + Send + 'static)
    where
        W: Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let task = move || task(state.clone());
        self.tasks.spawn(self.supervisor.clone().run(name, task));
    }
}

/// Sets gRPC's health status after each change of the rules. Returns only if the sender of changes
/// is gone, which does not happen.
async fn follow_health((published, health, handle): (Arc<CurrentRules>, Health, HealthHandle)) {
    let mut changes = published.changes();
    let mut loads = published.loads();
    loop {
        let healthy = health.is_healthy();
        handle.set_healthy(healthy);
        // If a drain began meanwhile, it set the status to unhealthy, and the line above may have
        // overwritten that; the status is then set again.
        if healthy != health.is_healthy() {
            continue;
        }
        // A snapshot is not a load, and a load that failed is no change.
        let changed = tokio::select! {
            changed = changes.changed() => changed,
            loaded = loads.changed() => loaded,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Gives back the leases of rules that a new version no longer has, and says in the store by which
/// rules keys are made. Begins with the rules in force: the task may have missed a version that came
/// while it was not running.
async fn follow_rules((published, limiter): (Arc<CurrentRules>, Limiter)) {
    let mut changes = published.changes();
    loop {
        if let Some(rules) = published.current() {
            limiter.apply_rules(&rules).await;
            let limiter = limiter.clone();
            // The task fails only if it panics, which is logged, or at the end of the process.
            let _ = spawn_blocking(move || limiter.register_rules(&rules)).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn serve_http(name: &str, shared: SharedListener, server: HttpServer) {
    let HttpServer { parts, mut stop, .. } = server;
    let listener = shared.lock().as_ref().map(std::net::TcpListener::try_clone);
    let listener = match listener {
        Some(listener) => listener.and_then(TcpListener::from_std),
        None => return, // stopped
    };
    let stop = async {
        wait_until_set(&mut stop).await;
        // Dropping the last of its descriptors closes the port: no client is left waiting there.
        drop(shared.lock().take());
    };
    let served = async { http::serve(listener?, parts, stop).await };
    if let Err(error) = served.await {
        warn!(%error, "{name} failed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::http::{RequestOrder, unread_answers};
    use ratelease_engine::limiter::Options;
    use ratelease_engine::store::memory::MemoryStore;
    use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Store};
    use ratelease_engine::time::Clock;
    use ratelease_engine::verdict::Modes;
    use ratelease_listener::{Cores, OpenConnections};
    use ratelease_rules::key::KeyHasher;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Panics at its first heartbeats.
    struct Faint {
        memory: MemoryStore,
        beats: AtomicUsize,
    }

    const FAINTS: usize = 2;

    impl Store for Faint {
        fn shard(&self, ask: &Ask) -> usize {
            self.memory.shard(ask)
        }

        fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
            self.memory.lend(ask)
        }

        fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
            assert!(self.beats.fetch_add(1, Ordering::Relaxed) >= FAINTS, "deliberate");
            self.memory.beat(beat)
        }

        fn describe(&self) -> String {
            "faint".to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_that_panics_is_restarted_without_affecting_other_tasks() {
        let memory = MemoryStore::system();
        let store = Arc::new(Faint { memory, beats: AtomicUsize::new(0) });
        let options = Options {
            wait_min: Duration::from_millis(5),
            buffer_bytes_max: 64 * 1024,
            pod: 1,
            hasher: KeyHasher::new(""),
            modes: Modes::default(),
            unix_start: Duration::ZERO,
            ..Options::default()
        };
        let limiter = Limiter::new(store.clone(), Clock::start(), options);
        let supervisor = Supervisor::default();
        let mut background = Background::new(&supervisor);
        background.spawn_limiter(Arc::new(CurrentRules::new()), limiter);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(supervisor.restarts(), FAINTS as u64);
        assert!(store.beats.load(Ordering::Relaxed) > FAINTS + 2, "heartbeats continue");
    }

    /// Returns the status line of the answer to `/`; `None` if nothing listens.
    async fn ask(addr: std::net::SocketAddr) -> Option<String> {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
            .await
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.lines().next().map(str::to_owned)
    }

    #[tokio::test]
    async fn a_port_is_served_again_after_a_panic_and_is_closed_once_asked_to_stop() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stopper, stop) = watch::channel(false);
        let faults = AtomicUsize::new(0);
        let is_faulty = move || faults.fetch_add(1, Ordering::Relaxed) == 0;
        let answer = || async { "OK" };
        let routes = Router::new().route("/", get(answer));
        let supervisor = Supervisor::default();
        let mut background = Background::new(&supervisor);
        // Like `Background::serve`, with an error before the first run.
        let listener: SharedListener = Arc::new(Mutex::new(Some(listener.into_std().unwrap())));
        let (open, unread) = (OpenConnections::default(), unread_answers());
        let parts = HttpServerParts {
            routes,
            open,
            unread,
            streams_max: 1,
            order: RequestOrder::Concurrent,
            cores: Cores::current(),
        };
        let server = HttpServer { parts, stop: stop.clone(), runtime: Handle::current() };
        let serve = move || {
            assert!(!is_faulty(), "deliberate");
            serve_http("the port", Arc::clone(&listener), server.clone())
        };
        let task = supervisor.clone().run_until("the port", move || *stop.borrow(), serve);
        background.tasks.spawn(task);
        assert_eq!(ask(addr).await.as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(supervisor.restarts(), 1);
        stopper.send_replace(true);
        timeout(PATIENCE, background.ended()).await.expect("an end");
        assert_eq!(supervisor.restarts(), 1, "a stopped port is not restarted");
        assert_eq!(ask(addr).await, None, "the port is closed");
    }
}
