//! Compiles drafts, and makes versions of them in the transaction of a write.

use ratelease_rules::Source;
use serde::Serialize;
use tokio::task::{JoinError, spawn_blocking};
use tracing::warn;
use utoipa::ToSchema;

use super::App;
use super::problem::{FieldFault, Problem};
use crate::document::{Document, Finding, check as compile, check_together, read};
use crate::store::{PublishedText, StoreError, VersionRow, Write};

/// What was published.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Published {
    /// The version in force: a new one, unless nothing differed.
    version: i64,
    /// The domains that it changes.
    domains: Vec<String>,
}

/// Drafts that were compiled.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) texts: Vec<PublishedText>,
    pub(super) documents: Vec<Document>,
    pub(super) warnings: Vec<Finding>,
}

/// Compiles documents on a thread that may block.
pub(super) async fn compile_all(
    documents: Vec<Document>,
    changed: Vec<i64>,
) -> Result<Checked, Problem> {
    let compiled = spawn_blocking(move || {
        let (warnings, texts) = compile(&documents)?;
        let texts = documents.iter().zip(texts).zip(changed).map(|((document, text), changed)| {
            let (domain, rules) = (document.domain.clone(), document.records.len());
            // A domain without rules is one that pods need not know.
            PublishedText { domain, changed, yaml: (rules > 0).then_some(text), rules }
        });
        let texts = texts.collect();
        Ok(Checked { texts, documents, warnings })
    });
    compiled.await.map_err(internal)?.map_err(|findings: Vec<Finding>| findings.into())
}

fn internal(error: JoinError) -> Problem {
    StoreError::Internal(error.to_string()).into()
}

/// Reads a text that was published.
pub(super) async fn read_text(text: String) -> Result<Document, Problem> {
    let source = Source { name: "published".into(), text: text.into_bytes() };
    let read = spawn_blocking(move || read(&[source])).await.map_err(internal)?;
    let mut documents = read.map_err(|_| {
        Problem::from(StoreError::Internal("a published text is refused now".to_owned()))
    })?;
    Ok(documents.pop().unwrap_or_default())
}

/// Publishes these texts, and notes that in the audit log. Refuses what pods would refuse: they
/// load all domains at once.
pub(super) async fn publish_texts(
    app: &App,
    write: &mut Write,
    texts: &[PublishedText],
    restores: Option<i64>,
) -> Result<Published, Problem> {
    check_domain_bytes(app, texts)?;
    let before = write.published_bytes().await?;
    let version = write.publish(texts, restores).await?;
    let after = write.published_bytes().await?;
    let bytes = usize::try_from(after).unwrap_or(usize::MAX);
    // What makes a set that is too large smaller is let through.
    if bytes > app.push_bytes_max && after >= before {
        let own: usize = texts.iter().map(bytes_of).sum();
        let detail = format!(
            "all published rules together would be {bytes} bytes, of which the domains of this \
             request have {own}, and a pod accepts {} in one message; remove some, or raise \
             --push-bytes-max and the pods' XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
            app.push_bytes_max
        );
        return Err(Problem::conflict("too-many-rules", detail));
    }
    if version.is_some() && bytes <= app.push_bytes_max {
        check_set(write.published_texts().await?).await?;
    }
    let Some(VersionRow { number, .. }) = version else {
        return Ok(Published { version: app.store.last_version().await?, domains: Vec::new() });
    };
    let domains: Vec<_> = texts.iter().map(|it| it.domain.clone()).collect();
    let action = if restores.is_some() { "version.restore" } else { "version.publish" };
    write.note_action(action, &format!("{number}: {}", domains.join(", "))).await?;
    Ok(Published { version: number, domains })
}

fn bytes_of(text: &PublishedText) -> usize {
    text.yaml.as_ref().map_or(0, String::len)
}

/// Refuses a domain that would take more than its part of a message, so that no domain keeps the
/// others from being published.
fn check_domain_bytes(app: &App, texts: &[PublishedText]) -> Result<(), Problem> {
    let max = app.domain_bytes_max;
    let large = texts.iter().filter(|text| bytes_of(text) > max);
    let faults: Vec<_> = large
        .map(|text| FieldFault {
            domain: Some(text.domain.clone()),
            ..FieldFault::of(
                "descriptors",
                format!(
                    "{} bytes as a rule file; expected at most {max} in one domain \
                     (--domain-bytes-max)",
                    bytes_of(text)
                ),
            )
        })
        .collect();
    if faults.is_empty() {
        return Ok(());
    }
    Err(Problem::faults("domains are too large to be published; remove rules of each", faults))
}

/// Compiles all that would be published, as a pod does.
async fn check_set(texts: Vec<(String, String)>) -> Result<(), Problem> {
    let checked = spawn_blocking(move || check_together(texts)).await.map_err(internal)?;
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

/// Whether a change of a domain may be published alone. Only looked at if that is asked for.
pub(super) async fn is_clean(
    write: &mut Write,
    domain: &str,
    publishes: bool,
) -> Result<bool, Problem> {
    Ok(publishes && !write.draft_state(domain).await?.0)
}

/// Publishes a domain in the transaction that changed it.
pub(super) async fn publish_change(
    app: &App,
    write: &mut Write,
    domain: &str,
    was_clean: bool,
) -> Result<(), Problem> {
    if !was_clean {
        let domain = ratelease_rules::excerpt(domain);
        let detail = format!(
            "the draft of '{domain}' has other changes that are not published, which would be \
             published too; leave out 'publish', and publish the draft"
        );
        return Err(Problem::conflict("draft-changed", detail));
    }
    let document = write.document(domain).await?;
    let changed = write.draft_state(domain).await?.1;
    let checked = compile_all(vec![document], vec![changed]).await?;
    publish_texts(app, write, &checked.texts, None).await.map(|_| ())
}

// === impl Checked ===

impl Checked {
    /// Identifies the drafts.
    pub(super) fn etag(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for text in &self.texts {
            hasher.update(text.domain.as_bytes());
            hasher.update(&[0]);
            hasher.update(&text.changed.to_le_bytes());
        }
        format!("\"draft-{}\"", &hasher.finalize().to_hex()[..16])
    }
}
