//! The composition root: builds the parts, binds early, serves, and drains in order.
//!
//! The only module that knows all others; `main` runs it.

mod background;
mod bind;
mod build;
mod error;
mod files;
mod process_stats;
mod rule_watch;
mod stats_sources;
mod threads;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use ratelease_engine::limiter::Limiter;
use ratelease_engine::store::Store;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::admin::health::Health;
use crate::admin::live::Live;
use crate::admin::status::Start;
use crate::certificates::CertificateWatch;
use crate::http::serve::{HttpServerParts, RequestOrder, UnreadPages};
use crate::http::{self, DecisionOptions};
use crate::rule_source::RuleWatch;
use crate::rule_source::snapshot::Snapshot;
use crate::supervise::Supervisor;
use crate::telemetry::push::Push;
use ratelease_server::accept::{Cores, OpenConnections};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc::serve::{self, ConnectionAge, HealthHandle};
use ratelease_server::service::DecisionService;
use ratelease_server::trace::Tracer;

use background::{Background, HttpServer};
pub use error::BuildError;
pub use ratelease_server::accept::runtime_builder;
use threads::Threads;

/// The drain time is divided into this many parts. One part is notice: calls are still accepted,
/// until health checkers have seen that health fails. Another is reserved for giving leases back
/// when calls do not finish.
const DRAIN_PARTS: u32 = 4;

/// Before it serves, a pod waits for the connection to its store and for its first rules, but no
/// longer than this: without Redis it serves too, within a quarter of a second of its start.
/// Without rules, probes are answered, and calls fail at once. Finding a cluster and connecting to
/// its masters takes five round trips, of ten milliseconds each where Redis is far away.
const CONNECT_MAX: Duration = Duration::from_millis(150);

/// All parts, built and bound, not yet serving.
pub struct App {
    grpc: serve::Listener,
    http: TcpListener,
    debug: TcpListener,
    /// The listener and the routes of its page.
    metrics: Option<(TcpListener, Router)>,
    decisions: DecisionOptions,
    age: ConnectionAge,
    tls: Option<CertificateWatch>,
    admin: Router,
    live: Live,
    service: DecisionService,
    store: Arc<dyn Store>,
    limiter: Limiter,
    published: Arc<CurrentRules>,
    health: Health,
    watcher: RuleWatch,
    snapshot: Option<Arc<Snapshot>>,
    tracer: Tracer,
    push: Option<Push>,
    supervisor: Supervisor,
    open: ConnectionLimits,
    threads: Threads,
    start: Start,
    drain: Duration,
    banner: String,
}

/// Maximum number of concurrent requests on one HTTP/2 connection: the first for `PORT`, the second
/// for the debug and the metrics port, where each request may produce a page of some megabytes.
const STREAMS_MAX: u32 = 128;
const PAGES_MAX: u32 = 8;

/// Counts and limits the connections of each listener.
#[derive(Clone)]
struct ConnectionLimits {
    grpc: OpenConnections,
    http: OpenConnections,
    debug: OpenConnections,
    metrics: OpenConnections,
}

/// All parts, while serving.
struct Serving {
    grpc: JoinHandle<io::Result<()>>,
    /// The HTTP listeners.
    http_servers: Background,
    background: Background,
    /// A value of true tells the gRPC listener, and then the HTTP listeners, to stop accepting.
    stop_grpc: watch::Sender<bool>,
    stop_http: watch::Sender<bool>,
    live: Live,
    open: OpenConnections,
    limiter: Limiter,
    health: Health,
    health_handle: HealthHandle,
    watcher: RuleWatch,
    tracer: Tracer,
    push: Option<Push>,
    drain_max: Duration,
    certificates: Option<CertificateWatch>,
    /// Ends last: the threads that serve.
    _threads: Threads,
}

// === impl App ===

impl App {
    /// One line for people: the addresses it listens on, the store, the number of rules, and what
    /// to try first.
    pub fn banner(&self) -> &str {
        &self.banner
    }

