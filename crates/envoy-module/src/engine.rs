//! The engine of the process: the sidecar's own parts, in threads beside Envoy's. It also renders
//! the pages on Envoy's admin port.
//!
//! There is one however many filters there are, so that counts survive each change of Envoy's
//! configuration. The bootstrap extension makes it, before Envoy listens, or else the first
//! configuration of a filter does; it lives until the extension shuts it down, or with the process.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use ratelease_cli::commands::{Task, shown_secrets};
use ratelease_cli::settings::{Settings, SettingsError, is_read_sometimes, process_env};
use ratelease_engine::time::Clock;
use ratelease_server::service::{DecisionService, Peer};
use ratelease_sidecar::admin::Below;
use ratelease_sidecar::app::{self, App, Router};
use ratelease_sidecar::rule_source::directory::{Given, GivenOutcome, GivenRules};
use ratelease_sidecar::telemetry::{self, LogWriter};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::ServiceExt;

/// Names of settings and their values, which take precedence over the environment.
pub type Overrides = BTreeMap<String, String>;

/// The engine, as the filters need it.
pub struct Engine {
    /// Decides requests, in any thread that has entered [`Engine::runtime`].
    pub service: DecisionService,
    /// The connection that all requests count as: all requests of one Envoy are one client's.
    pub peer: Peer,
    /// The runtime of the engine's thread.
    pub runtime: Handle,
    /// The pages of the debug port; `None` with a `DEBUG_TOKEN`, as Envoy hands over no headers in
    /// which a request could present it.
    pub pages: Option<Pages>,
    log: Option<LogWriter>,
    running: Mutex<Option<Running>>,
    is_down: AtomicBool,
}

/// The engine's thread.
struct Running {
    stop: oneshot::Sender<()>,
    /// Disconnected once the thread has ended.
    ended: mpsc::Receiver<()>,
    /// How long a shutdown may take.
    drain: Duration,
}

/// The report of the engine's thread once it is ready.
type Started = (DecisionService, Option<Pages>, Handle);

/// Maximum time to write the last lines of the log.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Maximum time of a shutdown beyond the drain time, for threads that wait for a processor.
const END_MAX: Duration = Duration::from_secs(1);

/// Maximum time that Envoy's main thread waits until rules of a filter are in force: a second is
/// what Envoy's watchdog reports as a long stall.
const LOAD_MAX: Duration = Duration::from_millis(800);

static ENGINE: Mutex<Option<Arc<Engine>>> = Mutex::new(None);

/// The rules that filters have in their configurations.
static GIVEN: LazyLock<Arc<GivenRules>> = LazyLock::new(Arc::default);

// === impl Engine ===

impl Engine {
    /// The engine of this process, which is started if there is none; then the calling thread waits
    /// until the rules are read, and at most 150 ms longer for the store.
    ///
    /// # Errors
    ///
    /// Every fault of the settings, or why the engine cannot start; or it has been started with
    /// other settings. Without `overrides` any will do.
    pub fn of_process(overrides: Option<&Overrides>) -> Result<Arc<Self>, String> {
        let overrides = claim(overrides)?;
        let mut engine = ENGINE.lock();
        if let Some(engine) = &*engine {
            return Ok(Arc::clone(engine));
        }
        let started = Arc::new(Self::start(settings(&overrides)?)?);
        Ok(Arc::clone(engine.insert(started)))
    }

    fn start(settings: Settings) -> Result<Self, String> {
        let clock = Clock::start_counting_suspension();
        let log = telemetry::init(&settings.logging, clock)
            .inspect_err(|error| crate::warn(&error.to_string()))
            .ok();
        settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let drain = settings.leases.drain;
        let (stop, stopped) = oneshot::channel();
        let (report, started) = mpsc::sync_channel(1);
        let (alive, ended) = mpsc::channel();
        let writer = log.clone();
        let run = move || {
            run(settings, clock, writer, report, stopped);
            drop(alive);
        };
        // Linux shows 15 bytes of a thread's name.
        let thread = thread::Builder::new().name("ratelease".to_owned()).spawn(run);
        thread.map_err(|error| format!("cannot start a thread: {error}; raise the limit"))?;
        let gone = |_| "the engine's thread has ended; its panic is in the log".to_owned();
        let (service, pages, runtime) = started.recv().map_err(gone)??;
        let running = Mutex::new(Some(Running { stop, ended, drain }));
        let (peer, is_down) = (Peer::new(), AtomicBool::new(false));
        Ok(Self { service, peer, runtime, pages, log, running, is_down })
    }

