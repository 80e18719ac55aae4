//! The way of a draft to the pods: check, publish, roll back.
//!
//! Nothing is compiled in a transaction: it would hold up all other writes. [`compile_all`]
//! compiles, [`approve`] sees that pods can load all, and [`publish_texts`] makes the version only
//! if none was published since; the call commits.

use std::collections::BTreeMap;
use std::slice::from_ref;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use jiff::Timestamp;
use ratelease_rules::{Source, candidate_of};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::warn;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, DryCall, Ending, Problem, QueryOf, WriteCall, WriteQuery, check_domain,
};
use super::pages::{Page, page_size};
use super::rule_files::{Files, IMPORT_BYTES_MAX, RuleFile, read_files, sources};
use crate::auth::{Access, Caller};
use crate::document::{
    Difference, Document, FieldFault, check_together, compile, difference, memory_for_rules, mib,
    need_at_most, read,
};
use crate::push::{PublishedDomain, ROLLBACK_REASON, ROLLOUT_AUTHOR};
use crate::rates::{Excess, PUBLISHED_KIB_A_MINUTE, PUBLISHED_KIB_MAX};
use crate::store::{
    DraftDomain, PublishedText, Replacement, Rollout, RolloutTexts, Stage, StoreError, VersionRow,
    Write,
};
use crate::work::heavy;

/// Attempts to publish. Publishers wait for each other, so that a further one is needed only where
/// a lock was lost, or a draft changed between two reads.
pub const ATTEMPTS_MAX: usize = 5;

/// Which domains to check or publish.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// These domains; by default those with changes that the token may use.
    pub domains: Option<Vec<String>>,
}

/// What to check: the draft, or these files.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckInput {
    /// The draft of these domains; by default of those with changes that the token may use.
    domains: Option<Vec<String>>,
    /// These files, in place of the draft.
    files: Option<Vec<RuleFile>>,
}

/// A dry run: what publishing would do.
#[derive(Debug, Serialize, ToSchema)]
struct CheckReport {
    /// The `If-Match` with which exactly this is published; absent if files were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// Number of rules of the domains.
    rules: usize,
    /// What may not do what its author meant.
    warnings: Vec<FieldFault>,
    /// What changes, for each domain.
    differences: Vec<Difference>,
}

/// What to go back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RollbackInput {
    /// The version whose rules are published again, as a new version.
    version: i64,
    /// Only these domains; by default all that differ, that the token may use, and that no object
    /// of Kubernetes defines.
    domains: Option<Vec<String>>,
    /// Whether to discard changes of the drafts of these domains that are not published, even in a
    /// domain whose published rules are those of the version.
    #[serde(default)]
    discard_draft: bool,
}

/// A request to discard drafts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DiscardInput {
    /// The domains.
    domains: Vec<String>,
}

/// Drafts that were discarded.
#[derive(Debug, Serialize, ToSchema)]
struct Discarded {
    /// The domains whose drafts had changes.
    domains: Vec<String>,
}

/// The filter and the page of a list of versions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct VersionQuery {
    /// That change this domain.
    domain: Option<String>,
    /// Before this number: `next` of the page before.
    before: Option<i64>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Versions.
#[derive(Debug, Serialize, ToSchema)]
struct VersionList {
    /// The versions, the latest first.
    versions: Vec<VersionRow>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// Versions that are read together: each names up to 20 domains.
const VERSIONS_PART: usize = 100;

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(check, publish, discard, rollback, versions))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new().route("/v1/versions", get(versions))
}

/// The calls about whole domains.
pub fn long_calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/publish", post(publish))
        .route("/v1/discard", post(discard))
        .route("/v1/rollback", post(rollback))
}

/// Check the draft, or rule files: a dry run of publishing
///
/// Files are compared with what is published, and become no draft. A token that may read is enough.
#[utoipa::path(post, tag = "publish", path = "/v1/check", request_body(content(
    (CheckInput = "application/json"), (Object = "application/yaml"))), responses(
    (status = 200, description = "It can be published", body = CheckReport), CommonProblems))]
async fn check(
    State(app): State<Arc<App>>,
    call: DryCall<IMPORT_BYTES_MAX>,
) -> Result<Json<CheckReport>, Problem> {
    let CheckInput { domains, files } = match call.is_yaml || call.body.is_empty() {
        true => CheckInput::default(),
        false => call.json()?,
    };
    let files = match call.is_yaml {
        true => Some(vec![Source { name: "check.yaml".into(), text: call.body.to_vec() }]),
        false => files.map(|files| sources(Files { files })).transpose()?,
    };
    let (checked, etag) = match files {
        Some(_) if domains.is_some() => {
            let message = "domains and files; expected one of the two: a file names its domain";
            let fault = vec![FieldFault::of("domains", message)];
            return Err(Problem::faults("nothing was checked; fix each field", fault));
        }
        Some(files) => {
            let documents = read_files(&app, &call.caller, files).await?;
            let changed = vec![0; documents.len()];
            let checked = compile_all(&app, documents, changed).await?;
            check_domain_bytes(&app, &checked.texts)?;
            (checked, None)
        }
        None => {
            let checked = check_drafts(&app, &call.caller, Selection { domains }).await?;
            let etag = checked.etag();
            (checked, Some(etag))
        }
    };
    let published = published(&app, &checked.documents).await?;
    let Checked { texts, documents, warnings } = checked;
    let differences = heavy(move |_| {
        let differences = documents.iter().zip(&published);
        let differences = differences.map(|(after, before)| difference(before, after));
        differences.filter(|it| !it.is_empty()).collect()
    });
    let rules = texts.iter().map(|it| it.rules).sum();
    Ok(Json(CheckReport { etag, rules, differences: differences.await?, warnings }))
}

