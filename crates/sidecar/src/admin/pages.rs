//! The debug port: the state of the process, for people and for `egctl`.

use std::fmt::Write;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{StatusCode, Uri};
use ratelease_rules::{Allowance, Rule, RuleOption, StoreNames};
use serde_json::Value;

use super::render;
use super::status::Status;

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

async fn index(State(status): State<Status>) -> impl IntoResponse {
    let page = render::render(move || index_of(&status)).await;
    page.map(|page| ([(CONTENT_TYPE, PLAIN)], page))
}

fn index_of(status: &Status) -> String {
    format!(
        "ratelease {}\n\n/          this page\n\
         /hotkeys   the keys requested and denied most, in total and by rule, as JSON\n\
         /live      the state of this pod, updated each second, for a browser\n\
         /metrics   for Prometheus\n\
         /rlconfig  the rules in force, one per line\n\
         /status    what follows and more, as JSON\n\n{}",
        env!("CARGO_PKG_VERSION"),
        status.lines(),
    )
}

async fn status_json(State(status): State<Status>) -> impl IntoResponse {
    json(move || status.json()).await
}

async fn hot_keys(State(status): State<Status>) -> impl IntoResponse {
    json(move || status.hot_keys_by_rule()).await
}

async fn json(value: impl FnOnce() -> Value + Send + 'static) -> impl IntoResponse {
    let page = render::render(move || format!("{}\n", value())).await;
    page.map(|page| ([(CONTENT_TYPE, "application/json")], page))
}

async fn rlconfig(State(status): State<Status>) -> impl IntoResponse {
    let page = render::render(move || dump(&status)).await;
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
        Allowance::Limited(limit) => (limit.unit.name(), limit.requests_per_unit),
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

#[cfg(test)]
mod tests {
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
