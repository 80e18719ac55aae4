//! The calls of ADS: a task for each stream.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use ratelease_listener::Peer;
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep, timeout};
use tonic::{Request, Status, Streaming};
use tracing::{info, warn};

use super::connections::ConnectedPod;
use super::counts::RolloutCounts;
use super::delivery::Deliveries;
use super::node::NodeInfo;
use super::published::{PublishedSet, Selected};
use super::requests::{DiscoveryRequest, Kind};
use super::selection::{CertifiedNodes, Selection};
use super::streams::Streams;
use super::subscription::{Running, Sent, Subscription, Way};
use super::wire::{CONFIG_TYPE, DiscoveryResponse, RULES_TYPE, RULES_VERSION_KEY};
use crate::store::PodRow;

/// Responses on their way to a pod: at most one of each type.
const RESPONSES_MAX: usize = 4;

/// Maximum time until the whole first request of a stream: what has arrived of it takes memory.
pub(super) const FIRST_MAX: Duration = Duration::from_secs(10);

/// How long a pod of ratelease is given to ask for rule files too, before it gets the type that
/// says less. It asks for both at once, if it asks for both.
const GRACE: Duration = Duration::from_millis(200);

/// The name of ratelease in its node.
const AGENT: &str = "ratelease";

/// The server.
#[derive(Debug, Clone)]
pub struct PodServer {
    /// What is published.
    pub(super) published: watch::Receiver<Arc<PublishedSet>>,
    /// Number of times that the database said whether it is the last version.
    polls: watch::Receiver<u64>,
    /// The streams that are open.
    pub(super) streams: Streams,
    /// Which node gets what.
    pub(super) selection: Arc<Selection>,
    /// What pods report of a rollout.
    pub(super) counts: RolloutCounts,
    /// Responses that are on their way to pods.
    pub(super) deliveries: Deliveries,
}

/// A stream.
struct Stream {
    server: PodServer,
    responses: mpsc::Sender<DiscoveryResponse>,
    pod: ConnectedPod,
    /// The nodes that its certificate is for; none without TLS.
    certified: Arc<CertifiedNodes>,
    node: Option<Arc<NodeInfo>>,
    /// What the pod gets of a set, of the last one that was looked at.
    selected: Option<(Arc<PublishedSet>, Arc<Selected>)>,
    /// By type.
    subscriptions: BTreeMap<&'static str, Subscription>,
    /// While the type that says less waits for the other one.
    grace: Option<Pin<Box<Sleep>>>,
    /// Whether a pod waits until the database was asked.
    is_held: bool,
}

// === impl PodServer ===

impl PodServer {
    /// Serves what is published, to each node what is selected for it. What is published comes with
    /// the number of times that the database was asked for it, and answered.
    pub fn new(
        (published, polls): (watch::Receiver<Arc<PublishedSet>>, watch::Receiver<u64>),
        streams: Streams,
        selection: Selection,
        counts: RolloutCounts,
    ) -> Self {
        let (selection, deliveries) = (Arc::new(selection), Deliveries::default());
        Self { published, polls, streams, selection, counts, deliveries }
    }

    /// Serves a stream, and returns its responses.
    ///
    /// # Errors
    /// Fails if the request names no connection, which does not happen.
    pub(super) fn open(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<BoxStream<'static, Result<DiscoveryResponse, Status>>, Status> {
        let Some(pod) = request.extensions().get::<ConnectedPod>().cloned() else {
            return Err(Status::internal("a stream without a connection"));
        };
        let certified = pod.certified(&self.selection);
        let (sender, waiting) = mpsc::channel(RESPONSES_MAX);
        let guard = pod.begin_stream();
        let stream = Stream {
            server: self.clone(),
            responses: sender,
            pod,
            certified,
            node: None,
            selected: None,
            subscriptions: BTreeMap::new(),
            grace: None,
            is_held: false,
        };
        let (refusal, refused) = mpsc::channel(1);
        tokio::spawn(async move {
            let _guard = guard;
            if let Err(status) = stream.run(request.into_inner()).await {
                let _ = refusal.try_send(status);
            }
        });
        let sent = stream::unfold(waiting, |mut waiting| async move {
            waiting.recv().await.map(|response| (Ok(response), waiting))
        });
        let ends = stream::unfold(refused, |mut refused| async move {
            refused.recv().await.map(|status| (Err(status), refused))
        });
        Ok(sent.chain(ends).boxed())
    }
}

// === impl Stream ===

impl Stream {
    /// Serves the stream until the pod ends it.
    async fn run(mut self, mut requests: Streaming<DiscoveryRequest>) -> Result<(), Status> {
        let first = timeout(FIRST_MAX, self.pod.message(&mut requests)).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no request within 10 s"))?;
        let Some(first) = first else { return Ok(()) };
        self.take(first)?;
        loop {
            self.send_changes().await?;
            if !self.wait(&mut requests).await? {
                return Ok(());
            }
        }
    }

