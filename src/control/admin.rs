//! The debug port: what the process holds, for people and for `egctl`.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::Published;
use crate::rules::{Allowance, Rule};

/// What the debug port shows.
#[derive(Clone)]
pub struct Admin {
    /// The rules and how loading them went.
    pub published: Arc<Published>,
    /// Keys held at present.
    pub keys: Arc<dyn Fn() -> usize + Send + Sync>,
    /// Where the counts live.
    pub store: String,
}

/// The routes of `DEBUG_PORT`.
pub fn routes(admin: Admin) -> Router {
    Router::new().route("/", get(index)).route("/rlconfig", get(rlconfig)).with_state(admin)
}

async fn index(State(admin): State<Admin>) -> impl IntoResponse {
    let Admin { published, keys, store } = admin;
    let rules = published.current();
    let version = rules.as_ref().map_or("none".into(), |rules| format!("{:016x}", rules.version()));
    let page = format!(
        "ratelease {}\n\n/          this page\n/rlconfig  the rules in force, one a line\n\n\
         rules version: {version}\nrules: {}\nloads accepted: {}\nloads refused: {}\n\
         last fault: {}\nkeys held: {}\nstore: {store}\n",
        env!("CARGO_PKG_VERSION"),
        rules.map_or(0, |rules| rules.len()),
        published.loads_ok(),
        published.loads_failed(),
        published.last_fault().unwrap_or("none".into()),
        keys(),
    );
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], page)
}

/// The reference's dump: a line for each rule.
async fn rlconfig(State(admin): State<Admin>) -> impl IntoResponse {
    let mut page = String::new();
    for rule in admin.published.current().iter().flat_map(|rules| rules.iter()) {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{}", line(rule));
    }
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], page)
}

fn line(rule: &Rule) -> String {
    let (unit, requests) = match rule.allowance {
        Allowance::Limited(limit) => (limit.unit.name(), limit.requests_per_unit),
        Allowance::Unlimited => ("UNKNOWN", 0),
    };
    format!(
        "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {}, quota_mode: {}",
        rule.path, rule.shadow_mode, rule.quota_mode
    )
}
