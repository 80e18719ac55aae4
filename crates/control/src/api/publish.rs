//! The way of a draft to the pods: check, publish, roll back.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::call::{Begun, QueryOf, WriteCall, WriteQuery, check_domain};
use super::change::ATTEMPTS_MAX;
use super::differences::published_hashes;
use super::paging::{HistoryQuery, page_size, time};
use super::problem::{CommonProblems, FieldFault, Problem};
use super::publishing::{
    Checked, Published, approve, compile_all, publish_texts, read_text, replacements,
};
use super::rollout_view::reason_for;
use crate::auth::Caller;
use crate::document::{Difference, Document, difference};
use crate::store::{PublishedText, Replacement, StoreError, VersionRow, Write};

/// Which domains to check or publish.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Selection {
    /// These domains; by default those with changes that the token may use.
    pub(super) domains: Option<Vec<String>>,
}

/// A dry run: what publishing would do.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CheckReport {
    /// The `If-Match` with which exactly this is published.
    etag: String,
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
pub(super) struct RollbackInput {
    /// The version whose rules are published again, as a new version.
    version: i64,
    /// Only these domains; by default all that differ and that the token may use.
    domains: Option<Vec<String>>,
    /// Whether changes of the draft that are not published may be lost.
    #[serde(default)]
    discard_draft: bool,
}

/// Versions.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VersionList {
    /// The versions, the latest first.
    versions: Vec<VersionView>,
}

/// A version.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VersionView {
    /// Its number.
    version: i64,
    /// When it was published.
    #[schema(value_type = String, format = DateTime)]
    at: String,
    /// Which token.
    author: String,
    /// Why.
    reason: String,
    /// The version that it brings back.
    #[serde(skip_serializing_if = "Option::is_none")]
    restores: Option<i64>,
    /// The rollout that it is a step of.
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<i64>,
}

/// Check the draft: a dry run of publishing
#[utoipa::path(post, path = "/v1/check", request_body = Selection, responses(
    (status = 200, description = "It can be published", body = CheckReport), CommonProblems))]
pub(super) async fn check(
    State(app): State<Arc<App>>,
    call: WriteCall,
) -> Result<Json<CheckReport>, Problem> {
    let selection: Selection = body_or_default(&call)?;
    let checked = check_drafts(&app, &call.caller, selection).await?;
    let published = published(&app, &checked.documents).await?;
    let differences = checked.documents.iter().zip(&published);
    let differences = differences.map(|(after, before)| difference(before, after));
    Ok(Json(CheckReport {
        etag: checked.etag(),
        rules: checked.texts.iter().map(|it| it.rules).sum(),
        differences: differences.filter(|it| !it.is_empty()).collect(),
        warnings: checked.warnings.into_iter().map(FieldFault::from).collect(),
    }))
}

/// Publish the draft
///
/// All of its domains become one version, or none does. With `If-Match`, only what
/// `/v1/check` reported is published.
#[utoipa::path(post, path = "/v1/publish",
    params(("If-Match" = Option<String>, Header), WriteQuery), request_body = Selection,
    responses((status = 200, description = "Published, and committed", body = Published),
    CommonProblems))]
pub(super) async fn publish(
    State(app): State<Arc<App>>,
    call: WriteCall,
) -> Result<Response, Problem> {
    let selection: Selection = body_or_default(&call)?;
    app.take_publisher_turn(&call.caller).await?;
    let checked = check_drafts(&app, &call.caller, selection).await?;
    for _ in 0..ATTEMPTS_MAX {
        let approved = approve(&app, &call.caller, &checked.texts).await;
        let mut write = match call.begin(&app).await? {
            Begun::New(write) => write,
            Begun::Repeated(response) => return Ok(*response),
        };
        call.need_draft(&checked.etag())?;
        let published = publish_texts(&mut write, &checked.texts, None, approved?).await?;
        if let Some(published) = published {
            return call.finish(&app, write, StatusCode::OK, None, &published).await;
        }
    }
    Err(Problem::raced())
}

/// Roll back to an earlier version
///
/// Its rules become the draft, and are published as a new version.
#[utoipa::path(post, path = "/v1/rollback", params(WriteQuery), request_body = RollbackInput,
    responses((status = 200, description = "Published, and committed", body = Published),
    CommonProblems))]
