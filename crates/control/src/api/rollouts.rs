//! Gradual change: a draft that some pods run before the others; and what is shown of it: its
//! steps, the hits of both groups of pods side by side, and what a reader should know before the
//! next step.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::slice::from_ref;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::App;
use super::call::{CommonProblems, Ending, Problem, QueryOf, WriteCall, WriteQuery, check_text};
use super::pages::{Page, page_size};
use super::publish::{
    ATTEMPTS_MAX, Approved, Checked, Selection, approve_end, approve_rollout, check_drafts,
    compile_all, hide_reason, published, refuse_rolled_out, take_version,
};
use super::rollout_terms::{OpenStage, PodsInput, RolloutTerms, StepInput, Terms, duration};
use crate::auth::Caller;
use crate::document::{Document, FieldFault, difference, longest_window, shadow as shadow_of};
use crate::gate::{Gate, window_not_turned};
use crate::store::{
    Bound, Choice, CountKey, HitCount, NewRollout, PlanStep, PodRow, PublishedText, Rollout,
    RolloutStep, RolloutTexts, Stage, StepHits, Store, StoreError, Write,
};
use crate::work::heavy;

/// Maximum number of domains of a rollout: a pod reports 1000, and in the stage `shadow` each of
/// these has candidate rules.
const DOMAINS_MAX: usize = 500;

/// A step that was taken.
#[derive(Debug, Serialize, ToSchema)]
struct StepTaken {
    /// The rollout.
    rollout: i64,
    /// Its stage.
    stage: &'static str,
    /// The version of the step.
    version: i64,
    /// The domains that it changes.
    domains: Vec<String>,
    /// The number of the plan's step; absent for one that ends the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<usize>,
    /// How many pods serve each domain, and how many were chosen, if a percentage was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pods: Vec<ShareView>,
}

/// The part of a domain's pods that a step has chosen.
#[derive(Debug, Clone, Serialize, ToSchema)]
struct ShareView {
    /// The domain.
    domain: String,
    /// How many of a hundred were asked for.
    percent: u8,
    /// The pods that served the domain when the step was taken.
    serve: usize,
    /// How many of these pods it chose.
    chosen: usize,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(begin, list, read, advance, abort))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new().route("/v1/rollouts/{id}", get(read))
}

/// The calls about whole domains.
pub fn long_calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/rollouts", get(list).post(begin))
        .route("/v1/rollouts/{id}/advance", post(advance))
        .route("/v1/rollouts/{id}/abort", post(abort))
}

/// Begin a rollout: some pods run the draft
///
/// With `If-Match`, only what `/v1/check` reported is rolled out. A domain is in one rollout at a time.
#[utoipa::path(post, tag = "rollouts", path = "/v1/rollouts",
    params(("If-Match" = Option<String>, Header), WriteQuery), request_body = RolloutInput,
    responses((status = 201, description = "Begun, and committed", body = StepTaken),
    CommonProblems))]
async fn begin(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let (domains, terms) = call.json::<RolloutInput>()?.checked()?;
    // Before the turn, so that no others wait while a draft that is too large compiles.
    check_drafts(&app, &call.caller, Selection { domains: domains.clone() }).await?;
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let selection = Selection { domains: domains.clone() };
        let prepared = prepare(&app, &call, selection).await;
        let pods = app.store.pod_versions().await?;
        let mut write = call.begin(&app).await?;
        if write.last_version().await? == 0 {
            return Err(nothing_published().into());
        }
        let Prepared { texts, longest_window, base, approved } = prepared?;
        let open = write.open_rollouts().await?;
        let names = texts.iter().map(|it| &*it.draft.domain);
        refuse_rolled_out(&open, names, from_ref(&call.caller))?;
        // The shadows were made of what was published at `base`.
        if write.last_version().await? != base || !approved.is_current(&mut write).await? {
            continue;
        }
        let Terms { choice, bound, plan, time_limit } = terms;
        let time_limit = Some(time_limit);
        let new = NewRollout { choice, bound, plan, time_limit, longest_window, texts };
        let taken = add(&mut write, &new, &pods).await?;
        return call.finish(&app, write, StatusCode::CREATED, None, &taken).await;
    }
    Err(Problem::raced().into())
}

/// What a rollout begins with, compiled before its transaction.
struct Prepared {
    texts: Vec<RolloutTexts>,
    /// Seconds of the longest window of the limits that change.
    longest_window: i64,
    /// The version that the stage `shadow` was made of.
    base: i64,
    approved: Approved,
}

