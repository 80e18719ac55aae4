//! Rule files, in and out; and what two states of the rules differ in: a version, or the draft.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::take;
use std::slice::from_ref;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use ratelease_rules::Source;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, Problem, QueryOf, WriteCall, WriteQuery, check_domain, check_text,
};
use super::pages::{Room, page_size};
use super::publish::{
    ATTEMPTS_MAX, Checked, approve, compile_all, draft_etag, publish_texts, published_hashes,
    read_text, replacements, unpublished_changes,
};
use super::rule_files::{Files, IMPORT_BYTES_MAX, RuleFile, read_files, sources};
use crate::auth::Caller;
use crate::document::{Difference, Document, FieldFault, RuleChange, difference, render};
use crate::store::{PublishedText, Replacement, StoreError, Write};
use crate::work::heavy;

/// Maximum number of rows that an import of a token for some domains may write and delete: SQLite
/// takes some 1 s for them (100 000 take 4.1 s), and other writes wait meanwhile.
const ROWS_OF_TOKEN_MAX: usize = 25_000;

/// What was imported.
#[derive(Debug, Serialize, ToSchema)]
struct Imported {
    /// The domains.
    domains: Vec<ImportedDomain>,
}

/// A domain that was imported.
#[derive(Debug, Serialize, ToSchema)]
struct ImportedDomain {
    /// Its name.
    domain: String,
    /// Number of its rules.
    rules: usize,
    /// Number of rules that were added, changed or removed.
    changed: usize,
}

/// What to export.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ExportQuery {
    /// This domain, as a rule file; without it all domains, as JSON that `/v1/import` takes.
    #[param(min_length = 1, max_length = 1024)]
    domain: Option<String>,
    /// As this version published it; by default, the draft.
    version: Option<i64>,
    /// `tar`: an archive with a file for each domain.
    #[param(inline)]
    format: Option<ExportFormat>,
}

/// Another form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ExportFormat {
    /// An archive.
    Tar,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(import, export, differences))]
pub struct Calls;

/// The calls about whole domains.
pub fn long_calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/import", post(import))
        .route("/v1/export", get(export))
        .route("/v1/differences", get(differences))
}

/// Import rule files
///
/// A file becomes the draft of its domain; rules that it lacks are removed. The body is the text
/// of one file, or JSON with several.
#[utoipa::path(post, tag = "files", path = "/v1/import", params(WriteQuery),
    request_body(content((Files = "application/json"), (Object = "application/yaml"))),
    responses((status = 200, description = "Imported", body = Imported), CommonProblems))]
async fn import(
    State(app): State<Arc<App>>,
    headers: http::HeaderMap,
    call: WriteCall<IMPORT_BYTES_MAX>,
) -> Result<Response, Ending> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let sources = match kind.unwrap_or_default().split(';').next().map(str::trim) {
        Some("application/json") => sources(call.json()?)?,
        _ => vec![Source { name: "import.yaml".into(), text: call.body.to_vec() }],
    };
    let documents = read_files(&app, &call.caller, sources).await?;
    // Before the turn, so that no others wait while a large file compiles.
    let (documents, texts) = match call.publishes {
        true => {
            let changed = vec![0; documents.len()];
            let Checked { documents, texts, .. } = compile_all(&app, documents, changed).await?;
            (documents, texts)
        }
        false => (documents, Vec::new()),
    };
    let documents = Arc::new(documents);
    if call.publishes {
        app.take_publisher_turn(&call.caller).await?;
    }
    for _ in 0..ATTEMPTS_MAX {
        let replacements = replacements(&app, &documents).await?;
        check_rows(&call.caller, &replacements)?;
        let approved = match call.publishes {
            true => {
                let names: Vec<_> = documents.iter().map(|it| &*it.domain).collect();
                app.store.compare(&names).await?;
                Some(approve(&app, from_ref(&call.caller), &texts).await)
            }
            false => None,
        };
        let mut write = call.begin(&app).await?;
        // Only now: a repeated call gets its first answer, whatever would be refused today.
        let approved = approved.transpose()?;
        let replaced = replace(&mut write, &documents, &replacements, call.publishes).await?;
        let Some((imported, changed)) = replaced else { continue };
        let texts = texts.iter().cloned().zip(changed);
        let texts: Vec<_> =
            texts.map(|(text, changed)| PublishedText { changed, ..text }).collect();
        if let Some(approved) = approved
            && publish_texts(&mut write, &texts, None, approved).await?.is_none()
        {
            continue;
        }
        return call.finish(&app, write, StatusCode::OK, None, &imported).await;
    }
    Err(Problem::raced().into())
}

