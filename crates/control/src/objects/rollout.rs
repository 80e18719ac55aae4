//! Rollouts of objects: an object whose spec has the field `rollout` goes to some pods first. The
//! field has the terms that `POST /v1/rollouts` takes.
//!
//! A change of such an object begins a rollout of its draft in place of a publication. The object's
//! next accepted change, and its end, abort the rollout. A change that was rolled back or aborted
//! is not tried again until the object changes: its draft stays, and the status says why.

use std::slice::from_ref;
use std::sync::Arc;

use super::plan::Change;
use super::{OBJECTS, Written, documents, reason, replace};
use crate::api::publish::{ATTEMPTS_MAX, approve_rollout, published, replacements};
use crate::api::{App, Candidates, Problem, Terms, rollout_texts};
use crate::auth::Caller;
use crate::document::longest_window;
use crate::store::{Author, NewRollout, PublishedText, Stage, StoreError, Write};
use crate::work::heavy;

/// Aborts these rollouts, whose objects have changed or are gone, in the write of that change.
pub async fn abort(write: &mut Write, rollouts: &[i64]) -> Result<(), StoreError> {
    for id in rollouts {
        let rollout = write.rollout(*id).await?.filter(|it| it.last().stage.is_open());
        let Some(rollout) = rollout else { continue };
        let version = write.end_rollout(&rollout, Stage::Aborted).await?.number;
        write.note_rollout(&rollout, Stage::Aborted, version).await?;
    }
    Ok(())
}

/// Begins the rollout of a change, whose text is the object's, in place of those that are `ended`;
/// `None` if its rules are those that are published, in other words.
pub async fn begin(
    app: &App,
    callers: &[Caller],
    (change, ended): (&Change, &[i64]),
    (text, terms): (&PublishedText, &Terms),
) -> Result<Option<Written>, Problem> {
    let batch = from_ref(change);
    let author = Author { name: Caller::of_objects(None).name, reason: reason(batch) };
    let after = Arc::new(documents(from_ref(text)).await?);
    for _ in 0..ATTEMPTS_MAX {
        let before = published(app, &after).await?;
        let drafts = Arc::clone(&after);
        let candidates = heavy(move |_| Candidates::of(before.first()?, drafts.first()?)).await?;
        let Some(candidates) = candidates else { return Ok(None) };
        let window = longest_window(&candidates.shadow);
        let mut texts = rollout_texts(app, vec![candidates], vec![text.clone()]).await?;
        let replacements = replacements(app, &after).await?;
        let approved = approve_rollout(app, callers, &texts, ended).await?;
        let pods = app.store.pod_versions().await?;
        let mut write = app.store.begin_of_token(&author, OBJECTS).await?;
        write.of_objects();
        let first = write.number();
        let replaced = replace(&mut write, batch, &replacements, from_ref(text)).await?;
        if !approved.is_current(&mut write).await? {
            continue;
        }
        let Some(replaced) = replaced.and_then(|it| it.into_iter().next()) else { continue };
        texts.iter_mut().for_each(|it| it.draft.changed = replaced.changed);
        let Terms { choice, bound, plan, time_limit } = terms.clone();
        let time_limit = Some(time_limit);
        let new = NewRollout { choice, bound, plan, time_limit, longest_window: window, texts };
        abort(&mut write, ended).await?;
        let version = write.begin_rollout(&new, &pods).await?;
        if let Some(rollout) = write.rollout(version.rollout.unwrap_or_default()).await? {
            write.note_rollout(&rollout, rollout.last().stage, version.number).await?;
        }
        let domains = write.domains(vec![change.domain.clone()]).await?;
        let last = write.number();
        write.commit().await?;
        app.wake_follower();
        return Ok(Some(Written { first, last, domains }));
    }
    Err(Problem::raced())
}