    /// Waits until there may be something to send: a request that changes nothing costs nothing
    /// more. Returns whether the stream goes on.
    async fn wait(&mut self, requests: &mut Streaming<DiscoveryRequest>) -> Result<bool, Status> {
        let ends = |_| Status::unavailable("the control plane ends");
        loop {
            tokio::select! {
                request = self.pod.message(requests) => match request {
                    Some(request) => if self.take(request)? { return Ok(true) },
                    None => return Ok(false),
                },
                changed = self.server.published.changed() => {
                    return changed.map(|()| true).map_err(ends);
                }
                polled = self.server.polls.changed(), if self.is_held => {
                    return polled.map(|()| true).map_err(ends);
                }
                () = end_of(&mut self.grace) => {
                    self.grace = None;
                    return Ok(true);
                }
                () = any_room(&mut self.subscriptions) => return Ok(true),
            }
            // Other tasks of the thread run between the messages of a hostile pod.
            tokio::task::yield_now().await;
        }
    }

    /// Takes a request: a subscription, or the answer to a response. Returns whether there may be
    /// something to send now.
    fn take(&mut self, request: DiscoveryRequest) -> Result<bool, Status> {
        let running = version_of(&request);
        if let (Some(node), None) = (request.node, &self.node) {
            self.node = Some(Arc::new(NodeInfo::of(node)?));
            self.selected = None;
        }
        let known = [CONFIG_TYPE, RULES_TYPE].into_iter().find(|url| *url == request.type_url);
        let type_url = known.ok_or_else(|| {
            let shown = ratelease_rules::excerpt(&request.type_url);
            Status::invalid_argument(format!("no resources of the type {shown}"))
        })?;
        let Some(subscription) = self.subscriptions.get_mut(type_url) else {
            return self.subscribe(type_url, running).map(|()| true);
        };
        if request.response_nonce != subscription.nonce.to_string() {
            return Ok(false); // the answer to an earlier response
        }
        let Some(Sent { version, is_empty, at, unanswered }) = subscription.open.take() else {
            return Ok(false);
        };
        unanswered.answered();
        subscription.may_have_some &= !is_empty;
        subscription.is_refused = request.error_detail.is_some();
        match request.error_detail {
            None => {
                // Of an older version the pod shows when it came, not how long the push took.
                if at >= subscription.since {
                    self.server.streams.note_lag(at);
                }
                subscription.row.change(|row| {
                    (row.accepted, row.refused, row.unanswered_at) = (version, 0, 0);
                });
            }
            Some(error) => {
                self.server.streams.note_refusal();
                let shown = ratelease_rules::excerpt(&error.message);
                warn!(version, peer = %self.pod.address, "a pod refused a version: {shown}");
                let fault = error.message;
                subscription.row.change(|row| {
                    (row.refused, row.fault, row.unanswered_at) = (version, fault, 0);
                });
            }
        }
        self.retry_refused(type_url);
        Ok(true)
    }

    /// Sends what the pod refused again if it has accepted another set of the type `answered`: a
    /// pod refuses a set beside what it has of other types.
    fn retry_refused(&mut self, answered: &'static str) {
        if self.subscriptions.get(answered).is_some_and(|it| it.is_refused) {
            return;
        }
        for (type_url, subscription) in &mut self.subscriptions {
            if *type_url != answered && subscription.is_refused {
                subscription.content = None;
            }
        }
    }

    /// Begins a subscription of a pod that runs this version.
    fn subscribe(&mut self, type_url: &'static str, running: i64) -> Result<(), Status> {
        let domains = self.is_limited().then(Arc::default);
        let node = self.node.clone().unwrap_or_default();
        let row = PodRow {
            domains,
            node: node.id.clone(),
            agent: node.agent.clone(),
            peer: self.pod.address.to_string(),
            type_url: type_url.to_owned(),
            connected_at: Timestamp::now().as_millisecond(),
            ..PodRow::default()
        };
        if type_url == RULES_TYPE {
            self.grace = None;
        } else if row.agent == AGENT && !self.subscriptions.contains_key(RULES_TYPE) {
            self.grace = Some(Box::pin(sleep(GRACE)));
        }
        let (shown, peer) = (ratelease_rules::excerpt(&row.node), &row.peer);
        let memory = self.node.as_ref().and_then(|it| it.memory);
        info!(node = %shown, %peer, memory, "a pod asks for {type_url}");
        let (since, polls) = (row.connected_at, *self.server.polls.borrow());
        let row = self.server.streams.add(row, self.pod.address.ip());
        let row = row.ok_or_else(|| Status::resource_exhausted("too many pods; ask another"))?;
        let subscription = Subscription::new(row, since, Running { version: running, polls });
        self.subscriptions.insert(type_url, subscription);
        Ok(())
    }

