//! Rules in two short forms that say a number and a window; they are published at once.
//!
//! `/v1/policies/{id}` is one limit by the name of a policy, `/rules` one by who calls and which
//! endpoint. Both are rules of the domain [`DOMAIN`], and can be read and changed as such.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use ratelease_rules::request::scoped::DOMAIN;
use ratelease_rules::request::scoped::{self, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, IdOf, Problem, QueryOf, WriteCall, WriteQuery, answer, check_text,
};
use super::rules::{Change, Edit, check, make};
use crate::auth::Caller;
use crate::document::{Entry, FieldFault, Record, RuleId, check_entries};
use crate::store::{Answer, RuleFilter, StoredRule, Write};

/// The key of the entry that names a policy.
const POLICY: &str = "policy";

/// Seconds of a window that a policy does not name.
const WINDOW_SECONDS: u32 = 60;

/// A policy: a limit that requests name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policy {
    /// The id: the value of the entry `policy`, with which a request names it.
    #[serde(default)]
    policy_id: String,
    /// What is counted apart: the keys of the entries that follow, as in `userId:endpoint`.
    #[schema(min_length = 1)]
    key_type: String,
    /// As in rule files; `token_bucket` by default.
    #[serde(default = "token_bucket")]
    algorithm: String,
    /// Requests a second.
    rate_per_sec: f64,
    /// What the bucket holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    /// Seconds of the window, 60 by default. The limit is a whole number of requests in it.
    #[serde(default = "window_seconds")]
    window_sec: u32,
    /// What is answered when Redis cannot be asked: OPEN, CLOSED, LOCAL or ERROR.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fail_mode: Option<FailMode>,
}

/// What is answered when Redis cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
enum FailMode {
    /// The request passes.
    Open,
    /// It does not.
    Closed,
    /// Each pod counts its part.
    Local,
    /// An error, so that Envoy's setting decides.
    Error,
}

/// The `rate_limit` of these numbers.
fn limit(
    algorithm: &str,
    requests: u64,
    window_seconds: u32,
    burst: Option<u64>,
) -> Map<String, Value> {
    let mut limit = Map::new();
    limit.insert("unit".into(), "second".into());
    limit.insert("unit_multiplier".into(), window_seconds.into());
    limit.insert("requests_per_unit".into(), requests.into());
    limit.insert("algorithm".into(), algorithm.into());
    if let Some(burst) = burst {
        limit.insert("burst".into(), burst.into());
    }
    limit
}

/// Requests, seconds of the window, and burst of a rule that [`limit`] made; `None` for others.
fn numbers_of(rule: &StoredRule) -> Option<(u64, u32, Option<u64>)> {
    let limit = rule.record.settings.get("rate_limit")?;
    let number = |name: &str| limit.get(name)?.as_u64();
    let window = u32::try_from(number("unit_multiplier")?).ok()?;
    let numbers = (number("requests_per_unit")?, window, number("burst"));
    (limit.get("unit") == Some(&json!("second"))).then_some(numbers)
}

/// The algorithm of a rule; empty if it names none.
fn algorithm_of(rule: &StoredRule) -> String {
    let limit = rule.record.settings.get("rate_limit");
    let name = limit.and_then(|it| it.get("algorithm")?.as_str());
    name.unwrap_or_default().to_owned()
}

fn token_bucket() -> String {
    "token_bucket".to_owned()
}

fn window_seconds() -> u32 {
    WINDOW_SECONDS
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(read_policy, write_policy, list, create, read, change, remove))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/policies/{id}", get(read_policy).put(write_policy))
        .route("/api/v1/policies/{id}", get(read_policy).put(write_policy))
        .route("/rules", get(list).post(create))
        .route("/rules/{id}", get(read).put(change).delete(remove))
}

/// Read a policy
#[utoipa::path(get, operation_id = "read", tag = "policies", path = "/v1/policies/{id}",
    params(("id" = String, Path)), responses(
    (status = 200, description = "The policy", body = Policy), CommonProblems))]
