//! Rules of the draft: read, added, changed, removed; published at once if the call asks for it;
//! and what changed in each.

use std::slice::from_ref;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderValue, StatusCode, header};
use ratelease_rules::MapKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, OpenApi, PartialSchema, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, IdOf, Problem, QueryOf, WriteCall, WriteQuery, answer,
    check_new_domain, check_search, check_text, time,
};
use super::pages::{HistoryQuery, page_size};
use super::publish::{
    ATTEMPTS_MAX, Approved, approve, compile_all, publish_texts, unpublished_changes,
};
use crate::auth::Caller;
use crate::document::{self, Document, Entry, FieldFault, Record, RuleId, check_entries};
use crate::store::{Answer, ChangeRow, PublishedText, RuleFilter, RulePosition, StoredRule, Write};

/// A rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct RuleView {
    /// The id, which domain and entries determine.
    id: RuleId,
    /// The domain.
    domain: String,
    /// The entries that lead to the rule.
    entries: Vec<Entry>,
    #[serde(flatten)]
    #[schema(value_type = RuleSettings)]
    settings: Map<String, Value>,
    /// Its place: of the rules of a domain, wildcards are tried in this order.
    position: i64,
    /// The number of its last change, which is also its `ETag`.
    revision: i64,
    /// When that was.
    #[schema(value_type = String, format = DateTime)]
    updated_at: String,
    /// The token that made it.
    updated_by: String,
}

/// What a rule says, as in a rule file: the options of a descriptor, from their table in
/// `ratelease-rules`. The compiler checks all of it.
struct RuleSettings;

/// The options of a descriptor that say where a rule stands.
const STRUCTURE: [&str; 3] = ["key", "value", "descriptors"];

/// Stands for a domain or key that is missing, while the other fields are checked.
const UNNAMED: &str = "unnamed";

/// A rule that is added, or the new settings of one. Fields that a rule has when it is read may be
/// sent back.
#[derive(Debug, Deserialize, ToSchema)]
struct RuleInput {
    /// The domain; of a rule that is changed, it may be left out.
    #[schema(min_length = 1, max_length = 1024)]
    domain: Option<String>,
    /// The entries; of a rule that is changed, they may be left out.
    entries: Option<Vec<Entry>>,
    #[serde(flatten)]
    #[schema(value_type = RuleSettings)]
    settings: Map<String, Value>,
}

/// Fields that a rule has beside its settings when it is read. Sent back, they say nothing.
const READ_ONLY: [&str; 5] = ["id", "position", "revision", "updated_at", "updated_by"];

/// Which rules to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Of this domain.
    domain: Option<String>,
    /// Whose first entry has this key, as in `user_id`.
    scope: Option<String>,
    /// Whose first entry has this value; empty for rules without one.
    value: Option<String>,
    /// Whose entries or settings, but for `metadata`, contain this text, of at most 128 bytes, in
    /// whatever case. A page of a search may have no rules and lead to a further one.
    #[param(max_length = 128)]
    q: Option<String>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// A page of rules.
#[derive(Debug, Serialize, ToSchema)]
struct RuleList {
    /// The rules, by domain and position.
    rules: Vec<RuleView>,
    /// The `cursor` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(list, create, read, change, remove, history))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/rules", get(list).post(create))
        .route("/v1/rules/{id}", get(read).put(change).delete(remove))
        .route("/v1/rules/{id}/history", get(history))
}

/// List rules of the draft
#[utoipa::path(get, tag = "rules", path = "/v1/rules", params(ListQuery), responses(
    (status = 200, description = "A page of rules", body = RuleList), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<ListQuery>,
) -> Result<Json<RuleList>, Problem> {
    let ListQuery { domain, scope, value, q, limit, cursor } = query;
    for (name, text) in [("domain", &domain), ("scope", &scope), ("value", &value), ("q", &q)] {
        check_text(name, text.as_deref().unwrap_or_default())?;
    }
    check_search(q.as_deref().unwrap_or_default())?;
    if let Some(domain) = &domain {
        caller.need_domain(domain)?;
    }
    let domains = domain.map(|it| vec![it]).or_else(|| caller.domains().map(<[_]>::to_vec));
    let filter = RuleFilter { domains, scope, scope_value: value, text: q };
    let after = cursor.map(|text| position(&text)).transpose()?;
    let page = app.lists().rules(&filter, after.as_ref(), page_size(limit)?).await?;
    let rules = page.rules.into_iter().map(RuleView::from).collect();
    Ok(Json(RuleList { rules, next: page.next.map(|it| cursor_of(&it)) }))
}

