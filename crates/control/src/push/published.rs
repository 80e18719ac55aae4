//! What is published: the rules of each domain, as resources of both types, and what each pod gets
//! of them.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use ratelease_rules::Source;
use tokio::task::spawn_blocking;

use super::node::NodeInfo;
use super::translate::config_of;
use super::wire::{CONFIG_TYPE, RULES_TYPE, RulesResource, any};
use crate::document::read;
use crate::store::{Bound, Choice, Stage};

/// All that is published, of one version.
#[derive(Debug, Clone, Default)]
pub struct PublishedSet {
    /// The version; 0 if nothing was ever published.
    pub version: i64,
    /// When it was published, in milliseconds since the Unix epoch.
    pub at: i64,
    /// The domains, of which those that did not change are shared with the set before.
    pub domains: BTreeMap<String, Arc<PublishedDomain>>,
    /// What chosen pods have instead, while a rollout is under way.
    pub rollout: Option<Arc<PublishedRollout>>,
    /// The last version that changed each domain, also of domains that were removed.
    pub(crate) changed: BTreeMap<String, i64>,
    /// The last rollout that has ended, with the version that ended it.
    pub(crate) ended: Option<Arc<PublishedRollout>>,
    /// What pods get that may have all domains, by whether `rollout` and `ended` choose them.
    pub(crate) whole: [OnceLock<Arc<Selected>>; 4],
    /// How often domains were selected.
    #[cfg(test)]
    pub(crate) selections: Arc<AtomicUsize>,
}

/// What a pod gets of a set.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(super) domains: Vec<Arc<PublishedDomain>>,
    /// Their names, in the same order.
    pub(super) names: Arc<[String]>,
    /// Identifies the texts.
    pub(super) content: blake3::Hash,
    /// The last version that changed what the pod gets. A pod that has the same texts from an
    /// earlier version is sent this one all the same: a replica that knows only a version in
    /// between would else take that for newer than what the pod runs.
    pub(super) changed: i64,
    /// Bytes of the texts.
    pub(super) bytes: usize,
}

/// A rollout that is under way.
#[derive(Debug, Clone)]
pub struct PublishedRollout {
    /// Its number.
    pub id: i64,
    /// The version of its last step.
    pub version: i64,
    /// Its stage.
    pub stage: Stage,
    /// Which pods are chosen.
    pub choice: Choice,
    /// When it is rolled back.
    pub bound: Option<Bound>,
    /// The domains that chosen pods have instead of those that are published; `None` for one that
    /// leaves.
    pub domains: BTreeMap<String, Option<Arc<PublishedDomain>>>,
}

/// The published rules of a domain.
#[derive(Debug)]
pub struct PublishedDomain {
    /// The hash of the text.
    pub hash: String,
    rules: Bytes,
    config: SharedConfig,
    bytes: usize,
}

/// The resource for pods that do not take rule files, or what its type cannot say. It is made once,
/// on a thread that may block, when a pod first needs it; other streams wait without a thread.
type SharedConfig = Shared<BoxFuture<'static, Result<Bytes, Arc<str>>>>;

// === impl PublishedSet ===

impl PublishedSet {
    /// The domain with the text of this hash, if the set or its rollout has it.
    pub(super) fn find(&self, domain: &str, hash: &str) -> Option<&Arc<PublishedDomain>> {
        let rolled_out = self.rollout.as_ref().and_then(|it| it.domains.get(domain)?.as_ref());
        let both = [self.domains.get(domain), rolled_out];
        both.into_iter().flatten().find(|it| it.hash == hash)
    }

    /// Forgets when domains were removed, if that is known of more than `max`.
    pub(super) fn forget_removed(&mut self, max: usize) {
        if self.changed.len() > self.domains.len() + max {
            self.changed.retain(|name, _| self.domains.contains_key(name));
        }
    }