/// Publish the draft
///
/// All of its domains become one version, or none does. With `If-Match`, only what
/// `/v1/check` reported is published.
#[utoipa::path(post, tag = "publish", path = "/v1/publish",
    params(("If-Match" = Option<String>, Header), WriteQuery), request_body = Selection,
    responses((status = 200, description = "Published, and committed", body = Published),
    CommonProblems))]
async fn publish(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let selection: Selection = body_or_default(&call)?;
    // Before the turn, so that no others wait while a large draft compiles.
    let checked = check_drafts(&app, &call.caller, selection.clone()).await?;
    app.take_publisher_turn(&call.caller).await?;
    let checked = match checked.is_current(&app).await? {
        true => checked,
        false => check_drafts(&app, &call.caller, selection).await?,
    };
    for _ in 0..ATTEMPTS_MAX {
        let approved = approve(&app, from_ref(&call.caller), &checked.texts).await;
        let mut write = call.begin(&app).await?;
        call.need_draft(&checked.etag())?;
        let published = publish_texts(&mut write, &checked.texts, None, approved?).await?;
        if let Some(published) = published {
            return call.finish(&app, write, StatusCode::OK, None, &published).await;
        }
    }
    Err(Problem::raced().into())
}

/// Roll back to an earlier version
///
/// Its rules become the draft, and are published as a new version.
#[utoipa::path(post, tag = "publish", path = "/v1/rollback",
    params(WriteQuery), request_body = RollbackInput,
    responses((status = 200, description = "Published, and committed", body = Published),
    CommonProblems))]
async fn rollback(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let RollbackInput { version, domains, discard_draft } = call.json()?;
    if !(1..=app.store.last_version().await?).contains(&version) {
        return Err(Problem::not_found(format!("there is no version {version}")).into());
    }
    let domains = named_domains(&call.caller, domains)?;
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let wanted = (domains.as_deref(), discard_draft);
        let former = former_documents(&app, &call.caller, version, wanted).await?;
        let names: Vec<_> = former.iter().map(|(it, _)| &*it.domain).collect();
        app.store.compare(&names).await?;
        let texts: Vec<_> = former.iter().map(|(it, yaml)| text_of(it, yaml.clone())).collect();
        let documents = Arc::new(former.into_iter().map(|(document, _)| document).collect());
        let replacements = replacements(&app, &documents).await?;
        let approved = approve(&app, from_ref(&call.caller), &texts).await;
        let mut write = call.begin(&app).await?;
        let restored = restore(&mut write, &replacements, texts, discard_draft).await?;
        let Some((texts, discarded)) = restored else { continue };
        let published = publish_texts(&mut write, &texts, Some(version), approved?).await?;
        if let Some(published) = published {
            if published.domains.is_empty() && !discarded.is_empty() {
                write.note_action("draft.discard", &discarded.join(", ")).await?;
            }
            let published = Published { discarded, ..published };
            return call.finish(&app, write, StatusCode::OK, None, &published).await;
        }
    }
    Err(Problem::raced().into())
}

fn text_of(document: &Document, yaml: Option<String>) -> PublishedText {
    let domain = document.domain.clone();
    let rules = document.records.len();
    PublishedText { domain, changed: 0, yaml, rules }
}

/// Makes the drafts of these domains what they were in an earlier version, of which they have the
/// texts. Returns these with the number of the last change of each draft, and the domains whose
/// drafts had changes; `None` if one of them changed since it was compared.
async fn restore(
    write: &mut Write,
    replacements: &[Replacement],
    mut texts: Vec<PublishedText>,
    discard_draft: bool,
) -> Result<Option<(Vec<PublishedText>, Vec<String>)>, Problem> {
    let mut discarded = Vec::new();
    for (text, replacement) in texts.iter_mut().zip(replacements) {
        let domain = &text.domain;
        let is_changed = write.draft_state(domain).await?.0;
        if is_changed && discard_draft {
            discarded.push(domain.clone());
        }
        if is_changed && !discard_draft {
            let domain = ratelease_rules::excerpt(domain);
            let detail = format!(
                "the draft of '{domain}' has changes that are not published; publish them, or send \
                 discard_draft: true"
            );
            return Err(Problem::conflict("draft-changed", detail));
        }
        match write.replace(replacement).await {
            Err(StoreError::Moved(_)) => return Ok(None),
            replaced => replaced?,
        };
        text.changed = write.draft_state(domain).await?.1;
    }
    Ok(Some((texts, discarded)))
}

/// Discard changes of the draft that are not published
///
/// Each draft becomes the published rules again. `If-Match` is required: the `etag` of
/// `/v1/differences` or of `/v1/check` about the same domains, or `*`.
#[utoipa::path(post, tag = "publish", path = "/v1/discard",
    params(("If-Match" = String, Header), WriteQuery), request_body = DiscardInput,
    responses((status = 200, description = "Discarded, and committed", body = Discarded),
    CommonProblems))]
