//! The composition root: builds the parts, binds early, serves, and drains in order.
//!
//! The only module that knows all others; `main` runs it.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::thread::available_parallelism;
use std::time::Duration;
use std::{io, thread};

pub use axum::Router;
use background::{Background, HttpServer};
use ratelease_cli::settings::{EffectiveSetting, RulesSource, Xds};
use ratelease_engine::lease::ShardCounters;
use ratelease_engine::limiter::Limiter;
use ratelease_engine::store::Store;
use ratelease_engine::striped;
use ratelease_engine::time::Clock;
pub use ratelease_listener::runtime_builder;
use ratelease_listener::tls::TlsAcceptor;
use ratelease_listener::{Cores, OpenConnections};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc::{self, ConnectionAge, HealthHandle};
use ratelease_server::hot_keys::{HotKeys, HottestKeys, RuleHotKeys};
use ratelease_server::metrics::counter::{Count, Counter};
use ratelease_server::metrics::{Calls, Meters, RuleTotals};
use ratelease_server::observe::{Observers, Samples};
use ratelease_server::service::DecisionService;
use ratelease_server::trace::Tracer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::admin::Health;
use crate::admin::history::History;
use crate::admin::live::Live;
use crate::admin::metrics::MetricsSources;
use crate::admin::status::Stats;
use crate::admin::status::{Start, Status};
use crate::certificates::{self, CertificateWatch};
use crate::http;
use crate::http::DecisionOptions;
use crate::http::{HttpServerParts, RequestOrder, unread_answers};
use crate::rule_source::RuleWatch;
use crate::rule_source::directory::{Directory, GivenRules};
use crate::rule_source::snapshot::Snapshot;
use crate::rule_source::watch::{WatchPaths, Watcher};
use crate::rule_source::xds::{XdsStatus, XdsWatch};
use crate::supervise::Supervisor;
use crate::telemetry::LogWriter;
use crate::telemetry::push::Push;
use crate::telemetry::statsd::StatsdPush;

mod background;
mod bind;
mod build;

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
    /// Where decisions are asked for; `None` within another process, which calls [`App::service`].
    decisions: Option<DecisionPorts>,
    debug: Option<TcpListener>,
    /// The listener and the routes of its page.
    metrics: Option<(TcpListener, Router)>,
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
    statsd: Option<StatsdPush>,
    supervisor: Supervisor,
    open: ConnectionLimits,
    threads: Threads,
    start: Start,
    drain: Duration,
    banner: String,
}

/// The listeners that decide, bound, and how they serve.
struct DecisionPorts {
    grpc: grpc::Listener,
    http: TcpListener,
    options: DecisionOptions,
    age: ConnectionAge,
    tls: Option<CertificateWatch>,
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
    /// The gRPC listener, unless decisions are called for within this process.
    grpc: Option<JoinHandle<io::Result<()>>>,
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
    statsd: Option<StatsdPush>,
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

    /// Decides requests as the ports do: for a process that has the app within it.
    pub fn service(&self) -> DecisionService {
        self.service.clone()
    }

    /// The pages of the debug port.
    pub fn pages(&self) -> Router {
        self.admin.clone()
    }