async fn prepare(app: &App, call: &WriteCall, selection: Selection) -> Result<Prepared, Problem> {
    let base = app.store.last_version().await?;
    let (etag, texts, longest_window) = texts(app, &call.caller, selection).await?;
    call.need_draft(&etag)?;
    let approved = approve_rollout(app, from_ref(&call.caller), &texts, &[]).await?;
    Ok(Prepared { texts, longest_window, base, approved })
}

async fn add(
    write: &mut Write,
    new: &NewRollout,
    pods: &[PodRow],
) -> Result<StepTaken, StoreError> {
    let version = write.begin_rollout(new, pods).await?;
    note_step(write, version.rollout.unwrap_or_default()).await
}

/// Notes the last step of a rollout in the audit log.
async fn note_step(write: &mut Write, id: i64) -> Result<StepTaken, StoreError> {
    let rollout = write.rollout(id).await?;
    let lost = || StoreError::Internal(format!("the rollout {id} is not there"));
    let rollout = rollout.ok_or_else(lost)?;
    let RolloutStep { stage, version, .. } = *rollout.last();
    write.note_rollout(&rollout, stage, version).await?;
    Ok(taken(&rollout))
}

fn nothing_published() -> Problem {
    let detail = "nothing was ever published, so that the other pods would have no rules; publish \
                  a first version with /v1/publish";
    Problem::conflict("nothing-published", detail)
}

/// Advance a rollout to a later step
///
/// By default to the next one. Repeated with the stage or the step that it is at, it changes nothing.
#[utoipa::path(post, tag = "rollouts", path = "/v1/rollouts/{id}/advance",
    params(("id" = i64, Path), WriteQuery),
    request_body = AdvanceInput, responses((status = 200, description = "Committed",
    body = StepTaken), CommonProblems))]
async fn advance(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Ending> {
    let asked: AdvanceInput =
        if call.body.is_empty() { AdvanceInput::default() } else { call.json()? };
    // Before the turn: of two calls that wait for it, the second one means the same step.
    let aim = Aim::read(&app, &call, &id, &asked).await;
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let approved = match &aim {
            Ok(Some(aim)) => aim.approve(&app, &call).await,
            _ => Ok(None),
        };
        let pods = app.store.pod_versions().await?;
        let (mut write, rollout) = own(&app, &call, &id).await?;
        let Some(aim) = aim.as_ref().map_err(Clone::clone)? else { return Err(raced(&id).into()) };
        let number = aim.number;
        if is_at(&rollout, number) && (asked.is_named() || aim.is_of(&rollout)) {
            return call.finish(&app, write, StatusCode::OK, None, &taken(&rollout)).await;
        }
        if !aim.is_of(&rollout) {
            return Err(raced(&id).into());
        }
        need_open(&rollout, number)?;
        if !asked.force {
            let rows = app.store.connected_pods(Some(&rollout.names())).await?;
            let hits = app.store.hits(rollout.last().version).await?;
            pass_gate(&rollout, &rows, &hits, app.store.now())?;
        }
        match approved? {
            Some(approved) if !approved.is_current(&mut write).await? => continue,
            Some(_) => {} // was counted as a publication
            None => take_version(&app, from_ref(&call.caller), 0)?,
        }
        write.take_step(&rollout, number, &pods).await?;
        let taken = note_step(&mut write, rollout.id).await?;
        return call.finish(&app, write, StatusCode::OK, None, &taken).await;
    }
    Err(Problem::raced().into())
}

/// Whether the rollout is at the step of this number, or has ended with it.
fn is_at(rollout: &Rollout, number: usize) -> bool {
    match rollout.planned(number) {
        Some(_) => rollout.last().stage.is_open() && rollout.number() == number,
        None => rollout.last().stage == Stage::All,
    }
}

/// Whether the chosen pods show that the next step may be taken.
///
/// # Errors
/// They deny more than the bound allows, or show too little to tell.
fn pass_gate(rollout: &Rollout, rows: &[PodRow], hits: &StepHits, now: i64) -> Result<(), Problem> {
    match Gate::of(rollout, rows, hits, now) {
        Gate::Open => Ok(()),
        Gate::Exceeded(why) => {
            let detail = format!("{why}; change the rules, or send force: true");
            Err(Problem::conflict("bound-exceeded", detail))
        }
        Gate::Inconclusive(why) => {
            let detail = format!(
                "{why}, so that too little is known of the draft; wait, or send force: true"
            );
            Err(Problem::conflict("inconclusive", detail))
        }
    }
}