    /// Sends each type whose resources differ from those that the pod has. A pod that has not
    /// answered the last response gets the next one when it has.
    async fn send_changes(&mut self) -> Result<(), Status> {
        // A poll is counted after its set is there, so that the set is no older than the count.
        let polls = *self.server.polls.borrow_and_update();
        let set = Arc::clone(&self.server.published.borrow_and_update());
        self.is_held = false;
        if set.version == 0 {
            return Ok(()); // a pod keeps its own rules until there are some
        }
        let node = self.node.clone().unwrap_or_default();
        let chosen_by = set.rollout_of(&node).map_or(0, |it| it.id);
        let selected = self.selected(&set, &node);
        let limited_to = self.is_limited().then(|| Arc::clone(&selected.names));
        let has_rules = self.subscriptions.contains_key(RULES_TYPE);
        for type_url in [CONFIG_TYPE, RULES_TYPE] {
            if self.has_to_wait(type_url) {
                continue;
            }
            // A pod that takes rule files has no use for the type that says less.
            let is_empty = type_url == CONFIG_TYPE && has_rules;
            let domains = if is_empty { &[] } else { &*selected.domains };
            let (content, changed) = match is_empty {
                true => (blake3::hash(b""), 0),
                false => (selected.content, selected.changed),
            };
            let Some(subscription) = self.subscriptions.get_mut(type_url) else { continue };
            if subscription.open.is_some() {
                continue;
            }
            if subscription.running.may_be_newer(set.version, polls) {
                self.is_held = true;
                subscription.waiting = None;
                continue;
            }
            let is_same = |(sent, version)| sent == content && changed <= version;
            if subscription.content.is_some_and(is_same) {
                subscription.note_chosen(chosen_by, limited_to.clone());
                subscription.note_same(set.version);
                continue;
            }
            let bytes = if is_empty { 0 } else { selected.bytes };
            let peer = Peer::of(Some(self.pod.address.ip()));
            let Some(room) = subscription.room(&self.server.deliveries, peer, bytes) else {
                continue;
            };
            let way = Way { room, pod: &self.pod };
            let response = subscription.response(type_url, &set, domains, way).await;
            subscription.note_chosen(chosen_by, limited_to.clone());
            subscription.content = Some((content, set.version));
            // There is room: at most one response of each type is on its way.
            let sent = self.responses.try_send(response);
            sent.map_err(|_| Status::aborted("the pod does not read"))?;
        }
        Ok(())
    }

    /// Whether nothing of this type is sent for now. Both types are never with the pod together: it
    /// would refuse a domain that comes twice.
    fn has_to_wait(&self, type_url: &str) -> bool {
        match type_url {
            CONFIG_TYPE => self.grace.is_some(),
            _ => self.subscriptions.get(CONFIG_TYPE).is_some_and(|it| it.may_have_some),
        }
    }

    /// What the pod gets of this set.
    fn selected(&mut self, set: &Arc<PublishedSet>, node: &NodeInfo) -> Arc<Selected> {
        if let Some((of, selected)) = &self.selected
            && Arc::ptr_eq(of, set)
        {
            return Arc::clone(selected);
        }
        let allowed = self.server.selection.allowed(&self.certified, &node.id);
        let selected = set.selected(node, allowed.as_ref());
        self.selected = Some((Arc::clone(set), Arc::clone(&selected)));
        selected
    }

    /// Whether there are domains that this pod does not get.
    fn is_limited(&self) -> bool {
        let node = self.node.as_ref();
        let id = node.map_or("", |node| &node.id);
        node.is_some_and(|it| it.domains().is_some())
            || self.server.selection.is_limited(&self.certified, id)
    }
}

async fn end_of(grace: &mut Option<Pin<Box<Sleep>>>) {
    match grace {
        Some(grace) => grace.await,
        None => std::future::pending().await,
    }
}

/// Resolves once there is room for one of the responses that wait for it.
async fn any_room(subscriptions: &mut BTreeMap<&'static str, Subscription>) {
    poll_fn(|cx| {
        let mut waits = subscriptions.values_mut().filter_map(|it| it.waiting.as_mut());
        match waits.any(|wait| wait.poll_unpin(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// The version that a pod says it runs; 0 if it says none of this server.
fn version_of(request: &DiscoveryRequest) -> i64 {
    let metadata = request.node.as_ref().and_then(|node| node.metadata.as_ref());
    let field = metadata.and_then(|it| it.fields.get(RULES_VERSION_KEY)?.kind.as_ref());
    let text = match field {
        Some(Kind::StringValue(text)) => text,
        _ => &request.version_info,
    };
    text.parse().unwrap_or_default()
}