async fn discard(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let DiscardInput { domains } = call.json()?;
    let domains = named_domains(&call.caller, Some(domains))?.unwrap_or_default();
    for _ in 0..ATTEMPTS_MAX {
        let known = known_domains(&app, &domains).await?;
        let drafts =
            known.iter().map(|it| Document { domain: it.name.clone(), ..Document::default() });
        let documents = Arc::new(published(&app, &drafts.collect::<Vec<_>>()).await?);
        let replacements = replacements(&app, &documents).await?;
        let mut write = call.begin(&app).await?;
        let Some(discarded) = discard_drafts(&call, &mut write, &known, &replacements).await?
        else {
            continue;
        };
        return call.finish(&app, write, StatusCode::OK, None, &discarded).await;
    }
    Err(Problem::raced().into())
}

/// Replaces drafts by the published rules, if `If-Match` names these drafts. `None` if a draft changed
/// or was published since it was compared.
async fn discard_drafts(
    call: &WriteCall,
    write: &mut Write,
    known: &[DraftDomain],
    replacements: &[Replacement],
) -> Result<Option<Discarded>, Problem> {
    let mut drafts = Vec::new();
    for domain in known {
        drafts.push((&*domain.name, write.draft_state(&domain.name).await?.1));
    }
    if !call.matches(&draft_etag(drafts))? {
        let detail = "the draft changed since you looked at it; look at the differences again";
        return Err(Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail));
    }
    let mut discarded = Discarded { domains: Vec::new() };
    for (domain, replacement) in known.iter().zip(replacements) {
        let name = &domain.name;
        if write.published_hash(name).await? != domain.hash {
            return Ok(None);
        }
        if !domain.is_changed {
            continue;
        }
        match write.replace(replacement).await {
            Err(StoreError::Moved(_)) => return Ok(None),
            replaced => replaced?,
        };
        let (_, changed) = write.draft_state(name).await?;
        write.note_published(name, changed, domain.hash.as_deref()).await?;
        discarded.domains.push(name.clone());
    }
    if !discarded.domains.is_empty() {
        write.note_action("draft.discard", &discarded.domains.join(", ")).await?;
    }
    Ok(Some(discarded))
}

/// These domains, by name.
///
/// # Errors
/// Refuses one that there is not.
async fn known_domains(app: &App, names: &[String]) -> Result<Vec<DraftDomain>, Problem> {
    let mut known = app.store.domains().await?;
    let unknown = names.iter().find(|name| !known.iter().any(|it| it.name == **name));
    if let Some(unknown) = unknown {
        let unknown = ratelease_rules::excerpt(unknown);
        return Err(Problem::not_found(format!("there is no domain '{unknown}'")));
    }
    known.retain(|it| names.contains(&it.name));
    Ok(known)
}

/// List versions
#[utoipa::path(get, tag = "publish", path = "/v1/versions", params(VersionQuery), responses(
    (status = 200, description = "Versions that change a domain of the token, the latest first",
        body = VersionList),
    CommonProblems))]
async fn versions(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<VersionQuery>,
) -> Result<Json<VersionList>, Problem> {
    let before = query.before.unwrap_or(i64::MAX);
    let limit = page_size(query.limit)?;
    if let Some(domain) = &query.domain {
        check_domain(domain)?;
        caller.need_domain(domain)?;
    }
    let domain = query.domain.map(|it| [it]);
    let of = domain.as_ref().map(<[String; 1]>::as_slice).or(caller.domains());
    let mut page = Page::new(limit);
    while let Some(asked) = page.wants(VERSIONS_PART) {
        let last = page.last().map_or(before, |it: &VersionRow| it.number);
        let mut found = app.lists().versions(of, caller.domains(), last, asked).await?;
        found.iter_mut().for_each(|it| hide_reason(&caller, &it.author, &mut it.reason));
        page.add_part(asked, found);
    }
    let (versions, next) = page.end(|it| it.number);
    Ok(Json(VersionList { versions, next }))
}

/// Hides the control plane's reason for a roll back from a token that is for some domains: it names
/// domains and their hits.
pub fn hide_reason(caller: &Caller, author: &str, reason: &mut String) {
    if caller.domains().is_some() && author == ROLLOUT_AUTHOR && reason.starts_with(ROLLBACK_REASON)
    {
        ROLLBACK_REASON.clone_into(reason);
    }
}

/// What a version published.
pub async fn published_hashes(
    app: &App,
    version: i64,
) -> Result<BTreeMap<String, String>, Problem> {
    let state = app.store.state_at(version).await?.into_iter();
    Ok(state.filter_map(|row| Some((row.domain, row.hash?))).collect())
}

/// A body may be missing.
fn body_or_default<T: for<'de> Deserialize<'de> + Default>(call: &WriteCall) -> Result<T, Problem> {
    if call.body.is_empty() { Ok(T::default()) } else { call.json() }
}

/// The domains that a request names; `None` if it names none.
fn named_domains(
    caller: &Caller,
    domains: Option<Vec<String>>,
) -> Result<Option<Vec<String>>, Problem> {
    for domain in domains.iter().flatten() {
        check_domain(domain)?;
        caller.need_domain(domain)?;
    }
    Ok(domains.map(|mut domains| {
        domains.sort();
        domains.dedup();
        domains
    }))
}

