//! Gradual change: a draft that some pods run before the others; and what is shown of it: its
//! steps, the hits of both groups of pods side by side, and what a reader should know before the
//! next step.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, HistoryQuery, Problem, QueryOf, WriteCall, WriteQuery, check_text,
    page_size,
};
use super::publish::{
    ATTEMPTS_MAX, Approved, Checked, Selection, approve_end, approve_rollout, check_drafts,
    compile_all, hide_reason, published, under_way,
};
use crate::auth::Caller;
use crate::document::{Document, FieldFault, difference, shadow};
use crate::store::{
    Bound, Choice, CountKey, HitCount, LABEL_BYTES_MAX, NewRollout, PodRow, PublishedText, Rollout,
    RolloutStep, Stage, StepHits, Store, StoreError, Write,
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
/// With `If-Match`, only what `/v1/check` reported is rolled out. One rollout at a time.
#[utoipa::path(post, tag = "rollouts", path = "/v1/rollouts",
    params(("If-Match" = Option<String>, Header), WriteQuery), request_body = RolloutInput,
    responses((status = 201, description = "Begun, and committed", body = StepTaken),
    CommonProblems))]
async fn begin(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let RolloutInput { domains, pods, stage, bound } = call.json()?;
    let (choice, bound) = checked(pods, bound)?;
    // Before the turn, so that no others wait while a draft that is too large compiles.
    check_drafts(&app, &call.caller, Selection { domains: domains.clone() }).await?;
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let selection = Selection { domains: domains.clone() };
        let prepared = prepare(&app, &call, selection).await;
        let mut write = call.begin(&app).await?;
        if let Some(open) = write.open_rollout().await? {
            return Err(under_way(&open, "a rollout").into());
        }
        if write.last_version().await? == 0 {
            return Err(nothing_published().into());
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
    Err(Problem::raced().into())
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
#[utoipa::path(post, tag = "rollouts", path = "/v1/rollouts/{id}/advance",
    params(("id" = i64, Path), WriteQuery),
    request_body = AdvanceInput, responses((status = 200, description = "Committed",
    body = StepTaken), CommonProblems))]
async fn advance(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    call: WriteCall,
) -> Result<Response, Ending> {
    let AdvanceInput { stage, force } = call.json()?;
    let stage = Stage::from(stage);
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let approved = match stage {
            Stage::All => approve_last(&app, &call, &id).await,
            _ => Ok(None),
        };
        let (mut write, rollout) = own(&app, &call, &id).await?;
        let last = rollout.last();
        if last.stage == stage {
            let taken = taken(&rollout, stage, last.version);
            return call.finish(&app, write, StatusCode::OK, None, &taken).await;
        }
        need_open(&rollout, stage)?;
        if !force {
            let rows = app.store.connected_pods(None).await?;
            pass_gate(&rollout, &rows, &app.store.hits(last.version).await?)?;
        }
        if let Some(approved) = approved?
            && !approved.is_current(&mut write).await?
        {
            continue;
        }
        let taken = step(&mut write, &rollout, stage).await?;
        return call.finish(&app, write, StatusCode::OK, None, &taken).await;
    }
    Err(Problem::raced().into())
}

/// Whether the chosen pods show that the next step may be taken.
///
/// # Errors
/// They deny more than the bound allows, or show too little to tell.
fn pass_gate(rollout: &Rollout, rows: &[PodRow], hits: &StepHits) -> Result<(), Problem> {
    if let Some(why) = rollout.bound.and_then(|bound| exceeding(&bound, rollout, hits)) {
        let detail = format!("{why}; change the rules, or send force: true");
        return Err(Problem::conflict("bound-exceeded", detail));
    }
    match inconclusive(rollout, rows, hits) {
        Some(why) => {
            let detail =
                format!("{why}, so that nothing is known of the draft; wait, or send force: true");
            Err(Problem::conflict("inconclusive", detail))
        }
        None => Ok(()),
    }
}

