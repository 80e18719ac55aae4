//! From settings to an application that is bound and ready to serve.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use ratelease_cli::settings::{
    self, EffectiveSetting, GrpcListen, Headers, Leases, Listeners, Logging, Metrics, Responses,
    RulesSource, Settings,
};
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::{self, Store};
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::Modes;
use ratelease_rules::request::Entry;
use ratelease_rules::{Allowance, Lookup, Rules};
use ratelease_tls::ServerFiles;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tracing::{error, warn};

use super::{
    App, BuildError, DecisionPorts, ProcessStats, RuleParts, StatsSources, Threads, bind,
    raise_limit, redis_connections_max,
};
use crate::admin;
use crate::admin::Health;
use crate::admin::guard::{self, Guard};
use crate::admin::live::Live;
use crate::admin::metrics::{self, MetricsSources};
use crate::admin::status::Start;
use crate::certificates::CertificateWatch;
use crate::http::DecisionOptions;
use crate::rule_source::directory::GivenRules;
use crate::rule_source::snapshot::Snapshot;
use crate::supervise::Supervisor;
use crate::telemetry::LogWriter;
use crate::telemetry::push::Push;
use crate::telemetry::statsd::{Counts, StatsdPush};
use ratelease_otlp::origin::Origin;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::grpc::{ConnectionAge, Listener};
use ratelease_server::hot_keys::HotKeys;
use ratelease_server::metrics::{self as counting, Meters};
use ratelease_server::observe::{Observers, Samples};
use ratelease_server::service::DecisionService;
use ratelease_server::trace::Traced;
use ratelease_server::trace::Tracer;

/// The bound listeners.
struct BoundListeners {
    /// Those that decide.
    decisions: Option<BoundDecisions>,
    debug: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

/// The bound listeners that decide.
struct BoundDecisions {
    grpc: Listener,
    grpc_at: String,
    http: TcpListener,
}

/// A listener's setting that has to be given for the listener to exist within another process,
/// several of which may run on one host: a default would be taken by the first.
const EMBEDDED_DEBUG: &str = "debug-port";

// === impl App ===

impl App {
    /// Raises the limit on open files, of which the store has its part, and starts the threads.
    /// Then binds the listeners, loads the rules and starts to connect to the store, in this order:
    /// a port in use is reported before any step that takes long. The store need not be reachable.
    /// `clock` was started with the process; the log is written to `log`.
    ///
    /// # Errors
    ///
    /// Fails if a thread cannot be started or a port cannot be bound, or if there is no rules
    /// directory and no setting allows a start without one.
    pub async fn build(
        settings: Settings,
        clock: Clock,
        log: Option<LogWriter>,
    ) -> Result<Self, BuildError> {
        raise_limit();
        let threads = Threads::start(settings.listeners.threads)?;
        let bound = bind_listeners(&settings.listeners, &settings.metrics).await?;
        Self::assemble(settings, clock, log, threads, bound, None).await
    }

    /// Builds the app within another process, which decides by [`App::service`]: without the ports
    /// that decide and their threads, and with a debug port only if its setting is given and
    /// nothing else has it. The limit on open files stays as the process has it. Beside the rules
    /// of files it has those that are `given`.
    ///
    /// # Errors
    ///
    /// As [`App::build`].
    pub async fn build_embedded(
        settings: Settings,
        clock: Clock,
        log: Option<LogWriter>,
        given: Arc<GivenRules>,
    ) -> Result<Self, BuildError> {
        let threads = Threads::start(Some(0))?;
        let bound = bind_pages(&settings).await;
        let settings = Settings { grpc_tls: None, ..settings };
        Self::assemble(settings, clock, log, threads, bound, Some(given)).await
    }