/// The step that a call asks for, of the rollout as it was when the call came.
struct Aim {
    /// The number of the plan's step.
    number: usize,
    rollout: Rollout,
}

// === impl Aim ===

impl Aim {
    /// `None` if the caller sees no such rollout.
    async fn read(
        app: &App,
        call: &WriteCall,
        id: &str,
        asked: &AdvanceInput,
    ) -> Result<Option<Self>, Problem> {
        let rollout = app.store.rollout(number(id)?).await?;
        let Some(rollout) = rollout.filter(|it| is_seen_by(&call.caller, it)) else {
            return Ok(None);
        };
        Ok(Some(Self { number: asked.number(&rollout)?, rollout }))
    }

    /// Compiles the rules that the last step publishes; `None` if it is another step, or if the
    /// rollout has ended.
    async fn approve(&self, app: &App, call: &WriteCall) -> Result<Option<Approved>, Problem> {
        let is_last = self.rollout.planned(self.number).is_none();
        match is_last && self.rollout.last().stage.is_open() {
            true => approve_end(app, &call.caller, &self.rollout).await.map(Some),
            false => Ok(None),
        }
    }

    /// Whether the rollout has taken no step since the call came.
    fn is_of(&self, present: &Rollout) -> bool {
        present.last().version == self.rollout.last().version
    }
}

/// Refuses a call that others were faster than.
fn raced(id: impl Display) -> Problem {
    let detail = format!(
        "another call or the control plane took a step meanwhile; read /v1/rollouts/{id}, and send \
         the call again if that is not enough"
    );
    Problem::conflict("rollout-moved", detail)
}

/// Abort a rollout: all pods run what is published
#[utoipa::path(post, tag = "rollouts", path = "/v1/rollouts/{id}/abort",
    params(("id" = i64, Path), WriteQuery),
    responses((status = 200, description = "Committed", body = StepTaken), CommonProblems))]
async fn abort(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Ending> {
    let (mut write, rollout) = own(&app, &call, &id).await?;
    let taken = if rollout.last().stage == Stage::Aborted {
        taken(&rollout)
    } else {
        need_open(&rollout, usize::MAX)?;
        // One can always stop: this version is counted, and not refused.
        let _ = take_version(&app, from_ref(&call.caller), 0);
        write.end_rollout(&rollout, Stage::Aborted).await?;
        note_step(&mut write, rollout.id).await?
    };
    call.finish(&app, write, StatusCode::OK, None, &taken).await
}

/// List rollouts
#[utoipa::path(get, tag = "rollouts", path = "/v1/rollouts", params(RolloutQuery), responses(
    (status = 200, description = "Rollouts of domains that the token may use, the latest first",
    body = RolloutList), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<RolloutQuery>,
) -> Result<Json<RolloutList>, Problem> {
    let RolloutQuery { before, limit, open } = query;
    let before = before.unwrap_or(i64::MAX);
    let mut page = Page::new(page_size(limit)?);
    while let Some(asked) = page.wants(PART) {
        let last = page.last().map_or(before, |it: &RolloutView| it.rollout);
        let found = app.store.rollouts(caller.domains(), open, last, asked).await?;
        page.note_part(asked, found.len());
        for rollout in &found {
            if !page.has_room() {
                break;
            }
            page.add(view(&app, &caller, rollout).await?);
        }
    }
    let (rollouts, next) = page.end(|it| it.rollout);
    Ok(Json(RolloutList { rollouts, next }))
}

/// Read a rollout: its stage, and what pods report
#[utoipa::path(get, tag = "rollouts", path = "/v1/rollouts/{id}",
    params(("id" = i64, Path)), responses(
    (status = 200, description = "The rollout", body = RolloutView), CommonProblems))]
async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<RolloutView>, Problem> {
    let rollout = app.store.rollout(number(&id)?).await?;
    let rollout = rollout.filter(|it| is_seen_by(&caller, it)).ok_or_else(|| no_rollout(&id))?;
    Ok(Json(view(&app, &caller, &rollout).await?))
}

