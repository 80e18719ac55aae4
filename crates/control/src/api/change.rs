//! A change of the rules of one domain: the one way in which rules are added, changed and removed.
//!
//! A change that is published at once is compiled outside of any transaction, so that no other
//! write waits for it. It is committed only if the draft and the published rules are still those
//! that were compiled; else all of it is repeated.

use axum::response::Response;

use super::App;
use super::call::{Begun, WriteCall};
use super::problem::Problem;
use super::publishing::{Approved, approve, compile_all, publish_texts, unpublished_changes};
use crate::document::{Document, Record};
use crate::store::{Answer, PublishedText, StoredRule, Write};

/// Attempts to publish. Publishers wait for each other, so that a further one is needed only where
/// a lock was lost, or a draft changed between two reads.
pub(super) const ATTEMPTS_MAX: usize = 5;

/// What a change does with the rules of its domain.
#[derive(Debug, Default)]
pub(super) struct Edit {
    /// The rules that are removed.
    pub(super) remove: Vec<StoredRule>,
    /// The rule that has the entries of `put` already, and keeps its place.
    pub(super) present: Option<StoredRule>,
    /// The rule that is added or changed.
    pub(super) put: Option<Record>,
}

/// A change of one domain.
pub(super) trait Change: Sync {
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
pub(super) async fn make(
    app: &App,
    call: &WriteCall,
    domain: &str,
    publishes: bool,
    change: &impl Change,
) -> Result<Response, Problem> {
    if !publishes {
        let mut write = match call.begin(app).await? {
            Begun::New(write) => write,
            Begun::Repeated(response) => return Ok(*response),
        };
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
    Err(Problem::raced())
}

/// Makes and publishes a change; `None` if another replica published meanwhile.
async fn attempt(
    app: &App,
    call: &WriteCall,
    domain: &str,
    change: &impl Change,
) -> Result<Option<Response>, Problem> {
    // The edit is decided twice: before the domain is compiled, and when it is made.
    let mut write = match call.begin(app).await? {
        Begun::New(write) => write,
        Begun::Repeated(response) => return Ok(Some(*response)),
    };
    let edit = change.edit(&mut write).await?;
    let changed = clean_draft(&mut write, domain).await?;
    drop(write);
    let Some(prepared) = prepare(app, call, domain, &edit, changed).await? else { return Ok(None) };
    let Prepared { changed, mut text, approved } = prepared;
    let mut write = match call.begin(app).await? {
        Begun::New(write) => write,
        Begun::Repeated(response) => return Ok(Some(*response)),
    };
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
    let approved = approve(app, &call.caller, &checked.texts).await?;
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
