//! Tasks that run beside the calls. The supervisor restarts each task when it ends; dropping a task
//! ends it for good, and an HTTP listener also ends once it is asked to stop.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_engine::limiter::Limiter;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use super::told;
use crate::admin::health::Health;
use crate::admin::live::Live;
use crate::grpc::serve::HealthHandle;
use crate::http::serve::{self, Site};
use crate::rule_source::CurrentRules;
use crate::rule_source::snapshot::Snapshot;
use crate::supervise::Supervisor;
use crate::telemetry::push::Push;
use crate::telemetry::trace::Tracer;

/// Supervised tasks; dropping this ends them.
pub(super) struct Background {
    tasks: JoinSet<()>,
    supervisor: Supervisor,
}

/// The pages served on one HTTP port.
#[derive(Clone)]
pub(super) struct Page {
    pub(super) site: Site,
    /// True once no more connections are to be accepted.
    pub(super) end: watch::Receiver<bool>,
}

/// A listener that a restarted task can take again, until it is removed.
type Source = Arc<Mutex<Option<std::net::TcpListener>>>;

// === impl Background ===

impl Background {
    pub(super) fn new(supervisor: &Supervisor) -> Self {
        Self { tasks: JoinSet::new(), supervisor: supervisor.clone() }
    }

    /// Keeps gRPC's health service in step with `/healthcheck`.
    pub(super) fn keep_health(
        &mut self,
        published: Arc<CurrentRules>,
        health: Health,
        handle: HealthHandle,
    ) {
        self.keep("health", (published, health, handle), keep_health);
    }

    /// Maintains the leases of `limiter` and its requests for more.
    pub(super) fn keep_limiter(&mut self, published: Arc<CurrentRules>, limiter: Limiter) {
        self.keep("rules", (published, limiter.clone()), keep_rules);
        let keep = |limiter: Limiter| async move { limiter.keep_beating().await };
        self.keep("heartbeat", limiter.clone(), keep);
        let keep = |limiter: Limiter| async move { limiter.keep_tidy().await };
        self.keep("tidy", limiter.clone(), keep);
        let keep = |limiter: Limiter| async move { limiter.watch_idle().await };
        self.keep("idle", limiter, keep);
    }

    /// Counts each second for the live page.
    pub(super) fn keep_live(&mut self, live: Live) {
        self.keep("live", live, Live::run);
    }

    /// Sends spans to their collector.
    pub(super) fn keep_tracer(&mut self, tracer: Tracer) {
        self.keep("traces", tracer, Tracer::run);
    }

    /// Sends metrics to their collector.
    pub(super) fn keep_push(&mut self, push: Push) {
        self.keep("metrics", push, Push::run);
    }

    /// Writes the rules that come into force, and the pod counts that `limiter` receives.
    pub(super) fn keep_snapshot(&mut self, snapshot: Arc<Snapshot>, limiter: Limiter) {
        self.keep("snapshot", Arc::clone(&snapshot), Snapshot::run);
        let follow = |(snapshot, limiter): (Arc<Snapshot>, Limiter)| async move {
            snapshot.follow_pods(|| limiter.pods_by_domain()).await;
        };
        self.keep("pods", (snapshot, limiter), follow);
    }

    /// Serves `page` until it is asked to stop and every request has been answered.
    pub(super) fn serve(
        &mut self,
        name: &'static str,
        listener: TcpListener,
        page: Page,
    ) -> io::Result<()> {
        let source: Source = Arc::new(Mutex::new(Some(listener.into_std()?)));
        let end = page.end.clone();
        let serve = move || serve_page(name, Arc::clone(&source), page.clone());
        let supervisor = self.supervisor.clone();
        self.tasks.spawn(supervisor.keep_until(name, move || *end.borrow(), serve));
        Ok(())
    }

    /// Aborts every task.
    pub(super) fn abort(&mut self) {
        self.tasks.abort_all();
    }

    /// Resolves once every task has ended; tasks that end only by being dropped never do.
    pub(super) async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    fn keep<W, F>(&mut self, name: &'static str, ward: W, task: impl Fn(W) -> F + Send + 'static)
    where
        W: Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let task = move || task(ward.clone());
        self.tasks.spawn(self.supervisor.clone().keep(name, task));
    }
}

