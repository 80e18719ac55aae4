//! The resources of one type: those that the server sent last, those that are in force, and the
//! requests that answer the server. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::time::Time;
use ratelease_rules::Source;

use super::resource::{Resource, ResourceType, Resources};
use super::response::{Digest, Received};
use super::wire::{
    DiscoveryRequest, DiscoveryResponse, Node, RULES_VERSION_KEY, Status, text_value,
};

/// How long resources stay in force that the server no longer sends. Envoy Gateway sends the set of
/// one Gateway after that of the other when it starts, so a resource that is missing may come back.
pub(super) const REMOVAL_WAIT: Duration = Duration::from_secs(2);

/// Maximum number of faults that the server is told.
const FAULTS_TOLD_MAX: usize = 20;

/// gRPC's code for an argument that cannot be used.
const INVALID_ARGUMENT: i32 = 3;

/// The resources of one type.
#[derive(Debug)]
pub(super) struct Subscription {
    of: ResourceType,
    /// The version that was accepted last on this stream; empty before the first.
    version: String,
    /// The version that was accepted last on any stream; empty before the first.
    running: String,
    /// The number of the last response.
    nonce: String,
    /// The accepted resources, by name.
    accepted: Arc<Resources>,
    /// Resources that the server sends no longer, and that are in force until then.
    leaving: BTreeMap<String, (Resource, Time)>,
    /// What was refused last, unless something was accepted since, and its faults.
    refused: Option<(Digest, Vec<String>)>,
}

// === impl Subscription ===

impl Subscription {
    pub(super) fn new(of: ResourceType) -> Self {
        Self {
            of,
            version: String::new(),
            running: String::new(),
            nonce: String::new(),
            accepted: Arc::default(),
            leaving: BTreeMap::new(),
            refused: None,
        }
    }

    pub(super) fn of(&self) -> ResourceType {
        self.of
    }

    /// Takes those of these sources that came from this type as accepted ones.
    pub(super) fn seed(&mut self, sources: &[Arc<Source>]) {
        let resources = sources.iter().filter_map(|source| self.of.of_source(source));
        Arc::make_mut(&mut self.accepted).extend(resources);
    }

    /// The first request of a stream. It names no version: the versions of a server that was
    /// restarted may have begun again, and the present set may have the version of an earlier one.
    /// The metadata of the node has the version, for servers that know it there.
    pub(super) fn begin(&mut self, mut node: Node) -> DiscoveryRequest {
        if !self.running.is_empty() {
            let fields = &mut node.metadata.get_or_insert_default().fields;
            fields.insert(RULES_VERSION_KEY.to_owned(), text_value(&self.running));
        }
        self.version.clear();
        self.nonce.clear();
        DiscoveryRequest { node: Some(node), ..self.request() }
    }

    pub(super) fn is_of(&self, response: &DiscoveryResponse) -> bool {
        response.type_url == self.of.url()
    }

    /// Requests that follow answer this response.
    pub(super) fn note_nonce(&mut self, response: &DiscoveryResponse) {
        self.nonce.clone_from(&response.nonce);
    }

    /// The accepted resources.
    pub(super) fn accepted_resources(&self) -> Arc<Resources> {
        Arc::clone(&self.accepted)
    }

    /// The accepted sources.
    pub(super) fn accepted(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.accepted.values().map(|resource| &resource.source)
    }

    /// The sources that the server sends no longer, and that are still in force.
    pub(super) fn leaving(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.leaving.values().map(|(resource, _)| &resource.source)
    }

    /// The sources that stay in force for a while beside a set that does not contain them. Those
    /// whose domain has another resource in the set do not.
    pub(super) fn leaving_beside<'s>(
        &'s self,
        received: &'s Received,
    ) -> impl Iterator<Item = &'s Arc<Source>> {
        let leaving = self.leaving.iter().map(|(name, (resource, _))| (name, resource));
        let former = self.accepted.iter().chain(leaving);
        former.filter(|(name, it)| received.lacks(name, it)).map(|(_, resource)| &resource.source)
    }

    /// Takes a set whose rules are in force, and returns the request that says so. Those of
    /// [`Subscription::leaving_beside`] stay for a while from `now`, if that is given.
    pub(super) fn accept(&mut self, received: Received, now: Option<Time>) -> DiscoveryRequest {
        if let Some(now) = now {
            let missing = self.accepted.iter().filter(|(name, it)| received.lacks(name, it));
            let leaving =
                missing.map(|(name, it)| (name.clone(), (it.clone(), now + REMOVAL_WAIT)));
            self.leaving.extend(leaving);
        }
        self.leaving.retain(|name, (it, _)| received.lacks(name, it));
        self.running.clone_from(&received.version);
        self.version = received.version;
        self.accepted = Arc::new(received.resources);
        self.refused = None;
        self.request()
    }

    /// Takes note of a refusal, and returns the request that says so.
    pub(super) fn refuse(&mut self, digest: Digest, faults: Vec<String>) -> DiscoveryRequest {
        self.refused = Some((digest, faults));
        self.refuse_again()
    }

    /// The request that refuses the last response for the reasons of the last refusal.
    pub(super) fn refuse_again(&self) -> DiscoveryRequest {
        let faults = self.refused_faults().unwrap_or_default();
        let mut message = faults.iter().take(FAULTS_TOLD_MAX).cloned().collect::<Vec<_>>();
        if let Some(more) = faults.len().checked_sub(FAULTS_TOLD_MAX).filter(|more| *more > 0) {
            message.push(format!("and {more} more"));
        }
        let (code, message) = (INVALID_ARGUMENT, message.join("\n"));
        let error = Status { code, message, details: Vec::new() };
        DiscoveryRequest { error_detail: Some(error), ..self.request() }
    }

    /// Identifies what was refused last, unless something was accepted since.
    pub(super) fn refused(&self) -> Option<Digest> {
        self.refused.as_ref().map(|(digest, _)| *digest)
    }

    /// The faults of what was refused last, unless something was accepted since.
    pub(super) fn refused_faults(&self) -> Option<&[String]> {
        self.refused.as_ref().map(|(_, faults)| &**faults)
    }

    /// When the next resource is to be removed; `None` if none is waiting for that.
    pub(super) fn leave_at(&self) -> Option<Time> {
        self.leaving.values().map(|(_, at)| *at).min()
    }

    /// Drops those whose wait is over. Returns whether there were any.
    pub(super) fn drop_leaving(&mut self, now: Time) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|_, (_, at)| *at > now);
        self.leaving.len() < before
    }

    /// Drops all of them.
    pub(super) fn drop_all_leaving(&mut self) {
        self.leaving.clear();
    }

    /// The request that names the accepted version and the last response.
    pub(super) fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            type_url: self.of.url().to_owned(),
            response_nonce: self.nonce.clone(),
            ..DiscoveryRequest::default()
        }
    }
}

#[cfg(test)]
mod tests;
