//! What the process reports about itself: the pages of the debug port and of the metrics port, its
//! health, and who may ask.
//!
//! May use the rules in force, the counters of `metrics` and `hot_keys`, and the engine's state.
//! `http` answers probes from [`Health`] and protects decisions by [`guard`]; `grpc` answers health
//! checks; `app` binds the ports.

pub mod explain;
pub mod guard;
pub mod history;
pub mod live;
pub mod metrics;
pub mod status;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use http::header::CONTENT_TYPE;
use http::{StatusCode, Uri};
use ratelease_cli::settings::HealthyWith;
use ratelease_rules::{Allowance, Rule, RuleOption, StoreNames, Unit};
use ratelease_server::current_rules::CurrentRules;
use serde_json::Value;
use status::Status;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

// Whether this process is alive, healthy and ready. The state of the store does not matter:
// decisions are answered without it, and a sidecar that became unready with Redis would make its
// whole pod unready.

/// A view of the process's health. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Health {
    published: Arc<CurrentRules>,
    draining: Arc<AtomicBool>,
    healthy_with: HealthyWith,
}

// === impl Health ===

impl Health {
    /// Creates a view that takes the rules from `published`.
    pub fn new(published: Arc<CurrentRules>, healthy_with: HealthyWith) -> Self {
        Self { published, draining: Arc::default(), healthy_with }
    }

    /// Marks this process as unhealthy from now on: it is about to end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The status that `/healthcheck` and the gRPC health service report.
    pub fn is_healthy(&self) -> bool {
        let rules = self.published.current();
        let has_what_it_needs = match self.healthy_with {
            HealthyWith::Nothing => true,
            HealthyWith::FirstLoad => rules.is_some() || !self.published.awaits_first(),
            HealthyWith::Rules => rules.is_some(),
            HealthyWith::Domain => rules.is_some_and(|rules| rules.domains().next().is_some()),
        };
        has_what_it_needs && !self.draining.load(Ordering::Acquire)
    }

    /// Why this process should get no requests; `None` if it is ready.
    pub fn unready(&self) -> Option<&'static str> {
        match self.published.current() {
            _ if self.draining.load(Ordering::Acquire) => Some("draining\n"),
            None if self.published.awaits_first() => Some("the first rules have not arrived yet\n"),
            None => Some("no rules are in force: the first ones were refused; see the log\n"),
            Some(_) => None,
        }
    }
}

// The debug port: the state of the process, for people and for `egctl`.

const PLAIN: &str = "text/plain; charset=utf-8";

/// The routes of `DEBUG_PORT`, except those of the live page.
pub fn routes(status: Status) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/hotkeys", get(hot_keys))
        .route("/rlconfig", get(rlconfig))
        .route("/status", get(status_json))
        .fallback(absent)
        .with_state(status)
}

/// Says where to find what the reference serves at this path, if it does.
async fn absent(uri: Uri) -> impl IntoResponse {
    let of_reference = |pages: &[&str]| pages.iter().any(|page| uri.path().starts_with(page));
    let page = if of_reference(&["/stats"]) {
        "there is no /stats: counters are at /metrics, for Prometheus, and at /status, as JSON\n"
    } else if of_reference(&["/debug/pprof", "/debug/vars"]) {
        "there are no profiles: memory, threads and descriptors of the process are at /metrics, \
         the state of leases and of shards at /status\n"
    } else {
        "there is no such page: / lists all\n"
    };
    (StatusCode::NOT_FOUND, [(CONTENT_TYPE, PLAIN)], page)
}