/// The entity tag of the draft, the texts of each domain that differs, and the seconds of the longest
/// window of the limits that change.
async fn texts(
    app: &App,
    caller: &Caller,
    selection: Selection,
) -> Result<(String, Vec<RolloutTexts>, i64), Problem> {
    let checked = check_drafts(app, caller, selection).await?;
    let etag = checked.etag();
    let before = published(app, &checked.documents).await?;
    let Checked { texts, documents, .. } = checked;
    let candidates = heavy(move |_| -> Vec<_> {
        documents.iter().zip(&before).map(|(after, before)| Candidates::of(before, after)).collect()
    });
    let differing = texts.into_iter().zip(candidates.await?);
    let differing = differing.filter_map(|(text, candidates)| Some((text, candidates?)));
    let (drafts, candidates): (Vec<_>, Vec<_>) = differing.unzip();
    if drafts.is_empty() || drafts.len() > DOMAINS_MAX {
        let count = drafts.len();
        let detail = format!(
            "{count} domains differ from what is published; expected 1 to {DOMAINS_MAX}. Change \
             rules, or name fewer domains"
        );
        return Err(Problem::conflict("nothing-to-roll-out", detail));
    }
    let window = candidates.iter().map(|it| longest_window(&it.shadow)).max().unwrap_or_default();
    Ok((etag, rollout_texts(app, candidates, drafts).await?, window))
}

/// The candidate rules of a domain.
#[derive(Debug)]
pub struct Candidates {
    /// The rules that the draft adds or changes: chosen pods try these.
    pub shadow: Document,
    /// The published text of the same rules: the other pods count by these, so that a key has the
    /// count that it would have if the chosen pods enforced the draft.
    pub others: Document,
}

// === impl Candidates ===

impl Candidates {
    /// Compares a draft with the published rules, `before`; `None` if they do not differ.
    pub fn of(before: &Document, after: &Document) -> Option<Self> {
        if difference(before, after).is_empty() {
            return None;
        }
        let shadow = shadow_of(before, after);
        let domain = &after.domain;
        let others = match shadow.records.is_empty() {
            true => Document { domain: shadow.domain.clone(), ..Document::default() },
            false => shadow_of(after, &Document { domain: domain.clone(), ..before.clone() }),
        };
        Some(Self { shadow, others })
    }
}

/// Compiles the candidate rules of these drafts.
pub async fn rollout_texts(
    app: &App,
    candidates: Vec<Candidates>,
    drafts: Vec<PublishedText>,
) -> Result<Vec<RolloutTexts>, Problem> {
    let changed: Vec<_> = drafts.iter().map(|it| it.changed).collect();
    let (shadows, others): (Vec<_>, Vec<_>) =
        candidates.into_iter().map(|it| (it.shadow, it.others)).unzip();
    let shadows = compile_all(app, shadows, changed.clone()).await?.texts;
    let others = compile_all(app, others, changed).await?.texts;
    let texts = shadows.into_iter().zip(others).zip(drafts);
    let texts = texts.map(|((shadow, others), draft)| RolloutTexts { shadow, others, draft });
    Ok(texts.collect())
}

/// Begins a write of a rollout, all of whose domains the caller may use.
async fn own(app: &App, call: &WriteCall, id: &str) -> Result<(Box<Write>, Rollout), Ending> {
    let number = number(id)?;
    let mut write = call.begin(app).await?;
    let rollout = write.rollout(number).await?.filter(|it| is_seen_by(&call.caller, it));
    let rollout = rollout.ok_or_else(|| no_rollout(id))?;
    // The names of the others are not the caller's to know.
    if !rollout.domains.iter().all(|it| call.caller.may_use(&it.domain)) {
        let detail = "the rollout has domains that the token is not for; an operator steps it";
        return Err(Problem::forbidden(detail).into());
    }
    Ok((write, rollout))
}

/// Refuses a step of a rollout that has ended, or a step back.
fn need_open(rollout: &Rollout, number: usize) -> Result<(), Problem> {
    let present = rollout.last().stage;
    if present.is_open() && rollout.number() < number {
        return Ok(());
    }
    let id = rollout.id;
    let present = present.name();
    let detail = format!("the rollout {id} is at the stage '{present}'; begin another one");
    Err(Problem::conflict("rollout-ended", detail).with("stage", json!(present)))
}

/// The last step of a rollout, all of whose domains the caller may use.
fn taken(rollout: &Rollout) -> StepTaken {
    let RolloutStep { stage, version, number, .. } = *rollout.last();
    let domains = rollout.names();
    let pods = shares(rollout.last(), |_| true);
    StepTaken { rollout: rollout.id, stage: stage.name(), version, domains, step: number, pods }
}

