//! The resources of all types together: which sources are in force, and how each response is
//! answered.
//!
//! Nothing is in force before the server has sent a good set of each type, unless a snapshot had
//! rules: a part of the rules would let the requests of the other part pass. A set is refused
//! *beside the other types as they are*, so it is kept and tried again whenever they change, and
//! nothing is removed while one is refused: its successor may be in there.
//!
//! A set that was refused only because memory was lacking is tried again after a while: the server
//! has no reason to send it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::{Faults, Options, Parts, Source, excerpt};
use ratelease_xds::config::path_of;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;
use tracing::{debug, info, warn};

use super::XdsStatus;
use super::resource::{Digest, Received, Refused, Resource, ResourceType, Resources, digest, read};
use super::wire::{
    DiscoveryRequest, DiscoveryResponse, Node, RULES_VERSION_KEY, Status, text_value,
};
use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::{Compiled, Load, Terms};

/// The resources of all types.
#[derive(Debug)]
pub struct RuleSet {
    subscriptions: Vec<Subscription>,
    /// Whether several resources may add rules to one domain.
    merges_domains: bool,
    /// Whether the rules of a snapshot are in force, all of which came from these types.
    is_seeded: bool,
    pusher: Pusher,
    memory: MemoryLeft,
    status: XdsStatus,
    clock: Clock,
}

/// The answer to a response.
#[derive(Debug)]
pub struct Answer {
    /// The first one answers the response; others say that a set of another type, which had been
    /// refused, is accepted.
    pub requests: Vec<DiscoveryRequest>,
    pub kind: AnswerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Accepted,
    /// The first set of its type is good, and waits for that of another type to be put in force.
    AcceptedFirst,
    Refused,
    /// The response is the one that was refused last.
    RefusedAgain,
}

/// What may be put in force: a set of each type, and resources that are leaving.
#[derive(Debug)]
struct Candidate {
    /// Of which types it has the newest set in place of the accepted one.
    newest: Vec<bool>,
    leaving: Vec<Leaving>,
}

// === impl RuleSet ===

impl RuleSet {
    pub fn new(
        types: &[ResourceType],
        merges_domains: bool,
        pusher: Pusher,
        memory: MemoryLeft,
        status: XdsStatus,
        clock: Clock,
    ) -> Self {
        let subscriptions = types.iter().copied().map(Subscription::new).collect();
        let is_seeded = false;
        let set = Self { subscriptions, merges_domains, is_seeded, pusher, memory, status, clock };
        set.status.note_missing(set.missing());
        set
    }

    /// Takes the sources of a snapshot, which are in force, as accepted: those that the server does
    /// not send are removed after the same wait as others.
    pub fn seed(&mut self, sources: &[Arc<Source>]) {
        let seeded: usize = self.subscriptions.iter_mut().map(|it| it.seed(sources)).sum();
        self.is_seeded = seeded > 0 && seeded == sources.len();
    }

    /// The first requests of a stream.
    pub fn begin(&mut self, node: &Node) -> Vec<DiscoveryRequest> {
        self.subscriptions.iter_mut().map(|it| it.begin(node.clone())).collect()
    }

    /// Puts the rules of a response in force, or refuses it. `None` for a response of a type that
    /// has no subscription.
    pub async fn take(&mut self, response: DiscoveryResponse) -> Option<Answer> {
        let Some(at) = self.subscriptions.iter().position(|it| it.is_of(&response)) else {
            let kind = excerpt(&response.type_url);
            warn!("the xDS server sent resources of the type {kind}, which was not asked for");
            return None;
        };
        let version = excerpt(&response.version_info);
        let subscription = self.subscriptions.get_mut(at)?;
        subscription.note_response(&response);
        let of = subscription.of;
        let is_first = !subscription.has_set;
        let refused = subscription.refused();
        let response = Arc::new(response);
        if refused.is_some() && refused == digest_of(&response).await {
            subscription.keep_again(&response);
            let requests = vec![subscription.refusal()];
            return Some(Answer { requests, kind: AnswerKind::RefusedAgain });
        }
        let accepted = self.read_and_settle(at, &response).await;
        let subscription = self.subscriptions.get_mut(at)?;
        let Some(mut requests) = accepted else {
            subscription.note_refused(digest_of(&response).await);
            self.status.note_refused(subscription.refused_faults().unwrap_or_default());
            let requests = vec![subscription.refusal()];
            return Some(Answer { requests, kind: AnswerKind::Refused });
        };
        debug!(version, "resources accepted");
        // The answer to the response comes first.
        requests.sort_by_key(|request| request.type_url != of.url());
        let is_early = is_first && !self.is_whole(&[]);
        if is_early {
            let missing = self.missing().join(", ");
            info!("good resources of {}; they are in force once {missing} has come too", of.url());
        }
        let kind = if is_early { AnswerKind::AcceptedFirst } else { AnswerKind::Accepted };
        Some(Answer { requests, kind })
    }

