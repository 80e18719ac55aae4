//! What pods run, who did what, and what a token may do.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use http::header;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::call::{CommonProblems, Problem, QueryOf, check_text};
use super::pages::{PAGE_MAX, Page, PageQuery, page_size};
use super::rollouts::is_seen_by;
use super::{App, METRICS_AGE_MAX};
use crate::auth::{Access, Caller};
use crate::document::FieldFault;
use crate::metrics;
use crate::push::FleetView;
use crate::store::{AuditFilter, AuditRow, DraftDomain, PodRow};
use crate::work::heavy;

/// Maximum bytes of a text of a query of the audit log, as of a domain's name.
const AUDIT_TEXT_BYTES_MAX: usize = 1024;

/// Pods. A token for some domains sees those that get one of them, and of the versions the last one
/// up to each that changes one of them.
#[derive(Debug, Serialize, ToSchema)]
struct PodList {
    /// The last version.
    version: i64,
    /// The pods that are connected, by node.
    pods: Vec<PodRow>,
    /// `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// How much of it to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FleetQuery {
    /// At most so many domains and so many keys, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// The audit log.
#[derive(Debug, Serialize, ToSchema)]
struct AuditList {
    /// The actions, the latest first.
    actions: Vec<AuditRow>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// A filter of the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    /// Before this number: `next` of the page before.
    before: Option<i64>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Actions that changed or published this domain, or gave rights to it.
    domain: Option<String>,
    /// Actions whose author contains this text, which several may: names are not unique.
    author: Option<String>,
    /// Actions of exactly this author, whatever the name: the id of a token, or ISSUER#SUBJECT of a
    /// person.
    author_id: Option<String>,
    /// Actions from this time on, as RFC 3339 writes it.
    since: Option<String>,
    /// Actions before this time, as RFC 3339 writes it.
    until: Option<String>,
}

/// Whether the process serves.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    /// Always `serving`: pods are served also while the database is away.
    status: &'static str,
    /// Whether the database answers.
    database: bool,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(domains, token, pods, fleet, audit, health, metrics))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/domains", get(domains))
        .route("/v1/pods", get(pods))
        .route("/v1/fleet", get(fleet))
        .route("/v1/token", get(token))
        .route("/v1/audit", get(audit))
}

/// What needs no token.
pub fn probes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(health)).route("/metrics", get(metrics))
}

/// List pods
#[utoipa::path(get, tag = "observe", path = "/v1/pods", params(PageQuery), responses(
    (status = 200, description = "The pods that are connected to any replica", body = PodList),
    CommonProblems))]
async fn pods(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<PodList>, Problem> {
    let limit = page_size(query.limit.or(Some(PAGE_MAX)))?;
    let after = query.after.unwrap_or_default();
    check_text("after", &after)?;
    let mut version = app.lists().last_version().await?;
    let (mut pods, has_more) = app.lists().pods(caller.domains(), &after, limit).await?;
    let next = pods.last().filter(|_| has_more).map(PodRow::place);
    if let Some(domains) = caller.domains() {
        let mut open = app.lists().open_rollouts().await?;
        open.retain(|it| is_seen_by(&caller, it));
        let mut versions = OwnVersions { app: &app, domains, known: BTreeMap::new() };
        version = versions.last_until(version).await?;
        for pod in &mut pods {
            versions.show(pod).await?;
            pod.fault.clear();
            pod.chosen_by.retain(|id| open.iter().any(|it| it.id == *id));
        }
    }
    Ok(Json(PodList { version, pods, next }))
}

/// Read what pods deny
#[utoipa::path(get, tag = "observe", path = "/v1/fleet", params(FleetQuery), responses(
    (status = 200, description = "Hits by domain and the hottest keys", body = FleetView),
    CommonProblems))]
async fn fleet(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<FleetQuery>,
) -> Result<Json<FleetView>, Problem> {
    let limit = page_size(query.limit)?;
    let texts = app.lists().fleets().await?;
    let sees = move |domain: &str| caller.may_use(domain);
    Ok(Json(heavy(move |_| FleetView::of_replicas(&texts, sees, limit)).await?))
}

/// The versions that change one of these domains.
struct OwnVersions<'a> {
    app: &'a App,
    domains: &'a [String],
    /// The last one until a version, for each that was asked for: pods have few different ones.
    known: BTreeMap<i64, i64>,
}

// === impl OwnVersions ===

impl OwnVersions<'_> {
    /// The last one that is not after `version`; 0 if there is none.
    async fn last_until(&mut self, version: i64) -> Result<i64, Problem> {
        if let Some(known) = self.known.get(&version) {
            return Ok(*known);
        }
        let own = self.app.lists().last_version_of(self.domains, version).await?;
        self.known.insert(version, own);
        Ok(own)
    }

    /// Has a pod show these versions only.
    async fn show(&mut self, pod: &mut PodRow) -> Result<(), Problem> {
        for version in [&mut pod.sent, &mut pod.accepted, &mut pod.refused] {
            *version = self.last_until(*version).await?;
        }
        // It refused a change of other domains, and runs the rules of these.
        if pod.refused <= pod.accepted {
            pod.refused = 0;
        }
        Ok(())
    }
}

// === impl AuditQuery ===