    /// Whether it has been shut down: then it decides nothing.
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Gives the leases back and ends the engine's thread; returns within the drain time. Requests
    /// that come later get errors.
    pub fn shut_down(&self) {
        let Some(Running { stop, ended, drain }) = self.running.lock().take() else { return };
        self.is_down.store(true, Ordering::Relaxed);
        // An error means that the thread has ended.
        let _ = stop.send(());
        // Nothing is ever sent: it returns once the thread has dropped the sender, or too late.
        let _: Result<(), _> = ended.recv_timeout(drain + END_MAX);
        if let Some(log) = &self.log {
            log.flush(FLUSH_MAX);
        }
    }
}

/// Runs the app until `stop`, and reports when it is ready, or why it is not.
fn run(
    settings: Settings,
    clock: Clock,
    log: Option<LogWriter>,
    report: mpsc::SyncSender<Result<Started, String>>,
    stop: oneshot::Receiver<()>,
) {
    // An error means that the caller is gone, which waits for the report.
    let refuse = |error: String| drop(report.send(Err(error)));
    let runtime = match app::runtime_builder().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(format!("cannot start the runtime: {error}")),
    };
    let has_token = !settings.listeners.debug_token.is_empty();
    runtime.block_on(async {
        let app = match App::build_embedded(settings, clock, log, Arc::clone(&GIVEN)).await {
            Ok(app) => app,
            Err(error) => return refuse(error.to_string()),
        };
        app.wait_for_parts().await;
        tracing::info!("{}", app.banner());
        let pages = (!has_token).then(|| Pages::new(app.pages(), Handle::current()));
        if report.send(Ok((app.service(), pages, Handle::current()))).is_err() {
            return;
        }
        if let Err(error) = app.run(async { drop(stop.await) }).await {
            tracing::error!("the engine has failed: {error}");
        }
    });
    // Does not wait for threads that are still blocked.
    runtime.shutdown_background();
}

/// Gives the engine the text of a rule file for one domain, until the result is dropped. It may be
/// called before there is an engine.
pub fn give(domain: &str, text: &str) -> Given {
    GIVEN.give(domain, text.as_bytes().to_vec())
}

/// Waits until the given rules are in force. Rules that are late are logged.
///
/// # Errors
///
/// A file has rules of the same domain, or the rules together have faults.
pub fn wait_for(given: &Given) -> Result<(), String> {
    match given.wait(LOAD_MAX) {
        GivenOutcome::Loaded => Ok(()),
        GivenOutcome::Clashes => {
            Err("rules: a file has rules of this domain; leave one of both out".to_owned())
        }
        GivenOutcome::KeptBack => {
            Err("rules: not in force, as the rule files have faults; fix these, \
                                       which the log and /ratelease/status list"
                .to_owned())
        }
        GivenOutcome::Late => {
            crate::warn("rules of a filter are in force once all rules are loaded, not yet");
            Ok(())
        }
    }
}

/// Claims the settings of this process's engine, and returns them. Without `overrides`, returns the
/// settings that were claimed before; if there are none, claims empty ones.
///
/// # Errors
///
/// Other settings were claimed before.
pub fn claim(overrides: Option<&Overrides>) -> Result<Overrides, String> {
    static CLAIMED: Mutex<Option<Overrides>> = Mutex::new(None);
    let mut claimed = CLAIMED.lock();
    let named = claimed.get_or_insert_with(|| overrides.cloned().unwrap_or_default());
    match overrides.is_none_or(|given| given == named) {
        true => Ok(named.clone()),
        false => {
            Err("extension_config: not the settings of the extension before, and one Envoy has \
                      one engine; give both the same settings, or leave one out"
                .to_owned())
        }
    }
}

/// The problem of a secret among the settings of the extension.
const SHOWN: &str = "a secret in extension_config shows in Envoy's /config_dump";