    /// Resolves once the store is connected and the first rules are there, or the time that a start
    /// waits for them is over.
    pub async fn wait_for_parts(&self) {
        wait_for_parts(&*self.store, &self.published).await;
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
            ended = end_of(&mut serving.grpc) => Err(listener_error(ended)),
        };
        info!("draining: health fails, calls in progress finish, leases are given back");
        serving.drain(&ended).await;
        ended
    }

    /// Starts the tasks that do not serve a port.
    fn spawn_background(&self, health_handle: &HealthHandle) -> Background {
        let mut background = Background::new(&self.supervisor);
        let published = &self.published;
        let limiter = &self.limiter;
        background.spawn_health(published.clone(), self.health.clone(), health_handle.clone());
        background.spawn_limiter(published.clone(), limiter.clone());
        background.spawn_live(self.live.clone());
        if let Some(snapshot) = &self.snapshot {
            background.spawn_snapshot(snapshot.clone(), limiter.clone());
        }
        if let Some(push) = &self.push {
            background.spawn_push(push.clone(), &self.threads.pages);
        }
        if let Some(statsd) = &self.statsd {
            background.spawn_statsd(statsd.clone(), &self.threads.pages);
        }
        background
    }

    async fn start(self) -> io::Result<Serving> {
        let (stop_grpc, grpc_stop) = watch::channel(false);
        let (stop_http, http_stop) = watch::channel(false);
        let (health_service, health_handle) = grpc::health();
        let background = self.spawn_background(&health_handle);
        let App { health, limiter, service, open, threads, supervisor, .. } = self;
        wait_for_parts(&*self.store, &self.published).await;
        let mut http_servers = Background::new(&supervisor);
        let unread = unread_answers();
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
        if let Some(listener) = self.debug {
            let debug = server(self.admin, open.debug, RequestOrder::Sequential);
            http_servers.serve("the debug port", listener, debug)?;
        }
        if let Some((listener, routes)) = self.metrics {
            let metrics = server(routes, open.metrics, RequestOrder::Sequential);
            http_servers.serve("the metrics port", listener, metrics)?;
        }
        let (mut grpc, mut certificates) = (None, None);
        if let Some(ports) = self.decisions {
            let routes = http::routes(service.clone(), health.clone(), ports.options);
            let http = server(routes, open.http, RequestOrder::Concurrent);
            http_servers.serve("the HTTP port", ports.http, http)?;
            let parts = grpc::ServerParts {
                service,
                health: health_service,
                age: ports.age,
                open: open.grpc.clone(),
                cores: threads.cores.clone(),
                tls: ports.tls.as_ref().map(CertificateWatch::acceptor),
            };
            let stop = async move { wait_until_set(&mut { grpc_stop }).await };
            grpc = Some(tokio::spawn(grpc::serve(ports.grpc, parts, stop)));
            certificates = ports.tls;
        }
        let after = self.start.note_serving().as_millis();
        info!("serving, {after} ms after the start of the process");
        let Self { watcher, live, tracer, push, statsd, drain: drain_max, .. } = self;
        Ok(Serving {
            grpc,
            http_servers,
            background,
            stop_grpc,
            stop_http,
            live,
            open: open.grpc,
            limiter,
            health,
            health_handle,
            watcher,
            tracer,
            push,
            statsd,
            drain_max,
            certificates,
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

    /// Sends the spans, metrics and counts that have not been sent yet.
    async fn flush_telemetry(&self) {
        let push = async {
            if let Some(push) = &self.push {
                push.push().await;
            }
        };
        let statsd = async {
            if let Some(statsd) = &self.statsd {
                statsd.push().await;
            }
        };
        tokio::join!(self.tracer.shut_down(), push, statsd);
    }

    /// Stops accepting calls and lets those in progress finish, within `limit`.
    async fn finish_calls(&mut self, limit: Duration) {
        // Not earlier: a health watch that ends while calls are accepted is started again by its
        // client.
        self.health_handle.end();
        self.stop_grpc.send_replace(true);
        let finished = async {
            // The listener's task logs its own error.
            if let Some(grpc) = &mut self.grpc {
                let _ = grpc.await;
            }
            // Only now, so that `/healthcheck` fails visibly while calls finish.
            self.stop_http.send_replace(true);
            self.live.end();
            self.http_servers.ended().await;
        };
        if timeout(limit, finished).await.is_err() {
            warn!("a client kept its call open; its connection is closed");
            self.grpc.iter().for_each(JoinHandle::abort);
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

/// The end of the gRPC listener; never, if there is none.
async fn end_of(
    grpc: &mut Option<JoinHandle<io::Result<()>>>,
) -> Result<io::Result<()>, JoinError> {
    match grpc {
        Some(grpc) => grpc.await,
        None => std::future::pending().await,
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

// Why the application cannot start.

/// Why the application cannot start: one line with the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(String);

// === impl BuildError ===

impl BuildError {
    fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}

// The limit on open files of this process: each connection is a file.

/// One in this many of the files that may be open may be a connection to one Redis; the listeners
/// get most of the others.
const REDIS_DIVISOR: usize = 8;
/// One in this many may be a connection to any Redis, where there are more than two.
const ALL_REDIS_DIVISOR: usize = 4;
/// Minimum of that, however few files may be open: a seed and the masters of a small cluster.
const REDIS_CONNECTIONS_MIN: usize = 4;

/// Raises the limit as far as this process is allowed to. Many systems start processes with 1024,
/// for programs that call select(2), and allow hundreds of thousands.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let raised = Rlimit { current: limit.maximum, ..limit };
        // If this fails, the limit is unchanged, and all parts keep to it.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Maximum number of connections to one of `count` Redis under the present limit; at most `most`.
fn redis_connections_max(most: usize, count: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current;
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let divisor = REDIS_DIVISOR.max(ALL_REDIS_DIVISOR * count);
    (files / divisor).clamp(REDIS_CONNECTIONS_MIN, most)
}

// The sources of the counts that the debug port shows.

/// The counters of decisions, of hot keys and of leases.
struct StatsSources {
    meters: Option<Meters>,
    hot_keys: HotKeys,
    limiter: Limiter,
}

// === impl StatsSources ===

impl StatsSources {
    /// Observers that record each decision: these sources, `samples` and `tracer`.
    fn observers(&self, samples: Samples, tracer: Tracer) -> Observers {
        Observers { meters: self.meters.clone(), hot_keys: self.hot_keys.clone(), samples, tracer }
    }
}

impl Stats for StatsSources {
    fn calls(&self) -> Option<Calls> {
        self.meters.as_ref().map(Meters::calls)
    }

    fn by_how(&self) -> Vec<(&'static str, u64)> {
        self.meters.as_ref().map(Meters::by_how).unwrap_or_default()
    }

    fn rules(&self, max: usize) -> Vec<RuleTotals> {
        self.meters.as_ref().map(|meters| meters.by_rule(max)).unwrap_or_default()
    }

    fn hot_keys(&self, max: usize) -> HottestKeys {
        self.hot_keys.top(max)
    }

    fn hot_keys_by_rule(&self, max: usize) -> Vec<RuleHotKeys> {
        self.hot_keys.by_rule(max)
    }

    fn leases(&self) -> Vec<ShardCounters> {
        self.limiter.shard_counters()
    }
}

// The start of what keeps the rules up to date: a watch of files, or a client of an xDS server.

/// What both kinds of sources need.
struct RuleParts<'a> {
    published: &'a Arc<CurrentRules>,
    snapshot: Option<Arc<Snapshot>>,
    clock: Clock,
    /// The hits that an xDS server may ask for, and the keys with the most of them.
    counted: Option<(Meters, HotKeys)>,
    /// Rules beside those of files, if any can be given.
    given: Option<Arc<GivenRules>>,
}

// === impl RuleParts ===

impl RuleParts<'_> {
    /// Starts to keep the rules up to date, from the xDS server if there is one.
    ///
    /// # Errors
    /// Fails if a thread cannot be started, or if the rules cannot be read and no setting allows a
    /// start without them.
    async fn watch(
        self,
        xds: Option<Xds>,
        source: &RulesSource,
        runtime: &Handle,
    ) -> Result<RuleWatch, BuildError> {
        match xds {
            None => self.watch_files(source).await,
            Some(xds) => self.follow(xds, source, runtime),
        }
    }

    /// Starts to watch the rules. Bad rules are logged and leave the process without any, as in the
    /// reference implementation; rules that cannot be read at all are more likely a mistake in the
    /// settings.
    async fn watch_files(self, source: &RulesSource) -> Result<RuleWatch, BuildError> {
        let Self { published, snapshot, given, .. } = self;
        let paths = WatchPaths { dir: source.dir.clone(), root: source.watch_root.clone() };
        let load = Directory::new(source.clone(), given.clone());
        let started = Watcher::spawn(paths, load, Arc::clone(published), snapshot).await;
        let (watcher, first) =
            started.map_err(|error| BuildError::new(format!("cannot watch the rules: {error}")))?;
        if let Err(failed) = first {
            let has_rules = published.current().is_some();
            if failed.is_unread && !source.force_start && !has_rules {
                let hint = "name the directory with --rules or RUNTIME_ROOT, or start without \
                            rules by FORCE_START_WITHOUT_INITIAL_CONFIG=true";
                return Err(BuildError::new(format!("{failed}; {hint}")));
            }
            if has_rules {
                error!("the rules of the snapshot are in force until these faults are fixed");
            } else {
                error!(
                    "no rules are in force: every call fails, so that Envoy's failure_mode_deny \
                     decides, and /readyz says no, until these faults are fixed"
                );
            }
            failed.faults.iter().for_each(|fault| error!("rules: {fault}"));
        }
        given.iter().for_each(|given| given.wake_by(watcher.waker()));
        Ok(RuleWatch::Files(watcher))
    }

    /// Starts to follow an xDS server.
    fn follow(
        self,
        xds: Xds,
        source: &RulesSource,
        runtime: &Handle,
    ) -> Result<RuleWatch, BuildError> {
        let Self { published, snapshot, clock, counted, .. } = self;
        let options = source.reading.options.clone();
        let watch = XdsWatch::start(xds, options, published, snapshot, clock, counted, runtime);
        let watch = watch
            .map_err(|error| BuildError::new(format!("cannot follow the xDS server: {error}")))?;
        Ok(RuleWatch::Xds(watch))
    }
}

// The sources of the event counts that the debug port shows, besides those of decisions.

/// The sources of the event counts that `/status` and `/metrics` show.
struct ProcessStats {
    limiter: Limiter,
    service: DecisionService,
    published: Arc<CurrentRules>,
    supervisor: Supervisor,
    open: ConnectionLimits,
    snapshot: Option<Arc<Snapshot>>,
    log: Option<LogWriter>,
    observers: Observers,
    runtimes: Vec<RuntimeMetrics>,
    certificates: Option<TlsAcceptor>,
    xds: Option<XdsStatus>,
}

// === impl ProcessStats ===

impl ProcessStats {
    /// Event counts since the process began, and current levels. A name may occur twice.
    fn counts(&self) -> Vec<Count> {
        let ConnectionLimits { grpc, http, debug, metrics } = &self.open;
        let of_all = |count: fn(&OpenConnections) -> u64| {
            [grpc, http, debug, metrics].into_iter().map(count).sum::<u64>()
        };
        let mut counts = vec![
            (Counter::TaskRestarts, self.supervisor.restarts()),
            (Counter::TasksReady, self.tasks_ready()),
            (Counter::LoaderPanics, self.published.panics()),
            (Counter::GrpcConnections, grpc.count() as u64),
            (Counter::HttpConnections, http.count() as u64),
            (Counter::DebugConnections, debug.count() as u64),
            (Counter::MetricsConnections, metrics.count() as u64),
            (Counter::ConnectionsRefused, of_all(OpenConnections::refused)),
            (Counter::ConnectionsEvicted, of_all(OpenConnections::evicted)),
            (Counter::ConnectionsThrottled, of_all(OpenConnections::violations)),
        ];
        counts.extend(self.limiter.counts().into_iter().map(|(of, count)| (of.into(), count)));
        counts.extend(self.service.counts());
        counts.extend(self.snapshot.iter().flat_map(|snapshot| snapshot.counts()));
        counts.extend(self.log.iter().flat_map(LogWriter::counts));
        counts.extend(self.observers.counts());
        counts.extend(self.xds.iter().flat_map(XdsStatus::counts));
        counts.extend(self.certificates.iter().flat_map(certificates::counts));
        counts
    }

    /// Tasks that another thread has woken, and that wait for theirs.
    fn tasks_ready(&self) -> u64 {
        self.runtimes.iter().map(|runtime| runtime.global_queue_depth() as u64).sum()
    }

    /// Everything that the debug port shows.
    fn sources(
        self,
        stats: StatsSources,
        start: Start,
        store: String,
        settings: Vec<EffectiveSetting>,
    ) -> MetricsSources {
        let meters = stats.meters.clone();
        let asked = self.limiter.clone();
        let tallied = self.limiter.clone();
        let blocks = self.limiter.clone();
        let status = Status {
            start,
            published: Arc::clone(&self.published),
            xds: self.xds.clone(),
            store,
            shards: Arc::new(move || asked.shards()),
            blocked: Arc::new(move || blocks.blocked()),
            counts: Arc::new(move || self.counts()),
            stats: Arc::new(stats),
            history: History::default(),
            settings: settings.into(),
            shows_values: true,
        };
        MetricsSources {
            meters,
            status,
            shard_counters: Arc::new(move || tallied.shard_counters()),
            more: Vec::new(),
        }
    }
}

// The threads of the process: one for each core, which serve connections; one for the pages of the
// debug and the metrics port; and the main thread, which runs everything else. Each has a runtime
// of its own, so that no request is handed from thread to thread, no page delays a request, and no
// request delays a lease.

/// The threads besides the main one. They end once this is dropped.
struct Threads {
    /// Those that serve connections.
    cores: Cores,
    /// The runtime of the debug and the metrics port.
    pages: Handle,
    /// The runtimes of all threads, the main one's included.
    runtimes: Vec<Handle>,
    _running: Vec<Running>,
}

/// A running thread, which ends once this is dropped.
type Running = oneshot::Sender<Infallible>;

// === impl Threads ===

impl Threads {
    /// Starts as many threads for connections as `cores` says, which may be none: by default as
    /// many as there are cores that this process may use. It is called in the runtime of the main
    /// thread.
    ///
    /// # Errors
    ///
    /// Fails if a thread cannot be started.
    fn start(cores: Option<usize>) -> Result<Self, BuildError> {
        // Linux shows 15 bytes of a thread's name.
        let names = (0..count(cores)).map(|core| format!("ratelease-core{core}"));
        let started = names.chain(["ratelease-pages".to_owned()]).map(run_thread);
        let started: io::Result<(Vec<_>, Vec<_>)> = started.collect();
        let (mut runtimes, running) = started.map_err(|error| {
            let hint = "raise the limits on processes and on open files, or set THREADS";
            BuildError::new(format!("cannot start threads: {error}; {hint}"))
        })?;
        let pages = runtimes.pop().unwrap_or_else(Handle::current);
        let cores = Cores::new(runtimes.clone());
        runtimes.extend([pages.clone(), Handle::current()]);
        Ok(Self { cores, pages, runtimes, _running: running })
    }

    /// Runs `make` so that the tasks that it spawns run in the thread of pages, such as those that
    /// encode and compress spans and metrics.
    fn on_pages<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.pages.enter();
        make()
    }
}

/// Number of threads that serve connections. The cores that a process may use are those of its
/// affinity mask, or fewer if its control group has a quota.
fn count(set: Option<usize>) -> usize {
    set.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Starts a thread of this name, which runs a runtime. Returns once it has its stripe, so that the
/// threads of connections, which are started first, share none.
fn run_thread(name: String) -> io::Result<(Handle, Running)> {
    let runtime = runtime_builder().build()?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel();
    let (started, starts) = mpsc::channel();
    thread::Builder::new().name(name).spawn(move || {
        striped::mine();
        drop(started);
        // Nothing is ever sent: it resolves once the sender is dropped.
        let _: Result<Infallible, _> = runtime.block_on(ended);
        // Does not wait for threads that are still blocked.
        runtime.shutdown_background();
    })?;
    // Nothing is ever sent: it returns once the thread has dropped the sender.
    let _: Result<Infallible, _> = starts.recv();
    Ok((handle, end))
}

#[cfg(test)]
mod tests;