/// Refuses a write for which those of other tenants would wait for more than a second.
fn check_rows(caller: &Caller, replacements: &[Replacement]) -> Result<(), Problem> {
    let rows: usize = replacements.iter().map(Replacement::rows).sum();
    if caller.domains().is_none() || rows <= ROWS_OF_TOKEN_MAX {
        return Ok(());
    }
    let message = format!(
        "{rows} rows of rules to write or delete; expected at most {ROWS_OF_TOKEN_MAX} of a token \
         for some domains, as other writes wait for this one. Import a file with a part of the new \
         rules first, or have a token for all domains import it"
    );
    Err(Problem::faults(
        "the import changes too much at once",
        vec![FieldFault::of("body", message)],
    ))
}

/// Makes these documents the drafts of their domains. Returns the number of the last change of
/// each draft too; `None` if one of them changed since it was compared.
async fn replace(
    write: &mut Write,
    documents: &[Document],
    replacements: &[Replacement],
    publishes: bool,
) -> Result<Option<(Imported, Vec<i64>)>, Problem> {
    let mut domains = Vec::new();
    let mut numbers = Vec::new();
    for (document, replacement) in documents.iter().zip(replacements) {
        let domain = document.domain.clone();
        if publishes && write.draft_state(&domain).await?.0 {
            return Err(unpublished_changes(&domain));
        }
        let changed = match write.replace(replacement).await {
            Err(StoreError::Moved(_)) => return Ok(None),
            changed => changed?,
        };
        numbers.push(write.draft_state(&domain).await?.1);
        domains.push(ImportedDomain { domain, rules: document.records.len(), changed });
    }
    let names: Vec<_> = domains.iter().map(|it| it.domain.as_str()).collect();
    write.note_action("rules.import", &names.join(", ")).await?;
    Ok(Some((Imported { domains }, numbers)))
}

/// Export rule files
#[utoipa::path(get, tag = "files", path = "/v1/export", params(ExportQuery), responses(
    (status = 200, description = "A rule file, or all of them", content(
        (Files = "application/json"), (Object = "application/yaml"),
        (Object = "application/x-tar"))), CommonProblems))]
async fn export(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<ExportQuery>,
) -> Result<Response, Problem> {
    let mut texts = BTreeMap::new();
    let is_wanted = |domain: &str| match &query.domain {
        Some(wanted) => wanted == domain,
        None => caller.may_use(domain),
    };
    if let Some(domain) = &query.domain {
        check_domain(domain)?;
        caller.need_domain(domain)?;
    }
    match query.version {
        Some(version) => {
            for row in app.store.state_at(version).await? {
                if let Some(hash) = row.hash.filter(|_| is_wanted(&row.domain)) {
                    texts.insert(row.domain, app.store.text(&hash).await?);
                }
            }
        }
        None => {
            for domain in app.store.domains().await?.into_iter().filter(|it| is_wanted(&it.name)) {
                let draft: Document = app.store.draft(&domain.name).await?.document;
                let text = heavy(move |_| render(&draft).text).await?;
                texts.insert(domain.name, text);
            }
        }
    }
    if query.format == Some(ExportFormat::Tar) {
        let archive = heavy(move |_| archive(texts)).await?;
        let archive = archive.map_err(|error| StoreError::Internal(error.to_string()))?;
        let tar = HeaderValue::from_static("application/x-tar");
        return Ok(([(header::CONTENT_TYPE, tar)], archive).into_response());
    }
    match query.domain {
        Some(domain) => {
            let text = texts.remove(&domain).ok_or_else(|| {
                let domain = ratelease_rules::excerpt(&domain);
                Problem::not_found(format!("there is no domain '{domain}'"))
            })?;
            let yaml = HeaderValue::from_static("application/yaml");
            Ok(([(header::CONTENT_TYPE, yaml)], text).into_response())
        }
        None => {
            let file = |(domain, yaml)| RuleFile { name: format!("{domain}.yaml"), yaml };
            Ok(Json(Files { files: texts.into_iter().map(file).collect() }).into_response())
        }
    }
}

