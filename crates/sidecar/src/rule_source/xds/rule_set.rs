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

use std::collections::BTreeSet;
use std::sync::Arc;

use ratelease_engine::time::{Clock, Time};
use ratelease_rules::{Source, excerpt};
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;
use tracing::{debug, info, warn};

use super::pushed::Pusher;
use super::resource::ResourceType;
use super::response::{Digest, Refused, digest, read};
use super::status::XdsStatus;
use super::subscription::{Leaving, RETRY_WAIT, Subscription};
use super::wire::{DiscoveryRequest, DiscoveryResponse, Node};
use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::Terms;

/// The resources of all types.
#[derive(Debug)]
pub(super) struct RuleSet {
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
pub(super) struct Answer {
    /// The first one answers the response; others say that a set of another type, which had been
    /// refused, is accepted.
    pub(super) requests: Vec<DiscoveryRequest>,
    pub(super) kind: AnswerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
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
    pub(super) fn new(
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
    pub(super) fn seed(&mut self, sources: &[Arc<Source>]) {
        let seeded: usize = self.subscriptions.iter_mut().map(|it| it.seed(sources)).sum();
        self.is_seeded = seeded > 0 && seeded == sources.len();
    }

    /// The first requests of a stream.
    pub(super) fn begin(&mut self, node: &Node) -> Vec<DiscoveryRequest> {
        self.subscriptions.iter_mut().map(|it| it.begin(node.clone())).collect()
    }

    /// Puts the rules of a response in force, or refuses it. `None` for a response of a type that
    /// has no subscription.
    pub(super) async fn take(&mut self, response: DiscoveryResponse) -> Option<Answer> {
        let Some(at) = self.subscriptions.iter().position(|it| it.is_of(&response)) else {
            let kind = excerpt(&response.type_url);
            warn!("the xDS server sent resources of the type {kind}, which was not asked for");
            return None;
        };
        let version = excerpt(&response.version_info);
        let subscription = self.subscriptions.get_mut(at)?;
        subscription.note_response(&response);
        let (of, is_first) = (subscription.of(), !subscription.has_set());
        let (refused, response) = (subscription.refused(), Arc::new(response));
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
        let (of, known) = (subscription.of(), Arc::clone(subscription.accepted()));
        let (to_read, memory) = (Arc::clone(response), self.memory.clone());
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
            it.set_leaving(leaving);
            if is_newest {
                requests.extend(it.accept_newest());
                self.status.note_accepted(it.running());
            }
        }
        self.status.note_missing(self.missing());
        requests
    }

    /// Whether a set of each type is known, if the newest ones of these types are.
    fn is_whole(&self, newest: &[bool]) -> bool {
        let is_known = |(at, it): (usize, &Subscription)| {
            it.has_set() || newest.get(at).copied().unwrap_or_default()
        };
        self.is_seeded || self.subscriptions.iter().enumerate().all(is_known)
    }

    /// The types of which no set was accepted yet.
    fn missing(&self) -> Vec<&'static str> {
        self.subscriptions.iter().filter(|it| !it.has_set()).map(|it| it.of().url()).collect()
    }

    /// Resolves when the wait for the removal of a resource is over, or that of a set that is tried
    /// again: [`RuleSet::catch_up`] does it.
    pub(super) async fn until_due(&self) {
        let retry_at = self.subscriptions.iter().filter_map(Subscription::retry_at).min();
        match [self.leave_at(), retry_at].into_iter().flatten().min() {
            Some(at) => sleep_until(self.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// When the next resource is to be removed. Nothing is removed while a set is refused or
    /// missing: it may have what takes the place of the resource.
    fn leave_at(&self) -> Option<Time> {
        let holds = |it: &Subscription| !it.has_set() || it.refused_faults().is_some();
        let is_held = self.subscriptions.iter().any(holds);
        let next = self.subscriptions.iter().filter_map(Subscription::leave_at).min();
        next.filter(|_| !is_held)
    }

    /// Does what is due. Returns the requests that tell the server what is accepted or refused by
    /// that.
    pub(super) async fn catch_up(&mut self) -> Vec<DiscoveryRequest> {
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
                true => subscription.set_leaving(leaving),
                false => subscription.stay_until(now + RETRY_WAIT, now),
            }
        }
    }

    /// Tries the newest set of a type again, which was refused for lack of memory.
    async fn retry(&mut self, at: usize) -> Vec<DiscoveryRequest> {
        let Some(subscription) = self.subscriptions.get(at) else { return Vec::new() };
        let (refused, unread) = (subscription.refused(), subscription.unread().cloned());
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
        if subscription.is_answered() { vec![subscription.refusal()] } else { Vec::new() }
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

#[cfg(test)]
mod tests;
