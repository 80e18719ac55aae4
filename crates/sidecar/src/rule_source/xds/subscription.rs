//! The resources of one type: those that the server sent last, those that are accepted, and the
//! requests that answer the server. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::time::Time;
use ratelease_rules::Source;

use super::resource::{Resource, ResourceType, Resources};
use super::response::{Digest, Received, Refused};
use super::wire::{
    DiscoveryRequest, DiscoveryResponse, Node, RULES_VERSION_KEY, Status, text_value,
};

/// How long resources stay in force that the server no longer sends. Envoy Gateway sends the set of
/// one Gateway after that of the other when it starts, so a resource that is missing may come back.
pub(super) const REMOVAL_WAIT: Duration = Duration::from_secs(2);

/// How long after a refusal for lack of memory the set is tried again, as rule files are: the
/// server does not send a version twice on a stream.
pub(super) const RETRY_WAIT: Duration = Duration::from_secs(30);

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
    /// Whether there was a response on this stream.
    is_answered: bool,
    /// Whether a set that the server sent was ever accepted.
    has_set: bool,
    /// The accepted resources, by name.
    accepted: Arc<Resources>,
    /// Resources that the server sends no longer, and that are in force until then.
    leaving: Leaving,
    /// The newest set, until it is accepted.
    newest: Option<Newest>,
}

/// Resources that the server sends no longer, by name, and until when they stay in force.
pub(super) type Leaving = BTreeMap<String, (Resource, Time)>;

/// A set that is not accepted.
#[derive(Debug)]
struct Newest {
    /// Identifies what it holds; `None` if it is to be read again when it is sent again.
    digest: Option<Digest>,
    /// The set, which may become good when another type changes; `None` if it cannot be read.
    set: Option<Received>,
    /// Why it was refused; empty until then.
    faults: Vec<String>,
    /// The response, if it could not even be read for lack of memory.
    unread: Option<Arc<DiscoveryResponse>>,
    /// When it is tried again; `None` unless memory was lacking.
    retry_at: Option<Time>,
}

// === impl Subscription ===

impl Subscription {
    pub(super) fn new(of: ResourceType) -> Self {
        Self {
            of,
            version: String::new(),
            running: String::new(),
            nonce: String::new(),
            is_answered: false,
            has_set: false,
            accepted: Arc::default(),
            leaving: BTreeMap::new(),
            newest: None,
        }
    }

    pub(super) fn of(&self) -> ResourceType {
        self.of
    }

    /// Takes those of these sources that came from this type as accepted ones. Returns their
    /// number.
    pub(super) fn seed(&mut self, sources: &[Arc<Source>]) -> usize {
        let resources = sources.iter().filter_map(|source| self.of.of_source(source));
        let accepted = Arc::make_mut(&mut self.accepted);
        accepted.extend(resources);
        accepted.len()
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
        self.is_answered = false;
        if let Some(newest) = &mut self.newest {
            newest.digest = None;
        }
        DiscoveryRequest { node: Some(node), ..self.request() }
    }

    pub(super) fn is_of(&self, response: &DiscoveryResponse) -> bool {
        response.type_url == self.of.url()
    }

    /// Requests that follow answer this response.
    pub(super) fn note_response(&mut self, response: &DiscoveryResponse) {
        self.nonce.clone_from(&response.nonce);
        self.is_answered = true;
    }

    /// Whether there was a response on this stream.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Whether a set that the server sent was ever accepted.
    pub(super) fn has_set(&self) -> bool {
        self.has_set
    }

    /// The accepted resources.
    pub(super) fn accepted(&self) -> &Arc<Resources> {
        &self.accepted
    }

    /// The newest set, if it can be read and is not accepted.
    pub(super) fn newest(&self) -> Option<&Received> {
        self.newest.as_ref()?.set.as_ref()
    }

    /// Keeps a set, or the faults of one that cannot be read, as the newest one.
    pub(super) fn keep(
        &mut self,
        read: Result<Received, Refused>,
        response: &Arc<DiscoveryResponse>,
    ) {
        let (set, faults, unread) = match read {
            Ok(set) => (Some(set), Vec::new(), None),
            Err(Refused { faults, is_for_now }) => {
                (None, faults, is_for_now.then(|| Arc::clone(response)))
            }
        };
        self.newest = Some(Newest { digest: None, set, faults, unread, retry_at: None });
    }

    /// The server has sent what was refused last again, perhaps with another version.
    pub(super) fn keep_again(&mut self, response: &Arc<DiscoveryResponse>) {
        let Some(Newest { set, unread, .. }) = &mut self.newest else { return };
        if let Some(set) = set {
            set.version.clone_from(&response.version_info);
        }
        if let Some(unread) = unread {
            *unread = Arc::clone(response);
        }
    }