/// Sets gRPC's health status after each change of the rules. Returns only if the sender of changes
/// is gone, which does not happen.
async fn keep_health((published, health, handle): (Arc<CurrentRules>, Health, HealthHandle)) {
    let mut changes = published.changes();
    loop {
        let healthy = health.is_healthy();
        handle.set(healthy);
        // If a drain began meanwhile, it set the status to unhealthy, and the line above may have
        // overwritten that; the status is then set again.
        if healthy == health.is_healthy() && changes.changed().await.is_err() {
            return;
        }
    }
}

/// Gives back the leases of rules that a new version no longer has. Begins with the rules in force:
/// the task may have missed a version that came while it was not running.
async fn keep_rules((published, limiter): (Arc<CurrentRules>, Limiter)) {
    let mut changes = published.changes();
    loop {
        if let Some(rules) = published.current() {
            limiter.adopt(&rules).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn serve_page(name: &str, source: Source, page: Page) {
    let Page { site, mut end } = page;
    let listener = source.lock().as_ref().map(std::net::TcpListener::try_clone);
    let listener = match listener {
        Some(listener) => listener.and_then(TcpListener::from_std),
        None => return, // given up
    };
    let stop = async {
        told(&mut end).await;
        // Dropping the last of its descriptors closes the port: no client is left waiting there.
        drop(source.lock().take());
    };
    let served = async { serve::serve(listener?, site, stop).await };
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
    use crate::accept::OpenConnections;
    use crate::http::serve::UnreadPages;
    use ratelease_engine::limiter::Options;
    use ratelease_engine::store::memory::MemoryStore;
    use ratelease_engine::store::{Ask, Beaten, Heartbeat, Replies, Store};
    use ratelease_engine::time::Clock;
    use ratelease_engine::verdict::Modes;
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

        fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
            self.memory.exchange(asks)
        }

        fn beat(&self, beat: Heartbeat) -> Beaten<'_> {
            assert!(self.beats.fetch_add(1, Ordering::Relaxed) >= FAINTS, "told to");
            self.memory.beat(beat)
        }

        fn describe(&self) -> String {
            "faint".to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_that_panics_begins_anew_and_disturbs_no_other_task() {
        let memory = MemoryStore::system();
        let store = Arc::new(Faint { memory, beats: AtomicUsize::new(0) });
        let options = Options {
            max_wait: Duration::from_millis(5),
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
        background.keep_limiter(Arc::new(CurrentRules::new()), limiter);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(supervisor.restarts(), FAINTS as u64);
        assert!(store.beats.load(Ordering::Relaxed) > FAINTS + 2, "it beats on");
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
    async fn a_port_is_served_on_after_a_panic_and_is_closed_once_told_to_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, end) = watch::channel(false);
        let faults = AtomicUsize::new(0);
        let is_faulty = move || faults.fetch_add(1, Ordering::Relaxed) == 0;
        let answer = || async { "OK" };
        let routes = Router::new().route("/", get(answer));
        let supervisor = Supervisor::default();
        let mut background = Background::new(&supervisor);
        // Like `Background::serve`, with an error before the first run.
        let source: Source = Arc::new(Mutex::new(Some(listener.into_std().unwrap())));
        let (open, unread) = (OpenConnections::default(), UnreadPages::default());
        let site = Site { routes, open, unread, streams_max: 1, in_turn: false };
        let page = Page { site, end: end.clone() };
        let serve = move || {
            assert!(!is_faulty(), "told to");
            serve_page("the port", Arc::clone(&source), page.clone())
        };
        let kept = supervisor.clone().keep_until("the port", move || *end.borrow(), serve);
        background.tasks.spawn(kept);
        assert_eq!(ask(addr).await.as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(supervisor.restarts(), 1);
        tell.send_replace(true);
        timeout(PATIENCE, background.ended()).await.expect("an end");
        assert_eq!(supervisor.restarts(), 1, "what was told to end stays ended");
        assert_eq!(ask(addr).await, None, "nobody listens");
    }
}