pub async fn check_drafts(
    app: &App,
    caller: &Caller,
    selection: Selection,
) -> Result<Checked, Problem> {
    let domains: Vec<_> = match named_domains(caller, selection.domains)? {
        Some(domains) => {
            known_domains(app, &domains).await?.into_iter().map(|it| it.name).collect()
        }
        None => {
            let known = app.store.domains().await?.into_iter();
            // The change of a domain that an object defines is the object's, also one that was rolled back.
            let changed = known.filter(|it| it.is_changed && it.owner.is_none()).map(|it| it.name);
            changed.filter(|name| caller.may_use(name)).collect()
        }
    };
    let mut drafts = Vec::new();
    for domain in domains {
        drafts.push(app.store.draft(&domain).await?);
    }
    let (changed, documents): (Vec<_>, Vec<_>) =
        drafts.into_iter().map(|draft| (draft.changed, draft.document)).unzip();
    compile_all(app, documents, changed).await
}

/// The published rules of the domains of these drafts, in their order.
pub async fn published(app: &App, drafts: &[Document]) -> Result<Vec<Document>, Problem> {
    let mut hashes = published_hashes(app, i64::MAX).await?;
    let mut documents = Vec::new();
    for draft in drafts {
        let document = match hashes.remove(&draft.domain) {
            Some(hash) => read_text(app.store.text(&hash).await?).await?,
            None => Document { domain: draft.domain.clone(), ..Document::default() },
        };
        documents.push(document);
    }
    Ok(documents)
}

/// The rules of a version: the document and its text, for each of these domains that has others now;
/// and if drafts may be lost, for those whose draft has changes. Without names, of all domains that
/// the token may use and no object defines.
async fn former_documents(
    app: &App,
    caller: &Caller,
    version: i64,
    (named, discard_draft): (Option<&[String]>, bool),
) -> Result<Vec<(Document, Option<String>)>, Problem> {
    let mut then = published_hashes(app, version).await?;
    let known = app.store.domains().await?;
    let mut documents = Vec::new();
    for DraftDomain { name: domain, is_changed, owner, hash: present, .. } in known {
        let is_wanted = match named {
            Some(named) => named.contains(&domain),
            None => caller.may_use(&domain) && owner.is_none(),
        };
        let hash = then.remove(&domain);
        if !is_wanted || (hash == present && !(discard_draft && is_changed)) {
            continue;
        }
        documents.push(match hash {
            Some(hash) => {
                let text = app.store.text(&hash).await?;
                (read_text(text.clone()).await?, Some(text))
            }
            None => (Document { domain, ..Document::default() }, None),
        });
    }
    Ok(documents)
}

// Compiles drafts, and makes versions of them in the transaction of a write.

/// What was published.
#[derive(Debug, Serialize, ToSchema)]
pub struct Published {
    /// The version in force: a new one, unless nothing differed.
    version: i64,
    /// The domains that it changes.
    domains: Vec<String>,
    /// The domains whose drafts had changes that are lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    discarded: Vec<String>,
}

/// Texts that pods accept together with all others that are published.
#[derive(Debug, Clone, Copy)]
pub struct Approved {
    /// The version that the others are of.
    version: i64,
}

/// Drafts that were compiled.
#[derive(Debug)]
pub struct Checked {
    pub texts: Vec<PublishedText>,
    pub documents: Vec<Document>,
    pub warnings: Vec<FieldFault>,
}

/// One domain may need this part of a pod's memory, or the part that it has of the published bytes.
const DOMAIN_PARTS: usize = 4;

/// Compiles documents. A domain that needs more than its part of a pod's memory has a fault.
pub async fn compile_all(
    app: &App,
    documents: Vec<Document>,
    changed: Vec<i64>,
) -> Result<Checked, Problem> {
    let memory = domain_memory(app);
    let compiled = heavy(move |_| {
        let (warnings, texts) = compile(&documents, memory)?;
        let texts = documents.iter().zip(texts).zip(changed).map(|((document, text), changed)| {
            let domain = document.domain.clone();
            let rules = document.records.len();
            // A domain without rules is one that pods need not know.
            PublishedText { domain, changed, yaml: (rules > 0).then_some(text), rules }
        });
        let texts = texts.collect();
        Ok(Checked { texts, documents, warnings })
    });
    compiled.await?.map_err(|findings: Vec<FieldFault>| findings.into())
}

/// The part of a pod's memory for rules that one domain may need, or all domains of a token.
pub fn domain_memory(app: &App) -> usize {
    let parts = app.settings.push_bytes_max / app.settings.domain_bytes_max.max(1);
    memory_for_rules(app.settings.pod_memory) / parts.clamp(1, DOMAIN_PARTS)
}

/// What makes the drafts of their domains these documents. Compared before the transaction.
pub async fn replacements(
    app: &App,
    documents: &Arc<Vec<Document>>,
) -> Result<Vec<Replacement>, Problem> {
    let mut replacements = Vec::new();
    for at in 0..documents.len() {
        let Some(document) = documents.get(at) else { continue };
        let draft = app.store.stored_draft(&document.domain).await?;
        let documents = Arc::clone(documents);
        let replacement = heavy(move |_| Some(Replacement::new(draft, documents.get(at)?)));
        replacements.extend(replacement.await?);
    }
    Ok(replacements)
}

