//! The set of rules that a server sends: what of it is in force, and how each response is answered.
//!
//! ```text
//! wanted: a type ─▶ newest: the set of a response ─ good ─▶ accepted: in force, with what leaves
//!                     └─ refused: the accepted set stays; tried again if only memory was lacking
//! ```
//! Resources that the server sends no longer leave after a while, and none leaves while the newest
//! set is refused: what takes its place may be in there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::time::{Clock, Time};
use ratelease_rules::{Source, excerpt};
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;
use tracing::{debug, info, warn};

use super::XdsStatus;
use super::pushed::{Outcome, Pusher};
use super::resource::{Digest, Received, Refused, Resource, ResourceType, Resources, digest, read};
use super::wire::{
    DiscoveryRequest, DiscoveryResponse, Node, RULES_VERSION_KEY, Status, text_value,
};
use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::Terms;

/// How long resources stay in force that the server no longer sends. Envoy Gateway sends the set of
/// one Gateway after that of the other when it starts, so a resource that is missing may come back.
const REMOVAL_WAIT: Duration = Duration::from_secs(2);

/// How long after a refusal for lack of memory the set is tried again, as rule files are: the
/// server does not send a version twice on a stream.
const RETRY_WAIT: Duration = Duration::from_secs(30);

/// Maximum number of faults in a refusal that is sent to the server.
const FAULTS_TOLD_MAX: usize = 20;

/// gRPC's code for an argument that cannot be used.
const INVALID_ARGUMENT: i32 = 3;

/// The set of rules of a server.
#[derive(Debug)]
pub struct RuleSet {
    /// The type of resources that is asked for.
    wanted: ResourceType,
    /// The set that the server sent last, while it is refused.
    newest: Option<Newest>,
    /// The set in force.
    accepted: Accepted,
    /// The state of the present stream.
    stream: StreamState,
    /// Whether several resources may add rules to one domain.
    merges_domains: bool,
    pusher: Pusher,
    memory: MemoryLeft,
    status: XdsStatus,
    clock: Clock,
}

/// The answer to a response.
#[derive(Debug)]
pub struct Answer {
    pub request: DiscoveryRequest,
    pub kind: AnswerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Accepted,
    Refused,
    /// The response is the one that was refused last.
    RefusedAgain,
}

/// A set that is refused.
#[derive(Debug)]
struct Newest {
    /// The hash of its resources; `None` if it is to be read again when it is sent again.
    digest: Option<Digest>,
    faults: Vec<String>,
    /// The content to try again, and when; `None` unless memory was lacking.
    retry: Option<(Content, Time)>,
}

/// The content of a response.
#[derive(Debug)]
enum Content {
    Read(Received),
    Unread(Arc<DiscoveryResponse>),
}

/// The set in force.
#[derive(Debug, Default)]
struct Accepted {
    /// The version; empty before the first set.
    version: String,
    /// Resources by name.
    resources: Arc<Resources>,
    /// Resources in force that the server sends no longer.
    leaving: Leaving,
}

/// Resources that the server sends no longer, by name, and until when they stay in force.
type Leaving = BTreeMap<String, (Resource, Time)>;

/// The state of a stream.
#[derive(Debug, Default)]
struct StreamState {
    /// The version that was accepted last; empty before the first one.
    version: String,
    /// The number of the last response; `None` before the first one.
    nonce: Option<String>,
}

// === impl RuleSet ===

impl RuleSet {
    pub fn new(
        wanted: ResourceType,
        merges_domains: bool,
        pusher: Pusher,
        memory: MemoryLeft,
        status: XdsStatus,
        clock: Clock,
    ) -> Self {
        let accepted = Accepted::default();
        let stream = StreamState::default();
        let newest = None;
        Self { wanted, newest, accepted, stream, merges_domains, pusher, memory, status, clock }
    }

    /// Takes the sources of a snapshot, which are in force, as accepted: a source that the server does
    /// not send is removed after the same wait as others. Sources of another type leave with the
    /// first set.
    pub fn seed(&mut self, sources: &[Arc<Source>]) {
        let resources = sources.iter().filter_map(|source| self.wanted.of_source(source));
        self.accepted.resources = Arc::new(resources.collect());
    }

    /// The first request of a stream. It names no version: the versions of a server that was
    /// restarted may have begun again, and the present set may have the version of an earlier one.
    /// The metadata of the node has the version, for servers that know it there.
    pub fn begin(&mut self, mut node: Node) -> DiscoveryRequest {
        let running = &self.accepted.version;
        if !running.is_empty() {
            let fields = &mut node.metadata.get_or_insert_default().fields;
            fields.insert(RULES_VERSION_KEY.to_owned(), text_value(running));
        }
        self.stream = StreamState::default();
        if let Some(newest) = &mut self.newest {
            newest.digest = None;
        }
        DiscoveryRequest { node: Some(node), ..self.request() }
    }

