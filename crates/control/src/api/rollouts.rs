//! Gradual change: a draft that some pods run before the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::App;
use super::call::{Begun, QueryOf, WriteCall, WriteQuery, check_text};
use super::change::ATTEMPTS_MAX;
use super::paging::{HistoryQuery, page_size};
use super::problem::{CommonProblems, Problem};
use super::publish::{Selection, check_drafts, published};
use super::publishing::{Approved, approve_end, approve_rollout, compile_all, under_way};
use super::rollout_input::{AdvanceInput, RolloutInput, checked};
use super::rollout_view::{RolloutList, RolloutView, exceeding, is_seen_by, view};
use crate::auth::Caller;
use crate::document::{difference, shadow};
use crate::store::{NewRollout, PublishedText, Rollout, RolloutStep, Stage, Write};

/// Maximum number of domains of a rollout: a pod keeps the names of so many.
const DOMAINS_MAX: usize = 1000;

/// A step that was taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StepTaken {
    /// The rollout.
    rollout: i64,
    /// Its stage.
    stage: &'static str,
    /// The version of the step.
    version: i64,
    /// The domains that it changes.
    domains: Vec<String>,
}

/// Begin a rollout: some pods run the draft
///
/// With `If-Match`, only what `/v1/check` reported is rolled out. One rollout at a time.
#[utoipa::path(post, path = "/v1/rollouts",
    params(("If-Match" = Option<String>, Header), WriteQuery), request_body = RolloutInput,
    responses((status = 201, description = "Begun, and committed", body = StepTaken),
    CommonProblems))]
pub(super) async fn begin(
    State(app): State<Arc<App>>,
    call: WriteCall,
) -> Result<Response, Problem> {
    let RolloutInput { domains, pods, stage, bound } = call.json()?;
    let (choice, bound) = checked(pods, bound)?;
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let selection = Selection { domains: domains.clone() };
        let prepared = prepare(&app, &call, selection).await;
        let mut write = match call.begin(&app).await? {
            Begun::New(write) => write,
            Begun::Repeated(response) => return Ok(*response),
        };
        if let Some(open) = write.open_rollout().await? {
            return Err(under_way(&open, "a rollout"));
        }
        if write.last_version().await? == 0 {
            return Err(nothing_published());
        }
        let Prepared { texts, base, approved } = prepared?;
        // The shadows were made of what was published at `base`.
        if write.last_version().await? != base || !approved.is_current(&mut write).await? {
            continue;
        }
        let new = NewRollout { choice, bound, stage: stage.into(), texts };
        let taken = add(&mut write, &new).await?;
        return call.finish(&app, write, StatusCode::CREATED, None, &taken).await;
    }
    Err(Problem::raced())
}

/// What a rollout begins with, compiled before its transaction.
struct Prepared {
    /// For each domain the text of the stage `shadow`, and that of the draft.
    texts: Vec<(PublishedText, PublishedText)>,
    /// The version that the stage `shadow` was made of.
    base: i64,
    approved: Approved,
}

async fn prepare(app: &App, call: &WriteCall, selection: Selection) -> Result<Prepared, Problem> {
    let base = app.store.last_version().await?;
    let (etag, texts) = texts(app, &call.caller, selection).await?;
    call.need_draft(&etag)?;
    let approved = approve_rollout(app, &call.caller, &texts).await?;
    Ok(Prepared { texts, base, approved })
}

async fn add(write: &mut Write, new: &NewRollout) -> Result<StepTaken, Problem> {
    let version = write.begin_rollout(new).await?;
    let rollout = version.rollout.unwrap_or_default();
    if let Some(rollout) = write.rollout(rollout).await? {
        write.note_rollout(&rollout, new.stage, version.number).await?;
    }
    let domains = new.texts.iter().map(|(_, text)| text.domain.clone()).collect();
    Ok(StepTaken { rollout, stage: new.stage.name(), version: version.number, domains })
}

fn nothing_published() -> Problem {
    let detail = "nothing was ever published, so that the other pods would have no rules; publish \
                  a first version with /v1/publish";
    Problem::conflict("nothing-published", detail)
}

