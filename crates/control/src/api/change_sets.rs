//! Change sets: drafts of one's own. A submission makes all changes of a set in the shared draft, or
//! none.
//!
//! A set has changes of rules, not copies of domains: two sets of one domain are in conflict only in
//! the rules that both change, and a base is known for each rule.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, Problem, QueryOf, WriteCall, WriteQuery, answer, check_new_domain,
    check_text,
};
use super::pages::{PAGE_MAX, Page, PageQuery, no_place, page_size, place, place_of};
use super::rules::check;
use crate::auth::{Access, Caller};
use crate::document::{Entry, FieldFault, Record, RuleId, check_entries};
use crate::store::{ChangeSet, DraftAuthor, SetChange, SetReader, StoreError, Write};

/// Maximum bytes of the name of a set.
const NAME_BYTES_MAX: usize = 200;

/// A set that is made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SetInput {
    /// The name that its author gives it.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
}

/// A change of one rule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SetChangeInput {
    /// The domain.
    domain: String,
    /// The entries of the rule.
    entries: Vec<Entry>,
    /// All settings that the rule is to have; null to remove it.
    #[schema(value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
    /// Whether the base is the rule as the shared draft has it now, and not the base of the former
    /// change.
    #[serde(default)]
    rebase: bool,
}

/// Change sets.
#[derive(Debug, Serialize, ToSchema)]
struct SetList {
    /// The sets, the latest first.
    change_sets: Vec<ChangeSet>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which sets to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct SetQuery {
    /// Before this place: `next` of the page before.
    before: Option<String>,
    /// At most so many, up to 1000, which is the default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Number of sets that are read together: each may have 200 domains.
const SETS_PART: usize = 20;

/// Number of changes of a set that are read together: the rule of the draft beside each may have
/// 64 KiB.
const CHANGES_PART: usize = 20;

/// A change set with its changes.
#[derive(Debug, Serialize, ToSchema)]
struct FullSet {
    #[serde(flatten)]
    set: ChangeSet,
    /// The changes, by domain and entries.
    changes: Vec<ComparedChange>,
    /// `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<RuleId>,
}

/// A change beside the shared draft.
#[derive(Debug, Serialize, ToSchema)]
struct ComparedChange {
    #[serde(flatten)]
    change: SetChange,
    /// The settings that the rule has in the shared draft now; null if it is not there.
    #[schema(value_type = Option<Object>)]
    current: Option<Map<String, Value>>,
    /// Whether the rule changed in the shared draft since the change was made, and differs from the
    /// result of the change.
    is_conflict: bool,
}

/// The result of a submission.
#[derive(Debug, Serialize, ToSchema)]
struct Submitted {
    /// The domains whose drafts changed.
    domains: Vec<String>,
    /// Number of rules that were added, changed or removed.
    changed: usize,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(list, create, read, remove, put_change, remove_change, submit))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/change-sets", get(list).post(create))
        .route("/v1/change-sets/{id}", get(read).delete(remove))
        .route("/v1/change-sets/{id}/rules", put(put_change))
        .route("/v1/change-sets/{id}/rules/{rule}", delete(remove_change))
        .route("/v1/change-sets/{id}/submit", post(submit))
}

/// List change sets
#[utoipa::path(get, tag = "change_sets", path = "/v1/change-sets", params(SetQuery), responses(
    (status = 200, description = "Those of the token, and those of domains that it may use",
        body = SetList), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<SetQuery>,
) -> Result<Json<SetList>, Problem> {
    let mut page = Page::new(page_size(query.limit.or(Some(PAGE_MAX)))?);
    let before = query.before.as_deref().map(place).transpose()?;
    let before = before.unwrap_or((i64::MAX, String::new()));
    let reader = SetReader {
        id: caller.id.clone(),
        sees_empty: caller.has(Access::Admin),
        domains: caller.domains().map(<[_]>::to_vec),
    };
    while let Some(asked) = page.wants(SETS_PART) {
        let of = |it: &ChangeSet| (it.created_at, it.id.clone());
        let last = page.last().map_or_else(|| before.clone(), of);
        let found = app.lists().change_sets(&reader, last, asked).await?;
        page.add_part(asked, found);
    }
    let (change_sets, next) = page.end(|it| place_of(it.created_at, &it.id));
    Ok(Json(SetList { change_sets, next }))
}

/// Make a change set
#[utoipa::path(post, tag = "change_sets", path = "/v1/change-sets", params(WriteQuery),
    request_body = SetInput, responses(
    (status = 201, description = "Made", body = ChangeSet, headers(("Location"))), CommonProblems))]