/// Reads a text that was published.
pub async fn read_text(text: String) -> Result<Document, Problem> {
    let source = Source { name: "published".into(), text: text.into_bytes() };
    let read = heavy(move |_| read(&[source])).await?;
    let mut documents = read.map_err(|_| {
        Problem::from(StoreError::Internal("a published text is refused now".to_owned()))
    })?;
    Ok(documents.pop().unwrap_or_default())
}

/// Sees that pods can load all that would be published with these texts: see [`check_set`]. While a
/// rollout is under way, this holds for what its chosen pods would have too. No transaction is open
/// meanwhile.
///
/// # Errors
/// Refuses what pods would refuse, and domains of a rollout that is under way.
pub async fn approve(
    app: &App,
    callers: &[Caller],
    texts: &[PublishedText],
) -> Result<Approved, Problem> {
    approve_in_place(app, callers, texts, &[]).await
}

/// Does what [`approve`] does, for a publication that ends the rollouts of these numbers.
///
/// # Errors
/// As [`approve`].
pub async fn approve_in_place(
    app: &App,
    callers: &[Caller],
    texts: &[PublishedText],
    ended: &[i64],
) -> Result<Approved, Problem> {
    check_domain_bytes(app, texts)?;
    let published = app.last_published().await?;
    let approved = Approved { version: published.version };
    let published = &published.domains;
    // Read after the version: a step of it meanwhile is a version, and ends this attempt.
    let mut rollouts = app.store.open_rollouts().await?;
    rollouts.retain(|it| !ended.contains(&it.id));
    refuse_rolled_out(&rollouts, texts.iter().map(|it| &*it.domain), callers)?;
    let overlay = overlay_of(texts);
    if overlay.iter().all(|(domain, text)| hash_of(published.get(domain)) == hash_of(text.as_ref()))
    {
        return Ok(approved);
    }
    take_publication(app, callers, published, texts)?;
    let next = laid_over(published, overlay);
    check_shares(app, callers, published, &next).await?;
    let before = bytes_of_all(published);
    let after = bytes_of_all(&next);
    let max = app.settings.push_bytes_max;
    if after <= max {
        check_rollouts(app, callers, &next, &rollouts, Vec::new()).await?;
        check_set(app, next, Some(published)).await?;
    } else if after >= before {
        return Err(too_many_bytes(app, after, texts.iter().map(bytes_of).sum()));
    }
    // A set that is too large may become smaller.
    Ok(approved)
}

/// Publishes texts that were approved, and notes that in the audit log. `None` if another version
/// was published since: then the set of all domains is not the one that was compiled. Each step of
/// a rollout is a version too.
pub async fn publish_texts(
    write: &mut Write,
    texts: &[PublishedText],
    restores: Option<i64>,
    approved: Approved,
) -> Result<Option<Published>, Problem> {
    if !approved.is_current(write).await? {
        return Ok(None);
    }
    let Some((version, domains)) = write.publish(texts, restores).await? else {
        let none = Published { version: approved.version, domains: vec![], discarded: vec![] };
        return Ok(Some(none));
    };
    let action = if restores.is_some() { "version.restore" } else { "version.publish" };
    write.note_action(action, &format!("{version}: {}", domains.join(", "))).await?;
    Ok(Some(Published { version, domains, discarded: Vec::new() }))
}

fn too_many_bytes(app: &App, bytes: usize, own: usize) -> Problem {
    let detail = format!(
        "all published rules together would be {bytes} bytes, of which the domains of this request \
         have {own}, and a pod accepts {} in one message; remove some, or raise --push-bytes-max \
         and the pods' XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        app.settings.push_bytes_max
    );
    Problem::conflict("too-many-rules", detail)
}

/// The domains that pods have, by their names.
type Domains = BTreeMap<String, Arc<PublishedDomain>>;

/// Domains that take the place of others; `None` for one that leaves.
type Overlay = Vec<(String, Option<Arc<PublishedDomain>>)>;

fn overlay_of(texts: &[PublishedText]) -> Overlay {
    let published = |text: &PublishedText| {
        let (hash, yaml) = text.hash().zip(text.yaml.clone())?;
        Some(Arc::new(PublishedDomain::new(&text.domain, hash, yaml)))
    };
    texts.iter().map(|text| (text.domain.clone(), published(text))).collect()
}

/// The domains that pods have, with others for some.
fn laid_over(published: &Domains, overlay: Overlay) -> Domains {
    let mut domains = published.clone();
    for (name, domain) in overlay {
        match domain {
            Some(domain) => domains.insert(name, domain),
            None => domains.remove(&name),
        };
    }
    domains
}

/// The name of a domain, and the hash of its text.
fn named<'d>((name, domain): (&'d String, &'d Arc<PublishedDomain>)) -> (&'d str, &'d str) {
    (name, &domain.hash)
}

fn hash_of(domain: Option<&Arc<PublishedDomain>>) -> Option<&str> {
    domain.map(|it| &*it.hash)
}

fn bytes_of_all(domains: &Domains) -> usize {
    domains.values().map(|it| it.text().len()).sum()
}