/// Why the chosen pods show too little of a rollout for its next step, in words; `None` if they show
/// enough. Without a bound one chosen pod is enough: a person looks at the hits then.
fn inconclusive(rollout: &Rollout, rows: &[PodRow], hits: &StepHits) -> Option<String> {
    if !rows.iter().any(|row| row.chosen_by == rollout.id) {
        return Some("no chosen pod is connected".to_owned());
    }
    let version = rollout.last().version;
    let bound = rollout.bound?;
    let of = |domain: &str| {
        let key = CountKey { version, domain: domain.to_owned(), is_chosen: true };
        hits.weighed.get(&key).map_or(0, |it| it.hits)
    };
    let hits_min = u64::try_from(bound.hits_min).unwrap_or_default();
    let few = rollout.domains.iter().map(|it| (&*it.domain, of(&it.domain)));
    let few: Vec<_> = few.filter(|(_, hits)| *hits < hits_min).collect();
    let named = few.iter().take(NAMED_MAX).map(|(domain, hits)| {
        let domain = ratelease_rules::excerpt(domain);
        format!("'{domain}' {hits}")
    });
    let named: Vec<_> = named.collect();
    let others = few.len() - named.len();
    let others = if others > 0 { format!(" and {others} others") } else { String::new() };
    let named = named.join(", ");
    (!few.is_empty()).then(|| {
        format!("the chosen pods had fewer than the {hits_min} hits of the bound: {named}{others}")
    })
}

/// Compiles what the last step of a rollout would publish; `None` if the caller sees no such
/// rollout, or if it has ended.
async fn approve_last(app: &App, call: &WriteCall, id: &str) -> Result<Option<Approved>, Problem> {
    let rollout = app.store.rollout(number(id)?).await?;
    let rollout = rollout.filter(|it| is_seen_by(&call.caller, it));
    match rollout.filter(|it| it.last().stage.is_open()) {
        Some(rollout) => approve_end(app, &call.caller, &rollout).await.map(Some),
        None => Ok(None),
    }
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
    let last = rollout.last();
    let taken = if last.stage == Stage::Aborted {
        taken(&rollout, last.stage, last.version)
    } else {
        need_open(&rollout, Stage::Aborted)?;
        step(&mut write, &rollout, Stage::Aborted).await?
    };
    call.finish(&app, write, StatusCode::OK, None, &taken).await
}

/// List rollouts
#[utoipa::path(get, tag = "rollouts", path = "/v1/rollouts", params(HistoryQuery), responses(
    (status = 200, description = "Rollouts of domains that the token may use, the latest first",
    body = RolloutList), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<RolloutList>, Problem> {
    let before = query.before.unwrap_or(i64::MAX);
    let limit = page_size(query.limit)?;
    let mut rollouts = Vec::new();
    for rollout in app.store.rollouts(caller.domains(), before, limit).await? {
        rollouts.push(view(&app, &caller, &rollout).await?);
    }
    Ok(Json(RolloutList { rollouts }))
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
    let Checked { texts, documents, .. } = checked;
    let shadows = heavy(move |_| -> Vec<_> {
        let pairs = documents.iter().zip(&before);
        let shadow = |(after, before): (&Document, &Document)| {
            (!difference(before, after).is_empty()).then(|| shadow(before, after))
        };
        pairs.map(shadow).collect()
    });
    let differing = texts.into_iter().zip(shadows.await?);
    let differing = differing.filter_map(|(text, shadow)| Some((text, shadow?)));
    let (drafts, shadows): (Vec<_>, Vec<_>) = differing.unzip();
    let changed = drafts.iter().map(|it| it.changed).collect();
    if drafts.is_empty() || drafts.len() > DOMAINS_MAX {
        let count = drafts.len();
        let detail = format!(
            "{count} domains differ from what is published; expected 1 to {DOMAINS_MAX}. Change \
             rules, or name fewer domains"
        );
        return Err(Problem::conflict("nothing-to-roll-out", detail));
    }
    let shadows = compile_all(app, shadows, changed).await?.texts;
    Ok((etag, shadows.into_iter().zip(drafts).collect()))
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
fn need_open(rollout: &Rollout, stage: Stage) -> Result<(), Problem> {
    let present = rollout.last().stage;
    if present.is_open() && present < stage {
        return Ok(());
    }
    let id = rollout.id;
    let present = present.name();
    let detail = format!("the rollout {id} is at the stage '{present}'; begin another one");
    Err(Problem::conflict("rollout-ended", detail).with("stage", json!(present)))
}

async fn step(write: &mut Write, rollout: &Rollout, stage: Stage) -> Result<StepTaken, Problem> {
    let version = write.step_rollout(rollout, stage).await?.number;
    write.note_rollout(rollout, stage, version).await?;
    Ok(taken(rollout, stage, version))
}

fn taken(rollout: &Rollout, stage: Stage, version: i64) -> StepTaken {
    let domains = rollout.domains.iter().map(|it| it.domain.clone()).collect();
    StepTaken { rollout: rollout.id, stage: stage.name(), version, domains }
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
    /// Which pods run the draft.
    pods: PodsInput,
    /// The first stage.
    #[serde(default)]
    stage: OpenStage,
    /// When to roll back without being asked.
    bound: Option<Bound>,
}

/// Which pods are chosen: exactly one of these.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PodsInput {
    /// So many of a hundred, 1 to 100, by a hash of the rollout and the node's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    percent: Option<i64>,
    /// Those whose nodes have this in their metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<LabelInput>,
}