    /// Waits a short while for the store and for the first rules, and serves until `stop` resolves.
    /// Then drains: health fails first, calls are accepted until clients have had time to notice,
    /// calls in progress finish, leases are given back. Ends within the drain limit even if a
    /// client never closes.
    ///
    /// # Errors
    ///
    /// Returns an error if the gRPC listener failed. Leases have been given back all the same.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let mut serving = self.start().await?;
        let ended = tokio::select! {
            () = stop => Ok(()),
            ended = &mut serving.grpc => Err(listener_error(ended)),
        };
        info!("draining: health fails, calls in progress finish, leases are given back");
        serving.drain(&ended).await;
        ended
    }

    /// Starts the tasks that do not serve a port.
    fn spawn_background(&self, health_handle: &HealthHandle) -> Background {
        let mut background = Background::new(&self.supervisor);
        let (published, limiter) = (&self.published, &self.limiter);
        background.spawn_health(published.clone(), self.health.clone(), health_handle.clone());
        background.spawn_limiter(published.clone(), limiter.clone());
        background.spawn_live(self.live.clone());
        if let Some(snapshot) = &self.snapshot {
            background.spawn_snapshot(snapshot.clone(), limiter.clone());
        }
        if let Some(push) = &self.push {
            background.spawn_push(push.clone(), &self.threads.pages);
        }
        background
    }

    async fn start(self) -> io::Result<Serving> {
        let (stop_grpc, grpc_stop) = watch::channel(false);
        let (stop_http, http_stop) = watch::channel(false);
        let (health_service, health_handle) = serve::health();
        let background = self.spawn_background(&health_handle);
        let App { health, limiter, service, open, threads, supervisor, .. } = self;
        wait_for_parts(&*self.store, &self.published).await;
        let mut http_servers = Background::new(&supervisor);
        let routes = http::routes(service.clone(), health.clone(), self.decisions);
        let unread = UnreadPages::default();
        let server = |routes, open, order| {
            let (streams_max, cores, runtime) = match order {
                RequestOrder::Sequential => {
                    let pages = threads.pages.clone();
                    (PAGES_MAX, Cores::new(vec![pages.clone()]), pages)
                }
                RequestOrder::Concurrent => (STREAMS_MAX, threads.cores.clone(), Handle::current()),
            };
            let unread = unread.clone();
            let parts = HttpServerParts { routes, open, streams_max, order, unread, cores };
            HttpServer { parts, stop: http_stop.clone(), runtime }
        };
        let debug = server(self.admin, open.debug, RequestOrder::Sequential);
        http_servers.serve("the debug port", self.debug, debug)?;
        if let Some((listener, routes)) = self.metrics {
            let metrics = server(routes, open.metrics, RequestOrder::Sequential);
            http_servers.serve("the metrics port", listener, metrics)?;
        }
        let http = server(routes, open.http, RequestOrder::Concurrent);
        http_servers.serve("the HTTP port", self.http, http)?;
        let open = open.grpc;
        let parts = serve::ServerParts {
            service,
            health: health_service,
            age: self.age,
            open: open.clone(),
            cores: threads.cores.clone(),
            tls: self.tls.as_ref().map(CertificateWatch::acceptor),
        };
        let stop = async move { wait_until_set(&mut { grpc_stop }).await };
        let grpc = tokio::spawn(serve::serve(self.grpc, parts, stop));
        let after = self.start.note_serving().as_millis();
        info!("serving, {after} ms after the start of the process");
        let Self { watcher, live, tracer, push, drain: drain_max, .. } = self;
        Ok(Serving {
            grpc,
            http_servers,
            background,
            stop_grpc,
            stop_http,
            live,
            open,
            limiter,
            health,
            health_handle,
            watcher,
            tracer,
            push,
            drain_max,
            certificates: self.tls,
            _threads: threads,
        })
    }
}

// === impl Serving ===

impl Serving {
    async fn drain(mut self, ended: &io::Result<()>) {
        // The first thing to go: while the machine is busy, Linux may take seconds to close an
        // inotify descriptor, and a process does not end before that.
        self.watcher.stop();
        drop(self.certificates.take());
        self.health.drain();
        self.health_handle.set_healthy(false);
        let part = self.drain_max / DRAIN_PARTS;
        if ended.is_ok() {
            if self.open.count() > 0 {
                // If an Envoy is asked to go away before it has found the pod unhealthy, it
                // reconnects at once, and each request that meets the closed listener fails.
                sleep(part).await;
            }
            self.finish_calls(self.drain_max - 2 * part).await;
        }
        let (closed, flushed) = tokio::join!(
            timeout(part, self.limiter.close()),
            timeout(part, self.flush_telemetry())
        );
        if closed.is_err() {
            warn!("not all leases could be given back; they end with their windows");
        }
        if flushed.is_err() {
            warn!("the collector did not take the last spans and metrics in time");
        }
        drop(self.background);
    }

    /// Sends the spans and metrics that the collector does not have yet.
    async fn flush_telemetry(&self) {
        let push = async {
            if let Some(push) = &self.push {
                push.push().await;
            }
        };
        tokio::join!(self.tracer.shut_down(), push);
    }

    /// Stops accepting calls and lets those in progress finish, within `limit`.
    async fn finish_calls(&mut self, limit: Duration) {
        // Not earlier: a health watch that ends while calls are accepted is started again by its
        // client.
        self.health_handle.end();
        self.stop_grpc.send_replace(true);
        let finished = async {
            // The listener's task logs its own error.
            let _ = (&mut self.grpc).await;
            // Only now, so that `/healthcheck` fails visibly while calls finish.
            self.stop_http.send_replace(true);
            self.live.end();
            self.http_servers.ended().await;
        };
        if timeout(limit, finished).await.is_err() {
            warn!("a client kept its call open; its connection is closed");
            self.grpc.abort();
            self.http_servers.abort();
        }
    }
}

/// Waits for the connection to the store and for the first rules, but not for long.
async fn wait_for_parts(store: &dyn Store, published: &CurrentRules) {
    // Clients that connect meanwhile wait in the listener's queue. Without this wait, the first
    // requests of each new pod would be answered without Redis, or not decided.
    let (connected, loaded) =
        tokio::join!(timeout(CONNECT_MAX, store.ready()), timeout(CONNECT_MAX, published.first()));
    if connected.is_err() {
        let store = store.describe();
        warn!("serving without {store}, which is not connected after {CONNECT_MAX:?}");
    }
    if loaded.is_err() {
        warn!(
            "waiting for the first rules of the xDS server: until then no request is decided, \
             and /readyz says no"
        );
    }
}

/// Why the gRPC listener ended although it was not asked to.
fn listener_error(ended: Result<io::Result<()>, JoinError>) -> io::Error {
    match ended {
        Ok(Ok(())) => io::Error::other("it ended by itself"),
        Ok(Err(error)) => error,
        Err(error) => io::Error::other(error),
    }
}

/// Resolves once `end` is true or its sender is gone.
async fn wait_until_set(end: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone.
    let _ = end.wait_for(|end| *end).await;
}