/// The domains that pods of a rollout may run in `stage`, instead of the published ones or beside
/// them.
async fn overlay_of_rollout(
    app: &App,
    rollout: &Rollout,
    stage: Stage,
) -> Result<Overlay, Problem> {
    let mut overlay = Vec::new();
    for (name, hash) in rollout.hashes(stage).chain(rollout.others(stage)) {
        let mut domain = None;
        if let Some(hash) = hash {
            let text = app.store.text(hash).await?;
            domain = Some(Arc::new(PublishedDomain::new(&name, hash.to_owned(), text)));
        }
        overlay.push((name, domain));
    }
    Ok(overlay)
}

/// The largest set of domains that a pod may have: an overlay replaces a published domain if it is
/// larger. Each pod runs the overlays of some rollouts only.
fn largest_of(published: &Domains, overlay: Overlay) -> Domains {
    let mut domains = published.clone();
    for (name, domain) in overlay {
        let Some(domain) = domain else { continue };
        let former = domains.get(&name).map_or(0, |it| it.text().len());
        if domain.text().len() > former {
            domains.insert(name, domain);
        }
    }
    domains
}

/// Refuses what pods would refuse: `domains`, to which texts of so many bytes belong that are not
/// published.
async fn check_domains(
    app: &App,
    callers: &[Caller],
    published: &Domains,
    (domains, own): (Domains, usize),
) -> Result<(), Problem> {
    check_shares(app, callers, published, &domains).await?;
    let bytes = bytes_of_all(&domains);
    if bytes > app.settings.push_bytes_max {
        return Err(too_many_bytes(app, bytes, own));
    }
    check_set(app, domains, None).await
}

fn bytes_of_overlay(overlay: &Overlay) -> usize {
    overlay.iter().map(|(_, it)| it.as_ref().map_or(0, |it| it.text().len())).sum()
}

/// Compiles what pods would have in each stage of a rollout that is to begin, also beside those that
/// are under way, but for the `ended` ones, in whose place it begins.
///
/// # Errors
/// Refuses what these pods would refuse, and domains of another rollout.
pub async fn approve_rollout(
    app: &App,
    callers: &[Caller],
    texts: &[RolloutTexts],
    ended: &[i64],
) -> Result<Approved, Problem> {
    let published = app.last_published().await?;
    let mut rollouts = app.store.open_rollouts().await?;
    rollouts.retain(|it| !ended.contains(&it.id));
    refuse_rolled_out(&rollouts, texts.iter().map(|it| &*it.draft.domain), callers)?;
    let drafts: Vec<_> = texts.iter().map(|it| it.draft.clone()).collect();
    take_publication(app, callers, &published.domains, &drafts)?;
    let mut own = Vec::new();
    for it in texts {
        let texts = [it.shadow.clone(), it.others.clone(), it.draft.clone()];
        check_domain_bytes(app, &texts)?;
        own.extend(overlay_of(&texts));
    }
    check_rollouts(app, callers, &published.domains, &rollouts, own).await?;
    Ok(Approved { version: published.version })
}

/// Compiles what all pods would have after the last step of a rollout.
///
/// # Errors
/// Refuses what pods would refuse.
pub async fn approve_end(
    app: &App,
    caller: &Caller,
    rollout: &Rollout,
) -> Result<Approved, Problem> {
    let published = app.last_published().await?;
    let overlay = overlay_of_rollout(app, rollout, Stage::All).await?;
    let own = bytes_of_overlay(&overlay);
    let domains = laid_over(&published.domains, overlay);
    check_domains(app, from_ref(caller), &published.domains, (domains, own)).await?;
    Ok(Approved { version: published.version })
}

/// Refuses to publish `next` if a pod would refuse it beside what these rollouts may have it run, now
/// or at a later step. `own` is of one that is to begin.
async fn check_rollouts(
    app: &App,
    callers: &[Caller],
    next: &Domains,
    rollouts: &[Rollout],
    own: Overlay,
) -> Result<(), Problem> {
    let mut overlay = own;
    for open in rollouts {
        let present = open.last().stage;
        for stage in [Stage::Shadow, Stage::Enforced].into_iter().filter(|it| *it >= present) {
            overlay.extend(overlay_of_rollout(app, open, stage).await?);
        }
    }
    if overlay.is_empty() {
        return Ok(());
    }
    let own = bytes_of_overlay(&overlay);
    check_domains(app, callers, next, (largest_of(next, overlay), own)).await
}

fn bytes_of(text: &PublishedText) -> usize {
    text.yaml.as_ref().map_or(0, String::len)
}

/// Refuses to publish domains of rollouts that are under way, to callers who may use these domains.
pub fn refuse_rolled_out<'d>(
    rollouts: &[Rollout],
    mut domains: impl Iterator<Item = &'d str>,
    callers: &[Caller],
) -> Result<(), Problem> {
    let of = |domain: &str| {
        rollouts.iter().find(|open| open.domains.iter().any(|it| it.domain == domain))
    };
    match domains.find_map(|domain| Some((domain, of(domain)?))) {
        Some((domain, open)) => Err(under_way(open, domain, callers)),
        None => Ok(()),
    }
}