async fn read_policy(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdOf(id): IdOf,
) -> Result<Json<Policy>, Problem> {
    caller.need_domain(DOMAIN)?;
    let filter = RuleFilter {
        domains: Some(vec![DOMAIN.to_owned()]),
        scope: Some(POLICY.to_owned()),
        scope_value: Some(id.clone()),
        text: None,
    };
    let found = app.lists().rules(&filter, None, 1).await?.rules.into_iter().next();
    let policy = found.as_ref().and_then(Policy::of);
    let id = ratelease_rules::excerpt(&id);
    policy.map(Json).ok_or_else(|| Problem::not_found(format!("there is no policy '{id}'")))
}

/// Make or change a policy, and publish it
#[utoipa::path(put, operation_id = "write", tag = "policies", path = "/v1/policies/{id}",
    params(("id" = String, Path), WriteQuery),
    request_body = Policy, responses(
    (status = 200, description = "Published, and committed", body = Policy), CommonProblems))]
async fn write_policy(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Ending> {
    let policy: Policy = call.json()?;
    call.caller.need_domain(DOMAIN)?;
    if !policy.policy_id.is_empty() && policy.policy_id != id {
        let fault = FieldFault::of("policyId", "is not the one of the path");
        return Err(Problem::faults("the policy has another id", vec![fault]).into());
    }
    let record = policy.record(&id)?;
    check(&app, DOMAIN, &record).await?;
    make(&app, &call, DOMAIN, true, &WrittenPolicy { id, record }).await
}

/// A policy that is made or changed.
struct WrittenPolicy {
    id: String,
    record: Record,
}

// === impl WrittenPolicy ===

impl Change for WrittenPolicy {
    async fn edit(&self, write: &mut Write) -> Result<Edit, Problem> {
        let present = write.rules_of_scope(DOMAIN, POLICY, &self.id).await?;
        // Another key type is another address.
        let (same, remove): (Vec<_>, Vec<_>) =
            present.into_iter().partition(|it| it.record.entries == self.record.entries);
        let put = Some(self.record.clone());
        Ok(Edit { remove, present: same.into_iter().next(), put })
    }

    fn action(&self) -> (&'static str, &str) {
        ("policy.set", &self.id)
    }

    fn answer(&self, rule: Option<StoredRule>) -> Answer {
        answer(StatusCode::OK, None, &rule.as_ref().and_then(Policy::of))
    }
}

// === impl Policy ===

impl Policy {
    /// The rule that it is.
    fn record(&self, id: &str) -> Result<Record, Problem> {
        let requests = (self.rate_per_sec * f64::from(self.window_sec)).round();
        if !(1.0..=f64::from(u32::MAX)).contains(&requests) {
            let message = format!(
                "is {requests} requests in {} s; expected at least one, so make windowSec longer",
                self.window_sec
            );
            let fault = FieldFault::of("ratePerSec", message);
            return Err(Problem::faults("the policy has no whole limit", vec![fault]));
        }
        let keys = self.key_type.split(':').map(|key| Entry::new(key, ""));
        let mut entries: Vec<_> = [Entry::new(POLICY, id)].into_iter().chain(keys).collect();
        check_entries(&mut entries)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        let requests = requests as u32;
        let burst = self.burst.map(u64::from);
        let mut limit = limit(&self.algorithm, requests.into(), self.window_sec, burst);
        if let Some(mode) = self.fail_mode {
            limit.insert("failure_mode".into(), mode.name().into());
        }
        let mut settings = Map::new();
        settings.insert("rate_limit".into(), limit.into());
        Ok(Record { entries, settings })
    }

    /// The policy that a rule is; `None` if the rule says something else.
    fn of(rule: &StoredRule) -> Option<Self> {
        let (policy, keys) = rule.record.entries.split_first()?;
        let (requests, window, burst) = numbers_of(rule)?;
        let requests = u32::try_from(requests).ok()?;
        let burst = burst.map(u32::try_from).transpose().ok()?;
        let mode = rule.record.settings.get("rate_limit")?.get("failure_mode");
        let mode = mode.and_then(Value::as_str);
        Some(Self {
            policy_id: policy.value.clone().unwrap_or_default(),
            key_type: keys.iter().map(|it| it.key.as_str()).collect::<Vec<_>>().join(":"),
            algorithm: algorithm_of(rule),
            rate_per_sec: f64::from(requests) / f64::from(window.max(1)),
            burst,
            window_sec: window,
            fail_mode: FailMode::ALL.into_iter().find(|it| Some(it.name()) == mode),
        })
    }
}

// === impl FailMode ===

impl FailMode {
    const ALL: [Self; 4] = [Self::Open, Self::Closed, Self::Local, Self::Error];

    /// The name in rule files.
    fn name(self) -> &'static str {
        match self {
            Self::Open => "allow",
            Self::Closed => "deny",
            Self::Local => "local",
            Self::Error => "error",
        }
    }
}

