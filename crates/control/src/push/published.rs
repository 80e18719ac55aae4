//! What is published: the rules of each domain, as resources of both types.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ratelease_rules::Source;

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
    /// Made when a pod first needs it.
    config: OnceLock<Result<Bytes, String>>,
    yaml: String,
}

// === impl PublishedSet ===

impl PublishedSet {
    /// The domain with the text of this hash, if the set or its rollout has it.
    pub(super) fn find(&self, domain: &str, hash: &str) -> Option<&Arc<PublishedDomain>> {
        let rolled_out = self.rollout.as_ref().and_then(|it| it.domains.get(domain)?.as_ref());
        let both = [self.domains.get(domain), rolled_out];
        both.into_iter().flatten().find(|it| it.hash == hash)
    }
}

// === impl PublishedDomain ===

impl PublishedDomain {
    /// The rules of `domain`, as the text of a rule file.
    pub fn new(domain: &str, hash: String, yaml: String) -> Self {
        let resource = RulesResource { name: domain.to_owned(), yaml: yaml.clone().into() };
        let rules = any(RULES_TYPE, &resource);
        Self { hash, rules, config: OnceLock::new(), yaml }
    }

    /// The bytes of the rules, as far as a bound needs them.
    pub(super) fn bytes(&self) -> usize {
        self.yaml.len()
    }

    /// The resource for pods that take rule files.
    pub(super) fn rules(&self) -> &Bytes {
        &self.rules
    }

    /// The resource for others; the error names what their type cannot say. Blocks at its first
    /// call.
    pub(super) fn config(&self) -> Result<&Bytes, &str> {
        let made = self.config.get_or_init(|| {
            let source = Source { name: "published".into(), text: self.yaml.clone().into_bytes() };
            let documents = read(&[source]).map_err(|_| "the rules are refused".to_owned())?;
            let document = documents.into_iter().next().unwrap_or_default();
            Ok(any(CONFIG_TYPE, &config_of(&document)?))
        });
        made.as_ref().map_err(String::as_str)
    }
}