/// A key of the metadata of nodes, and its value.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LabelInput {
    /// The key.
    key: String,
    /// The value, which is text.
    value: String,
}

/// A stage in which pods run different rules.
#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OpenStage {
    /// Chosen pods count what the changed rules would deny.
    #[default]
    Shadow,
    /// Chosen pods enforce them.
    Enforced,
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

/// Where a rollout is to go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AdvanceInput {
    /// The stage.
    stage: LaterStage,
    /// Whether to go on although more would be denied than the bound allows.
    #[serde(default)]
    force: bool,
}

/// Checks the choice of pods and the bound, and lists all faults.
fn checked(pods: PodsInput, bound: Option<Bound>) -> Result<(Choice, Option<Bound>), Problem> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, message: &str| faults.push(FieldFault::of(field, message));
    let choice = match (pods.percent, pods.label) {
        (Some(percent), None) => {
            let percent = u8::try_from(percent).ok().filter(|it| (1..=100).contains(it));
            if percent.is_none() {
                fault("pods.percent", "expected a whole number from 1 to 100");
            }
            percent.map(Choice::Percent)
        }
        (None, Some(LabelInput { key, value })) => {
            let is_good =
                |it: &str| (1..=LABEL_BYTES_MAX).contains(&it.len()) && !it.contains('\0');
            let message = "expected 1 to 1024 bytes, without NUL characters";
            [("pods.label.key", &key), ("pods.label.value", &value)]
                .into_iter()
                .filter(|(_, text)| !is_good(text))
                .for_each(|(field, _)| fault(field, message));
            Some(Choice::Label(key, value))
        }
        _ => {
            fault("pods", "expected either 'percent' or 'label'");
            None
        }
    };
    if let Some(Bound { denied_share, hits_min }) = &bound {
        if !(0.0..=1.0).contains(denied_share) {
            fault("bound.denied_share", "expected a share from 0 to 1, as in 0.05");
        }
        if *hits_min < 1 {
            fault("bound.hits_min", "expected a whole number from 1");
        }
    }
    match choice {
        Some(choice) if faults.is_empty() => Ok((choice, bound)),
        _ => Err(Problem::faults("the rollout cannot begin; fix each field", faults)),
    }
}

// === impl Stage ===

impl From<OpenStage> for Stage {
    fn from(stage: OpenStage) -> Self {
        match stage {
            OpenStage::Shadow => Self::Shadow,
            OpenStage::Enforced => Self::Enforced,
        }
    }
}

impl From<LaterStage> for Stage {
    fn from(stage: LaterStage) -> Self {
        match stage {
            LaterStage::Enforced => Self::Enforced,
            LaterStage::All => Self::All,
        }
    }
}

// What is shown of a rollout: its steps, the hits of both groups of pods side by side, and what a
// reader should know before the next step.

/// Domains without hits that a warning names.
const NAMED_MAX: usize = 5;

/// Rollouts.
#[derive(Debug, Serialize, ToSchema)]
struct RolloutList {
    /// The rollouts, the latest first.
    rollouts: Vec<RolloutView>,
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
    let mut pods = None;
    if stage.is_open() {
        let rows = app.store.connected_pods(caller.domains()).await?;
        let groups = PodGroups::of(&rows, rollout.id, version);
        warnings = groups.warnings(rollout, &rows, &domains);
        let sees_all = domains.len() == rollout.domains.len();
        let why = rollout.bound.and_then(|bound| exceeding(&bound, rollout, &hits));
        let why = why.or_else(|| inconclusive(rollout, &rows, &hits));
        // The names of the others are not the caller's to know.
        let none = (groups.chosen.connected == 0).then(|| "no chosen pod is connected".to_owned());
        warnings.extend(why.filter(|_| sees_all).or(none));
        pods = Some(groups);
    }
    warnings.extend(unread);
    let mut steps = rollout.steps.clone();
    steps.iter_mut().for_each(|it| hide_reason(caller, &it.author, &mut it.reason));
    Ok(RolloutView {
        rollout: rollout.id,
        stage: stage.name(),
        version: rollout.last().version,
        choice: PodsInput::from(&rollout.choice),
        bound: rollout.bound,
        pods,
        domains,
        steps,
        warnings,
    })
}

