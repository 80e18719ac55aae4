//! The resources of all types together: which sources are in force, and how each response is
//! answered.

use std::sync::Arc;

use ratelease_engine::time::Clock;
use ratelease_rules::{Source, excerpt};
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;
use tracing::{debug, warn};

use super::pushed::Pusher;
use super::resource::ResourceType;
use super::response::{Received, digest, read};
use super::status::XdsStatus;
use super::subscription::Subscription;
use super::wire::{DiscoveryRequest, DiscoveryResponse, Node};

/// The resources of all types.
#[derive(Debug)]
pub(super) struct RuleSet {
    subscriptions: Vec<Subscription>,
    /// Whether several resources may add rules to one domain.
    merges_domains: bool,
    pusher: Pusher,
    status: XdsStatus,
    clock: Clock,
}

/// The answer to a response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) request: DiscoveryRequest,
    pub(super) kind: AnswerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    Accepted,
    Refused,
    /// The response is the one that was refused last.
    RefusedAgain,
}

/// Which sources are pushed besides those of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// The accepted sources of other types, and those that are being removed.
    WithLeaving,
    /// The accepted sources of other types.
    AcceptedOnly,
}

// === impl RuleSet ===

impl RuleSet {
    pub(super) fn new(
        types: &[ResourceType],
        merges_domains: bool,
        pusher: Pusher,
        status: XdsStatus,
        clock: Clock,
    ) -> Self {
        let subscriptions = types.iter().copied().map(Subscription::new).collect();
        Self { subscriptions, merges_domains, pusher, status, clock }
    }

    /// Takes the sources of a snapshot, which are in force, as accepted: those that the server does
    /// not send are removed after the same wait as others.
    pub(super) fn seed(&mut self, sources: &[Arc<Source>]) {
        self.subscriptions.iter_mut().for_each(|it| it.seed(sources));
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
        subscription.note_nonce(&response);
        let (of, refused) = (subscription.of(), subscription.refused());
        let (merges_domains, known) = (self.merges_domains, subscription.accepted_resources());
        let response = Arc::new(response);
        let to_read = Arc::clone(&response);
        // Decoding a large set takes a while, and this thread serves pages too.
        let read =
            spawn_blocking(move || read(of, &to_read, merges_domains, refused, &known)).await;
        let read = match read {
            Ok(Some(read)) => read,
            Ok(None) => {
                let request = self.subscriptions.get(at)?.refuse_again();
                return Some(Answer { request, kind: AnswerKind::RefusedAgain });
            }
            Err(error) => {
                let request = self.subscriptions.get(at)?.request();
                warn!("internal error: a response of the xDS server was not read: {error}");
                return Some(Answer { request, kind: AnswerKind::Refused });
            }
        };
        let taken = match read {
            Ok(received) => self.put_in_force(at, received).await,
            Err(faults) => self.pusher.push(Err(faults)).await.map(|()| self.request_of(at)),
        };
        match taken {
            Ok(request) => {
                debug!(version, "resources accepted");
                Some(Answer { request: request?, kind: AnswerKind::Accepted })
            }
            Err(faults) => {
                self.status.note_refused(&faults);
                let digest = spawn_blocking(move || digest(&response)).await.ok()?;
                let request = self.subscriptions.get_mut(at)?.refuse(digest, faults);
                Some(Answer { request, kind: AnswerKind::Refused })
            }
        }
    }

    fn request_of(&self, at: usize) -> Option<DiscoveryRequest> {
        self.subscriptions.get(at).map(Subscription::request)
    }

    /// Puts a set in force beside the others, and returns the request that says so.
    async fn put_in_force(
        &mut self,
        at: usize,
        received: Received,
    ) -> Result<Option<DiscoveryRequest>, Vec<String>> {
        let (sources, has_leaving) = self.sources_with(at, &received, Others::WithLeaving);
        let mut outcome = self.pusher.push(Ok(sources)).await;
        let mut keeps_leaving = true;
        if outcome.is_err() && has_leaving {
            // What the server sends no longer may contradict what took its place.
            let (sources, _) = self.sources_with(at, &received, Others::AcceptedOnly);
            outcome = self.pusher.push(Ok(sources)).await;
            if outcome.is_ok() {
                self.subscriptions.iter_mut().for_each(Subscription::drop_all_leaving);
            }
            keeps_leaving = false;
        }
        outcome?;
        self.status.note_accepted(&received.version);
        let now = keeps_leaving.then(|| self.clock.now());
        Ok(self.subscriptions.get_mut(at).map(|it| it.accept(received, now)))
    }

    /// The sources of a set and of all other types, and whether any of them are leaving.
    fn sources_with(
        &self,
        at: usize,
        received: &Received,
        others: Others,
    ) -> (Vec<Arc<Source>>, bool) {
        let mut sources: Vec<Arc<Source>> = received.sources().cloned().collect();
        let mut has_leaving = false;
        for (other, subscription) in self.subscriptions.iter().enumerate() {
            if other != at {
                sources.extend(subscription.accepted().cloned());
            }
            if others == Others::WithLeaving {
                let before = sources.len();
                match other == at {
                    true => sources.extend(subscription.leaving_beside(received).cloned()),
                    false => sources.extend(subscription.leaving().cloned()),
                }
                has_leaving |= sources.len() > before;
            }
        }
        (sources, has_leaving)
    }

    /// Resolves when the wait for the removal of a resource is over.
    pub(super) async fn until_leaving(&self) {
        match self.subscriptions.iter().filter_map(Subscription::leave_at).min() {
            Some(at) => sleep_until(self.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// Removes the resources whose wait is over.
    pub(super) async fn let_go(&mut self) {
        let now = self.clock.now();
        let mut has_dropped = false;
        for subscription in &mut self.subscriptions {
            has_dropped |= subscription.drop_leaving(now);
        }
        if !has_dropped {
            return;
        }
        let in_force = |it: &Subscription| it.accepted().chain(it.leaving()).cloned().collect();
        let sources = self.subscriptions.iter().flat_map::<Vec<_>, _>(in_force).collect();
        // Fewer sources have no new fault; if they had, it would be logged.
        let _ = self.pusher.push(Ok(sources)).await;
        // That was a good load, but the newest response may be one that was refused.
        let refused = self.subscriptions.iter().find_map(Subscription::refused_faults);
        if let Some(faults) = refused {
            let _ = self.pusher.push(Err(faults.to_vec())).await;
        }
    }
}
