//! `/explain` of the debug port: how the rules in force here match a request, and what this pod
//! knows of its keys. `ratectl explain --pod` shows it.
//!
//! The query is the request as `/json` takes it, percent-encoded. Nothing is charged, and the store
//! is not asked.

use std::cell::Cell;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{StatusCode, Uri};
use ratelease_engine::limiter::{Charge, Limiter, Resolved};
use ratelease_rules::request::{self, Descriptor, Request};
use ratelease_rules::{Lookup, Rule, Rules, excerpt};
use ratelease_server::current_rules::CurrentRules;
use serde_json::{Map, Value, json};

use super::{PLAIN, render};

/// Bytes of JSON above which a setting, such as `metadata`, is large.
const LARGE: usize = 1 << 10;
/// Maximum bytes of all large settings of a page together.
const LARGE_BYTES_MAX: usize = 256 << 10;

/// What the page explains with.
#[derive(Clone)]
struct Explainer {
    published: Arc<CurrentRules>,
    limiter: Limiter,
}

/// The route of the page.
pub fn routes(published: Arc<CurrentRules>, limiter: Limiter) -> Router {
    Router::new().route("/explain", get(explain)).with_state(Explainer { published, limiter })
}

async fn explain(State(explainer): State<Explainer>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default().to_owned();
    match render(move || explainer.page(&query)).await {
        Ok(Ok(page)) => ([(CONTENT_TYPE, "application/json")], page).into_response(),
        Ok(Err((status, why))) => (status, [(CONTENT_TYPE, PLAIN)], why).into_response(),
        Err(error) => error.into_response(),
    }
}

// === impl Explainer ===

impl Explainer {
    fn page(&self, query: &str) -> Result<String, (StatusCode, String)> {
        let request = request::json::parse_query(query).map_err(|why| {
            let form = "the query has to be a request as /json takes it, percent-encoded";
            (StatusCode::BAD_REQUEST, format!("{form}: {why}\n"))
        })?;
        let Some(rules) = self.published.current() else {
            let why = "no rules are in force; /status says why\n".to_owned();
            return Err((StatusCode::SERVICE_UNAVAILABLE, why));
        };
        let request = request.borrow();
        let resolved = self.limiter.resolve(&rules, &request);
        let pairs = request.descriptors.iter().zip(&resolved);
        let room = Cell::new(LARGE_BYTES_MAX);
        let each = pairs.map(|(descriptor, resolved)| {
            self.descriptor(&rules, &request, descriptor, resolved, &room)
        });
        let each: Vec<Value> = each.collect();
        let page = json!({ "domain": request.domain, "version": format!("{:016x}", rules.version()),
            "descriptors": each });
        Ok(format!("{page}\n"))
    }

    fn descriptor(
        &self,
        rules: &Rules,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        resolved: &Resolved<'_>,
        room: &Cell<usize>,
    ) -> Value {
        let charged = rules.charged(request.domain, descriptor);
        let rule = match charged.lookup {
            Lookup::Rule(rule) => Some(rule),
            _ => None,
        };
        let result = match (charged.lookup, resolved) {
            (_, Resolved::Charged(_)) => "counted",
            (Lookup::UnknownDomain, _) => "unknown_domain",
            (Lookup::NoRule, _) => "no_rule",
            (_, Resolved::Unlimited) => "unlimited",
            (_, Resolved::Free) => "replaced",
        };
        let trace = rules.trace(request.domain, charged.entries);
        let stopped = trace.as_ref().and_then(|trace| trace.steps.last());
        let stopped = stopped.filter(|step| step.chosen.is_none());
        // A rule's keys have no bound of their own.
        let keys =
            stopped.map(|step| step.keys.0.iter().map(|key| excerpt(key)).collect::<Vec<_>>());
        json!({
            "result": result,
            "keys_here": keys,
            "rule": rule.map(|rule| &rule.path),
            "settings": rule.map(|rule| settings(rule, rules, room)),
            "count": match resolved {
                Resolved::Charged(charge) => self.count(charge),
                _ => Value::Null,
            },
        })
    }

    fn count(&self, charge: &Charge<'_>) -> Value {
        let limit = charge.applied.limit;
        let held = self.limiter.view(charge).map(|view| {
            json!({
                "tokens": view.tokens,
                "left": view.left,
                "resets_after_seconds": view.resets_after.map(|it| it.as_secs_f64()),
                "denies": view.denies,
            })
        });
        json!({
            "allows": limit.words(),
            "of": limit.capacity(),
            "key": charge.own.to_string(),
            "blocked_seconds": self.limiter.blocked_for(charge).map(|it| it.as_secs_f64()),
            "held": held,
        })
    }
}

/// Every setting of a rule under its name in rule files. For a large one without `room` on the page
/// there is a text that says so.
fn settings(rule: &Rule, rules: &Rules, room: &Cell<usize>) -> Map<String, Value> {
    let options = rule.options(rules.stores()).into_iter();
    options.map(|option| (option.name.to_owned(), shown(option.value, room))).collect()
}

fn shown(value: Value, room: &Cell<usize>) -> Value {
    let bytes = value.to_string().len();
    if bytes <= LARGE {
        return value;
    }
    if bytes > room.get() {
        let max = LARGE_BYTES_MAX >> 10;
        return json!(format!(
            "left out: its {bytes} bytes of JSON and the large settings before it are more than \
             {max} KiB; ask for fewer descriptors, or see /rlconfig or the rule file"
        ));
    }
    room.set(room.get() - bytes);
    value
}