/// Says why a domain has to wait for a rollout that is under way: who began the rollout, how the
/// callers can end it, and when it ends by itself.
fn under_way(open: &Rollout, domain: &str, callers: &[Caller]) -> Problem {
    let id = open.id;
    let domain = ratelease_rules::excerpt(domain);
    let author = open.steps.first().map_or("", |it| &it.author);
    let (author, stage) = (ratelease_rules::excerpt(author), open.last().stage.name());
    let is_own = open.domains.iter().all(|it| callers.iter().all(|of| of.may_use(&it.domain)));
    let cure = match is_own {
        true => format!(
            "Advance it to all with /v1/rollouts/{id}/advance, or end it with \
             /v1/rollouts/{id}/abort"
        ),
        false => "It has domains that the token is not for: ask that author, or an administrator, \
                  to end it"
            .to_owned(),
    };
    let end = open.ends_at().and_then(|at| Timestamp::from_millisecond(at).ok());
    let end = end
        .map_or_else(String::new, |at| format!(". Without a step until {at:.0} it ends by itself"));
    let detail = format!(
        "'{domain}' has to wait: the rollout {id}, which {author} began, is at the stage '{stage}'. \
         {cure}{end}"
    );
    Problem::conflict("rollout-under-way", detail).with("rollout", json!(id))
}

/// Counts a version of these texts for each token, but for those of access admin. Every pod that has
/// its domains compiles them again. Objects have a bound of their own.
fn take_publication(
    app: &App,
    callers: &[Caller],
    published: &Domains,
    texts: &[PublishedText],
) -> Result<(), Problem> {
    let changed =
        texts.iter().filter(|it| hash_of(published.get(&it.domain)) != it.hash().as_deref());
    take_version(app, callers, changed.map(bytes_of).sum())
}

/// Counts a version that changes texts of so many bytes towards what these callers publish.
///
/// # Errors
/// A problem of status 429 if it is one too many.
pub fn take_version(app: &App, callers: &[Caller], bytes: usize) -> Result<(), Problem> {
    let tokens = callers.iter().filter(|it| !it.id.is_empty() && !it.has(Access::Admin));
    for token in tokens {
        app.rates.take_version(&token.id, bytes).map_err(too_many_versions)?;
    }
    Ok(())
}

fn too_many_versions(excess: Excess) -> Problem {
    let Excess { of_bytes, retry_after } = excess;
    let what = match of_bytes {
        true => format!(
            "the token has published {} MiB lately, which are kept for good, and may publish {} KiB \
             a minute from then on",
            PUBLISHED_KIB_MAX >> 10,
            PUBLISHED_KIB_A_MINUTE
        ),
        false => {
            "the token has published too many versions (--token-versions-per-minute)".to_owned()
        }
    };
    let detail = format!(
        "{what}: every pod compiles each of them. Publish this after the seconds of 'Retry-After', \
         with other changes as one version: leave out 'publish', and send POST /v1/publish. A token \
         of access admin has no such bound"
    );
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-versions", detail).after(retry_after)
}

/// Refuses what would leave other tenants no room, for each of these callers.
async fn check_shares(
    app: &App,
    callers: &[Caller],
    published: &Domains,
    next: &Domains,
) -> Result<(), Problem> {
    for caller in callers {
        check_share(app, caller, published, next).await?;
    }
    Ok(())
}

/// Refuses what would leave other tenants no room: all domains of a token that is for some have
/// together what one domain may, in bytes and in a pod's memory. A share that is too large may
/// become smaller.
async fn check_share(
    app: &App,
    caller: &Caller,
    published: &Domains,
    next: &Domains,
) -> Result<(), Problem> {
    let Some(own) = caller.domains() else { return Ok(()) };
    let share = |all: &Domains| -> Domains {
        let names = own.iter().flat_map(|it| [it.clone(), candidate_of(it)]);
        names.filter_map(|name| Some((name.clone(), Arc::clone(all.get(&name)?)))).collect()
    };
    let before = share(published);
    let after = share(next);
    if before.iter().map(named).eq(after.iter().map(named)) {
        return Ok(());
    }
    let (former, bytes) = (bytes_of_all(&before), bytes_of_all(&after));
    let max = app.settings.domain_bytes_max;
    if bytes > max && bytes > former {
        let detail = format!(
            "the published rules of the {} domains together would be {bytes} bytes; expected at \
             most {max} (--domain-bytes-max). Remove some, or {}",
            caller.whose(),
            caller.who_has_no_share()
        );
        return Err(Problem::conflict("too-many-rules", detail));
    }
    let max = domain_memory(app);
    let Some(needed) = excess(after, Some(&before), max).await? else { return Ok(()) };
    let detail = format!(
        "a pod would need {} of memory while it replaces the rules of the {} domains together; \
         expected at most {}, by --pod-memory and --domain-bytes-max. Remove some, or {}",
        mib(needed),
        caller.whose(),
        mib(max),
        caller.who_has_no_share()
    );
    Err(Problem::conflict("too-many-rules", detail))
}