/// The parts of pods that a step has chosen, for the domains that its reader may know.
fn shares(step: &RolloutStep, is_known: impl Fn(&str) -> bool) -> Vec<ShareView> {
    let Some(percent) = step.percent else { return Vec::new() };
    let known = step.shares.iter().filter(|it| is_known(&it.domain));
    let share = known.map(|it| ShareView {
        domain: it.domain.clone(),
        percent,
        serve: it.pods,
        chosen: it.chosen,
    });
    share.collect()
}

fn number(id: &str) -> Result<i64, Problem> {
    check_text("id", id)?;
    id.parse().map_err(|_| no_rollout(id))
}

fn no_rollout(id: &str) -> Problem {
    let id = ratelease_rules::excerpt(id);
    Problem::not_found(format!("there is no rollout '{id}'"))
}

// What a request says of a rollout.

/// A rollout that is to begin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RolloutInput {
    /// These domains; by default those with changes that the token may use.
    domains: Option<Vec<String>>,
    /// The pods that run the draft; may be left out if the first of `steps` has a percentage.
    pods: Option<PodsInput>,
    /// The first stage of a rollout without `steps`: `shadow` by default.
    stage: Option<OpenStage>,
    /// The steps, at most 20. After the last one the rules are published. By default a step
    /// `shadow`, unless `stage` is `enforced`, and a step `enforced`, without waits.
    steps: Option<Vec<StepInput>>,
    /// When to roll back without being asked.
    bound: Option<Bound>,
    /// How long it may be without a step after the wait of the last one until it ends by itself, as in
    /// `24h`, which is the default: 30 days at most.
    time_limit: Option<String>,
}

/// A later stage.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum LaterStage {
    /// Chosen pods enforce the changed rules.
    Enforced,
    /// All pods do: they are published.
    All,
}

/// Where a rollout is to go: to the next step, unless it says another one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AdvanceInput {
    /// The first step of this stage.
    stage: Option<LaterStage>,
    /// The step of this number, from 2; the number after the last one publishes.
    step: Option<usize>,
    /// Whether to go on although the chosen pods deny too much, or show too little.
    #[serde(default)]
    force: bool,
}

// === impl RolloutInput ===

impl RolloutInput {
    /// The domains, and the terms.
    fn checked(self) -> Result<(Option<Vec<String>>, Terms), Problem> {
        let Self { domains, pods, stage, steps, bound, time_limit } = self;
        let terms = RolloutTerms { pods, stage, steps, bound, time_limit };
        let faulty = |faults| Problem::faults("the rollout cannot begin; fix each field", faults);
        Ok((domains, terms.checked().map_err(faulty)?))
    }
}

// === impl AdvanceInput ===

impl AdvanceInput {
    /// Whether it says which step, so that a repeat is one.
    fn is_named(&self) -> bool {
        self.stage.is_some() || self.step.is_some()
    }

    /// The number of the step of a rollout that is asked for. One more than its plan has is the end.
    fn number(&self, rollout: &Rollout) -> Result<usize, Problem> {
        let end = rollout.plan.len() + 1;
        match (self.stage, self.step) {
            (None, None) => Ok(rollout.number() + 1),
            (Some(LaterStage::All), None) => Ok(end),
            // At this stage already: a repeat.
            (Some(LaterStage::Enforced), None) if rollout.present().stage == Stage::Enforced => {
                Ok(rollout.number())
            }
            (Some(LaterStage::Enforced), None) => {
                rollout.number_of(Stage::Enforced).ok_or_else(|| {
                    let message = "the plan has no such step; expected 'all' to publish, or a step";
                    Problem::faults(
                        "there is no step of this stage",
                        vec![FieldFault::of("stage", message)],
                    )
                })
            }
            (None, Some(step)) if (1..=end).contains(&step) => Ok(step),
            (None, Some(_)) => {
                let message = format!("expected a step of the plan, or {end} to publish");
                Err(Problem::faults(
                    "there is no such step",
                    vec![FieldFault::of("step", &message)],
                ))
            }
            (Some(_), Some(_)) => {
                let fault = FieldFault::of("step", "expected either 'stage' or 'step'");
                Err(Problem::faults("which step is not clear", vec![fault]))
            }
        }
    }
}

// What is shown of a rollout: its steps, the hits of both groups of pods side by side, and what a
// reader should know before the next step.

/// Domains without hits that a warning names.
const NAMED_MAX: usize = 5;

/// Rollouts that are read together: each may have 500 domains.
const PART: usize = 8;