/// Add a rule to the draft
#[utoipa::path(post, tag = "rules", path = "/v1/rules",
    params(WriteQuery), request_body = RuleInput, responses(
    (status = 201, description = "Added; published too if `publish` asks for it",
        body = RuleView, headers(("ETag"), ("Location"))), CommonProblems))]
async fn create(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let input = RuleInput::of(&call)?;
    let given = [("domain", input.domain.is_some()), ("entries", input.entries.is_some())];
    let missing = given.into_iter().filter(|(_, is_given)| !is_given);
    let mut faults: Vec<_> =
        missing.map(|(field, _)| FieldFault::of(field, "is missing")).collect();
    // What is missing keeps no other fault from being found.
    let domain = input.domain.unwrap_or_else(|| UNNAMED.to_owned());
    let mut entries = input.entries.unwrap_or_else(|| vec![Entry::new(UNNAMED, "")]);
    check_new_domain(&domain)?;
    if !faults.iter().any(|it| it.field == "domain") {
        call.caller.need_domain(&domain)?;
    }
    check_entries(&mut entries)?;
    let record = Record { entries, settings: input.settings };
    match check(&app, &domain, &record).await {
        Err(problem) if problem.errors.is_empty() || faults.is_empty() => {
            return Err(problem.into());
        }
        Err(problem) => faults.extend(problem.errors),
        Ok(()) => {}
    }
    if !faults.is_empty() {
        return Err(Problem::faults("the rule cannot be added; fix each field", faults).into());
    }
    let change = NewRule { id: record.id(&domain), record };
    make(&app, &call, &domain, call.publishes, &change).await
}

/// Read a rule of the draft
#[utoipa::path(get, tag = "rules", path = "/v1/rules/{id}",
    params(("id" = String, Path)), responses(
    (status = 200, description = "The rule", body = RuleView, headers(("ETag"))), CommonProblems))]
async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdOf(id): IdOf,
) -> Result<Response, Problem> {
    let rule = app.lists().rule(&id, caller.domains()).await?;
    let rule = rule.ok_or_else(|| Problem::no_rule(&id))?;
    let etag = HeaderValue::from_str(&etag(&rule));
    let mut response = Json(RuleView::from(rule)).into_response();
    if let Ok(etag) = etag {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// Change a rule of the draft
///
/// The body has all settings that the rule will have. `If-Match` is required.
#[utoipa::path(put, tag = "rules", path = "/v1/rules/{id}",
    params(("id" = String, Path), ("If-Match" = String, Header), WriteQuery),
    request_body = RuleInput, responses(
    (status = 200, description = "Changed", body = RuleView, headers(("ETag"))), CommonProblems))]
async fn change(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Ending> {
    let input = RuleInput::of(&call)?;
    let known = known(&app, &call, &id).await?;
    keep_address(&known, &input)?;
    let record = Record { entries: known.record.entries, settings: input.settings };
    check(&app, &known.domain, &record).await?;
    let change = ChangedRule { app: &app, call: &call, id: &id, record: Some(record) };
    make(&app, &call, &known.domain, call.publishes, &change).await
}

/// Remove a rule from the draft
///
/// `If-Match` is required.
#[utoipa::path(delete, tag = "rules", path = "/v1/rules/{id}",
    params(("id" = String, Path), ("If-Match" = String, Header), WriteQuery),
    responses((status = 204, description = "Removed"), CommonProblems))]
async fn remove(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Ending> {
    let known = known(&app, &call, &id).await?;
    let change = ChangedRule { app: &app, call: &call, id: &id, record: None };
    make(&app, &call, &known.domain, call.publishes, &change).await
}

/// The rule of this id that the caller may use. One of another domain is answered as one that is
/// not there: an id can be computed from a domain and entries that are guessed.
async fn known(app: &App, call: &WriteCall, id: &str) -> Result<StoredRule, Problem> {
    let found = app.store.rule(id, call.caller.domains()).await?;
    found.ok_or_else(|| Problem::no_rule(id))
}

/// A rule that is added.
struct NewRule {
    id: RuleId,
    record: Record,
}

/// A rule that is changed, or removed if there is no record.
struct ChangedRule<'c> {
    app: &'c App,
    call: &'c WriteCall,
    id: &'c str,
    record: Option<Record>,
}

