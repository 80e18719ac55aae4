//! Rule files, in and out.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use ratelease_rules::Source;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::call::{Begun, QueryOf, WriteCall, WriteQuery, check_domain};
use super::change::ATTEMPTS_MAX;
use super::problem::{CommonProblems, FieldFault, Problem};
use super::publishing::{
    Checked, approve, compile_all, publish_texts, replacements, unpublished_changes,
};
use super::{App, MIB};
use crate::auth::Caller;
use crate::document::{Document, check_weights, read, render};
use crate::store::{PublishedText, Replacement, StoreError, Write};
use crate::work::heavy;

/// Maximum bytes of an import: 100 000 rules are some 10 MB.
const IMPORT_BYTES_MAX: usize = 32 * MIB;

/// Maximum number of files of an import.
const FILES_MAX: usize = 1000;

/// Rule files, each of one domain.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Files {
    /// The files.
    files: Vec<RuleFile>,
}

/// A rule file.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFile {
    /// Its name, which faults begin with.
    name: String,
    /// Its text.
    yaml: String,
}

/// What was imported.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Imported {
    /// The domains.
    domains: Vec<ImportedDomain>,
}

/// A domain that was imported.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ImportedDomain {
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
pub(super) struct ExportQuery {
    /// This domain, as a rule file; without it all domains, as JSON that `/v1/import` takes.
    #[param(min_length = 1, max_length = 1024)]
    domain: Option<String>,
    /// As this version published it; by default, the draft.
    version: Option<i64>,
}

/// Import rule files
///
/// A file becomes the draft of its domain; rules that it lacks are removed. The body is the text
/// of one file, or JSON with several.
#[utoipa::path(post, path = "/v1/import", params(WriteQuery),
    request_body(content((Files = "application/json"), (Object = "application/yaml"))),
    responses((status = 200, description = "Imported", body = Imported), CommonProblems))]
pub(super) async fn import(
    State(app): State<Arc<App>>,
    headers: http::HeaderMap,
    call: WriteCall<IMPORT_BYTES_MAX>,
) -> Result<Response, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let sources = match kind.unwrap_or_default().split(';').next().map(str::trim) {
        Some("application/json") => sources(call.json()?)?,
        _ => vec![Source { name: "import.yaml".into(), text: call.body.to_vec() }],
    };
    let documents = heavy(move |_| read(&sources)).await??;
    for document in &documents {
        check_domain(&document.domain)?;
        call.caller.need_domain(&document.domain)?;
    }
    check_weights(&documents)?;
    if call.publishes {
        app.take_publisher_turn(&call.caller).await?;
    }
    let (documents, texts) = match call.publishes {
        true => {
            let changed = vec![0; documents.len()];
            let Checked { documents, texts, .. } = compile_all(&app, documents, changed).await?;
            (documents, texts)
        }
        false => (documents, Vec::new()),
    };
    let documents = Arc::new(documents);
    for _ in 0..ATTEMPTS_MAX {
        let replacements = replacements(&app, &documents).await?;
        let approved = match call.publishes {
            true => Some(approve(&app, &call.caller, &texts).await),
            false => None,
        };
        let mut write = match call.begin(&app).await? {
            Begun::New(write) => write,
            Begun::Repeated(response) => return Ok(*response),
        };
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
    Err(Problem::raced())
}

/// Makes these documents the drafts of their domains. Returns the number of the last change of
/// each draft too; `None` if one of them changed since it was compared.
async fn replace(
    write: &mut Write,
    documents: &[Document],
    replacements: &[Replacement],
    publishes: bool,
) -> Result<Option<(Imported, Vec<i64>)>, Problem> {
    let (mut domains, mut numbers) = (Vec::new(), Vec::new());
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
#[utoipa::path(get, path = "/v1/export", params(ExportQuery), responses(
    (status = 200, description = "A rule file, or all of them", content(
        (Files = "application/json"), (Object = "application/yaml"))), CommonProblems))]
pub(super) async fn export(
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

fn sources(files: Files) -> Result<Vec<Source>, Problem> {
    let count = files.files.len();
    if count > FILES_MAX {
        let message = format!("{count} files; expected at most {FILES_MAX}");
        let fault = FieldFault::of("files", message);
        return Err(Problem::faults("too many files at once", vec![fault]));
    }
    let source = |file: RuleFile| Source { name: file.name, text: file.yaml.into_bytes() };
    Ok(files.files.into_iter().map(source).collect())
}