    /// What this node gets, of the domains that it is `allowed` (`None` for all). Pods that get all
    /// domains share one selection; the cost of others is that of the names that limit them.
    pub(super) fn selected(
        &self,
        node: &NodeInfo,
        allowed: Option<&BTreeSet<&str>>,
    ) -> Arc<Selected> {
        let rollout = self.rollout_of(node);
        let ended = self.ended.as_deref().filter(|it| it.chooses(node));
        let select = |names: BTreeSet<&str>| Arc::new(self.select(names, rollout, ended));
        match (node.domains(), allowed) {
            (Some(asked), allowed) => {
                let asked = asked.iter().map(String::as_str);
                select(asked.filter(|it| allowed.is_none_or(|all| all.contains(it))).collect())
            }
            (None, Some(allowed)) => select(allowed.clone()),
            (None, None) => {
                let at = usize::from(rollout.is_some()) + 2 * usize::from(ended.is_some());
                Arc::clone(self.whole[at].get_or_init(|| select(self.names(rollout))))
            }
        }
    }

    /// The names of all domains, and of those that were removed.
    fn names<'s>(&'s self, rollout: Option<&'s PublishedRollout>) -> BTreeSet<&'s str> {
        let added = rollout.into_iter().flat_map(|it| it.domains.keys());
        let names = self.domains.keys().chain(self.changed.keys()).chain(added);
        names.map(String::as_str).collect()
    }

    fn select(
        &self,
        names: BTreeSet<&str>,
        rollout: Option<&PublishedRollout>,
        ended: Option<&PublishedRollout>,
    ) -> Selected {
        #[cfg(test)]
        self.selections.fetch_add(1, Ordering::Relaxed);
        let (mut domains, mut present) = (Vec::new(), Vec::new());
        let (mut hasher, mut last, mut bytes) = (blake3::Hasher::new(), 0, 0);
        for name in names {
            let domain = match rollout.and_then(|it| it.domains.get(name)) {
                Some(instead) => instead.as_ref(),
                None => self.domains.get(name),
            };
            let published = self.changed.get(name).copied().unwrap_or_default();
            last = last.max(match ended.filter(|it| it.domains.contains_key(name)) {
                // The pod had this text before it was published.
                Some(ended) if ended.stage == Stage::All && ended.version == published => 0,
                Some(ended) => ended.version.max(published),
                None => published,
            });
            let Some(domain) = domain else { continue };
            for part in [name, &domain.hash] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
            bytes += domain.bytes;
            domains.push(Arc::clone(domain));
            present.push(name.to_owned());
        }
        let (names, content) = (present.into(), hasher.finalize());
        Selected { domains, names, content, changed: last, bytes }
    }
}

// === impl PublishedDomain ===

impl PublishedDomain {
    /// The rules of `domain`, as the text of a rule file.
    pub fn new(domain: &str, hash: String, yaml: String) -> Self {
        let bytes = yaml.len();
        let text = Bytes::from(yaml);
        let rules = any(RULES_TYPE, &RulesResource { name: domain.to_owned(), yaml: text.clone() });
        let config = async move {
            let made = spawn_blocking(move || config(&text)).await;
            made.unwrap_or_else(|error| Err(error.to_string().into()))
        };
        Self { hash, rules, config: config.boxed().shared(), bytes }
    }

    /// The resource for pods that take rule files.
    pub(super) fn rules(&self) -> &Bytes {
        &self.rules
    }

    /// The resource for others; the error names what their type cannot say.
    pub(super) async fn config(&self) -> Result<Bytes, Arc<str>> {
        self.config.clone().await
    }
}

/// Translates the text of a rule file. Blocks.
fn config(text: &[u8]) -> Result<Bytes, Arc<str>> {
    let source = Source { name: "published".into(), text: text.to_vec() };
    let documents = read(&[source]).map_err(|_| "the rules are refused")?;
    let document = documents.into_iter().next().unwrap_or_default();
    Ok(any(CONFIG_TYPE, &config_of(&document)?))
}
