//! The last rollouts of the domains that objects define.

use std::collections::BTreeMap;
use std::slice::from_ref;

use jiff::Timestamp;

use crate::api::App;
use crate::gate::Gate;
use crate::store::{DraftDomain, Rollout, Stage, StoreResult};

/// The last rollout of a domain whose draft is not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The number of the rollout.
    pub id: i64,
    /// Whether the rollout is under way; `false` if it was aborted or rolled back.
    pub is_open: bool,
    /// Whether it is of the object's domain alone. If it is not, other tenants may have domains in
    /// it: the object does not end it, and its status tells nothing of what their pods count.
    is_of_domain_alone: bool,
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

    /// The rollouts under way that are each of one of these domains alone.
    pub fn open_of<'d>(&self, domains: impl Iterator<Item = &'d str>) -> Vec<i64> {
        let tried = domains.filter_map(|it| self.0.get(it));
        tried.filter(|it| it.is_open && it.is_of_domain_alone).map(|it| it.id).collect()
    }
}

// === impl Tried ===

impl Tried {
    fn of(rollout: &Rollout, domain: &str, why: Option<String>) -> Option<Self> {
        let of = rollout.domains.iter().find(|it| it.domain == domain)?;
        let last = rollout.last();
        let is_open = last.stage.is_open();
        let is_of_domain_alone = rollout.domains.len() == 1;
        let why = why.filter(|_| is_of_domain_alone);
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
            false if is_of_domain_alone => {
                format!("rollout {} is {}: {}", rollout.id, last.stage.name(), last.reason)
            }
            false => {
                format!("rollout {}, of further domains, is {}", rollout.id, last.stage.name())
            }
        };
        let (hash, changed) = (of.hash.clone(), of.changed);
        Some(Self { id: rollout.id, is_open, is_of_domain_alone, hash, changed, words })
    }
}