pub(super) async fn rollback(
    State(app): State<Arc<App>>,
    call: WriteCall,
) -> Result<Response, Problem> {
    let RollbackInput { version, domains, discard_draft } = call.json()?;
    if !(1..=app.store.last_version().await?).contains(&version) {
        return Err(Problem::not_found(format!("there is no version {version}")));
    }
    let domains = named_domains(&call.caller, domains)?;
    app.take_publisher_turn(&call.caller).await?;
    for _ in 0..ATTEMPTS_MAX {
        let former = former_documents(&app, &call.caller, version, domains.clone()).await?;
        let texts: Vec<_> = former.iter().map(|(it, yaml)| text_of(it, yaml.clone())).collect();
        let documents = Arc::new(former.into_iter().map(|(document, _)| document).collect());
        let replacements = replacements(&app, &documents).await?;
        let approved = approve(&app, &call.caller, &texts).await;
        let mut write = match call.begin(&app).await? {
            Begun::New(write) => write,
            Begun::Repeated(response) => return Ok(*response),
        };
        let restored = restore(&mut write, &replacements, texts, discard_draft).await?;
        let Some(texts) = restored else { continue };
        let published = publish_texts(&mut write, &texts, Some(version), approved?).await?;
        if let Some(published) = published {
            return call.finish(&app, write, StatusCode::OK, None, &published).await;
        }
    }
    Err(Problem::raced())
}

fn text_of(document: &Document, yaml: Option<String>) -> PublishedText {
    let (domain, rules) = (document.domain.clone(), document.records.len());
    PublishedText { domain, changed: 0, yaml, rules }
}

/// Makes the drafts of these domains what they were in an earlier version, of which they have the
/// texts. `None` if one of them changed since it was compared.
async fn restore(
    write: &mut Write,
    replacements: &[Replacement],
    mut texts: Vec<PublishedText>,
    discard_draft: bool,
) -> Result<Option<Vec<PublishedText>>, Problem> {
    for (text, replacement) in texts.iter_mut().zip(replacements) {
        let domain = &text.domain;
        if write.draft_state(domain).await?.0 && !discard_draft {
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
    Ok(Some(texts))
}

/// List versions
#[utoipa::path(get, path = "/v1/versions", params(HistoryQuery), responses(
    (status = 200, description = "Versions that change a domain of the token, the latest first",
        body = VersionList),
    CommonProblems))]
pub(super) async fn versions(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<VersionList>, Problem> {
    let (before, limit) = (query.before.unwrap_or(i64::MAX), page_size(query.limit)?);
    let versions = app.lists().versions(caller.domains(), before, limit).await?;
    let versions = versions.into_iter().map(|it| VersionView::new(it, &caller)).collect();
    Ok(Json(VersionList { versions }))
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

pub(super) async fn check_drafts(
    app: &App,
    caller: &Caller,
    selection: Selection,
) -> Result<Checked, Problem> {
    let known = app.store.domains().await?;
    let domains = match named_domains(caller, selection.domains)? {
        Some(domains) => {
            let unknown = domains.iter().find(|name| !known.iter().any(|it| it.name == **name));
            if let Some(unknown) = unknown {
                let unknown = ratelease_rules::excerpt(unknown);
                return Err(Problem::not_found(format!("there is no domain '{unknown}'")));
            }
            domains
        }
        None => {
            let changed = known.into_iter().filter(|it| it.is_changed).map(|it| it.name);
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
pub(super) async fn published(app: &App, drafts: &[Document]) -> Result<Vec<Document>, Problem> {
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

/// The rules of a version, for each domain that has others now: the document and its text.
async fn former_documents(
    app: &App,
    caller: &Caller,
    version: i64,
    domains: Option<Vec<String>>,
) -> Result<Vec<(Document, Option<String>)>, Problem> {
    let mut then = published_hashes(app, version).await?;
    let now = app.store.state_at(i64::MAX).await?;
    let mut documents = Vec::new();
    for present in now {
        let domain = present.domain;
        let is_wanted = match &domains {
            Some(domains) => domains.contains(&domain),
            None => caller.may_use(&domain),
        };
        let hash = then.remove(&domain);
        if !is_wanted || hash == present.hash {
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

// === impl VersionView ===

impl VersionView {
    fn new(row: VersionRow, caller: &Caller) -> Self {
        let VersionRow { number, at, author, reason, restores, rollout } = row;
        let reason = reason_for(caller, &author, reason);
        Self { version: number, at: time(at), author, reason, restores, rollout }
    }
}