/// Refuses a domain that would take more than its part of a message, so that no domain keeps the
/// others from being published.
fn check_domain_bytes(app: &App, texts: &[PublishedText]) -> Result<(), Problem> {
    let max = app.settings.domain_bytes_max;
    let large = texts.iter().filter(|text| bytes_of(text) > max);
    let fault = |text: &PublishedText| {
        let message = format!(
            "{} bytes as a rule file; expected at most {max} in one domain (--domain-bytes-max)",
            bytes_of(text)
        );
        FieldFault::of_rules(&text.domain, message)
    };
    let faults: Vec<_> = large.map(fault).collect();
    if faults.is_empty() {
        return Ok(());
    }
    Err(Problem::faults("domains are too large to be published; remove rules of each", faults))
}

/// Refuses what needs more memory than pods have: by the weights of its domains, and only if these
/// leave it open by one load of all, as a pod does.
async fn check_set(app: &App, domains: Domains, former: Option<&Domains>) -> Result<(), Problem> {
    let max = memory_for_rules(app.settings.pod_memory);
    let Some(needed) = excess(domains, former, max).await? else { return Ok(()) };
    let detail = format!(
        "a pod would need {} of memory while it replaces all published rules, and has {} for that; \
         remove some, or give pods more memory and raise --pod-memory",
        mib(needed),
        mib(max)
    );
    Err(Problem::conflict("too-many-rules", detail))
}

/// The memory that a pod needs for these domains together, if it is more than `max`. `None` too if
/// they take the place of `former` ones that need no less.
async fn excess(
    domains: Domains,
    former: Option<&Domains>,
    max: usize,
) -> Result<Option<usize>, Problem> {
    let domains = Arc::new(domains);
    let all = Arc::clone(&domains);
    // What each weighs is known of most, and tells it without a load of all; but near the ceiling.
    if heavy(move |_| memory_at_most(&all)).await?.is_some_and(|it| it <= max) {
        return Ok(None);
    }
    let needed = memory_of(domains).await?;
    if needed <= max {
        return Ok(None);
    }
    let is_less = match former {
        Some(former) => {
            let former = memory_of(Arc::new(former.clone())).await;
            former.is_ok_and(|former| former >= needed)
        }
        None => false,
    };
    Ok((!is_less).then_some(needed))
}

/// An upper bound of the memory that a pod needs for these domains together, if it is known.
/// Compiles those that were not weighed yet, one by one.
fn memory_at_most(domains: &Domains) -> Option<usize> {
    let weights = domains.iter().map(|(name, it)| Some((&**name, it.weight(name)?)));
    let weights: Vec<_> = weights.collect::<Option<_>>()?;
    need_at_most(bytes_of_all(domains), weights.into_iter())
}

/// The memory that a pod needs for these domains together, which compile.
async fn memory_of(domains: Arc<Domains>) -> Result<usize, Problem> {
    let text = |(name, it): (&String, &Arc<PublishedDomain>)| {
        (name.clone(), String::from_utf8_lossy(it.text()).into_owned())
    };
    let checked = heavy(move |_| check_together(domains.iter().map(text).collect())).await?;
    checked.map_err(|(domain, message)| {
        // The domain may be one that the caller may not use, so that only the log has it.
        let domain = ratelease_rules::excerpt(&domain);
        warn!("a version was not published: pods would refuse it at the domain '{domain}'");
        let detail = format!(
            "pods load all domains together, and would refuse this version: {message}. Nothing \
             was published; shorten the rules of this request, or ask an administrator, whose log \
             names the domain"
        );
        Problem::conflict("too-many-rules", detail)
    })
}

/// Refuses to publish a change of a domain that has other changes.
pub fn unpublished_changes(domain: &str) -> Problem {
    let domain = ratelease_rules::excerpt(domain);
    let detail = format!(
        "the draft of '{domain}' has other changes that are not published, which would be \
         published too; leave out 'publish', and publish the draft"
    );
    Problem::conflict("draft-changed", detail)
}

// === impl Approved ===

impl Approved {
    /// Whether nothing was published since, so that the texts are those that were compiled.
    pub async fn is_current(self, write: &mut Write) -> Result<bool, Problem> {
        Ok(write.last_version().await? == self.version)
    }

    /// Returns the approval for this write after the write itself has made versions, which end
    /// rollouts.
    pub async fn after_own(self, write: &mut Write) -> Result<Self, Problem> {
        Ok(Self { version: write.last_version().await? })
    }
}

// === impl Checked ===

impl Checked {
    /// Whether the drafts are still those that were compiled.
    async fn is_current(&self, app: &App) -> Result<bool, Problem> {
        let known = app.store.domains().await?;
        let is_same = |text: &PublishedText| {
            let draft = known.iter().find(|it| it.name == text.domain);
            draft.map_or(0, |it| it.changed) == text.changed
        };
        Ok(self.texts.iter().all(is_same))
    }

    /// Identifies the drafts.
    pub fn etag(&self) -> String {
        draft_etag(self.texts.iter().map(|it| (&*it.domain, it.changed)))
    }
}

/// Identifies drafts by their domains, in their order, and the number of the last change of each.
pub fn draft_etag<'d>(drafts: impl IntoIterator<Item = (&'d str, i64)>) -> String {
    let mut hasher = blake3::Hasher::new();
    for (domain, changed) in drafts {
        hasher.update(domain.as_bytes());
        hasher.update(&[0]);
        hasher.update(&changed.to_le_bytes());
    }
    format!("\"draft-{}\"", &hasher.finalize().to_hex()[..16])
}