/// Another server, which has no [`guard`], has the pages below this path. It has no values of
/// clients, and no page that is for the debug port only.
#[derive(Debug, Clone, Copy)]
pub struct Below(pub &'static str);

async fn index(below: Option<Extension<Below>>, State(status): State<Status>) -> impl IntoResponse {
    let below = below.map(|Extension(below)| below);
    let page = render(move || index_of(&status, below)).await;
    page.map(|page| ([(CONTENT_TYPE, PLAIN)], page))
}

fn index_of(status: &Status, below: Option<Below>) -> String {
    let mut page = format!("ratelease {}\n\n", env!("CARGO_PKG_VERSION"));
    let is_there = |path| below.is_none() || !OF_PORT.contains(&path);
    for (path, what) in PAGES.into_iter().filter(|(path, _)| is_there(*path)) {
        let path = match below {
            Some(Below(root)) => format!("{root}{}", path.trim_end_matches('/')),
            None => path.to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{path:<10} {what}");
    }
    page + "\n" + &status.lines()
}

/// Pages of the debug port only.
const OF_PORT: [&str; 2] = ["/explain", "/live"];
const PAGES: [(&str, &str); 7] = [
    ("/", "this page"),
    ("/explain", "how the rules match a request, for ratectl explain --pod"),
    ("/hotkeys", "the keys requested and denied most, in total and by rule, as JSON"),
    ("/live", "the state of this pod, updated each second, for a browser"),
    ("/metrics", "for Prometheus"),
    ("/rlconfig", "the rules in force, one per line"),
    ("/status", "what follows and more, as JSON"),
];

async fn status_json(
    below: Option<Extension<Below>>,
    State(status): State<Status>,
) -> impl IntoResponse {
    json(move || for_server(status, below.is_some()).json()).await
}

async fn hot_keys(
    below: Option<Extension<Below>>,
    State(status): State<Status>,
) -> impl IntoResponse {
    json(move || for_server(status, below.is_some()).hot_keys_by_rule()).await
}

/// Returns the status for a server. Another server (`is_other`) has no [`guard`], so values of
/// clients are left out.
fn for_server(status: Status, is_other: bool) -> Status {
    Status { shows_values: status.shows_values && !is_other, ..status }
}

async fn json(value: impl FnOnce() -> Value + Send + 'static) -> impl IntoResponse {
    let page = render(move || format!("{}\n", value())).await;
    page.map(|page| ([(CONTENT_TYPE, "application/json")], page))
}

async fn rlconfig(State(status): State<Status>) -> impl IntoResponse {
    let page = render(move || dump(&status)).await;
    page.map(|page| ([(CONTENT_TYPE, PLAIN)], page))
}

/// The reference implementation's dump: a line for each rule, followed by the options that the
/// reference does not have, as they would stand in a file; none if the rule behaves as there.
fn dump(status: &Status) -> String {
    let mut page = String::new();
    let Some(rules) = status.published.current() else { return page };
    for rule in rules.iter() {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{}", line(rule, rules.stores()));
    }
    page
}

fn line(rule: &Rule, stores: &StoreNames) -> String {
    let (unit, requests) = match rule.allowance {
        Allowance::Limited(limit) => {
            (limit.window_unit().map_or("UNKNOWN", Unit::name), limit.requests_per_unit)
        }
        Allowance::Unlimited => ("UNKNOWN", 0),
    };
    let mut line = format!(
        "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {}, quota_mode: {}",
        rule.path, rule.flags.shadow_mode, rule.flags.quota_mode
    );
    let beyond = |it: &RuleOption| !it.is_default && !it.is_known_to_reference();
    for RuleOption { name, written, .. } in rule.options(stores).into_iter().filter(beyond) {
        // Writing to a string cannot fail.
        let _ = write!(line, ", {name}: {written}");
    }
    line
}

// Renders pages that take milliseconds and megabytes: on blocking threads, so that decisions do
// not wait, and few at a time.

/// Maximum number of pages rendered at once. Others wait, for no longer than a request may take; a
/// scrape of ten thousand rules takes some 10 MB while it is written.
const CONCURRENT_MAX: usize = 2;

static RENDERERS: Semaphore = Semaphore::const_new(CONCURRENT_MAX);

/// The response if a page was not rendered.
type RenderError = (StatusCode, &'static str);

const RENDER_ERROR: RenderError =
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error: the page was not rendered; see the log\n");

/// Runs `make` on a blocking thread, and returns its result.
async fn render<T: Send + 'static>(
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RenderError> {
    // The semaphore is never closed.
    let room = RENDERERS.acquire().await.map_err(|_| RENDER_ERROR)?;
    let make = move || {
        // Released when the work is done: the client may be gone before.
        let _room = room;
        make()
    };
    spawn_blocking(make).await.map_err(|_| RENDER_ERROR)
}

#[cfg(test)]
mod pages_tests {
    use super::*;
    use ratelease_rules::{Options, Source, load};

    /// The dump's line of the only rule, whose `rate_limit` has `beside` in addition to 9 a day.
    fn dumped(beside: &str) -> String {
        let text = format!(
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{unit: day, \
             requests_per_unit: 9, {beside}}}\n"
        );
        let source = Source { name: "d.yaml".to_owned(), text: text.into_bytes() };
        let stores = StoreNames::parse("premium").unwrap();
        let options = Options { stores, ..Options::default() };
        let rules = load(&[source], options).unwrap().rules;
        line(rules.iter().next().unwrap(), rules.stores())
    }

    #[test]
    fn a_line_ends_with_the_options_that_the_reference_lacks() {
        let table = [
            ("", ""),
            ("unit_multiplier: 1, algorithm: fixed_window, lease: on, shards: 1", ""),
            ("unit_multiplier: 5", ", unit_multiplier: 5"),
            ("unit: calendar_day", ", time_zone: UTC"),
            (
                "unit: calendar_day, time_zone: Europe/Zurich, anchor: {time: 09:00}",
                ", time_zone: Europe/Zurich, anchor: {time: \"09:00\"}",
            ),
            ("algorithm: sliding_window, shards: 4", ", algorithm: sliding_window, shards: 4"),
            ("algorithm: token_bucket", ", algorithm: token_bucket"),
            ("algorithm: token_bucket, burst: 3", ", algorithm: token_bucket, burst: 3"),
            ("algorithm: sliding_log", ", algorithm: sliding_log, lease: off"),
            (
                "algorithm: leaky_bucket, max_delay: 1.5us",
                ", algorithm: leaky_bucket, max_delay: 1us",
            ),
            ("algorithm: leaky_bucket, max_delay: 1m", ", algorithm: leaky_bucket, max_delay: 60s"),
            (
                "lease: {fraction: .5, max: 7, ttl: 150ms}, charge_denied: off",
                ", lease: {fraction: 0.5, max: 7, ttl: 150ms}, charge_denied: false",
            ),
            (
                "failure_mode: Deny, charge_denied: off",
                ", failure_mode: deny, charge_denied: false",
            ),
            ("store: default", ""),
            ("store: premium", ", store: premium"),
        ];
        for (beside, end) in table {
            let expected = format!(
                "d.k: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false{end}"
            );
            assert_eq!(dumped(beside), expected, "{beside}");
        }
    }
}

#[cfg(test)]
mod render_tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn few_pages_are_rendered_at_once_and_a_panic_is_an_error() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let pages = (0..8 * CONCURRENT_MAX).map(|number| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            render(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(5));
                now.fetch_sub(1, Ordering::SeqCst);
                number
            })
        });
        let made_all: Vec<_> = join_all(pages).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(made_all, (0..8 * CONCURRENT_MAX).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= CONCURRENT_MAX);
        let failed = render(move || assert!(now.load(Ordering::SeqCst) > 9, "deliberate")).await;
        assert_eq!(failed, Err(RENDER_ERROR));
        assert_eq!(render(|| 7).await, Ok(7), "a panic releases the permit");
    }
}