async fn create(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let SetInput { name } = call.json()?;
    check_text("name", &name)?;
    if name.trim().is_empty() || name.len() > NAME_BYTES_MAX {
        let fault = FieldFault::of("name", "expected a name of 1 to 200 bytes");
        return Err(Problem::faults("the change set needs a name", vec![fault]).into());
    }
    let mut random = [0; 9];
    let fault = |error: getrandom::Error| StoreError::Internal(error.to_string());
    getrandom::fill(&mut random).map_err(fault)?;
    let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut write = call.begin(&app).await?;
    let set = write.add_change_set(&id, &name).await?;
    let mut answer = answer(StatusCode::CREATED, None, &set);
    answer.location = format!("/v1/change-sets/{id}");
    call.finish_with(&app, write, answer).await
}

/// Read a change set
#[utoipa::path(get, tag = "change_sets", path = "/v1/change-sets/{id}",
    params(("id" = String, Path), PageQuery), responses(
    (status = 200, description = "The set, beside the shared draft", body = FullSet),
    CommonProblems))]
async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<FullSet>, Problem> {
    check_text("id", &id)?;
    let mut page = Page::new(page_size(query.limit.or(Some(PAGE_MAX)))?);
    let store = app.lists();
    let set = store.change_set(&id).await?.filter(|it| is_seen_by(&caller, it));
    let set = set.ok_or_else(|| no_set(&id))?;
    let mut changes = store.set_changes(&id).await?;
    if let Some(after) = &query.after {
        let at = changes.iter().position(|it| it.rule.as_str() == after);
        changes.drain(..=at.ok_or_else(|| no_place("after"))?);
    }
    let mut changes = changes.into_iter();
    while let Some(asked) = page.wants(CHANGES_PART) {
        let part: Vec<_> = changes.by_ref().take(asked).collect();
        let ids: Vec<_> = part.iter().map(|it| it.rule.as_str()).collect();
        let present = store.rules_of_ids(&ids).await?.into_iter();
        let mut present: HashMap<_, _> = present.map(|it| (it.id, it.record.settings)).collect();
        let compared = part.into_iter().map(|change| {
            let current = present.remove(&change.rule);
            ComparedChange { is_conflict: is_conflict(&change, current.as_ref()), change, current }
        });
        page.add_part(asked, compared.collect());
    }
    let (changes, next) = page.end(|it| it.change.rule.clone());
    Ok(Json(FullSet { set, changes, next }))
}

/// Remove a change set
///
/// The shared draft stays as it is.
#[utoipa::path(delete, tag = "change_sets", path = "/v1/change-sets/{id}",
    params(("id" = String, Path), WriteQuery),
    responses((status = 204, description = "Removed"), CommonProblems))]
async fn remove(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Ending> {
    let (mut write, _) = own(&app, &call, &id).await?;
    write.remove_change_set(&id).await?;
    call.finish(&app, write, StatusCode::NO_CONTENT, None, &()).await
}

/// Put a change of a rule into a change set
///
/// A former change of the rule is replaced. The new one keeps the base of the former one, unless
/// `rebase` is true.
#[utoipa::path(put, tag = "change_sets", path = "/v1/change-sets/{id}/rules",
    params(("id" = String, Path), WriteQuery), request_body = SetChangeInput, responses(
    (status = 200, description = "The change", body = SetChange), CommonProblems))]
async fn put_change(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Ending> {
    let SetChangeInput { domain, mut entries, settings, rebase } = call.json()?;
    check_new_domain(&domain)?;
    call.caller.need_domain(&domain)?;
    check_entries(&mut entries)?;
    if let Some(settings) = &settings {
        let record = Record { entries: entries.clone(), settings: settings.clone() };
        check(&app, &domain, &record).await?;
    }
    let rule = RuleId::of(&domain, &entries);
    let (mut write, _) = own(&app, &call, &id).await?;
    let former = write.set_changes(&id).await?.into_iter().find(|it| it.rule == rule);
    let before = match former.filter(|_| !rebase) {
        Some(former) => former.before,
        None => write.rule(rule.as_str()).await?.map(|it| it.record.settings),
    };
    let change = SetChange { rule, domain, entries, before, after: settings, put_by: None };
    write.put_set_change(&id, &change).await?;
    call.finish(&app, write, StatusCode::OK, None, &change).await
}

/// Take a change of a rule out of a change set
#[utoipa::path(delete, tag = "change_sets", path = "/v1/change-sets/{id}/rules/{rule}",
    params(("id" = String, Path), ("rule" = String, Path), WriteQuery),
    responses((status = 204, description = "Taken out"), CommonProblems))]