    /// Reads a response and puts its set in force, as [`RuleSet::settle`] does.
    async fn read_and_settle(
        &mut self,
        at: usize,
        response: &Arc<DiscoveryResponse>,
    ) -> Option<Vec<DiscoveryRequest>> {
        let subscription = self.subscriptions.get_mut(at)?;
        let of = subscription.of;
        let known = Arc::clone(&subscription.accepted);
        let to_read = Arc::clone(response);
        let memory = self.memory.clone();
        let read = unless_it_panics(move || read(of, &to_read, &known, memory.bytes()));
        let read = read.await.unwrap_or_else(|fault| Err(Refused::finally(fault)));
        subscription.keep(read, response);
        self.settle(at).await
    }

    /// Puts the newest set of a type in force: with those of other types that are not accepted, or
    /// alone. Returns the requests that say what is accepted; `None` if the set is refused.
    async fn settle(&mut self, at: usize) -> Option<Vec<DiscoveryRequest>> {
        let readable: Vec<_> = self.subscriptions.iter().map(|it| it.newest().is_some()).collect();
        let alone: Vec<_> = (0..readable.len()).map(|it| it == at).collect();
        let subscription = self.subscriptions.get(at)?;
        if subscription.newest().is_none() {
            let faults = subscription.refused_faults().unwrap_or_default().to_vec();
            let is_for_now = subscription.unread().is_some();
            let _ = self.pusher.push(Err(faults), Terms { is_for_now, ..Terms::default() }).await;
            self.retry_later(at, is_for_now);
            return None;
        }
        let mut is_for_now = false;
        if readable != alone {
            for candidate in self.candidates(readable) {
                match self.put_in_force(&candidate, true).await {
                    Ok(()) => return Some(self.accept(candidate)),
                    Err(refused) => {
                        is_for_now |= refused.is_for_now;
                        self.note_faults_beside(at, &refused.faults);
                    }
                }
            }
        }
        let candidates = self.candidates(alone);
        let last = candidates.len().saturating_sub(1);
        for (number, candidate) in candidates.into_iter().enumerate() {
            match self.put_in_force(&candidate, number < last).await {
                Ok(()) => return Some(self.accept(candidate)),
                Err(refused) => {
                    is_for_now |= refused.is_for_now;
                    self.subscriptions.get_mut(at)?.set_faults(refused.faults);
                }
            }
        }
        self.retry_later(at, is_for_now);
        None
    }

    /// The newest set of a type is refused; if that is for now, it is tried again later.
    fn retry_later(&mut self, at: usize, is_for_now: bool) {
        let retry_at = is_for_now.then(|| self.clock.now() + RETRY_WAIT);
        if let Some(subscription) = self.subscriptions.get_mut(at) {
            subscription.set_retry(retry_at);
        }
    }

    /// Takes note of why the newest sets of other types are not in force beside that of `at`. If
    /// that one has faults too, they are reported as its own.
    fn note_faults_beside(&mut self, at: usize, faults: &[String]) {
        let others = self.subscriptions.iter_mut().enumerate().filter(|(other, _)| *other != at);
        let refused = others.filter(|(_, it)| it.newest().is_some());
        refused.for_each(|(_, it)| it.set_faults(faults.to_vec()));
    }

