//! `/rules`: rules by who calls and which endpoint, published at once.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::call::{Begun, QueryOf, WriteCall, WriteQuery, check_text};
use super::policies::{DOMAIN, algorithm_of, limit, numbers_of, token_bucket};
use super::problem::{CommonProblems, Problem};
use super::publishing::{is_clean, publish_change};
use super::rules::check;
use crate::auth::Caller;
use crate::document::{Entry, Record, check_entries};
use crate::store::{RuleFilter, StoredRule};

/// The key of the entry that names an endpoint.
const API: &str = "api";

/// Rules that one list shows.
const LIST_MAX: usize = 1000;

/// A rule by who calls and which endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScopedRule {
    /// The id; of a rule that is written, it is left out.
    #[serde(default)]
    rule_id: String,
    /// Who calls, as in user, ip, org, api_key or tier: the key of the first entry.
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
    let rules = app.store.rules(&filter, None, LIST_MAX).await?.rules;
    Ok(Json(rules.iter().filter_map(ScopedRule::of).collect()))
}

/// Read a rule by its id
#[utoipa::path(get, path = "/rules/{id}", params(("id" = String, Path)), responses(
    (status = 200, description = "The rule", body = ScopedRule), CommonProblems))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ScopedRule>, Problem> {
    check_text("id", &id)?;
    caller.need_domain(DOMAIN)?;
    let found = app.store.rule(&id).await?.filter(|it| it.domain == DOMAIN);
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
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Problem> {
    check_text("id", &id)?;
    write(&app, call, Some(id)).await
}

/// Remove a rule, and publish that
#[utoipa::path(delete, path = "/rules/{id}", params(("id" = String, Path), WriteQuery),
    responses((status = 204, description = "Published, and committed"), CommonProblems))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Problem> {
    check_text("id", &id)?;
    call.caller.need_domain(DOMAIN)?;
    let mut write = match call.begin(&app).await? {
        Begun::New(write) => write,
        Begun::Repeated(response) => return Ok(*response),
    };
    let present = write.rule(&id).await?.filter(|it| it.domain == DOMAIN);
    let present = present.ok_or_else(|| Problem::no_rule(&id))?;
    let was_clean = is_clean(&mut write, DOMAIN, true).await?;
    write.remove_rule(&present).await?;
    write.note_action("rule.remove", &id).await?;
    publish_change(&app, &mut write, DOMAIN, was_clean).await?;
    call.finish(&app, write, StatusCode::NO_CONTENT, None, &()).await
}

/// Adds a rule, or changes the one of this id, which may move to another scope or endpoint.
async fn write(app: &App, call: WriteCall, id: Option<String>) -> Result<Response, Problem> {
    let input: ScopedRule = call.json()?;
    call.caller.need_domain(DOMAIN)?;
    let record = input.record()?;
    check(app, DOMAIN, &record).await?;
    let mut write = match call.begin(app).await? {
        Begun::New(write) => write,
        Begun::Repeated(response) => return Ok(*response),
    };
    let was_clean = is_clean(&mut write, DOMAIN, true).await?;
    let address = record.id(DOMAIN);
    let present = match &id {
        None => None,
        Some(id) => {
            let present = write.rule(id).await?.filter(|it| it.domain == DOMAIN);
            Some(present.ok_or_else(|| Problem::no_rule(id))?)
        }
    };
    let rule = match present {
        Some(present) if present.id == address => {
            write.change_rule(&present, record.settings).await?
        }
        moved => {
            if write.rule(address.as_str()).await?.is_some() {
                let detail = format!("there is a rule of this scope, value and api: {address}");
                return Err(Problem::conflict("duplicate", detail));
            }
            if let Some(moved) = moved {
                write.remove_rule(&moved).await?;
            }
            write.add_rule(DOMAIN, &record).await?
        }
    };
    let (action, status) = match id {
        None => ("rule.add", StatusCode::CREATED),
        Some(_) => ("rule.change", StatusCode::OK),
    };
    write.note_action(action, address.as_str()).await?;
    publish_change(app, &mut write, DOMAIN, was_clean).await?;
    let view = ScopedRule::of(&rule);
    call.finish(app, write, status, None, &view).await
}

// === impl ScopedRule ===

impl ScopedRule {
    /// The rule that it is.
    fn record(&self) -> Result<Record, Problem> {
        let scope = Entry::new(&*self.scope, &*self.scope_value);
        let api = (!self.api.is_empty()).then(|| Entry::new(API, &*self.api));
        let mut entries: Vec<_> = [scope].into_iter().chain(api).collect();
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
            [scope, api] if api.key == API => (scope, api.value.clone()),
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