// === impl NewRule ===

impl Change for NewRule {
    async fn edit(&self, write: &mut Write) -> Result<Edit, Problem> {
        if let Some(present) = write.rule(self.id.as_str()).await? {
            let detail = "there is a rule of this domain and these entries; change it instead";
            let present = json!(RuleView::from(present));
            return Err(Problem::conflict("duplicate", detail).with("current", present));
        }
        Ok(Edit { put: Some(self.record.clone()), ..Edit::default() })
    }

    fn action(&self) -> (&'static str, &str) {
        ("rule.add", self.id.as_str())
    }

    fn answer(&self, rule: Option<StoredRule>) -> Answer {
        let etag = rule.as_ref().map(etag);
        let location = format!("/v1/rules/{}", self.id);
        Answer { location, ..answer(StatusCode::CREATED, etag, &rule.map(RuleView::from)) }
    }
}

// === impl ChangedRule ===

impl Change for ChangedRule<'_> {
    async fn edit(&self, write: &mut Write) -> Result<Edit, Problem> {
        let present = write.rule(self.id).await?.ok_or_else(|| Problem::no_rule(self.id))?;
        if !self.call.matches(&etag(&present))? {
            return Err(changed_meanwhile(self.app, present).await);
        }
        Ok(match &self.record {
            None => Edit { remove: vec![present], ..Edit::default() },
            Some(put) => Edit { present: Some(present), put: Some(put.clone()), ..Edit::default() },
        })
    }

    fn action(&self) -> (&'static str, &str) {
        (if self.record.is_some() { "rule.change" } else { "rule.remove" }, self.id)
    }

    fn answer(&self, rule: Option<StoredRule>) -> Answer {
        let Some(rule) = rule else { return answer(StatusCode::NO_CONTENT, None, &()) };
        let etag = Some(etag(&rule));
        answer(StatusCode::OK, etag, &RuleView::from(rule))
    }
}

fn etag(rule: &StoredRule) -> String {
    format!("\"{}\"", rule.revision)
}

fn cursor_of(position: &RulePosition) -> String {
    let RulePosition { domain, position, id } = position;
    URL_SAFE_NO_PAD.encode(json!([domain, position, id]).to_string())
}

fn position(cursor: &str) -> Result<RulePosition, Problem> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let read = bytes.and_then(|it| serde_json::from_slice::<(String, i64, String)>(&it).ok());
    let expected = || {
        let fault = FieldFault::of("cursor", "is not one that a list had as 'next'");
        Problem::faults("the query has a fault", vec![fault])
    };
    let (domain, position, id) = read.ok_or_else(expected)?;
    check_text("cursor", &domain)?;
    check_text("cursor", &id)?;
    Ok(RulePosition { domain, position, id })
}

/// Compiles a rule alone, under the defaults of its domain. What it contradicts in other rules is
/// found when the domain is checked.
pub async fn check(app: &App, domain: &str, record: &Record) -> Result<(), Problem> {
    let misplaced = STRUCTURE
        .into_iter()
        .filter(|name| record.settings.contains_key(*name))
        .map(|name| FieldFault::of(name, "cannot stand here; a rule's place is said by 'entries'"));
    let misplaced: Vec<_> = misplaced.collect();
    if !misplaced.is_empty() {
        return Err(Problem::faults("the rule has fields of another place", misplaced));
    }
    let size = json!(record.settings).to_string().len();
    if size > document::SETTINGS_BYTES_MAX {
        let message = format!("the fields of the rule take {size} bytes; expected at most 64 KiB");
        return Err(Problem::faults("the rule is too large", vec![FieldFault::of("", message)]));
    }
    let defaults = app.store.defaults(domain).await?;
    let document = Document { domain: domain.to_owned(), defaults, records: vec![record.clone()] };
    document::compile(from_ref(&document), usize::MAX).map(drop).map_err(|faults| {
        // What one rule is about needs neither its domain nor its id.
        let faults = faults.into_iter().map(|it| FieldFault::of(&it.field, it.message)).collect();
        Problem::faults("the compiler refuses this rule; fix each field", faults)
    })
}

