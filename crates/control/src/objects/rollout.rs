//! Rollouts of objects: one whose spec has the field `rollout` goes to some pods first. The field has
//! the terms that `POST /v1/rollouts` takes.
//!
//! A change of such an object begins a rollout of its draft in place of a publication. The object's
//! next change that is accepted, and its end, abort it. A change that was rolled back or aborted is not tried again
//! until the object changes: its draft stays, and the status says why.

use std::collections::BTreeMap;
use std::slice::from_ref;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::object::{Faults, PlacedFault};
use super::plan::Change;
use super::{OBJECTS, Written, documents, reason, replace};
use crate::api::publish::{ATTEMPTS_MAX, approve_rollout, published, replacements};
use crate::api::{App, Candidates, Problem, RolloutTerms, Terms, rollout_texts};
use crate::auth::Caller;
use crate::document::longest_window;
use crate::gate::Gate;
use crate::store::{
    Author, DraftDomain, NewRollout, PublishedText, Rollout, Stage, StoreError, StoreResult, Write,
};
use crate::work::heavy;

/// The field of a spec.
pub const FIELD: &str = "rollout";

/// The last rollout of a domain whose draft is not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The number of the rollout.
    pub id: i64,
    /// Whether it is under way; else it was aborted or rolled back.
    pub is_open: bool,
    /// The text that it is of.
    hash: Option<String>,
    /// The number of the last change of the draft that it was made of.
    changed: i64,
    /// A text for the status: the present step and why it waits, or why the rollout has ended.
    pub words: String,
}

/// The rollouts of domains that objects define.
#[derive(Debug, Default)]
pub struct Tries(BTreeMap<String, Tried>);

// === impl Tries ===

impl Tries {
    /// Reads the last rollout of each domain whose draft is not published.
    pub async fn read(app: &App, domains: &BTreeMap<String, DraftDomain>) -> StoreResult<Self> {
        let store = app.store.reserved();
        let mut tries = Self::default();
        for domain in domains.values().filter(|it| it.owner.is_some() && it.is_changed) {
            let last =
                store.rollouts(Some(from_ref(&domain.name)), false, i64::MAX, 1).await?.pop();
            let Some(last) = last.filter(|it| it.last().stage != Stage::All) else { continue };
            let why = match last.last().stage.is_open() {
                false => None,
                true => {
                    let rows = store.connected_pods(Some(&last.names())).await?;
                    let hits = store.hits(last.last().version).await?;
                    Gate::of(&last, &rows, &hits, store.now()).why()
                }
            };
            tries.0.extend(Tried::of(&last, &domain.name, why).map(|it| (domain.name.clone(), it)));
        }
        Ok(tries)
    }

    /// The rollout of these rules of a domain, as its draft has them.
    pub fn of(&self, known: &DraftDomain, hash: Option<&str>) -> Option<&Tried> {
        let is_of = |it: &&Tried| it.hash.as_deref() == hash && it.changed == known.changed;
        self.0.get(&known.name).filter(is_of)
    }

    /// The rollouts under way of these changes' domains.
    pub fn open_of(&self, batch: &[Change]) -> Vec<i64> {
        let tried = batch.iter().filter_map(|it| self.0.get(&it.domain));
        tried.filter(|it| it.is_open).map(|it| it.id).collect()
    }
}

// === impl Tried ===

impl Tried {
    fn of(rollout: &Rollout, domain: &str, why: Option<String>) -> Option<Self> {
        let of = rollout.domains.iter().find(|it| it.domain == domain)?;
        let last = rollout.last();
        let is_open = last.stage.is_open();
        let words = match is_open {
            true => {
                let percent = rollout.present().percent;
                let percent = percent.map_or_else(String::new, |it| format!(" {it} %"));
                let (id, stage) = (rollout.id, last.stage.name());
                let (at, all) = (rollout.number(), rollout.plan.len());
                let waits = match (rollout.next_at(), why) {
                    (None, _) => "it waits for a call of /advance".to_owned(),
                    (Some(_), Some(why)) => format!("it waits for evidence: {why}"),
                    (Some(at), None) => {
                        let at = Timestamp::from_millisecond(at).unwrap_or_default();
                        format!("the next step is due at {at:.0}")
                    }
                };
                format!("rollout {id} is at step {at} of {all}, {stage}{percent}; {waits}")
            }
            false => format!("rollout {} is {}: {}", rollout.id, last.stage.name(), last.reason),
        };
        let (hash, changed) = (of.hash.clone(), of.changed);
        Some(Self { id: rollout.id, is_open, hash, changed, words })
    }
}

/// Takes the terms out of a spec.
///
/// # Errors
/// Lists all faults of the terms, with their places in the spec.
pub fn take_terms(spec: &mut Value) -> Result<Option<Terms>, Faults> {
    let field = spec.as_object_mut().and_then(|it| it.remove(FIELD));
    let Some(field) = field.filter(|it| !it.is_null()) else { return Ok(None) };
    let terms: RolloutTerms = serde_json::from_value(field)
        .map_err(|error| Faults::one(&format!("spec.{FIELD}"), error.to_string()))?;
    let checked = terms.checked().map_err(|faults| {
        let placed = faults.iter().map(|it| PlacedFault {
            field: format!("spec.{FIELD}.{}", it.field),
            message: it.message.clone(),
        });
        Faults::new(faults.len(), placed)
    });
    checked.map(Some)
}

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_terms_of_a_spec_are_taken_out_of_it() {
        let mut spec = json!({"domain": "shop", "rollout": {"pods": {"percent": 10}}});
        let terms = take_terms(&mut spec).unwrap().unwrap();
        assert_eq!((terms.plan.len(), &spec), (2, &json!({"domain": "shop"})));
        assert_eq!(take_terms(&mut spec).unwrap(), None);
        for (rollout, field) in [
            (json!({"percent": 10}), "spec.rollout"),
            (json!({"pods": {"percent": 0}}), "spec.rollout.pods.percent"),
            (json!({"steps": [{"percent": 5, "wait": "x"}]}), "spec.rollout.steps[0].wait"),
        ] {
            let mut spec = json!({"domain": "shop", "rollout": rollout});
            assert_eq!(take_terms(&mut spec).unwrap_err().shown[0].field, field);
        }
    }
}