    /// The sets of these types in place of the accepted ones, with what is leaving; and, if there
    /// are any, without those that may contradict what takes their place: of a domain that the sets
    /// have, or of one that is not known. Others stay, since their successors may still be refused.
    fn candidates(&self, newest: Vec<bool>) -> Vec<Candidate> {
        let now = self.clock.now();
        let each = || self.subscriptions.iter().zip(&newest);
        let mut leaving: Vec<_> = each().map(|(it, new)| it.leaving_beside(*new, now)).collect();
        let resources = each().flat_map(|(it, new)| it.resources(*new).values());
        let taken: BTreeSet<&str> = resources.map(|it| &*it.domain).collect();
        if !self.merges_domains {
            // A resource goes at once if another one has its domain.
            for leaving in &mut leaving {
                leaving.retain(|_, (it, _)| it.domain.is_empty() || !taken.contains(&*it.domain));
            }
        }
        let count = |leaving: &[Leaving]| leaving.iter().map(Leaving::len).sum::<usize>();
        let mut fewer = leaving.clone();
        for leaving in &mut fewer {
            leaving.retain(|_, (it, _)| !it.domain.is_empty() && !taken.contains(&*it.domain));
        }
        let is_fewer = count(&fewer) < count(&leaving);
        let without = is_fewer.then(|| Candidate { newest: newest.clone(), leaving: fewer });
        [Candidate { newest, leaving }].into_iter().chain(without).collect()
    }

    async fn put_in_force(&self, candidate: &Candidate, is_trial: bool) -> Result<(), Refused> {
        let Candidate { newest, leaving } = candidate;
        let each = self.subscriptions.iter().zip(newest);
        let resources = each.clone().flat_map(|(it, new)| it.resources(*new).values());
        let leaving = leaving.iter().flat_map(|it| it.values().map(|(resource, _)| resource));
        let sources = resources.chain(leaving).map(|it| Arc::clone(&it.source)).collect();
        let left_out = each.filter(|(_, new)| !**new).filter_map(|(it, _)| it.refused_faults());
        let left_out = left_out.flatten().cloned().collect();
        let is_partial = !self.is_whole(newest);
        self.pusher
            .push(Ok(sources), Terms { is_trial, is_partial, left_out, ..Terms::default() })
            .await
    }

    /// Accepts the newest sets of a candidate that is in force, and returns the requests that say
    /// so.
    fn accept(&mut self, candidate: Candidate) -> Vec<DiscoveryRequest> {
        let Candidate { newest, leaving } = candidate;
        let mut requests = Vec::new();
        for ((it, is_newest), leaving) in self.subscriptions.iter_mut().zip(newest).zip(leaving) {
            it.leaving = leaving;
            if is_newest {
                requests.extend(it.accept_newest());
                self.status.note_accepted(&it.running);
            }
        }
        self.status.note_missing(self.missing());
        requests
    }

    /// Whether a set of each type is known, if the newest ones of these types are.
    fn is_whole(&self, newest: &[bool]) -> bool {
        let is_known = |(at, it): (usize, &Subscription)| {
            it.has_set || newest.get(at).copied().unwrap_or_default()
        };
        self.is_seeded || self.subscriptions.iter().enumerate().all(is_known)
    }