/// Advance a rollout to a later stage
///
/// Repeated at the stage that it is at, it changes nothing.
#[utoipa::path(post, path = "/v1/rollouts/{id}/advance", params(("id" = i64, Path), WriteQuery),
    request_body = AdvanceInput, responses((status = 200, description = "Committed",
    body = StepTaken), CommonProblems))]
pub(super) async fn advance(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Problem> {
    let AdvanceInput { stage, force } = call.json()?;
    let stage = Stage::from(stage);
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let approved = match stage {
            Stage::All => approve_last(&app, &call, &id).await,
            _ => Ok(None),
        };
        let (mut write, rollout) = match own(&app, &call, &id).await? {
            Own::Found(write, rollout) => (write, rollout),
            Own::Repeated(response) => return Ok(*response),
        };
        let Some(last) = rollout.last().cloned() else { return Err(no_rollout(&id)) };
        if last.stage == stage {
            return call.finish(&app, write, StatusCode::OK, None, &taken(&rollout, &last)).await;
        }
        need_open(&rollout, stage)?;
        if !force && let Some(why) = exceeding(&app, &rollout).await? {
            let detail = format!("{why}; change the rules, or send force: true");
            return Err(Problem::conflict("bound-exceeded", detail));
        }
        if let Some(approved) = approved?
            && !approved.is_current(&mut write).await?
        {
            continue;
        }
        step(&mut write, &rollout, stage).await?;
        let rollout = write.rollout(rollout.id).await?.ok_or_else(|| no_rollout(&id))?;
        let last = rollout.last().cloned().unwrap_or(last);
        return call.finish(&app, write, StatusCode::OK, None, &taken(&rollout, &last)).await;
    }
    Err(Problem::raced())
}

/// Compiles what the last step of a rollout would publish; `None` if the caller sees no such
/// rollout, or if it has ended.
async fn approve_last(app: &App, call: &WriteCall, id: &str) -> Result<Option<Approved>, Problem> {
    let rollout = app.store.rollout(number(id)?).await?;
    let rollout = rollout.filter(|it| is_seen_by(&call.caller, it));
    let is_open = |it: &Rollout| it.last().is_some_and(|step| step.stage.is_open());
    match rollout.filter(is_open) {
        Some(rollout) => approve_end(app, &call.caller, &rollout).await.map(Some),
        None => Ok(None),
    }
}

/// Abort a rollout: all pods run what is published
#[utoipa::path(post, path = "/v1/rollouts/{id}/abort", params(("id" = i64, Path), WriteQuery),
    responses((status = 200, description = "Committed", body = StepTaken), CommonProblems))]
pub(super) async fn abort(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Problem> {
    let (mut write, rollout) = match own(&app, &call, &id).await? {
        Own::Found(write, rollout) => (write, rollout),
        Own::Repeated(response) => return Ok(*response),
    };
    let Some(last) = rollout.last().cloned() else { return Err(no_rollout(&id)) };
    if last.stage != Stage::Aborted {
        need_open(&rollout, Stage::Aborted)?;
        step(&mut write, &rollout, Stage::Aborted).await?;
    }
    let rollout = write.rollout(rollout.id).await?.ok_or_else(|| no_rollout(&id))?;
    let last = rollout.last().cloned().unwrap_or(last);
    call.finish(&app, write, StatusCode::OK, None, &taken(&rollout, &last)).await
}

/// List rollouts
#[utoipa::path(get, path = "/v1/rollouts", params(HistoryQuery), responses(
    (status = 200, description = "Rollouts of domains that the token may use, the latest first",
    body = RolloutList), CommonProblems))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<RolloutList>, Problem> {
    let (before, limit) = (query.before.unwrap_or(i64::MAX), page_size(query.limit)?);
    let mut rollouts = Vec::new();
    for rollout in app.store.rollouts(caller.domains(), before, limit).await? {
        rollouts.push(view(&app, &caller, &rollout).await?);
    }
    Ok(Json(RolloutList { rollouts }))
}