/// Which rollouts to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RolloutQuery {
    /// Before this number: `next` of the page before.
    before: Option<i64>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Whether only those that are under way.
    #[serde(default)]
    open: bool,
}

/// Rollouts.
#[derive(Debug, Serialize, ToSchema)]
struct RolloutList {
    /// The rollouts, the latest first.
    rollouts: Vec<RolloutView>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// A rollout.
#[derive(Debug, Serialize, ToSchema)]
struct RolloutView {
    /// Its number.
    rollout: i64,
    /// `shadow`, `enforced`, `all`, `aborted` or `rolled_back`.
    stage: &'static str,
    /// The version of its last step.
    version: i64,
    /// Which pods are chosen.
    choice: PodsInput,
    /// The number of the plan's step that it is at, or was at when it ended.
    step: usize,
    /// The steps; after the last one the rules are published.
    plan: Vec<PlanView>,
    /// When the next step is taken without being asked, if the chosen pods have shown enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    next_at: Option<String>,
    /// Why the next step is not taken, or would not be; absent if it would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// When it ends by itself without another step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    ends_at: Option<String>,
    /// How many pods serve each domain, and how many the step chose.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<ShareView>,
    /// When it is rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound>,
    /// The pods that are connected and get a domain that the token may use, while it is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<PodGroups>,
    /// The domains that the token may use, and their hits in the last stage in which pods ran
    /// different rules.
    domains: Vec<DomainView>,
    /// What was done, in order.
    steps: Vec<RolloutStep>,
    /// Why the hits may say less than they seem to.
    warnings: Vec<String>,
}

/// A step of the plan.
#[derive(Debug, Serialize, ToSchema)]
struct PlanView {
    /// The stage: `shadow` or `enforced`.
    stage: &'static str,
    /// How many of a hundred pods are chosen; absent if a label chooses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    /// How long until the next step is taken without being asked; absent if it waits for a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<String>,
}

/// Pods of both groups.
#[derive(Debug, Default, Serialize, ToSchema)]
struct PodGroups {
    /// The chosen ones.
    chosen: PodGroup,
    /// The others.
    others: PodGroup,
}

/// Pods that are connected.
#[derive(Debug, Default, Serialize, ToSchema)]
struct PodGroup {
    /// Their number.
    connected: usize,
    /// Those that run the version of the step.
    current: usize,
    /// Those that refused it.
    refused: usize,
    /// Those that report no hits: of other programs, or of earlier releases.
    without_reports: usize,
}

/// A domain of a rollout.
#[derive(Debug, Serialize, ToSchema)]
struct DomainView {
    /// Its name.
    domain: String,
    /// Hits on the chosen pods since the stage began.
    chosen: HitView,
    /// Hits on the others.
    others: HitView,
    /// The share that the chosen pods denied in the last 30 s, as the bound weighs them; absent
    /// without hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    recent_denied_share: Option<f64>,
}

/// Hits of limits.
#[derive(Debug, Serialize, ToSchema)]
struct HitView {
    /// All of them.
    hits: u64,
    /// Those that were denied.
    denied: u64,
    /// Those that would have been denied, but for shadow mode; of chosen pods in the stage `shadow`,
    /// those that the draft would deny.
    shadow_denied: u64,
    /// The share that was denied, 0 to 1; absent without hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_share: Option<f64>,
    /// The share that would have been denied, 0 to 1; absent without hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow_denied_share: Option<f64>,
}

/// Whether a token may see a rollout: it may use one of its domains.
pub fn is_seen_by(caller: &Caller, rollout: &Rollout) -> bool {
    rollout.domains.iter().any(|it| caller.may_use(&it.domain))
}

/// What `caller` may see of a rollout.
async fn view(app: &App, caller: &Caller, rollout: &Rollout) -> Result<RolloutView, Problem> {
    let stage = rollout.last().stage;
    let version = rollout.last_open().map_or(0, |step| step.version);
    let (hits, unread) = hits(&app.store, version).await?;
    let names = rollout.domains.iter().map(|it| &*it.domain).filter(|it| caller.may_use(it));
    let domains: Vec<_> = names.map(|it| DomainView::new(it, version, &hits)).collect();
    let mut warnings = Vec::new();
    let (mut pods, mut waits_for) = (None, None);
    if stage.is_open() {
        let names: Vec<_> = domains.iter().map(|it: &DomainView| it.domain.clone()).collect();
        let rows = app.store.connected_pods(Some(&names)).await?;
        let groups = PodGroups::of(&rows, rollout.id, version);
        warnings = groups.warnings(rollout, &rows, &domains);
        let sees_all = domains.len() == rollout.domains.len();
        let now = app.store.now();
        let why = Gate::of(rollout, &rows, &hits, now).why();
        // The names of the others are not the caller's to know.
        let none = (groups.chosen.connected == 0).then(|| "no chosen pod is connected".to_owned());
        let why = why.filter(|_| sees_all).or(none);
        warnings.extend(why.clone().or_else(|| window_not_turned(rollout, now)));
        let stuck = app.stuck.lock().get(&rollout.id).cloned();
        let stuck = stuck.map(|why| match sees_all {
            true => why,
            false => "what an operator has to look at: pods could not load the step".to_owned(),
        });
        waits_for = waits_for_of(rollout, why, now).or(stuck);
        pods = Some(groups);
    }
    warnings.extend(unread);
    let mut steps = rollout.steps.clone();
    steps.iter_mut().for_each(|it| hide_reason(caller, &it.author, &mut it.reason));
    Ok(RolloutView {
        rollout: rollout.id,
        stage: stage.name(),
        version: rollout.last().version,
        choice: PodsInput::from(&choice_of(rollout)),
        step: rollout.number(),
        plan: rollout.plan.iter().map(PlanView::from).collect(),
        next_at: rollout.next_at().map(time),
        waits_for,
        ends_at: rollout.ends_at().map(time),
        shares: rollout
            .last_open()
            .map(|it| shares(it, |of| caller.may_use(of)))
            .unwrap_or_default(),
        bound: rollout.bound,
        pods,
        domains,
        steps,
        warnings,
    })
}

/// The pods that are chosen at the present step.
fn choice_of(rollout: &Rollout) -> Choice {
    rollout.present().percent.map_or_else(|| rollout.choice.clone(), Choice::Percent)
}

/// Says why the next step is not taken: the gate is shut, the wait is not over, or no call asked
/// for it.
fn waits_for_of(rollout: &Rollout, gate: Option<String>, now: i64) -> Option<String> {
    let next = match rollout.next_at() {
        None => Some("a call of /advance: the step has no wait".to_owned()),
        Some(at) if at > now => Some(format!("the end of its wait, at {}", time(at))),
        Some(_) => None,
    };
    match (gate, next) {
        (Some(gate), None) => Some(format!("evidence: {gate}")),
        (gate, next) => next.map(|next| match gate {
            Some(gate) => format!("{next}; and evidence: {gate}"),
            None => next,
        }),
    }
}

/// A time in milliseconds since the Unix epoch, as RFC 3339 has it.
fn time(at: i64) -> String {
    Timestamp::from_millisecond(at).unwrap_or_default().to_string()
}

/// The hits of a step, or why they cannot be read: that must not hide the rollout, nor a list of
/// rollouts.
async fn hits(store: &Store, version: i64) -> Result<(StepHits, Option<String>), Problem> {
    match store.hits(version).await {
        Err(StoreError::Internal(why)) => {
            Ok((StepHits::default(), Some(format!("the hits cannot be read: {why}"))))
        }
        hits => Ok((hits?, None)),
    }
}

// === impl PodGroups ===

impl PodGroups {
    /// Counts pods, each of which has one row.
    fn of(rows: &[PodRow], rollout: i64, version: i64) -> Self {
        let mut groups = Self::default();
        for row in rows {
            let is_chosen = row.chosen_by.contains(&rollout);
            let group = if is_chosen { &mut groups.chosen } else { &mut groups.others };
            group.connected += 1;
            group.current += usize::from(row.accepted >= version);
            group.refused += usize::from(row.refused >= version);
            group.without_reports += usize::from(!row.reports);
        }
        groups
    }

