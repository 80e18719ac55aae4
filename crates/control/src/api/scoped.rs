//! `/rules`: rules by who calls and which endpoint, published at once. A pod asks for them at
//! `/shouldAllow` and `/api/v1/rate_limit`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use ratelease_rules::request::scoped::{self, Scope};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::call::{IdOf, QueryOf, WriteCall, WriteQuery, answer, check_text};
use super::change::{Change, Edit, make};
use super::policies::{DOMAIN, algorithm_of, limit, numbers_of, token_bucket};
use super::problem::{CommonProblems, FieldFault, Problem};
use super::rules::check;
use crate::auth::Caller;
use crate::document::{Entry, Record, RuleId, check_entries};
use crate::store::{Answer, RuleFilter, StoredRule, Write};

/// Rules that one list shows.
const LIST_MAX: usize = 1000;

/// A rule by who calls and which endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScopedRule {
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
    max_requests: u32,
    /// Seconds of the window.
    #[schema(minimum = 1)]
    window_seconds: u32,
    /// What the bucket holds.
    #[serde(default, alias = "burst_size", skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    /// The number of its last change; of a rule that is written, it is left out.
    #[serde(default)]
    version: i64,
}

/// Which rules to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ScopeQuery {
    /// Of this scope.
    scope: Option<String>,
    /// Of this value of the scope.
    scope_value: Option<String>,
}

/// List rules by scope, at most 1000
#[utoipa::path(get, path = "/rules", params(ScopeQuery), responses(
    (status = 200, description = "The rules", body = Vec<ScopedRule>), CommonProblems))]
pub(super) async fn list(
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
#[utoipa::path(get, path = "/rules/{id}", params(("id" = String, Path)), responses(
    (status = 200, description = "The rule", body = ScopedRule), CommonProblems))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdOf(id): IdOf,
) -> Result<Json<ScopedRule>, Problem> {
    caller.need_domain(DOMAIN)?;
    let found = app.lists().rule(&id, Some(&[DOMAIN.to_owned()])).await?;
    found.as_ref().and_then(ScopedRule::of).map(Json).ok_or_else(|| Problem::no_rule(&id))
}

/// Add a rule, and publish it
#[utoipa::path(post, path = "/rules", params(WriteQuery), request_body = ScopedRule, responses(
    (status = 201, description = "Published, and committed", body = ScopedRule), CommonProblems))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    call: WriteCall,
) -> Result<Response, Problem> {
    write(&app, call, None).await
}

/// Change the limit of a rule, and publish it
#[utoipa::path(put, path = "/rules/{id}", params(("id" = String, Path), WriteQuery),
    request_body = ScopedRule, responses(
    (status = 200, description = "Published, and committed", body = ScopedRule), CommonProblems))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Problem> {
    write(&app, call, Some(id)).await
}

/// Remove a rule, and publish that
#[utoipa::path(delete, path = "/rules/{id}", params(("id" = String, Path), WriteQuery),
    responses((status = 204, description = "Published, and committed"), CommonProblems))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Problem> {
    call.caller.need_domain(DOMAIN)?;
    make(&app, &call, DOMAIN, true, &RemovedRule { id }).await
}

/// Adds a rule, or changes the one of this id, which may move to another scope or endpoint.
async fn write(app: &App, call: WriteCall, id: Option<String>) -> Result<Response, Problem> {
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