/// An archive of rule files, by domain.
fn archive(texts: BTreeMap<String, String>) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    for (domain, text) in texts {
        let mut head = tar::Header::new_gnu();
        head.set_size(text.len() as u64);
        head.set_mode(0o644);
        head.set_mtime(now);
        archive.append_data(&mut head, file_name(&domain), text.as_bytes())?;
    }
    archive.into_inner()
}

/// The name of a domain's file, which leads out of no directory: bytes of no plain name are written as
/// in a URL. A name that is too long for a file system ends in a hash.
fn file_name(domain: &str) -> String {
    const LENGTH_MAX: usize = 200;
    let mut name = String::new();
    for (at, byte) in domain.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if is_plain || (byte == b'.' && at > 0) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > LENGTH_MAX {
        name.truncate(LENGTH_MAX);
        let hash = blake3::hash(domain.as_bytes()).to_hex();
        name.push_str(&format!("-{}", &hash[..16]));
    }
    name.push_str(".yaml");
    name
}

// What two states of the rules differ in: a version, or the draft.

/// Which states to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DifferencesQuery {
    /// The earlier state: a version, 0 for no rules; by default, the version that is published.
    from: Option<i64>,
    /// The later state: a version; by default, the draft.
    to: Option<i64>,
    /// Only this domain.
    domain: Option<String>,
    /// At most so many rules, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// After this domain: `next` of the page before.
    after: Option<String>,
}

/// What differs.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Differences {
    /// The domains that differ.
    domains: Vec<DomainDifference>,
    /// Whether there are more rules of these domains that differ than are listed.
    is_truncated: bool,
    /// `after` of the next page, if there are more domains that differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The `If-Match` with which `/v1/discard` discards exactly the drafts of `domains`; absent if the
    /// later state is a version.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

/// What differs in one domain.
#[derive(Debug, Serialize, ToSchema)]
struct DomainDifference {
    /// The domain.
    domain: String,
    /// Number of rules that the later state alone has.
    added: usize,
    /// Number of rules with other settings.
    changed: usize,
    /// Number of rules that the earlier state alone has.
    removed: usize,
    /// Whether rules that both states have are in another order, or `defaults` differ.
    defaults_or_order: bool,
    /// The rules; fewer than the numbers say if the answer has reached its limit.
    rules: Vec<RuleChange>,
}

/// The rules of one domain in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// A text that is or was published, by its hash.
    Published(String),
    /// A draft that is not published.
    Draft,
}

/// The domains of a state that have rules.
type Contents = BTreeMap<String, Content>;

/// Compare versions, or a version with the draft
#[utoipa::path(get, operation_id = "read", tag = "differences", path = "/v1/differences",
    params(DifferencesQuery), responses(
    (status = 200, description = "What differs", body = Differences), CommonProblems))]