/// Reads the settings as `ratelease serve` does.
///
/// # Errors
///
/// Every fault, names that are no settings, and secrets among `overrides`.
pub fn settings(overrides: &Overrides) -> Result<Settings, String> {
    let asked = RefCell::new(HashSet::new());
    let env = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        overrides.get(name).cloned().or_else(|| process_env(name))
    };
    let given = |name: &str| overrides.get(name).filter(|value| !value.is_empty()).cloned();
    let parse = |flags: Vec<OsString>| {
        Task::parse("ratelease", ["serve".into()].into_iter().chain(flags), &env)
    };
    // Names that begin with `--` are flags without a variable, such as `--rules`.
    let flags = overrides.iter().filter(|(name, _)| name.starts_with("--"));
    let flags = flags.map(|(name, value)| format!("{name}={value}").into());
    let mut faults = Vec::new();
    let mut task = parse(flags.collect());
    if let Err(SettingsError::Usage(text)) = &task {
        // The variables have not been read.
        faults.push(text.lines().next().unwrap_or_default().to_owned());
        task = parse(Vec::new());
    }
    match shown_secrets(&given, &env, SHOWN) {
        Ok(shown) => faults.extend(shown.iter().map(ToString::to_string)),
        Err(error) => faults.push(error.to_string()),
    }
    faults.extend(unknown(overrides, &asked.borrow()));
    match task {
        Ok(Task::Serve(settings)) if faults.is_empty() => return Ok(*settings),
        Ok(Task::Serve(_)) => {}
        Ok(_) => faults.push("internal error: the settings are another command's".to_owned()),
        Err(error) => faults.push(error.to_string()),
    }
    Err(faults.join("\n"))
}

/// A fault for each name that nothing has asked for.
fn unknown(overrides: &Overrides, asked: &HashSet<String>) -> Vec<String> {
    let is_known =
        |name: &&String| name.starts_with("--") || asked.contains(*name) || is_read_sometimes(name);
    let unknown = overrides.keys().filter(|name| !is_known(name));
    let fault = |name| format!("{name}: no setting has this name; docs/settings-list.md lists all");
    unknown.map(fault).collect()
}

// The pages of the debug port, on Envoy's admin port under `/ratelease`.

/// The paths of the pages on Envoy's admin port, each with its line on Envoy's help page. Envoy
/// looks for the whole path.
pub const PAGES: [(&str, &str); 5] = [
    ("/ratelease", "ratelease: an overview, and the other pages"),
    ("/ratelease/hotkeys", "ratelease: the keys requested and denied most"),
    ("/ratelease/metrics", "ratelease: metrics for Prometheus"),
    ("/ratelease/rlconfig", "ratelease: the rules in force"),
    ("/ratelease/status", "ratelease: the state of decisions, leases and stores"),
];

const PREFIX: &str = "/ratelease";

/// Envoy's main thread waits for a page, at most this long.
const PAGE_MAX: Duration = Duration::from_secs(2);

/// Maximum size in bytes of a page: `/metrics` of the default number of series has less.
const PAGE_BYTES_MAX: usize = 64 << 20;

/// The pages, and where they are rendered.
pub struct Pages {
    routes: Router,
    runtime: Handle,
}

// === impl Pages ===

impl Pages {
    /// Makes pages that are rendered in `runtime`.
    pub fn new(routes: Router, runtime: Handle) -> Self {
        Self { routes, runtime }
    }

