//! What pods run, who did what, and what a token may do.

use std::cmp::{Ordering, Reverse};
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

use super::call::{
    CommonProblems, HistoryQuery, PAGE_MAX, Problem, QueryOf, check_text, page_size, time,
};
use super::rollouts::is_seen_by;
use super::{App, METRICS_AGE_MAX};
use crate::auth::{Access, Caller};
use crate::metrics;
use crate::push::{BusiestPod, DomainSums, FleetSums, KeySums};
use crate::store::{AuditRow, DraftDomain, HitCount, PodRow};

/// Pods. A token for some domains sees those that get one of them, and of the versions the last one
/// up to each that changes one of them.
#[derive(Debug, Serialize, ToSchema)]
struct PodList {
    /// The last version.
    version: i64,
    /// The streams of pods that are open, by node.
    pods: Vec<PodView>,
    /// `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which pods to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct PodQuery {
    /// After this place: `next` of the page before.
    after: Option<String>,
    /// At most so many, up to 1000, which is the default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// The stream of a pod for one type of resources.
#[derive(Debug, Serialize, ToSchema)]
struct PodView {
    /// The id of its node.
    node: String,
    /// Its address.
    peer: String,
    /// The name of its program.
    agent: String,
    /// The type of resources.
    #[serde(rename = "type")]
    type_url: String,
    /// The replica of the control plane that it is connected to.
    replica: String,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    connected_at: String,
    /// The version that it was sent last; 0 for none.
    sent: i64,
    /// The version that it runs; 0 for none.
    accepted: i64,
    /// The version that it refused, if it refused the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<i64>,
    /// Why it refused that, or which domains its type cannot say. Only for tokens of all domains,
    /// because it may quote the rules of any.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// The rollout that chose it, if it has the rules of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<i64>,
    /// Whether it reports hits of its domains while a rollout is under way.
    reports: bool,
}

/// What pods deny. A token for some domains sees these.
#[derive(Debug, Serialize, ToSchema)]
struct FleetView {
    /// Domains, that with the largest denied share first.
    domains: Vec<DomainView>,
    /// Keys, the hottest first.
    keys: Vec<KeyView>,
}

/// The hits of a domain in the last one to two minutes, as pods report them.
#[derive(Debug, Serialize, ToSchema)]
struct DomainView {
    /// Its name.
    domain: String,
    /// All hits of limits.
    hits: u64,
    /// Those that were denied.
    denied: u64,
    /// The share of these, 0 to 1.
    denied_share: f64,
    /// Those that would have been denied, but for shadow mode.
    shadow_denied: u64,
    /// How many pods had hits.
    pods: u64,
    /// The pod that had the most hits.
    busiest: BusiestPod,
}

/// The hits of a key in the last one to two minutes, estimated by the pods of which it is one of the
/// ten hottest.
#[derive(Debug, Serialize, ToSchema)]
struct KeyView {
    /// Its hash, as in the name of its count in Redis.
    key: String,
    /// Its domain.
    domain: String,
    /// The path of its rule.
    rule: String,
    /// Its entries, if pods show them (`HOT_KEYS_VALUES`).
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<String>,
    /// All hits.
    hits: u64,
    /// Those that were denied.
    denied: u64,
    /// How many pods report it.
    pods: u64,
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
pub(super) struct Calls;

/// The calls.
pub(super) fn calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/domains", get(domains))
        .route("/v1/pods", get(pods))
        .route("/v1/fleet", get(fleet))
        .route("/v1/token", get(token))
        .route("/v1/audit", get(audit))
}

/// What needs no token.
pub(super) fn probes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(health)).route("/metrics", get(metrics))
}

/// List pods
#[utoipa::path(get, tag = "observe", path = "/v1/pods", params(PodQuery), responses(
    (status = 200, description = "The pods that are connected to any replica", body = PodList),
    CommonProblems))]