/// Read a rollout: its stage, and what pods report
#[utoipa::path(get, path = "/v1/rollouts/{id}", params(("id" = i64, Path)), responses(
    (status = 200, description = "The rollout", body = RolloutView), CommonProblems))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<RolloutView>, Problem> {
    let rollout = app.store.rollout(number(&id)?).await?;
    let rollout = rollout.filter(|it| is_seen_by(&caller, it)).ok_or_else(|| no_rollout(&id))?;
    Ok(Json(view(&app, &caller, &rollout).await?))
}

/// The entity tag of the draft, and for each domain that differs the text of the stage `shadow` and
/// that of the draft.
async fn texts(
    app: &App,
    caller: &Caller,
    selection: Selection,
) -> Result<(String, Vec<(PublishedText, PublishedText)>), Problem> {
    let checked = check_drafts(app, caller, selection).await?;
    let etag = checked.etag();
    let before = published(app, &checked.documents).await?;
    let mut drafts = BTreeMap::new();
    let (mut shadows, mut changed) = (Vec::new(), Vec::new());
    for ((after, before), text) in checked.documents.iter().zip(&before).zip(checked.texts) {
        if !difference(before, after).is_empty() {
            shadows.push(shadow(before, after));
            changed.push(text.changed);
            drafts.insert(text.domain.clone(), text);
        }
    }
    if drafts.is_empty() || drafts.len() > DOMAINS_MAX {
        let count = drafts.len();
        let detail = format!(
            "{count} domains differ from what is published; expected 1 to {DOMAINS_MAX}. Change \
             rules, or name fewer domains"
        );
        return Err(Problem::conflict("nothing-to-roll-out", detail));
    }
    let shadows = compile_all(app, shadows, changed).await?.texts;
    let both = shadows.into_iter().filter_map(|shadow| {
        let text = drafts.remove(&shadow.domain)?;
        Some((shadow, text))
    });
    Ok((etag, both.collect()))
}

/// A write that concerns a rollout.
enum Own {
    Found(Box<Write>, Rollout),
    Repeated(Box<Response>),
}

/// Begins a write of a rollout, all of whose domains the caller may use.
async fn own(app: &App, call: &WriteCall, id: &str) -> Result<Own, Problem> {
    let number = number(id)?;
    let mut write = match call.begin(app).await? {
        Begun::New(write) => write,
        Begun::Repeated(response) => return Ok(Own::Repeated(response)),
    };
    let rollout = write.rollout(number).await?.filter(|it| is_seen_by(&call.caller, it));
    let rollout = rollout.ok_or_else(|| no_rollout(id))?;
    // The names of the others are not the caller's to know.
    if !rollout.domains.iter().all(|it| call.caller.may_use(&it.domain)) {
        let detail = "the rollout has domains that the token is not for; an operator steps it";
        return Err(Problem::forbidden(detail));
    }
    Ok(Own::Found(write, rollout))
}

/// Refuses a step of a rollout that has ended, or a step back.
fn need_open(rollout: &Rollout, stage: Stage) -> Result<(), Problem> {
    let present = rollout.last().map_or(Stage::Aborted, |step| step.stage);
    if present.is_open() && present < stage {
        return Ok(());
    }
    let (id, present) = (rollout.id, present.name());
    let detail = format!("the rollout {id} is at the stage '{present}'; begin another one");
    Err(Problem::conflict("rollout-ended", detail).with("stage", json!(present)))
}

async fn step(write: &mut Write, rollout: &Rollout, stage: Stage) -> Result<(), Problem> {
    let version = write.step_rollout(rollout, stage).await?;
    write.note_rollout(rollout, stage, version.number).await?;
    Ok(())
}

fn taken(rollout: &Rollout, step: &RolloutStep) -> StepTaken {
    let domains = rollout.domains.iter().map(|it| it.domain.clone()).collect();
    let (stage, version) = (step.stage.name(), step.version);
    StepTaken { rollout: rollout.id, stage, version, domains }
}

fn number(id: &str) -> Result<i64, Problem> {
    check_text("id", id)?;
    id.parse().map_err(|_| no_rollout(id))
}

fn no_rollout(id: &str) -> Problem {
    let id = ratelease_rules::excerpt(id);
    Problem::not_found(format!("there is no rollout '{id}'"))
}