    /// Puts the set of a response in force, or refuses it. `None` for a response of a type that was
    /// not asked for.
    pub async fn take(&mut self, response: DiscoveryResponse) -> Option<Answer> {
        if response.type_url != self.wanted.url() {
            self.status.note_unasked(&response.type_url);
            return None;
        }
        self.stream.nonce = Some(response.nonce.clone());
        let response = Arc::new(response);
        let refused = self.newest.as_ref().and_then(|it| it.digest);
        if refused.is_some() && refused == digest_of(&response).await {
            self.keep_again(&response);
            return Some(Answer { request: self.refusal(), kind: AnswerKind::RefusedAgain });
        }
        let tried = self.try_set(Content::Unread(Arc::clone(&response))).await;
        let Err(newest) = tried else {
            debug!(version = excerpt(&response.version_info), "resources accepted");
            return Some(Answer { request: self.request(), kind: AnswerKind::Accepted });
        };
        self.refuse(Newest { digest: digest_of(&response).await, ..newest });
        Some(Answer { request: self.refusal(), kind: AnswerKind::Refused })
    }

    /// Reads a set, puts it in force and accepts it, or says why it is refused.
    async fn try_set(&mut self, content: Content) -> Result<(), Newest> {
        let set = match content {
            Content::Read(set) => set,
            Content::Unread(response) => match self.read(&response).await {
                Ok(set) => set,
                Err(refused) => {
                    let terms = Terms { is_for_now: refused.is_for_now, ..Terms::default() };
                    let _ = self.pusher.push(Err(refused.faults.clone()), terms).await;
                    return Err(self.refused(refused, Content::Unread(response)));
                }
            },
        };
        let (mut leaving, fewer) = self.leaving_beside(&set.resources);
        let mut tried = self.put_in_force(&set.resources, &leaving, fewer.is_some()).await;
        if let (Err(first), Some(fewer)) = (&tried, fewer) {
            let is_for_now = first.is_for_now;
            leaving = fewer;
            tried = self.put_in_force(&set.resources, &leaving, false).await;
            tried = tried.map_err(|it| Refused { is_for_now: it.is_for_now || is_for_now, ..it });
        }
        match tried {
            Ok(()) => self.accept(set, leaving),
            Err(refused) => return Err(self.refused(refused, Content::Read(set))),
        }
        Ok(())
    }

    /// Reads the resources of a response.
    async fn read(&self, response: &Arc<DiscoveryResponse>) -> Result<Received, Refused> {
        let wanted = self.wanted;
        let response = Arc::clone(response);
        let known = Arc::clone(&self.accepted.resources);
        let memory = self.memory.clone();
        let read = unless_it_panics(move || read(wanted, &response, &known, memory.bytes()));
        read.await.unwrap_or_else(|fault| Err(Refused::finally(fault)))
    }

    /// The resources that stay in force for a while beside `new` ones: the other resources of the
    /// accepted set, and the ones that were leaving before. The second value lacks resources that may
    /// contradict the new ones, by a domain that is taken or not known; `None` if there are none.
    fn leaving_beside(&self, new: &Resources) -> (Leaving, Option<Leaving>) {
        let mut leaving = self.accepted.leaving_beside(new, self.clock.now());
        let taken: BTreeSet<&str> = new.values().map(|it| &*it.domain).collect();
        if !self.merges_domains {
            // A resource goes at once if another one has its domain.
            leaving.retain(|_, (it, _)| it.domain.is_empty() || !taken.contains(&*it.domain));
        }
        let mut fewer = leaving.clone();
        fewer.retain(|_, (it, _)| !it.domain.is_empty() && !taken.contains(&*it.domain));
        let is_fewer = fewer.len() < leaving.len();
        (leaving, is_fewer.then_some(fewer))
    }

    /// Puts these resources in force, with those that are leaving.
    async fn put_in_force(
        &self,
        resources: &Resources,
        leaving: &Leaving,
        is_trial: bool,
    ) -> Outcome {
        let leaving = leaving.values().map(|(resource, _)| resource);
        let sources = resources.values().chain(leaving).map(|it| Arc::clone(&it.source));
        self.pusher.push(Ok(sources.collect()), Terms { is_trial, ..Terms::default() }).await
    }

    /// Accepts a set that is in force.
    fn accept(&mut self, set: Received, leaving: Leaving) {
        let Received { version, resources } = set;
        self.status.note_accepted(&version);
        if self.stream.nonce.is_some() {
            self.stream.version.clone_from(&version);
        }
        self.accepted = Accepted { version, resources: Arc::new(resources), leaving };
        self.newest = None;
    }

    /// A set that is refused, and tried again if only memory was lacking.
    fn refused(&self, refused: Refused, content: Content) -> Newest {
        let Refused { faults, is_for_now } = refused;
        let retry = is_for_now.then(|| (content, self.clock.now() + RETRY_WAIT));
        Newest { digest: None, faults, retry }
    }

    fn refuse(&mut self, newest: Newest) {
        self.status.note_refused(&newest.faults);
        self.newest = Some(newest);
    }