async fn pods(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<PodQuery>,
) -> Result<Json<PodList>, Problem> {
    let limit = page_size(query.limit.or(Some(PAGE_MAX)))?;
    let after = query.after.unwrap_or_default();
    check_text("after", &after)?;
    let mut version = app.lists().last_version().await?;
    let (mut pods, has_more) = app.lists().pods(caller.domains(), &after, limit).await?;
    let next = pods.last().filter(|_| has_more).map(PodRow::place);
    if let Some(domains) = caller.domains() {
        let open = app.lists().open_rollout().await?.filter(|it| is_seen_by(&caller, it));
        let mut versions = OwnVersions { app: &app, domains, known: BTreeMap::new() };
        version = versions.last_until(version).await?;
        for pod in &mut pods {
            versions.show(pod).await?;
            pod.fault.clear();
            if open.as_ref().is_none_or(|it| it.id != pod.chosen_by) {
                pod.chosen_by = 0;
            }
        }
    }
    let pods = pods.into_iter().map(PodView::from).collect();
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
    let mut sums = FleetSums::default();
    // What a replica of another release wrote, and this one cannot read, is left out.
    for text in app.lists().fleets().await? {
        sums.add(serde_json::from_str(&text).unwrap_or_default());
    }
    let domains = sums.domains.into_iter().filter(|(domain, _)| caller.may_use(domain));
    let mut domains: Vec<_> = domains.map(DomainView::from).collect();
    let rank = |it: &DomainView| (it.denied_share, it.hits);
    domains.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(Ordering::Equal));
    domains.truncate(limit);
    let keys = sums.keys.into_iter().filter(|(domain, _)| caller.may_use(domain));
    let of_domain = |(domain, keys): (String, BTreeMap<_, _>)| {
        keys.into_iter().map(move |key| KeyView::of(domain.clone(), key))
    };
    let mut keys: Vec<_> = keys.flat_map(of_domain).collect();
    keys.sort_by_key(|it| Reverse(it.hits));
    keys.truncate(limit);
    Ok(Json(FleetView { domains, keys }))
}

// === impl DomainView ===

impl From<(String, DomainSums)> for DomainView {
    fn from((domain, sums): (String, DomainSums)) -> Self {
        let DomainSums { count, pods, busiest } = sums;
        Self {
            domain,
            hits: count.hits,
            denied: count.denied,
            denied_share: count.denied_share().unwrap_or_default(),
            shadow_denied: count.shadow,
            pods,
            busiest,
        }
    }
}

// === impl KeyView ===

impl KeyView {
    fn of(domain: String, (key, sums): (String, KeySums)) -> Self {
        let KeySums { rule, values, count: HitCount { hits, denied, .. }, pods } = sums;
        Self { key, domain, rule, values, hits, denied, pods }
    }
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

/// Read the audit log
#[utoipa::path(get, tag = "observe", path = "/v1/audit", params(HistoryQuery), responses(
    (status = 200, description = "Actions, the latest first", body = AuditList),
    CommonProblems))]
async fn audit(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<AuditList>, Problem> {
    caller.need(Access::Admin)?;
    let before = query.before.unwrap_or(i64::MAX);
    let limit = page_size(query.limit)?;
    let (actions, has_more) = app.lists().audit(before, limit).await?;
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
    let mut text = metrics::render(&set, states, &lag, has_database);
    metrics::render_rollout(&mut text, &set, &app.streams, &app.counts);
    metrics::render_objects(&mut text, &app.objects);
    text
}

impl From<PodRow> for PodView {
    fn from(row: PodRow) -> Self {
        Self {
            node: row.node,
            peer: row.peer,
            agent: row.agent,
            type_url: row.type_url,
            replica: row.replica,
            connected_at: time(row.connected_at),
            sent: row.sent,
            accepted: row.accepted,
            refused: Some(row.refused).filter(|version| *version > 0),
            fault: Some(row.fault).filter(|fault| !fault.is_empty()),
            rollout: Some(row.chosen_by).filter(|id| *id > 0),
            reports: row.reports,
        }
    }
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
    Ok(Json(TokenView { name: caller.name, access, domains, kept_bytes, kept_bytes_max }))
}

// Domains of the draft.

/// Domains.
#[derive(Debug, Serialize, ToSchema)]
struct DomainList {
    /// The domains, by name.
    domains: Vec<DraftDomain>,
}

/// List domains
#[utoipa::path(get, operation_id = "list", tag = "domains", path = "/v1/domains", responses(
    (status = 200, description = "The domains that the token may use", body = DomainList),
    CommonProblems))]
async fn domains(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<DomainList>, Problem> {
    let domains = app.lists().domains().await?.into_iter().filter(|it| caller.may_use(&it.name));
    Ok(Json(DomainList { domains: domains.collect() }))
}