impl AuditQuery {
    fn filter(self) -> Result<AuditFilter, Problem> {
        let mut faults = Vec::new();
        let mut time = |name: &str, text: Option<String>| {
            let at = text.map(|it| it.parse::<Timestamp>())?;
            let fault = "expected a time of RFC 3339, as in 2026-11-29T08:00:00Z";
            let at = at.map_err(|_| faults.push(FieldFault::of(name, fault)));
            at.ok().map(Timestamp::as_millisecond)
        };
        let (since, until) = (time("since", self.since), time("until", self.until));
        let texts =
            [("domain", &self.domain), ("author", &self.author), ("author_id", &self.author_id)];
        for (name, text) in texts {
            let text = text.as_deref().unwrap_or_default();
            if text.len() > AUDIT_TEXT_BYTES_MAX || text.contains('\0') {
                let fault = "expected at most 1024 bytes, without NUL characters";
                faults.push(FieldFault::of(name, fault));
            }
        }
        if !faults.is_empty() {
            return Err(Problem::faults("the query has faults", faults));
        }
        let Self { domain, author, author_id, .. } = self;
        Ok(AuditFilter { domain, author, author_id, since, until })
    }
}

/// Read the audit log
#[utoipa::path(get, tag = "observe", path = "/v1/audit", params(AuditQuery), responses(
    (status = 200, description = "Actions, the latest first", body = AuditList),
    CommonProblems))]
async fn audit(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<AuditQuery>,
) -> Result<Json<AuditList>, Problem> {
    caller.need(Access::Admin)?;
    let before = query.before.unwrap_or(i64::MAX);
    let limit = page_size(query.limit)?;
    let filter = query.filter()?;
    let (actions, has_more) = app.lists().audit(&filter, before, limit).await?;
    let next = actions.last().filter(|_| has_more).map(|last| last.number);
    Ok(Json(AuditList { actions, next }))
}

/// Ask whether the process serves
#[utoipa::path(get, tag = "observe", path = "/healthz", security(()), responses(
    (status = 200, description = "It serves", body = Health)))]
async fn health(State(app): State<Arc<App>>) -> Json<Health> {
    Json(Health { status: "serving", database: app.has_database().await })
}

/// Read metrics, for Prometheus
#[utoipa::path(get, tag = "observe", path = "/metrics", security(()), responses(
    (status = 200, description = "Prometheus' text format", body = String,
        content_type = "text/plain")))]
async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let has_database = app.has_database().await;
    let mut last = app.metrics.lock().await;
    let now = Timestamp::now();
    last.take_if(|(at, _)| now.duration_since(*at).unsigned_abs() > METRICS_AGE_MAX);
    let make = || (now, Bytes::from(metrics_text(&app, has_database)));
    let text = last.get_or_insert_with(make).1.clone();
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text)
}

fn metrics_text(app: &App, has_database: bool) -> String {
    let set = Arc::clone(&app.published.borrow());
    let states = app.streams.states(set.version, set.at);
    let lag = app.streams.lag();
    let mut text = metrics::render(&set, (states, app.store.now()), &lag, has_database);
    metrics::render_rollout(&mut text, &set, &app.streams, &app.counts);
    metrics::render_objects(&mut text, &app.objects);
    text
}

// What a token may do, for clients that show only that.

/// The token of a request.
#[derive(Debug, Serialize, ToSchema)]
struct TokenView {
    /// Its name and id, as history and audit log show it.
    name: String,
    /// What it may do.
    access: Access,
    /// The domains that it may use; null for all.
    domains: Option<Vec<String>>,
    /// The domains that it may change; null for all. Access `read` changes none.
    writable: Option<Vec<String>>,
    /// Whether it is a person who signed in, who can sign out.
    is_session: bool,
    /// Bytes that its writes have added to history, versions and audit log, which are kept.
    kept_bytes: i64,
    /// Bytes that they may add; null for no bound.
    kept_bytes_max: Option<i64>,
}

/// Read what the token may do
#[utoipa::path(get, operation_id = "read", tag = "own_token", path = "/v1/token", responses(
    (status = 200, description = "The token of this request", body = TokenView), CommonProblems))]
async fn token(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<TokenView>, Problem> {
    let kept_bytes = app.lists().token(&caller.id).await?.map_or(0, |it| it.written);
    let kept_bytes_max = app.bytes_max_of(&caller);
    let access = caller.access();
    let domains = caller.domains().map(<[_]>::to_vec);
    let writable = caller.writable().map(<[_]>::to_vec);
    let is_session = caller.session.is_some();
    let name = caller.name;
    let view =
        TokenView { name, access, domains, writable, is_session, kept_bytes, kept_bytes_max };
    Ok(Json(view))
}

// Domains of the draft.

/// Domains that are read together: of each whether it differs from what is published.
const DOMAINS_PART: usize = 100;

/// Domains.
#[derive(Debug, Serialize, ToSchema)]
struct DomainList {
    /// The domains, by name.
    domains: Vec<DraftDomain>,
    /// `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// List domains
#[utoipa::path(get, operation_id = "list", tag = "domains", path = "/v1/domains", params(PageQuery),
    responses((status = 200, description = "The domains that the token may use", body = DomainList),
    CommonProblems))]
async fn domains(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<DomainList>, Problem> {
    let mut page = Page::new(page_size(query.limit.or(Some(PAGE_MAX)))?);
    let after = query.after.unwrap_or_default();
    check_text("after", &after)?;
    let store = app.lists();
    while let Some(asked) = page.wants(DOMAINS_PART) {
        let last = page.last().map_or(&*after, |it: &DraftDomain| &*it.name);
        let found = store.domains_after(caller.domains(), last, asked).await?;
        page.add_part(asked, found);
    }
    let (domains, next) = page.end(|it| it.name.clone());
    Ok(Json(DomainList { domains, next }))
}