/// Refuses to move a rule: another address is another rule.
fn keep_address(known: &StoredRule, input: &RuleInput) -> Result<(), Problem> {
    let mut faults = Vec::new();
    let message = "cannot change; remove the rule and add another one";
    if input.domain.as_ref().is_some_and(|domain| *domain != known.domain) {
        faults.push(FieldFault::of("domain", message));
    }
    if let Some(entries) = &input.entries {
        let mut entries = entries.clone();
        check_entries(&mut entries)?;
        if entries != known.record.entries {
            faults.push(FieldFault::of("entries", message));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Problem::faults("a rule cannot move", faults)) }
}

/// Answers an editor whose rule was changed by another one: with the present rule, and the last
/// change.
async fn changed_meanwhile(app: &App, present: StoredRule) -> Problem {
    let detail = "the rule changed since you read it; 'current' is what it is now";
    let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail);
    let id = present.id.to_string();
    let problem = problem.with("current", json!(RuleView::from(present)));
    match app.store.changes(&id, None, i64::MAX, 1).await {
        Ok((changes, _)) => {
            let last = changes.into_iter().next();
            problem.with("last_change", json!(last))
        }
        Err(_) => problem,
    }
}

// === impl RuleInput ===

impl RuleInput {
    fn of(call: &WriteCall) -> Result<Self, Problem> {
        let mut input: Self = call.json()?;
        input.settings.retain(|name, _| !READ_ONLY.contains(&&**name));
        Ok(input)
    }
}

// === impl RuleSettings ===

impl PartialSchema for RuleSettings {
    fn schema() -> RefOr<Schema> {
        let options = MapKind::Descriptor.options();
        let options = options.filter(|option| !STRUCTURE.contains(&option.name));
        let all = options.fold(ObjectBuilder::new(), |all, option| {
            let is_flag = option.schema()["type"][0] == "boolean";
            let one = if is_flag { Type::Boolean } else { Type::Object };
            let types = SchemaType::from_iter([one, Type::Null]);
            let value = ObjectBuilder::new().schema_type(types).description(Some(option.meaning));
            all.property(option.name, value)
        });
        all.description(Some("What a rule says, as in a rule file: <docs/rules.md>.")).into()
    }
}

impl ToSchema for RuleSettings {}

// === impl RuleView ===

impl From<StoredRule> for RuleView {
    fn from(rule: StoredRule) -> Self {
        Self {
            id: rule.id,
            domain: rule.domain,
            entries: rule.record.entries,
            settings: rule.record.settings,
            position: rule.position,
            revision: rule.revision,
            updated_at: time(rule.updated_at),
            updated_by: rule.updated_by,
        }
    }
}

// A change of the rules of one domain: the one way in which rules are added, changed and removed.
//
// A change that is published at once is compiled outside of any transaction, so that no other
// write waits for it. It is committed only if the draft and the published rules are still those
// that were compiled; else all of it is repeated.

/// What a change does with the rules of its domain.
#[derive(Debug, Default)]
pub struct Edit {
    /// The rules that are removed.
    pub remove: Vec<StoredRule>,
    /// The rule that has the entries of `put` already, and keeps its place.
    pub present: Option<StoredRule>,
    /// The rule that is added or changed.
    pub put: Option<Record>,
}

/// A change of one domain.
pub trait Change: Sync {
    /// Decides what to do, by the rules that `write` sees.
    fn edit(&self, write: &mut Write) -> impl Future<Output = Result<Edit, Problem>> + Send;

    /// The action of the audit log, and its subject.
    fn action(&self) -> (&'static str, &str);

    /// The answer; `rule` is the one that was added or changed.
    fn answer(&self, rule: Option<StoredRule>) -> Answer;
}

/// A domain that was compiled with a change, before the change is made.
struct Prepared {
    /// The number of the last change of the draft that was compiled.
    changed: i64,
    text: PublishedText,
    approved: Approved,
}

/// Makes a change of `domain`, and publishes it at once if `publishes`.
///
/// # Errors
/// Refuses what [`Change::edit`] refuses, what the compiler refuses, and to publish a domain that
/// has other changes.
pub async fn make(
    app: &App,
    call: &WriteCall,
    domain: &str,
    publishes: bool,
    change: &impl Change,
) -> Result<Response, Ending> {
    if !publishes {
        let mut write = call.begin(app).await?;
        let edit = change.edit(&mut write).await?;
        let answer = apply(&mut write, domain, edit, change).await?;
        return call.finish_with(app, write, answer).await;
    }
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        if let Some(response) = attempt(app, call, domain, change).await? {
            return Ok(response);
        }
    }
    Err(Problem::raced().into())
}