    /// The status and the body of a page, by the path and query that Envoy's admin port got. The
    /// calling thread waits for it.
    pub fn get(&self, method: &[u8], path: &[u8]) -> (u32, Vec<u8>) {
        let path = std::str::from_utf8(path).ok().and_then(|path| path.strip_prefix(PREFIX));
        let path = match path {
            Some("") => "/",
            Some(path) if path.starts_with(['/', '?']) => path,
            _ => return (404, b"no such page\n".to_vec()),
        };
        if method != b"GET" {
            return (405, b"pages are read with GET\n".to_vec());
        }
        // A host that the guard of the debug port lets through. Envoy hands over no headers, so a
        // page of any name can read this page: `Below` leaves out the values of clients.
        let request = http::Request::get(path).header("host", "localhost").body(String::new());
        let Ok(mut request) = request else { return (400, b"no such page\n".to_vec()) };
        request.extensions_mut().insert(Below(PREFIX));
        let routes = self.routes.clone();
        let (sender, page) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let rendered = async {
                let Ok(answer) = routes.oneshot(request).await;
                let (head, body) = answer.into_parts();
                let body = Limited::new(body, PAGE_BYTES_MAX).collect().await.ok()?;
                Some((u32::from(head.status.as_u16()), body.to_bytes().to_vec()))
            };
            let rendered = timeout(PAGE_MAX, rendered).await.ok().flatten();
            // The send fails if the request to the admin port has timed out meanwhile.
            let _ = sender.send(rendered);
        });
        let late = (503, b"the page could not be made in time\n".to_vec());
        page.recv_timeout(PAGE_MAX).ok().flatten().unwrap_or(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_configuration_take_precedence_and_unknown_ones_are_faults() {
        let given = |pairs: &[(&str, &str)]| {
            let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
            settings(&pairs.iter().map(pair).collect())
        };
        let read = given(&[("PORT", "9"), ("LEASE_MAX_WAIT", "7ms")]).unwrap();
        assert_eq!((read.listeners.port, read.leases.max_wait), (9, Duration::from_millis(7)));
        let read = given(&[("--rules", "/tmp/of/nobody")]).unwrap();
        assert_eq!(format!("{:?}", read.rules.dir).matches("/tmp/of/nobody").count(), 1);
    }

    #[test]
    fn every_fault_of_the_settings_is_told_at_once() {
        for (flag, more) in [("--rules", None), ("--rule", Some("unexpected argument '--rule'"))] {
            let of = [(flag, "/r"), ("LEASE_MAX_WAITS", "7ms"), ("PORT", "x"), ("REDIS_URLS", "x")];
            let pairs = of.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let faults = settings(&pairs.into_iter().collect()).unwrap_err();
            let names = ["LEASE_MAX_WAITS: no setting", "REDIS_URLS: no setting", "PORT: expected"];
            for fault in names.into_iter().chain(more) {
                assert!(faults.contains(fault), "{flag}: {fault:?} in {faults}");
            }
        }
    }

    #[test]
    fn a_secret_of_the_extension_is_a_fault_without_its_text() {
        const SECRETS: [(&str, &str); 13] = [
            ("KEY_SECRET", "hunter2"),
            ("KEY_SECRET_PREVIOUS", "hunter2"),
            ("DEBUG_TOKEN", "hunter2"),
            ("REDIS_URL", "redis://:hunter2@redis:6379"),
            ("REDIS_AUTH", "hunter2"),
            ("REDIS_SENTINEL_AUTH", "hunter2"),
            ("REDIS_PERSECOND_URL", "redis://user:hunter2@redis:6379"),
            ("REDIS_PERSECOND_AUTH", "hunter2"),
            ("REDIS_STORE_GOLD_URL", "hunter2@redis"),
            ("REDIS_STORE_GOLD_AUTH", "hunter2"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:hunter2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization=hunter2"),
        ];
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let all = SECRETS.into_iter().chain([("REDIS_STORES", "gold"), ("PORT", "x")]);
        let faults = settings(&all.map(pair).collect()).unwrap_err();
        for (name, _) in SECRETS {
            let fault =
                format!("{name}: a secret in extension_config shows in Envoy's /config_dump");
            let fix = format!("set {name} in the environment, or name a file in {name}_FILE");
            assert!(faults.contains(&format!("{fault}; {fix}")), "{name} in {faults}");
        }
        assert!(faults.contains("PORT: expected") && !faults.contains("hunter2"), "{faults}");
        let good = [("REDIS_URL", "redis:6379"), ("KEY_SECRET", ""), ("DEBUG_TOKEN_FILE", "")];
        assert_eq!(settings(&good.map(pair).into_iter().collect()).err(), None);
    }

    #[test]
    fn settings_of_every_kind_are_known() {
        let settings = settings(&Overrides::from(
            [
                ("KEY_SECRET_FILE", "/dev/null"),
                ("REDIS_URL", "redis:6379"),
                ("REDIS_STORES", "gold"),
                ("REDIS_STORE_GOLD_URL", "redis:6380"),
                ("REDIS_PERSECOND", "true"),
                ("REDIS_PERSECOND_URL", "redis:6381"),
                ("REDIS_POOL_SIZE", "10"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        ));
        let faults = settings.err().unwrap_or_default();
        assert!(!faults.contains("no setting"), "{faults}");
    }
}