// `/rules`: rules by who calls and which endpoint, published at once. A pod asks for them at
// `/shouldAllow` and `/api/v1/rate_limit`.

/// Rules that one list shows.
const LIST_MAX: usize = 1000;

/// A rule by who calls and which endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ScopedRule {
    /// The id; of a rule that is written, it is left out.
    #[serde(default)]
    rule_id: String,
    /// Who calls, one of user, ip, org, api_key and tier: the key of the first entry.
    #[schema(pattern = "^(user|ip|org|api_key|tier)$")]
    #[serde(alias = "scope_type")]
    scope: String,
    /// Which one; without it, each counts apart.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    scope_value: String,
    /// The endpoint: the value of the entry `api`; without it, all.
    #[serde(default, alias = "api_endpoint", skip_serializing_if = "String::is_empty")]
    api: String,
    /// As in rule files; `token_bucket` by default.
    #[serde(default = "token_bucket")]
    algorithm: String,
    /// Requests in a window.
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    max_requests: u64,
    /// Seconds of the window.
    #[schema(minimum = 1)]
    window_seconds: u32,
    /// What the bucket holds.
    #[serde(default, alias = "burst_size", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    burst: Option<u64>,
    /// The number of its last change; of a rule that is written, it is left out.
    #[serde(default)]
    version: i64,
}

/// Which rules to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ScopeQuery {
    /// Of this scope.
    scope: Option<String>,
    /// Of this value of the scope.
    scope_value: Option<String>,
}

/// List rules by scope, at most 1000
#[utoipa::path(get, tag = "scoped", path = "/rules", params(ScopeQuery), responses(
    (status = 200, description = "The rules", body = Vec<ScopedRule>), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<ScopeQuery>,
) -> Result<Json<Vec<ScopedRule>>, Problem> {
    caller.need_domain(DOMAIN)?;
    let ScopeQuery { scope, scope_value } = query;
    check_text("scope", scope.as_deref().unwrap_or_default())?;
    check_text("scope_value", scope_value.as_deref().unwrap_or_default())?;
    let domains = Some(vec![DOMAIN.to_owned()]);
    let filter = RuleFilter { domains, scope, scope_value, text: None };
    let rules = app.lists().rules(&filter, None, LIST_MAX).await?.rules;
    Ok(Json(rules.iter().filter_map(ScopedRule::of).collect()))
}

/// Read a rule by its id
#[utoipa::path(get, tag = "scoped", path = "/rules/{id}", params(("id" = String, Path)), responses(
    (status = 200, description = "The rule", body = ScopedRule), CommonProblems))]
async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdOf(id): IdOf,
) -> Result<Json<ScopedRule>, Problem> {
    caller.need_domain(DOMAIN)?;
    let found = app.lists().rule(&id, Some(&[DOMAIN.to_owned()])).await?;
    found.as_ref().and_then(ScopedRule::of).map(Json).ok_or_else(|| Problem::no_rule(&id))
}

/// Add a rule, and publish it
#[utoipa::path(post, tag = "scoped", path = "/rules",
    params(WriteQuery), request_body = ScopedRule, responses(
    (status = 201, description = "Published, and committed", body = ScopedRule), CommonProblems))]
async fn create(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    write_scoped(&app, call, None).await
}

/// Change the limit of a rule, and publish it
#[utoipa::path(put, tag = "scoped", path = "/rules/{id}", params(("id" = String, Path), WriteQuery),
    request_body = ScopedRule, responses(
    (status = 200, description = "Published, and committed", body = ScopedRule), CommonProblems))]
async fn change(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Ending> {
    write_scoped(&app, call, Some(id)).await
}

/// Remove a rule, and publish that
#[utoipa::path(delete, tag = "scoped", path = "/rules/{id}",
    params(("id" = String, Path), WriteQuery),
    responses((status = 204, description = "Published, and committed"), CommonProblems))]