    async fn assemble(
        settings: Settings,
        clock: Clock,
        log: Option<LogWriter>,
        threads: Threads,
        bound: BoundListeners,
        given: Option<Arc<GivenRules>>,
    ) -> Result<Self, BuildError> {
        let connections = bind::connection_limits(threads.runtimes.len());
        let Settings { listeners, rules, store, headers, responses, leases, metrics, .. } =
            settings;
        let Settings { hot_keys, summary, telemetry, grpc_tls, statsd, .. } = settings;
        let tls = grpc_tls.map(certificates).transpose()?;
        let published = Arc::new(CurrentRules::new());
        let snapshot = rules.snapshot.clone().map(|path| Arc::new(Snapshot::new(path)));
        let meters = (!metrics.is_off).then(|| meters(&responses, &metrics, statsd.is_some()));
        // Without a secret, the values of a key can be found from its hash by trial.
        let has_secret = !leases.key_secret.is_empty();
        let keys_leave = hot_keys.as_ref().is_some_and(|it| it.values || has_secret);
        let hot_keys = hot_keys.map(|it| HotKeys::new(it, clock)).unwrap_or_default();
        let reported = if keys_leave { hot_keys.clone() } else { HotKeys::default() };
        let counted = meters.clone().map(|it| (it, reported));
        let snapshot_of = snapshot.clone();
        let parts =
            RuleParts { published: &published, snapshot: snapshot_of, clock, counted, given };
        let watcher = parts.watch(settings.xds, &rules, &threads.pages).await?;
        let origin = Origin::new(telemetry.identity);
        let tracer = threads.on_pages(|| Tracer::new(&origin, telemetry.tracing, clock));
        let store = open(store, &tracer);
        let limiter = limiter(Arc::clone(&store), clock, &leases, &responses);
        load_pods(snapshot.clone(), &limiter).await;
        let banner = banner(&bound, &store.describe(), &published)?;
        let statsd = meters.clone().zip(statsd);
        let stats = StatsSources { meters, hot_keys, limiter: limiter.clone() };
        let observers = stats.observers(samples(&settings.logging, clock), tracer.clone());
        let service = service(&limiter, &published, &listeners, headers, &observers);
        let supervisor = Supervisor::default();
        let start = Start::new(clock);
        let process_stats = ProcessStats {
            limiter: limiter.clone(),
            service: service.clone(),
            published: Arc::clone(&published),
            supervisor: supervisor.clone(),
            open: connections.clone(),
            snapshot: snapshot.clone(),
            log,
            observers,
            runtimes: threads.runtimes.iter().map(Handle::metrics).collect(),
            xds: watcher.xds_status(),
            certificates: tls.as_ref().map(CertificateWatch::acceptor),
        };
        let sources = process_stats.sources(stats, start.clone(), store.describe(), summary);
        let live = Live::new(sources.status.clone(), limiter.rounds());
        let explain = admin::explain::routes(Arc::clone(&published), limiter.clone());
        Ok(Self {
            admin: debug_pages(&listeners, &sources, &live, explain),
            push: telemetry.push.map(|p| threads.on_pages(|| pusher(p, &origin, clock, &sources))),
            statsd: statsd.map(|(meters, it)| statsd_push(it, clock, meters, &published)),
            decisions: bound.decisions.map(|bound| decision_ports(bound, &listeners, tls)),
            debug: bound.debug,
            metrics: bound.metrics.map(|it| (it, metrics_page(&listeners, &metrics, sources))),
            live,
            service,
            store,
            limiter,
            health: health(&rules, &published),
            published,
            watcher,
            snapshot,
            tracer,
            supervisor,
            open: connections,
            threads,
            start,
            drain: leases.drain,
            banner,
        })
    }
}

/// Loads the certificate of the gRPC port, and starts to watch its files.
fn certificates(files: ServerFiles) -> Result<CertificateWatch, BuildError> {
    CertificateWatch::start(files).map_err(|error| BuildError::new(error.to_string()))
}

async fn bind_listeners(
    listeners: &Listeners,
    metrics: &Metrics,
) -> Result<BoundListeners, BuildError> {
    let (grpc, grpc_at) = match &listeners.grpc() {
        GrpcListen::Tcp(address) => {
            let listener = bind::tcp(address, "gRPC", "GRPC_PORT").await?;
            let at = bind::local_address(&listener)?.to_string();
            (Listener::Tcp(listener), at)
        }
        GrpcListen::Unix(uds) => {
            (Listener::Unix(bind::unix(uds).await?), uds.path.display().to_string())
        }
    };
    let http = bind::tcp(&listeners.http(), "HTTP", "PORT").await?;
    let decisions = Some(BoundDecisions { grpc, grpc_at, http });
    let debug = Some(bind_debug(listeners).await?);
    Ok(BoundListeners { decisions, debug, metrics: bind_metrics(metrics).await? })
}

/// Binds the listeners of pages that are asked for, as far as that can be done: in a hot restart
/// the process before has the ports still.
async fn bind_pages(settings: &Settings) -> BoundListeners {
    let is_given = |it: &EffectiveSetting| it.name == EMBEDDED_DEBUG && !it.is_default;
    let debug = match settings.summary.iter().any(is_given) {
        true => or_warned(bind_debug(&settings.listeners).await),
        false => None,
    };
    let metrics = or_warned(bind_metrics(&settings.metrics).await).flatten();
    BoundListeners { decisions: None, debug, metrics }
}

fn or_warned<T>(bound: Result<T, BuildError>) -> Option<T> {
    bound.inspect_err(|error| warn!("{error}; until the next start this page is not served")).ok()
}

async fn bind_debug(listeners: &Listeners) -> Result<TcpListener, BuildError> {
    bind::tcp(&listeners.debug(), "the debug page", "DEBUG_PORT").await
}

async fn bind_metrics(metrics: &Metrics) -> Result<Option<TcpListener>, BuildError> {
    match metrics.listener() {
        Some(address) => Ok(Some(bind::tcp(address, "metrics", "PROMETHEUS_ADDR").await?)),
        None => Ok(None),
    }
}

fn decision_ports(
    bound: BoundDecisions,
    listeners: &Listeners,
    tls: Option<CertificateWatch>,
) -> DecisionPorts {
    let BoundDecisions { grpc, http, .. } = bound;
    DecisionPorts { grpc, http, options: decision_options(listeners), age: age(listeners), tls }
}

/// The pages of the debug port.
fn debug_pages(
    listeners: &Listeners,
    sources: &MetricsSources,
    live: &Live,
    explain: Router,
) -> Router {
    let pages = admin::routes(sources.status.clone()).merge(live.routes()).merge(explain);
    protect(listeners, pages.merge(metrics::routes("/metrics", sources.clone())))
}

/// The page of the metrics port, for scrapers that have no token.
fn metrics_page(listeners: &Listeners, metrics: &Metrics, sources: MetricsSources) -> Router {
    let page = metrics::routes(&metrics.path, sources);
    guard::with_headers(guard_of(listeners).before(page))
}

/// Restricts `pages` to clients that may read them.
fn protect(listeners: &Listeners, pages: Router) -> Router {
    guard::with_headers(guard_of(listeners).with_token(&listeners.debug_token).before(pages))
}

fn guard_of(listeners: &Listeners) -> Guard {
    Guard::new(&listeners.debug_allowed_hosts, "DEBUG_ALLOWED_HOSTS")
}

fn decision_options(listeners: &Listeners) -> DecisionOptions {
    let guard = Guard::new(&listeners.allowed_hosts, "ALLOWED_HOSTS");
    let scoped_domain = listeners.scoped_domain.clone();
    DecisionOptions { guard, refunds: listeners.json_refunds, scoped_domain }
}

fn age(listeners: &Listeners) -> ConnectionAge {
    let Listeners { max_connection_age: age, max_connection_age_grace: grace, .. } = *listeners;
    ConnectionAge { age, grace }
}

fn health(rules: &RulesSource, published: &Arc<CurrentRules>) -> Health {
    Health::new(Arc::clone(published), rules.healthy_with)
}

fn samples(logging: &Logging, clock: Clock) -> Samples {
    Samples::new(logging.decision_sample_rate, logging.values, clock)
}

fn service(
    limiter: &Limiter,
    published: &Arc<CurrentRules>,
    listeners: &Listeners,
    headers: Option<Headers>,
    observers: &Observers,
) -> DecisionService {
    let limiter = limiter.clone();
    let published = Arc::clone(published);
    DecisionService::new(limiter, published, headers, listeners.calls_max)
        .observed_by(observers.clone())
}

fn pusher(
    settings: settings::Push,
    origin: &Origin,
    clock: Clock,
    sources: &MetricsSources,
) -> Push {
    let sources = sources.clone();
    Push::new(origin, settings, clock, Arc::new(move || sources.families()))
}

fn statsd_push(
    settings: settings::Statsd,
    clock: Clock,
    meters: Meters,
    published: &Arc<CurrentRules>,
) -> StatsdPush {
    let published = Arc::clone(published);
    let read = move || Counts {
        reference: meters.reference_counts(),
        loads_ok: published.loads_ok(),
        loads_failed: published.loads_failed(),
    };
    StatsdPush::new(settings, clock, Arc::new(read))
}

fn meters(responses: &Responses, metrics: &Metrics, by_stats_key: bool) -> Meters {
    Meters::new(counting::Options {
        near_limit_ratio: responses.near_limit_ratio,
        series_max: metrics.series_max,
        by_stats_key,
    })
}

fn modes(responses: &Responses) -> Modes {
    Modes {
        shadow: responses.shadow_mode,
        quota: responses.quota_mode,
        metadata: responses.dynamic_metadata,
    }
}

/// Opens the store of these settings, within the limit on open files. Requests to Redis are traced.
fn open(settings: StoreSettings, tracer: &Tracer) -> Arc<dyn Store> {
    let is_traced = tracer.is_on() && settings != StoreSettings::Memory;
    let store = store::open(settings.with_connections(redis_connections_max));
    if is_traced { Arc::new(Traced::new(store, tracer.clone())) } else { store }
}

fn limiter(store: Arc<dyn Store>, clock: Clock, leases: &Leases, responses: &Responses) -> Limiter {
    let options = Options {
        wait_min: leases.max_wait,
        wait_max: leases.wait_limit,
        start_grace: leases.start_grace.unwrap_or(Duration::MAX),
        pods_expected: leases.pods_expected,
        buffer_bytes_max: leases.buffer_bytes_max,
        // Drawn from the system's randomness, like every hash map's seed.
        pod: RandomState::new().hash_one(()),
        // In Kubernetes, the name of the pod.
        name: rustix::system::uname().nodename().to_string_lossy().into(),
        hasher: leases.hasher(),
        modes: modes(responses),
        unix_start: unix_time().saturating_sub(clock.now().since(Time::default())),
    };
    Limiter::new(store, clock, options)
}

/// The pod counts of the snapshot are used until the store reports how many pods there are.
async fn load_pods(snapshot: Option<Arc<Snapshot>>, limiter: &Limiter) {
    let Some(snapshot) = snapshot else { return };
    match spawn_blocking(move || snapshot.load_pods()).await {
        Ok(pods) => limiter.expect_pods(&pods),
        Err(error) => error!("internal error: the snapshot's counts of pods are not used: {error}"),
    }
}

/// Read once: a clock that is set later has no effect.
fn unix_time() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "the edge where the time of day is read")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn banner(
    bound: &BoundListeners,
    store: &str,
    published: &CurrentRules,
) -> Result<String, BuildError> {
    let at = |listener: &Option<TcpListener>, name: &str| match listener {
        Some(listener) => Ok(format!(", {name} on {}", bind::local_address(listener)?)),
        None => Ok(String::new()),
    };
    let pages = at(&bound.debug, "debug")? + &at(&bound.metrics, "metrics")?;
    let rules = published.current();
    let (decisions, try_first) = match &bound.decisions {
        Some(BoundDecisions { grpc_at, http, .. }) => {
            let http = bind::local_address(http)?;
            let try_first = rules.as_ref().and_then(|rules| example(rules)).map(|sample| {
                let at = bind::reachable_address(http);
                format!(
                    "; try: curl -H 'content-type: application/json' -d '{sample}' http://{at}/json"
                )
            });
            (format!("gRPC on {grpc_at}, HTTP on {http}"), try_first.unwrap_or_default())
        }
        None => ("within this process".to_owned(), String::new()),
    };
    let rules = match rules {
        Some(rules) => rules.len().to_string(),
        None => "none yet".to_owned(),
    };
    Ok(format!("ratelease: {decisions}{pages}; store: {store}; rules: {rules}{try_first}"))
}

