//! Compiles drafts, and makes versions of them in the transaction of a write.
//!
//! Nothing is compiled in a transaction: it would hold up all other writes. [`approve`] compiles,
//! and [`publish_texts`] commits only if nothing was published since.

use std::collections::BTreeMap;

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

/// Texts that pods accept together with all others that are published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Approved {
    /// The version that the others are of.
    version: i64,
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

/// Compiles all that would be published with these texts, as a pod does: it loads all domains at
/// once. No transaction is open meanwhile.
///
/// # Errors
/// Refuses what pods would refuse.
pub(super) async fn approve(app: &App, texts: &[PublishedText]) -> Result<Approved, Problem> {
    check_domain_bytes(app, texts)?;
    let (version, published) = app.store.published().await?;
    let approved = Approved { version };
    let bytes = |texts: &BTreeMap<String, String>| texts.values().map(String::len).sum::<usize>();
    let mut next = published.clone();
    for text in texts {
        match &text.yaml {
            Some(yaml) => next.insert(text.domain.clone(), yaml.clone()),
            None => next.remove(&text.domain),
        };
    }
    if next == published {
        return Ok(approved);
    }
    let (before, after, max) = (bytes(&published), bytes(&next), app.push_bytes_max);
    if after <= max {
        check_set(next.into_iter().collect()).await?;
    } else if after >= before {
        let own: usize = texts.iter().map(bytes_of).sum();
        let detail = format!(
            "all published rules together would be {after} bytes, of which the domains of this \
             request have {own}, and a pod accepts {max} in one message; remove some, or raise \
             --push-bytes-max and the pods' XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"
        );
        return Err(Problem::conflict("too-many-rules", detail));
    }
    // A set that is too large may become smaller.
    Ok(approved)
}

/// Publishes texts that were approved, and notes that in the audit log. `None` if another version
/// was published since: then the set of all domains is not the one that was compiled.
pub(super) async fn publish_texts(
    app: &App,
    write: &mut Write,
    texts: &[PublishedText],
    restores: Option<i64>,
    approved: Approved,
) -> Result<Option<Published>, Problem> {
    let Some(VersionRow { number, .. }) = write.publish(texts, restores).await? else {
        let version = app.store.last_version().await?;
        return Ok(Some(Published { version, domains: Vec::new() }));
    };
    if number != approved.version + 1 {
        return Ok(None);
    }
    let domains: Vec<_> = texts.iter().map(|it| it.domain.clone()).collect();
    let action = if restores.is_some() { "version.restore" } else { "version.publish" };
    write.note_action(action, &format!("{number}: {}", domains.join(", "))).await?;
    Ok(Some(Published { version: number, domains }))
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

/// Refuses to publish a change of a domain that has other changes.
pub(super) fn unpublished_changes(domain: &str) -> Problem {
    let domain = ratelease_rules::excerpt(domain);
    let detail = format!(
        "the draft of '{domain}' has other changes that are not published, which would be \
         published too; leave out 'publish', and publish the draft"
    );
    Problem::conflict("draft-changed", detail)
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