    /// The response that could not be read for lack of memory, unless another one came since.
    pub(super) fn unread(&self) -> Option<&Arc<DiscoveryResponse>> {
        self.newest.as_ref()?.unread.as_ref()
    }

    /// When the newest set is tried again; `None` if that would change nothing.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.newest.as_ref()?.retry_at
    }

    /// The newest set is tried again at this time, if at all.
    pub(super) fn set_retry(&mut self, at: Option<Time>) {
        if let Some(newest) = &mut self.newest {
            newest.retry_at = at;
        }
    }

    /// The accepted resources, or those of the newest set.
    pub(super) fn resources(&self, is_newest: bool) -> &Resources {
        match self.newest().filter(|_| is_newest) {
            Some(newest) => &newest.resources,
            None => &self.accepted,
        }
    }

    /// The resources that stay in force for a while beside [`Subscription::resources`], which do
    /// not contain them: those that are leaving, and those that leave from `now`.
    pub(super) fn leaving_beside(&self, is_newest: bool, now: Time) -> Leaving {
        let resources = self.resources(is_newest);
        let from_now = self.accepted.iter().map(|(name, it)| (name, it, now + REMOVAL_WAIT));
        let before = self.leaving.iter().map(|(name, (it, until))| (name, it, *until));
        from_now
            .chain(before)
            .filter(|(name, ..)| !resources.contains_key(*name))
            .map(|(name, it, until)| (name.clone(), (it.clone(), until)))
            .collect()
    }

    /// Takes note of what is in force beside the accepted resources.
    pub(super) fn set_leaving(&mut self, leaving: Leaving) {
        self.leaving = leaving;
    }

    /// Accepts the newest set, whose rules are good. Returns the request that says so, unless the
    /// set was sent on an earlier stream.
    pub(super) fn accept_newest(&mut self) -> Option<DiscoveryRequest> {
        let Received { version, resources } = self.newest.take()?.set?;
        self.accepted = Arc::new(resources);
        self.has_set = true;
        self.running.clone_from(&version);
        if !self.is_answered {
            return None;
        }
        self.version = version;
        Some(self.request())
    }

    /// The version that was accepted last on any stream; empty before the first.
    pub(super) fn running(&self) -> &str {
        &self.running
    }

    /// Takes note of why the newest set is not accepted.
    pub(super) fn set_faults(&mut self, faults: Vec<String>) {
        if let Some(newest) = &mut self.newest {
            newest.faults = faults;
        }
    }

    /// The newest set is refused: one that holds the same is not read again.
    pub(super) fn note_refused(&mut self, digest: Option<Digest>) {
        if let Some(newest) = &mut self.newest {
            newest.digest = digest;
        }
    }

    /// The request that refuses the last response for the reasons of the last refusal.
    pub(super) fn refusal(&self) -> DiscoveryRequest {
        let faults = self.refused_faults().unwrap_or_default();
        let mut message = faults.iter().take(FAULTS_TOLD_MAX).cloned().collect::<Vec<_>>();
        if let Some(more) = faults.len().checked_sub(FAULTS_TOLD_MAX).filter(|more| *more > 0) {
            message.push(format!("and {more} more"));
        }
        let (code, message) = (INVALID_ARGUMENT, message.join("\n"));
        let error = Status { code, message, details: Vec::new() };
        DiscoveryRequest { error_detail: Some(error), ..self.request() }
    }

    /// Identifies what was refused last on this stream, unless something was accepted since.
    pub(super) fn refused(&self) -> Option<Digest> {
        self.newest.as_ref()?.digest
    }

    /// The faults of what was refused last, unless something was accepted since.
    pub(super) fn refused_faults(&self) -> Option<&[String]> {
        self.newest.as_ref().map(|newest| &*newest.faults)
    }

    /// When the next resource is to be removed; `None` if none is waiting for that.
    pub(super) fn leave_at(&self) -> Option<Time> {
        self.leaving.values().map(|(_, at)| *at).min()
    }

    /// The resources that are leaving, without those whose wait is over.
    pub(super) fn still_leaving(&self, now: Time) -> Leaving {
        let mut leaving = self.leaving.clone();
        leaving.retain(|_, (_, at)| *at > now);
        leaving
    }

    /// Those whose wait is over could not be removed: they stay until then.
    pub(super) fn stay_until(&mut self, then: Time, now: Time) {
        let over = self.leaving.values_mut().filter(|(_, at)| *at <= now);
        over.for_each(|(_, at)| *at = then);
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