/// Maximum number of requests of which one is looked for that has a limit.
const EXAMPLES_MAX: usize = 1000;

/// A request, as JSON for a shell's single quotes, that these rules answer by a limit: that of the
/// rules which come with the program, or else of the first rule that one is found for.
fn example(rules: &Rules) -> Option<String> {
    let shipped = ("demo", vec![("generic_key", "hello")]);
    let found = rules.iter().filter_map(|rule| {
        let mut parts = rule.path_parts();
        Some((parts.next()?, parts.collect::<Vec<_>>()))
    });
    let possible = found.flat_map(|(domain, parts)| {
        entries_of(&parts).into_iter().map(move |entries| (domain, entries))
    });
    let mut all = std::iter::once(shipped).chain(possible).take(EXAMPLES_MAX);
    all.find_map(|(domain, entries)| {
        let entries: Vec<_> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let Lookup::Rule(rule) = rules.find(domain, &entries) else { return None };
        matches!(rule.allowance, Allowance::Limited(_)).then_some(())?;
        let entry =
            |it: &Entry<'_>| format!(r#"{{"key":{},"value":{}}}"#, json!(it.key), json!(it.value));
        let domain = json!(domain);
        let entries = entries.iter().map(entry).collect::<Vec<_>>();
        let entries = entries.join(",");
        let sample = format!(r#"{{"domain":{domain},"descriptors":[{{"entries":[{entries}]}}]}}"#);
        (!sample.contains('\'')).then_some(sample)
    })
}

/// The entries that the levels of a rule's path may stand for: each is a key with any value, or a
/// key and a value that are joined by one of its underscores.
fn entries_of<'p>(parts: &[&'p str]) -> Vec<Vec<(&'p str, &'p str)>> {
    let mut all = vec![Vec::new()];
    for part in parts {
        let split = part
            .match_indices('_')
            .filter_map(|(at, _)| Some((part.get(..at)?, part.get(at + 1..)?)));
        let choices: Vec<_> = split.chain([(*part, "hello")]).collect();
        let longer = all.iter().flat_map(|former| {
            choices.iter().map(move |choice| [former.as_slice(), &[*choice]].concat())
        });
        all = longer.take(EXAMPLES_MAX).collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use ratelease_rules::{Options, Source, load};

    use super::*;

    #[test]
    fn the_example_is_a_request_that_the_rules_limit_or_none() {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        for (descriptors, expected) in [
            (format!("{{key: user, {limit}}}"), Some(r#"{"key":"user","value":"hello"}"#)),
            (format!("{{key: a_b, value: c_d, {limit}}}"), Some(r#"{"key":"a_b","value":"c_d"}"#)),
            (
                format!("{{key: a, descriptors: [{{key: b, value: c, {limit}}}]}}"),
                Some(r#"{"key":"a","value":"hello"},{"key":"b","value":"c"}"#),
            ),
            (format!("{{key: a, value: \"it's\", {limit}}}"), None),
            ("{key: a, rate_limit: {unlimited: true}}".to_owned(), None),
            ("{key: a}".to_owned(), None),
        ] {
            let text = format!("domain: shop\ndescriptors: [{descriptors}]\n").into_bytes();
            let source = Source { name: "a.yaml".to_owned(), text };
            let rules = load(&[source], Options::default()).unwrap().rules;
            let expected = expected.map(|entries| {
                format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{entries}]}}]}}"#)
            });
            assert_eq!(example(&rules), expected, "{descriptors}");
        }
        assert_eq!(example(&Rules::default()), None);
    }
}