    fn warnings(&self, rollout: &Rollout, rows: &[PodRow], domains: &[DomainView]) -> Vec<String> {
        let mut warnings = Vec::new();
        let Self { chosen, others } = self;
        for (name, group) in [("chosen", chosen), ("other", others)] {
            let PodGroup { connected, refused, without_reports: silent, .. } = group;
            if *silent > 0 {
                warnings.push(format!(
                    "{silent} of {connected} {name} pods report no hits, which are missing here: \
                     they are of another program or an earlier release, or count no decisions"
                ));
            }
            if *refused > 0 {
                warnings.push(format!(
                    "{refused} of {connected} {name} pods refused the version; /v1/pods shows why"
                ));
            }
        }
        if let (Choice::Percent(_), Some(id)) = (&rollout.choice, shared_id(rows, rollout.seed)) {
            let id = ratelease_rules::excerpt(id);
            warnings.push(format!(
                "several pods have the node id '{id}', so that a percentage chooses all of them \
                 or none; give each its own CONFIG_GRPC_XDS_NODE_ID"
            ));
        }
        let silent = domains.iter().filter(|it| it.chosen.hits == 0);
        let silent: Vec<_> = silent.map(|it| ratelease_rules::excerpt(&it.domain)).collect();
        if !silent.is_empty() && chosen.connected > 0 {
            let count = silent.len();
            let first = silent[..silent.len().min(NAMED_MAX)].join(", ");
            warnings.push(format!("no hits yet on the chosen pods of {count} domains: {first}"));
        }
        warnings
    }
}

/// An id that several pods have, if the rollout does not tell them apart by their origins. Only pods of
/// one replica are compared: a pod may be shown for another one that it has left.
fn shared_id(rows: &[PodRow], seed: Option<i64>) -> Option<&str> {
    let mut peers = BTreeMap::new();
    for row in rows {
        let at = &*row.peer;
        let origin = seed.map(|_| row.origin);
        if *peers.entry((&*row.replica, &*row.node, origin)).or_insert(at) != at {
            return Some(&row.node);
        }
    }
    None
}

// === impl PlanView ===

impl From<&PlanStep> for PlanView {
    fn from(step: &PlanStep) -> Self {
        let PlanStep { stage, percent, wait } = *step;
        Self { stage: stage.name(), percent, wait: wait.map(duration) }
    }
}

// === impl DomainView ===

impl DomainView {
    fn new(domain: &str, version: i64, hits: &StepHits) -> Self {
        let key = |is_chosen| CountKey { version, domain: domain.to_owned(), is_chosen };
        let of = |is_chosen| hits.all.get(&key(is_chosen)).copied().unwrap_or_default();
        Self {
            domain: domain.to_owned(),
            chosen: of(true).into(),
            others: of(false).into(),
            recent_denied_share: hits.recent.get(&key(true)).and_then(HitCount::denied_share),
        }
    }
}

impl From<HitCount> for HitView {
    fn from(count: HitCount) -> Self {
        Self {
            hits: count.hits,
            denied: count.denied,
            shadow_denied: count.shadow,
            denied_share: count.denied_share(),
            shadow_denied_share: count.shadow_share(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: &str, peer: &str, chosen_by: i64, accepted: i64) -> PodRow {
        let (node, peer, reports) = (node.to_owned(), peer.to_owned(), chosen_by > 0);
        let chosen_by = [chosen_by].into_iter().filter(|it| *it > 0).collect();
        PodRow { node, peer, chosen_by, accepted, reports, ..PodRow::default() }
    }

    #[test]
    fn pods_are_counted_by_what_they_were_sent() {
        let rows = [row("a", "1", 7, 9), row("b", "2", 0, 9)];
        let PodGroups { chosen, others } = PodGroups::of(&rows, 7, 9);
        assert_eq!((chosen.connected, chosen.current, chosen.without_reports), (1, 1, 0));
        assert_eq!((others.connected, others.current, others.without_reports), (1, 1, 1));
        let behind = PodGroups::of(&[row("a", "1", 7, 8)], 7, 9);
        assert_eq!((behind.chosen.connected, behind.chosen.current), (1, 0));
        assert_eq!(PodGroups::of(&rows, 8, 9).chosen.connected, 0, "chosen by another rollout");
    }

    #[test]
    fn an_id_of_several_pods_is_found() {
        let shared_id = |rows: &[PodRow]| shared_id(rows, Some(1)).map(str::to_owned);
        assert_eq!(shared_id(&[row("a", "1", 0, 0)]), None);
        assert_eq!(shared_id(&[row("a", "1", 0, 0), row("b", "2", 0, 0)]), None);
        let (one, other) = (row("a", "1", 0, 0), row("a", "2", 0, 0));
        assert_eq!(shared_id(&[one.clone(), other.clone()]).as_deref(), Some("a"));
        let far = PodRow { origin: 7, ..other.clone() };
        assert_eq!(shared_id(&[one.clone(), far.clone()]), None);
        assert_eq!(super::shared_id(&[one.clone(), far], None), Some("a"), "of an earlier release");
        let moved = PodRow { replica: "gone".into(), ..other };
        assert_eq!(shared_id(&[one, moved]), None);
    }
}