async fn differences(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<DifferencesQuery>,
) -> Result<Json<Differences>, Problem> {
    if let Some(domain) = &query.domain {
        check_text("domain", domain)?;
        caller.need_domain(domain)?;
    }
    let mut room = DifferenceRoom::new(page_size(query.limit)?);
    check_version(&app, query.from, 0).await?;
    check_version(&app, query.to, 1).await?;
    let before = version_contents(&app, query.from.unwrap_or(i64::MAX)).await?;
    let after = match query.to {
        Some(version) => version_contents(&app, version).await?,
        None => draft_contents(&app).await?,
    };
    let after_domain = query.after.as_deref().unwrap_or_default();
    let is_wanted = |domain: &String| match &query.domain {
        _ if &**domain <= after_domain => false,
        Some(wanted) => wanted == domain,
        None => caller.may_use(domain),
    };
    let names: BTreeSet<_> = before.keys().chain(after.keys()).filter(|it| is_wanted(it)).collect();
    let mut found = Differences::default();
    let mut drafts = Vec::new();
    for name in names {
        let before = before.get(name);
        let after = after.get(name);
        if before == after {
            continue;
        }
        let (before, _) = document(&app, name, before).await?;
        let (after, changed) = document(&app, name, after).await?;
        let difference = heavy(move |_| difference(&before, &after)).await?;
        if !difference.is_empty() {
            if !found.add(difference, &mut room) {
                found.next = found.domains.last().map(|it| it.domain.clone());
                break;
            }
            drafts.push((&**name, changed));
        }
    }
    found.etag = query.to.is_none().then(|| draft_etag(drafts));
    Ok(Json(found))
}

/// Refuses a version that there is not.
async fn check_version(app: &App, version: Option<i64>, first: i64) -> Result<(), Problem> {
    match version {
        Some(version) if !(first..=app.store.last_version().await?).contains(&version) => {
            Err(Problem::not_found(format!("there is no version {version}")))
        }
        _ => Ok(()),
    }
}

async fn version_contents(app: &App, version: i64) -> Result<Contents, Problem> {
    let hashes = published_hashes(app, version).await?.into_iter();
    Ok(hashes.map(|(domain, hash)| (domain, Content::Published(hash))).collect())
}

/// The draft: of domains without changes, what is published.
async fn draft_contents(app: &App) -> Result<Contents, Problem> {
    let mut contents = version_contents(app, i64::MAX).await?;
    let changed = app.store.domains().await?.into_iter().filter(|it| it.is_changed);
    contents.extend(changed.map(|domain| (domain.name, Content::Draft)));
    Ok(contents)
}

/// The rules of a domain, and the number of the last change of a draft.
async fn document(
    app: &App,
    domain: &str,
    content: Option<&Content>,
) -> Result<(Document, i64), Problem> {
    Ok(match content {
        None => (Document { domain: domain.to_owned(), ..Document::default() }, 0),
        Some(Content::Published(hash)) => (read_text(app.store.text(hash).await?).await?, 0),
        Some(Content::Draft) => {
            let draft = app.store.draft(domain).await?;
            (draft.document, draft.changed)
        }
    })
}

/// The room of an answer for further entries. Domains have a room of their own: the number of rules
/// of each domain is known although its rules have no room.
struct DifferenceRoom {
    domains: Room,
    rules: Room,
    rules_left: usize,
}

// === impl DifferenceRoom ===

impl DifferenceRoom {
    fn new(rules_max: usize) -> Self {
        Self { domains: Room::new(), rules: Room::new(), rules_left: rules_max }
    }

    /// Takes the room of a rule. Returns whether there is enough; if not, there is none for the next
    /// ones either.
    fn takes_rule(&mut self, rule: &RuleChange) -> bool {
        let has_room = self.rules_left > 0 && self.rules.takes(rule);
        self.rules_left = if has_room { self.rules_left - 1 } else { 0 };
        has_room
    }
}

// === impl Differences ===

impl Differences {
    /// Adds a domain, with as many of its rules as there is `room` for. Returns whether there is
    /// room for the domain.
    fn add(&mut self, difference: Difference, room: &mut DifferenceRoom) -> bool {
        let Difference { domain, mut rules, defaults_or_order } = difference;
        let count = |is: fn(&RuleChange) -> bool| rules.iter().filter(|it| is(it)).count();
        let added = count(|it| it.before.is_none());
        let removed = count(|it| it.after.is_none());
        let changed = rules.len() - added - removed;
        let listed = take(&mut rules);
        let mut domain =
            DomainDifference { domain, added, changed, removed, defaults_or_order, rules };
        if !room.domains.takes(&domain) && !self.domains.is_empty() {
            return false;
        }
        let count = listed.len();
        domain.rules = listed.into_iter().take_while(|it| room.takes_rule(it)).collect();
        self.is_truncated |= domain.rules.len() < count;
        self.domains.push(domain);
        true
    }
}