/// Which domains deny more on the chosen pods than the bound allows, or would deny more once these
/// enforce the rules, in words; `None` if there are none.
fn exceeding(bound: &Bound, rollout: &Rollout, hits: &StepHits) -> Option<String> {
    let share = bound.denied_share;
    let (domains, verb) = match rollout.last().stage {
        // Both count what the limit in force and the one in its place deny.
        Stage::Shadow => {
            (bound.exceeded(&hits.weighed, |it| it.denied.max(it.shadow))?, "would deny")
        }
        _ => (bound.exceeded(&hits.weighed, |it| it.denied)?, "deny"),
    };
    Some(format!("the chosen pods {verb} more than the share {share}: {domains}"))
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
            let is_chosen = row.chosen_by == rollout;
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
        if let (Choice::Percent(_), Some(id)) = (&rollout.choice, shared_id(rows)) {
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

/// An id that pods of different addresses have. Only those of one replica are compared: a pod may
/// be shown for another one that it has left.
fn shared_id(rows: &[PodRow]) -> Option<&str> {
    let mut peers = BTreeMap::new();
    for row in rows {
        let at = &*row.peer;
        if *peers.entry((&*row.replica, &*row.node)).or_insert(at) != at {
            return Some(&row.node);
        }
    }
    None
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

impl From<&Choice> for PodsInput {
    fn from(choice: &Choice) -> Self {
        match choice {
            Choice::Percent(percent) => Self { percent: Some((*percent).into()), label: None },
            Choice::Label(key, value) => {
                let label = LabelInput { key: key.clone(), value: value.clone() };
                Self { percent: None, label: Some(label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RolloutDomain;

    fn row(node: &str, peer: &str, chosen_by: i64, accepted: i64) -> PodRow {
        let (node, peer, reports) = (node.to_owned(), peer.to_owned(), chosen_by > 0);
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

    /// A rollout at a stage, of the domain `shop`.
    fn rollout(stage: Stage, hits_min: i64) -> Rollout {
        let step = |stage, version| RolloutStep {
            stage,
            version,
            at: 0,
            author: String::new(),
            reason: String::new(),
        };
        Rollout {
            id: 7,
            choice: Choice::Percent(50),
            bound: Some(Bound { denied_share: 0.05, hits_min }),
            domains: vec![RolloutDomain {
                domain: "shop".to_owned(),
                changed: 1,
                shadow: None,
                hash: None,
            }],
            steps: vec![step(stage, 9)],
        }
    }

    fn counted(hits: u64, denied: u64, shadow: u64) -> StepHits {
        let key = CountKey { version: 9, domain: "shop".to_owned(), is_chosen: true };
        let weighed = [(key, HitCount { hits, denied, shadow })].into_iter().collect();
        StepHits { weighed, ..StepHits::default() }
    }

    #[test]
    fn a_gate_without_evidence_does_not_open() {
        let kind = |rollout: &Rollout, rows: &[PodRow], hits: &StepHits| {
            pass_gate(rollout, rows, hits).map_err(|problem| problem.kind)
        };
        let chosen = [row("a", "1", 7, 9)];
        for stage in [Stage::Shadow, Stage::Enforced] {
            let it = rollout(stage, 100);
            assert_eq!(kind(&it, &[], &counted(900, 0, 0)), Err("inconclusive"));
            assert_eq!(kind(&it, &[row("b", "2", 0, 9)], &counted(900, 0, 0)), Err("inconclusive"));
            assert_eq!(kind(&it, &chosen, &StepHits::default()), Err("inconclusive"));
            assert_eq!(kind(&it, &chosen, &counted(99, 0, 0)), Err("inconclusive"));
            assert_eq!(kind(&it, &chosen, &counted(100, 5, 0)), Ok(()));
            assert_eq!(kind(&it, &chosen, &counted(100, 6, 0)), Err("bound-exceeded"));
        }
        let shadow = rollout(Stage::Shadow, 100);
        assert_eq!(kind(&shadow, &chosen, &counted(100, 0, 6)), Err("bound-exceeded"));
        // A person who set no bound looks at the hits.
        let unbound = Rollout { bound: None, ..shadow };
        assert_eq!(kind(&unbound, &chosen, &StepHits::default()), Ok(()));
        assert_eq!(kind(&unbound, &[], &StepHits::default()), Err("inconclusive"));
    }

    #[test]
    fn an_id_of_several_pods_is_found() {
        assert_eq!(shared_id(&[row("a", "1", 0, 0)]), None);
        assert_eq!(shared_id(&[row("a", "1", 0, 0), row("b", "2", 0, 0)]), None);
        let (one, other) = (row("a", "1", 0, 0), row("a", "2", 0, 0));
        assert_eq!(shared_id(&[one.clone(), other.clone()]), Some("a"));
        let moved = PodRow { replica: "gone".into(), ..other };
        assert_eq!(shared_id(&[one, moved]), None);
    }
}