async fn remove(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Ending> {
    call.caller.need_domain(DOMAIN)?;
    make(&app, &call, DOMAIN, true, &RemovedRule { id }).await
}

/// Adds a rule, or changes the one of this id, which may move to another scope or endpoint.
async fn write_scoped(app: &App, call: WriteCall, id: Option<String>) -> Result<Response, Ending> {
    let input: ScopedRule = call.json()?;
    call.caller.need_domain(DOMAIN)?;
    let record = input.record()?;
    check(app, DOMAIN, &record).await?;
    let change = WrittenRule { id, address: record.id(DOMAIN), record };
    make(app, &call, DOMAIN, true, &change).await
}

/// A rule that is removed.
struct RemovedRule {
    id: String,
}

/// A rule that is added, or changed if there is an id.
struct WrittenRule {
    id: Option<String>,
    /// The id of its scope and endpoint.
    address: RuleId,
    record: Record,
}

/// The rule of this id.
async fn known(write: &mut Write, id: &str) -> Result<StoredRule, Problem> {
    let found = write.rule(id).await?.filter(|it| it.domain == DOMAIN);
    found.ok_or_else(|| Problem::no_rule(id))
}

// === impl RemovedRule ===

impl Change for RemovedRule {
    async fn edit(&self, write: &mut Write) -> Result<Edit, Problem> {
        Ok(Edit { remove: vec![known(write, &self.id).await?], ..Edit::default() })
    }

    fn action(&self) -> (&'static str, &str) {
        ("rule.remove", &self.id)
    }

    fn answer(&self, _: Option<StoredRule>) -> Answer {
        answer(StatusCode::NO_CONTENT, None, &())
    }
}

// === impl WrittenRule ===

impl Change for WrittenRule {
    async fn edit(&self, write: &mut Write) -> Result<Edit, Problem> {
        let present = match &self.id {
            None => None,
            Some(id) => Some(known(write, id).await?),
        };
        let put = Some(self.record.clone());
        if present.as_ref().is_some_and(|it| it.id == self.address) {
            return Ok(Edit { present, put, ..Edit::default() });
        }
        if write.rule(self.address.as_str()).await?.is_some() {
            let detail = format!("there is a rule of this scope, value and api: {}", self.address);
            return Err(Problem::conflict("duplicate", detail));
        }
        Ok(Edit { remove: present.into_iter().collect(), put, present: None })
    }

    fn action(&self) -> (&'static str, &str) {
        let action = if self.id.is_some() { "rule.change" } else { "rule.add" };
        (action, self.address.as_str())
    }

    fn answer(&self, rule: Option<StoredRule>) -> Answer {
        let status = if self.id.is_some() { StatusCode::OK } else { StatusCode::CREATED };
        answer(status, None, &rule.as_ref().and_then(ScopedRule::of))
    }
}

// === impl ScopedRule ===

impl ScopedRule {
    /// The rule that it is.
    fn record(&self) -> Result<Record, Problem> {
        let scope = Scope::named(&self.scope).map_err(|message| {
            let fault = FieldFault::of("scope", message);
            Problem::faults("the rule has no good scope", vec![fault])
        })?;
        let entries = scoped::entries(scope, &self.scope_value, &self.api);
        let mut entries: Vec<_> = entries.iter().map(|it| Entry::new(it.key, it.value)).collect();
        check_entries(&mut entries)?;
        let limit = limit(&self.algorithm, self.max_requests, self.window_seconds, self.burst);
        let mut settings = Map::new();
        settings.insert("rate_limit".into(), limit.into());
        Ok(Record { entries, settings })
    }

    /// The form of a rule; `None` if the rule says what the form cannot.
    fn of(rule: &StoredRule) -> Option<Self> {
        let (scope, api) = match &*rule.record.entries {
            [scope] => (scope, None),
            [scope, api] if api.key == scoped::API => (scope, api.value.clone()),
            _ => return None,
        };
        let (max_requests, window_seconds, burst) = numbers_of(rule)?;
        Some(Self {
            rule_id: rule.id.to_string(),
            scope: scope.key.clone(),
            scope_value: scope.value.clone().unwrap_or_default(),
            api: api.unwrap_or_default(),
            algorithm: algorithm_of(rule),
            max_requests,
            window_seconds,
            burst,
            version: rule.revision,
        })
    }
}