    /// Notes that the server has sent the refused set again, perhaps with another version.
    fn keep_again(&mut self, response: &Arc<DiscoveryResponse>) {
        let retry = self.newest.as_mut().and_then(|it| it.retry.as_mut());
        match retry.map(|(content, _)| content) {
            Some(Content::Read(set)) => set.version.clone_from(&response.version_info),
            Some(Content::Unread(unread)) => *unread = Arc::clone(response),
            None => {}
        }
    }

    /// Resolves when the wait for the removal of a resource is over, or that of a set that is tried
    /// again: [`RuleSet::catch_up`] does it.
    pub async fn until_due(&self) {
        match [self.leave_at(), self.retry_at()].into_iter().flatten().min() {
            Some(at) => sleep_until(self.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// When the next resource is to be removed; never while a set is refused.
    fn leave_at(&self) -> Option<Time> {
        let next = self.accepted.leaving.values().map(|(_, at)| *at).min();
        next.filter(|_| self.newest.is_none())
    }

    /// When the newest set is tried again.
    fn retry_at(&self) -> Option<Time> {
        self.newest.as_ref()?.retry.as_ref().map(|(_, at)| *at)
    }

    /// Removes and tries again as it is due. Returns the request that tells the server of the outcome.
    pub async fn catch_up(&mut self) -> Option<DiscoveryRequest> {
        let now = self.clock.now();
        if self.leave_at().is_some_and(|at| at <= now) {
            self.let_go(now).await;
        }
        match self.retry_at().is_some_and(|at| at <= now) {
            true => self.retry().await,
            false => None,
        }
    }

    /// Removes the resources whose wait is over.
    async fn let_go(&mut self, now: Time) {
        let mut left = self.accepted.leaving.clone();
        left.retain(|_, (_, until)| *until > now);
        // Fewer sources have no new fault, but there may be too little memory to compile them.
        if self.put_in_force(&self.accepted.resources, &left, false).await.is_ok() {
            self.accepted.leaving = left;
            return;
        }
        let over = self.accepted.leaving.values_mut().filter(|(_, until)| *until <= now);
        over.for_each(|(_, until)| *until = now + RETRY_WAIT);
    }

    /// Tries the newest set again, which was refused for lack of memory.
    async fn retry(&mut self) -> Option<DiscoveryRequest> {
        let Newest { digest, retry, .. } = self.newest.take()?;
        let (content, _) = retry?;
        let request = match self.try_set(content).await {
            Ok(()) => {
                info!("rules that were refused for lack of memory are in force");
                self.request()
            }
            Err(newest) if newest.retry.is_some() => {
                self.newest = Some(Newest { digest, ..newest });
                return None; // the server knows
            }
            Err(newest) => {
                self.refuse(Newest { digest, ..newest });
                self.refusal()
            }
        };
        // A set of an earlier stream needs no answer on this one.
        self.stream.nonce.is_some().then_some(request)
    }

    /// The request that refuses the last response for the reasons of the last refusal.
    fn refusal(&self) -> DiscoveryRequest {
        let faults = self.newest.as_ref().map(|it| &*it.faults).unwrap_or_default();
        let mut message = faults.iter().take(FAULTS_TOLD_MAX).cloned().collect::<Vec<_>>();
        if let Some(more) = faults.len().checked_sub(FAULTS_TOLD_MAX).filter(|more| *more > 0) {
            message.push(format!("and {more} more"));
        }
        let code = INVALID_ARGUMENT;
        let message = message.join("\n");
        let error = Status { code, message, details: Vec::new() };
        DiscoveryRequest { error_detail: Some(error), ..self.request() }
    }

    /// The request that names the accepted version and the last response.
    fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.stream.version.clone(),
            type_url: self.wanted.url().to_owned(),
            response_nonce: self.stream.nonce.clone().unwrap_or_default(),
            ..DiscoveryRequest::default()
        }
    }
}

// === impl Accepted ===

impl Accepted {
    /// The resources that leave if these take the place of the accepted ones: those that were
    /// leaving before, and those that leave from `now`.
    fn leaving_beside(&self, new: &Resources, now: Time) -> Leaving {
        let from_now = self.resources.iter().map(|(name, it)| (name, it, now + REMOVAL_WAIT));
        let before = self.leaving.iter().map(|(name, (it, until))| (name, it, *until));
        from_now
            .chain(before)
            .filter(|(name, ..)| !new.contains_key(*name))
            .map(|(name, it, until)| (name.clone(), (it.clone(), until)))
            .collect()
    }
}

/// The hash of the resources of a response; `None` if it could not be computed.
async fn digest_of(response: &Arc<DiscoveryResponse>) -> Option<Digest> {
    let response = Arc::clone(response);
    unless_it_panics(move || digest(&response)).await.ok()
}

/// Runs `work`, which may take a while, on a thread that may block: this one serves pages too. The
/// error says that it panicked.
async fn unless_it_panics<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    spawn_blocking(work).await.map_err(|error| {
        warn!("internal error: a response of the xDS server was not read: {error}");
        "internal error: the response could not be read; see the log of the pod".to_owned()
    })
}

#[cfg(test)]
mod tests;