async fn remove_change(
    State(app): State<Arc<App>>,
    Path((id, rule)): Path<(String, String)>,
    call: WriteCall,
) -> Result<Response, Ending> {
    check_text("rule", &rule)?;
    let (mut write, _) = own(&app, &call, &id).await?;
    if !write.remove_set_change(&id, &rule).await? {
        return Err(Problem::no_rule(&rule).into());
    }
    call.finish(&app, write, StatusCode::NO_CONTENT, None, &()).await
}

/// Submit a change set to the shared draft
///
/// One transaction makes all changes and removes the set. If one of the rules changed in the shared
/// draft meanwhile, the call changes nothing, and `conflicts` lists the rules.
#[utoipa::path(post, tag = "change_sets", path = "/v1/change-sets/{id}/submit",
    params(("id" = String, Path), WriteQuery), responses(
    (status = 200, description = "In the shared draft", body = Submitted), CommonProblems))]
async fn submit(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Ending> {
    let (mut write, set) = own(&app, &call, &id).await?;
    set.domains.iter().try_for_each(|it| call.caller.need_domain(it))?;
    let submitted = apply(&mut write, &set).await?;
    write.remove_change_set(&id).await?;
    let subject = format!("{}: {}", set.name, submitted.domains.join(", "));
    write.note_action("change_set.submit", &subject).await?;
    call.finish(&app, write, StatusCode::OK, None, &submitted).await
}

/// Makes the changes of a set in the shared draft.
async fn apply(write: &mut Write, set: &ChangeSet) -> Result<Submitted, Problem> {
    let mut submitted = Submitted { domains: Vec::new(), changed: 0 };
    let mut conflicts = Vec::new();
    let author = DraftAuthor { name: set.author.clone(), person: set.person.clone() };
    for change in write.set_changes(&set.id).await? {
        let present = write.rule(change.rule.as_str()).await?;
        let current = present.as_ref().map(|it| it.record.settings.clone());
        if is_conflict(&change, current.as_ref()) {
            conflicts.push(ComparedChange { change, current, is_conflict: true });
            continue;
        }
        if !conflicts.is_empty() || current == change.after {
            continue;
        }
        let SetChange { domain, entries, after, put_by, .. } = change;
        match (present, after) {
            (Some(present), Some(after)) => drop(write.change_rule(&present, after).await?),
            (Some(present), None) => write.remove_rule(&present).await?,
            (None, Some(settings)) => {
                drop(write.add_rule(&domain, &Record { entries, settings }).await?);
            }
            (None, None) => {}
        }
        // The draft has three authors: the one who submits, the owner of the set, and the one who put
        // the change.
        for it in [&author].into_iter().chain(&put_by) {
            write.note_draft_author_of(&domain, it).await?;
        }
        submitted.changed += 1;
        if submitted.domains.last() != Some(&domain) {
            submitted.domains.push(domain);
        }
    }
    if conflicts.is_empty() {
        return Ok(submitted);
    }
    let rules = if conflicts.len() == 1 { "rule" } else { "rules" };
    let detail = format!(
        "{} {rules} of the change set changed in the shared draft meanwhile; look at 'conflicts', \
         and put each change again with rebase: true, or take it out. Nothing was done",
        conflicts.len()
    );
    Err(Problem::conflict("conflicts", detail).with("conflicts", json!(conflicts)))
}

/// Whether the rule in the shared draft is neither the base of the change nor its result.
fn is_conflict(change: &SetChange, current: Option<&Map<String, Value>>) -> bool {
    current != change.before.as_ref() && current != change.after.as_ref()
}

/// Whether a caller sees a set: it may use all domains of the set. Only the author and
/// administrators see an empty one.
fn is_seen_by(caller: &Caller, set: &ChangeSet) -> bool {
    let is_for = set.owner == caller.id || !set.domains.is_empty() || caller.has(Access::Admin);
    is_for && set.domains.iter().all(|it| caller.may_use(it))
}

/// Begins a write of a set, which its author or an administrator changes.
async fn own(app: &App, call: &WriteCall, id: &str) -> Result<(Box<Write>, ChangeSet), Ending> {
    check_text("id", id)?;
    let mut write = call.begin(app).await?;
    let set = write.change_set(id).await?.filter(|it| is_seen_by(&call.caller, it));
    let set = set.ok_or_else(|| no_set(id))?;
    if set.owner != call.caller.id && !call.caller.has(Access::Admin) {
        let author = ratelease_rules::excerpt(&set.author);
        let detail = format!("the change set is of '{author}', who alone changes and submits it");
        return Err(Problem::forbidden(detail).into());
    }
    Ok((write, set))
}

fn no_set(id: &str) -> Problem {
    let id = ratelease_rules::excerpt(id);
    Problem::not_found(format!("there is no change set '{id}'; it may have been submitted"))
}