/// Makes and publishes a change; `None` if another replica published meanwhile.
async fn attempt(
    app: &App,
    call: &WriteCall,
    domain: &str,
    change: &impl Change,
) -> Result<Option<Response>, Ending> {
    app.store.compare(&[domain]).await?;
    // The edit is decided twice: before the domain is compiled, and when it is made.
    let mut write = call.begin(app).await?;
    let edit = change.edit(&mut write).await?;
    let changed = clean_draft(&mut write, domain).await?;
    drop(write);
    let Some(prepared) = prepare(app, call, domain, &edit, changed).await? else { return Ok(None) };
    let Prepared { changed, mut text, approved } = prepared;
    let mut write = call.begin(app).await?;
    let edit = change.edit(&mut write).await?;
    if clean_draft(&mut write, domain).await? != changed {
        return Ok(None);
    }
    let answer = apply(&mut write, domain, edit, change).await?;
    text.changed = write.draft_state(domain).await?.1;
    let published = publish_texts(&mut write, &[text], None, approved).await?;
    if published.is_none() {
        return Ok(None);
    }
    call.finish_with(app, write, answer).await.map(Some)
}

/// The number of the last change of a draft that has no changes but published ones.
async fn clean_draft(write: &mut Write, domain: &str) -> Result<i64, Problem> {
    let (is_changed, changed) = write.draft_state(domain).await?;
    if is_changed { Err(unpublished_changes(domain)) } else { Ok(changed) }
}

/// Compiles the domain as the edit will make it; `None` if its draft is no longer the one of the
/// number `changed`.
async fn prepare(
    app: &App,
    call: &WriteCall,
    domain: &str,
    edit: &Edit,
    changed: i64,
) -> Result<Option<Prepared>, Problem> {
    let draft = app.store.draft(domain).await?;
    if draft.changed != changed {
        return Ok(None);
    }
    let mut document = draft.document;
    edit.apply_to(&mut document);
    let checked = compile_all(app, vec![document], vec![changed]).await?;
    let approved = approve(app, from_ref(&call.caller), &checked.texts).await?;
    let text = checked.texts.into_iter().next();
    Ok(text.map(|text| Prepared { changed, text, approved }))
}

/// Makes the change in the transaction, and notes it in the audit log.
async fn apply(
    write: &mut Write,
    domain: &str,
    edit: Edit,
    change: &impl Change,
) -> Result<Answer, Problem> {
    for rule in &edit.remove {
        write.remove_rule(rule).await?;
    }
    let rule = match (edit.put, edit.present) {
        (None, _) => None,
        (Some(put), Some(present)) => Some(write.change_rule(&present, put.settings).await?),
        (Some(put), None) => Some(write.add_rule(domain, &put).await?),
    };
    let (action, subject) = change.action();
    write.note_action(action, subject).await?;
    Ok(change.answer(rule))
}

// === impl Edit ===

impl Edit {
    /// Changes a document as the transaction will change the draft.
    fn apply_to(&self, document: &mut Document) {
        let is_removed =
            |it: &Record| self.remove.iter().any(|rule| rule.record.entries == it.entries);
        document.records.retain(|it| !is_removed(it));
        let Some(put) = &self.put else { return };
        match document.records.iter_mut().find(|it| it.entries == put.entries) {
            Some(present) => present.settings = put.settings.clone(),
            None => document.records.push(put.clone()),
        }
    }
}

// What changed in a rule, when, and by whom.

/// The changes of a rule.
#[derive(Debug, Serialize, ToSchema)]
struct History {
    /// The changes, the latest first.
    changes: Vec<ChangeRow>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// List the changes of a rule
///
/// Also of one that was removed.
#[utoipa::path(get, tag = "history", path = "/v1/rules/{id}/history",
    params(("id" = String, Path), HistoryQuery), responses(
    (status = 200, description = "The changes", body = History), CommonProblems))]
async fn history(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdOf(id): IdOf,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<History>, Problem> {
    let limit = page_size(query.limit)?;
    let before = query.before.unwrap_or(i64::MAX);
    let (found, has_more) = app.lists().changes(&id, caller.domains(), before, limit).await?;
    if found.is_empty() {
        return Err(Problem::no_rule(&id));
    }
    let next = found.last().filter(|_| has_more).map(|last| last.number);
    Ok(Json(History { changes: found, next }))
}