    /// The types of which no set was accepted yet.
    fn missing(&self) -> Vec<&'static str> {
        self.subscriptions.iter().filter(|it| !it.has_set).map(|it| it.of.url()).collect()
    }

    /// Resolves when the wait for the removal of a resource is over, or that of a set that is tried
    /// again: [`RuleSet::catch_up`] does it.
    pub async fn until_due(&self) {
        let retry_at = self.subscriptions.iter().filter_map(Subscription::retry_at).min();
        match [self.leave_at(), retry_at].into_iter().flatten().min() {
            Some(at) => sleep_until(self.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// When the next resource is to be removed. Nothing is removed while a set is refused or
    /// missing: it may have what takes the place of the resource.
    fn leave_at(&self) -> Option<Time> {
        let holds = |it: &Subscription| !it.has_set || it.refused_faults().is_some();
        let is_held = self.subscriptions.iter().any(holds);
        let next = self.subscriptions.iter().filter_map(Subscription::leave_at).min();
        next.filter(|_| !is_held)
    }

    /// Does what is due. Returns the requests that tell the server what is accepted or refused by
    /// that.
    pub async fn catch_up(&mut self) -> Vec<DiscoveryRequest> {
        let now = self.clock.now();
        if self.leave_at().is_some_and(|at| at <= now) {
            self.let_go(now).await;
        }
        let mut requests = Vec::new();
        for at in 0..self.subscriptions.len() {
            let retry_at = self.subscriptions.get(at).and_then(Subscription::retry_at);
            if retry_at.is_some_and(|at| at <= now) {
                requests.extend(self.retry(at).await);
            }
        }
        requests
    }

    /// Removes the resources whose wait is over.
    async fn let_go(&mut self, now: Time) {
        let newest = vec![false; self.subscriptions.len()];
        let leaving = self.subscriptions.iter().map(|it| it.still_leaving(now)).collect();
        let candidate = Candidate { newest, leaving };
        // Fewer sources have no new fault, but there may be too little memory to compile them.
        let is_in_force = self.put_in_force(&candidate, false).await.is_ok();
        for (subscription, leaving) in self.subscriptions.iter_mut().zip(candidate.leaving) {
            match is_in_force {
                true => subscription.leaving = leaving,
                false => subscription.stay_until(now + RETRY_WAIT, now),
            }
        }
    }

    /// Tries the newest set of a type again, which was refused for lack of memory.
    async fn retry(&mut self, at: usize) -> Vec<DiscoveryRequest> {
        let Some(subscription) = self.subscriptions.get(at) else { return Vec::new() };
        let refused = subscription.refused();
        let unread = subscription.unread().cloned();
        let accepted = match unread {
            Some(response) => self.read_and_settle(at, &response).await,
            None => self.settle(at).await,
        };
        if let Some(requests) = accepted {
            info!("rules that were refused for lack of memory are in force");
            return requests;
        }
        let Some(subscription) = self.subscriptions.get_mut(at) else { return Vec::new() };
        subscription.note_refused(refused);
        if subscription.retry_at().is_some() {
            return Vec::new(); // the server knows
        }
        self.status.note_refused(subscription.refused_faults().unwrap_or_default());
        if subscription.is_answered { vec![subscription.refusal()] } else { Vec::new() }
    }
}

/// Identifies what a response holds; `None` if that is not known.
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

// The resources of one type: those that the server sent last, those that are accepted, and the
// requests that answer the server. No I/O.

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

/// The resources of one type.
#[derive(Debug)]
struct Subscription {
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
type Leaving = BTreeMap<String, (Resource, Time)>;

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
    fn new(of: ResourceType) -> Self {
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

    /// Takes those of these sources that came from this type as accepted ones. Returns their
    /// number.
    fn seed(&mut self, sources: &[Arc<Source>]) -> usize {
        let resources = sources.iter().filter_map(|source| self.of.of_source(source));
        let accepted = Arc::make_mut(&mut self.accepted);
        accepted.extend(resources);
        accepted.len()
    }

    /// The first request of a stream. It names no version: the versions of a server that was
    /// restarted may have begun again, and the present set may have the version of an earlier one.
    /// The metadata of the node has the version, for servers that know it there.
    fn begin(&mut self, mut node: Node) -> DiscoveryRequest {
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

    fn is_of(&self, response: &DiscoveryResponse) -> bool {
        response.type_url == self.of.url()
    }

    /// Requests that follow answer this response.
    fn note_response(&mut self, response: &DiscoveryResponse) {
        self.nonce.clone_from(&response.nonce);
        self.is_answered = true;
    }

    /// The newest set, if it can be read and is not accepted.
    fn newest(&self) -> Option<&Received> {
        self.newest.as_ref()?.set.as_ref()
    }

    /// Keeps a set, or the faults of one that cannot be read, as the newest one.
    fn keep(&mut self, read: Result<Received, Refused>, response: &Arc<DiscoveryResponse>) {
        let (set, faults, unread) = match read {
            Ok(set) => (Some(set), Vec::new(), None),
            Err(Refused { faults, is_for_now }) => {
                (None, faults, is_for_now.then(|| Arc::clone(response)))
            }
        };
        self.newest = Some(Newest { digest: None, set, faults, unread, retry_at: None });
    }

    /// The server has sent what was refused last again, perhaps with another version.
    fn keep_again(&mut self, response: &Arc<DiscoveryResponse>) {
        let Some(Newest { set, unread, .. }) = &mut self.newest else { return };
        if let Some(set) = set {
            set.version.clone_from(&response.version_info);
        }
        if let Some(unread) = unread {
            *unread = Arc::clone(response);
        }
    }

    /// The response that could not be read for lack of memory, unless another one came since.
    fn unread(&self) -> Option<&Arc<DiscoveryResponse>> {
        self.newest.as_ref()?.unread.as_ref()
    }

    /// When the newest set is tried again; `None` if that would change nothing.
    fn retry_at(&self) -> Option<Time> {
        self.newest.as_ref()?.retry_at
    }

    /// The newest set is tried again at this time, if at all.
    fn set_retry(&mut self, at: Option<Time>) {
        if let Some(newest) = &mut self.newest {
            newest.retry_at = at;
        }
    }

    /// The accepted resources, or those of the newest set.
    fn resources(&self, is_newest: bool) -> &Resources {
        match self.newest().filter(|_| is_newest) {
            Some(newest) => &newest.resources,
            None => &self.accepted,
        }
    }

    /// The resources that stay in force for a while beside [`Subscription::resources`], which do
    /// not contain them: those that are leaving, and those that leave from `now`.
    fn leaving_beside(&self, is_newest: bool, now: Time) -> Leaving {
        let resources = self.resources(is_newest);
        let from_now = self.accepted.iter().map(|(name, it)| (name, it, now + REMOVAL_WAIT));
        let before = self.leaving.iter().map(|(name, (it, until))| (name, it, *until));
        from_now
            .chain(before)
            .filter(|(name, ..)| !resources.contains_key(*name))
            .map(|(name, it, until)| (name.clone(), (it.clone(), until)))
            .collect()
    }

    /// Accepts the newest set, whose rules are good. Returns the request that says so, unless the
    /// set was sent on an earlier stream.
    fn accept_newest(&mut self) -> Option<DiscoveryRequest> {
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

    /// Takes note of why the newest set is not accepted.
    fn set_faults(&mut self, faults: Vec<String>) {
        if let Some(newest) = &mut self.newest {
            newest.faults = faults;
        }
    }

    /// The newest set is refused: one that holds the same is not read again.
    fn note_refused(&mut self, digest: Option<Digest>) {
        if let Some(newest) = &mut self.newest {
            newest.digest = digest;
        }
    }

    /// The request that refuses the last response for the reasons of the last refusal.
    fn refusal(&self) -> DiscoveryRequest {
        let faults = self.refused_faults().unwrap_or_default();
        let mut message = faults.iter().take(FAULTS_TOLD_MAX).cloned().collect::<Vec<_>>();
        if let Some(more) = faults.len().checked_sub(FAULTS_TOLD_MAX).filter(|more| *more > 0) {
            message.push(format!("and {more} more"));
        }
        let code = INVALID_ARGUMENT;
        let message = message.join("\n");
        let error = Status { code, message, details: Vec::new() };
        DiscoveryRequest { error_detail: Some(error), ..self.request() }
    }

    /// Identifies what was refused last on this stream, unless something was accepted since.
    fn refused(&self) -> Option<Digest> {
        self.newest.as_ref()?.digest
    }

    /// The faults of what was refused last, unless something was accepted since.
    fn refused_faults(&self) -> Option<&[String]> {
        self.newest.as_ref().map(|newest| &*newest.faults)
    }

    /// When the next resource is to be removed; `None` if none is waiting for that.
    fn leave_at(&self) -> Option<Time> {
        self.leaving.values().map(|(_, at)| *at).min()
    }

    /// The resources that are leaving, without those whose wait is over.
    fn still_leaving(&self, now: Time) -> Leaving {
        let mut leaving = self.leaving.clone();
        leaving.retain(|_, (_, at)| *at > now);
        leaving
    }

    /// Those whose wait is over could not be removed: they stay until then.
    fn stay_until(&mut self, then: Time, now: Time) {
        let over = self.leaving.values_mut().filter(|(_, at)| *at <= now);
        over.for_each(|(_, at)| *at = then);
    }

    /// The request that names the accepted version and the last response.
    fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            type_url: self.of.url().to_owned(),
            response_nonce: self.nonce.clone(),
            ..DiscoveryRequest::default()
        }
    }
}

// Sets of rules on their way to the thread that compiles them and puts them in force.

/// Maximum number of faults whose place is looked up: each search reads a whole text.
const FAULTS_SHOWN_MAX: usize = 100;

/// The outcome of a set: in force, or all its faults.
type Outcome = Result<(), Refused>;

/// The side of the stream.
#[derive(Debug)]
pub struct Pusher {
    set: Arc<Mutex<PushedSet>>,
    wake: SyncSender<()>,
}

/// The side of the thread.
pub struct Pushed {
    set: Arc<Mutex<PushedSet>>,
    options: Options,
    memory: MemoryLeft,
    /// What the sources in force became.
    parts: Parts,
    /// Whether the last load had too little memory.
    lacked_memory: bool,
    /// The push that was read last.
    number: u64,
    /// The outcome of the last set, which may be sent again.
    last: Outcome,
}

#[derive(Debug, Default)]
struct PushedSet {
    /// Which push this is.
    number: u64,
    /// `None` once they are in force or refused: text takes memory.
    sources: Option<Result<Vec<Arc<Source>>, Vec<String>>>,
    terms: Terms,
    reply: Option<oneshot::Sender<Outcome>>,
}

/// Creates the thread's side, and what makes the stream's side of it.
pub fn pushed(
    options: Options,
    memory: MemoryLeft,
) -> (Pushed, impl FnOnce(SyncSender<()>) -> Pusher) {
    let set = Arc::<Mutex<PushedSet>>::default();
    let pushed = Pushed {
        set: Arc::clone(&set),
        options,
        memory,
        parts: Parts::default(),
        lacked_memory: false,
        number: 0,
        last: Ok(()),
    };
    (pushed, |wake| Pusher { set, wake })
}

// === impl Pusher ===

impl Pusher {
    /// Puts the rules of `sources` in force, or returns their faults. The faults of a set that
    /// could not even be read are pushed too, so that they are shown and logged as those of rules.
    async fn push(&self, sources: Result<Vec<Arc<Source>>, Vec<String>>, terms: Terms) -> Outcome {
        let (reply, replied) = oneshot::channel();
        let sources = sources.map(|mut sources| {
            // The order depends only on their names, not on which type came last.
            sources.sort_by(|a, b| a.name.cmp(&b.name));
            sources
        });
        {
            let mut set = self.set.lock();
            let number = set.number + 1;
            *set = PushedSet { number, sources: Some(sources), terms, reply: Some(reply) };
        }
        // If a wake-up is pending already, it serves for this one too.
        let _ = self.wake.try_send(());
        let lost = |_| Err(Refused::finally("internal error: not loaded".to_owned()));
        replied.await.unwrap_or_else(lost)
    }
}

// === impl Pushed ===

impl Load for Pushed {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let set = self.set.lock();
        self.number = set.number;
        self.lacked_memory = false;
        match &set.sources {
            Some(Ok(sources)) => Ok(sources.clone()),
            Some(Err(faults)) => Err(faults.join("\n")),
            None => Err("no set has arrived".to_owned()),
        }
    }

    fn compile(&mut self, sources: &[Arc<Source>]) -> Result<Compiled, Vec<String>> {
        let (parts, options) = (&mut self.parts, &self.options);
        let loaded = self.memory.load(|memory| parts.load(sources, options, memory));
        self.lacked_memory = loaded.as_ref().is_err_and(Faults::exceeds_memory);
        match loaded {
            Ok(loaded) => {
                let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
                Ok(Compiled { rules: loaded.rules, warnings })
            }
            Err(faults) => Err(placed(&faults, sources)),
        }
    }

    /// A set is pushed as a whole.
    fn is_atomic(&self) -> bool {
        true
    }

    fn terms(&self) -> Terms {
        let set = self.set.lock();
        let mut terms =
            if set.number == self.number { set.terms.clone() } else { Terms::default() };
        terms.is_for_now |= self.lacked_memory;
        terms
    }

    fn note_outcome(&mut self, outcome: Option<Result<(), Vec<String>>>) {
        if let Some(outcome) = outcome {
            let is_for_now = self.lacked_memory;
            self.last = outcome.map_err(|faults| Refused { faults, is_for_now });
        }
        let mut set = self.set.lock();
        if set.number != self.number {
            return; // another one has taken its place, and its wake-up is pending
        }
        set.sources = None;
        if let Some(reply) = set.reply.take() {
            // An error means that the stream has ended meanwhile.
            let _ = reply.send(self.last.clone());
        }
    }
}

/// The faults, with the field of the resource instead of the line of its text. Those of YAML keep
/// theirs.
fn placed(faults: &Faults, sources: &[Arc<Source>]) -> Vec<String> {
    let lines = faults.to_string();
    let further = lines.lines().skip(FAULTS_SHOWN_MAX).map(str::to_owned);
    let shown = faults.iter().take(FAULTS_SHOWN_MAX).map(|fault| {
        let source = sources.iter().find(|source| source.name == fault.file);
        let text = source.and_then(|source| std::str::from_utf8(&source.text).ok());
        match text.filter(|_| fault.file.starts_with("xds:")) {
            Some(text) => {
                format!("{}: {}: {}", fault.file, path_of(text, fault.line), fault.message)
            }
            None => fault.to_string(),
        }
    });
    shown.chain(further).collect()
}

#[cfg(test)]
mod tests;
