//! The calls of ADS: a task for each stream, and the subscription of its pod.
//!
//! A stream has one type of resources: the one that the pod asks for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use prost::Message;
use ratelease_listener::Peer;
use ratelease_xds::shape::{Field, Shape};
use ratelease_xds::{CONFIG_TYPE, RULES_TYPE, RULES_VERSION_KEY};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::{Request, Status, Streaming};
use tracing::{info, warn};

use super::connections::ConnectedPod;
use super::deliveries::{Deliveries, Room, RoomWait, Unanswered};
use super::fleet::Fleet;
use super::published::{PublishedDomain, PublishedSet, Selected};
use super::rollout_counts::RolloutCounts;
use super::selection::{CertifiedNodes, NODE_SHAPE, Node, NodeInfo, Selection};
use super::streams::{Row, Streams};
use crate::store::{DatabaseClock, PodRow};

/// Maximum number of responses on their way to a pod: one with its rules, and one without resources
/// of the type that a pod of 0.2 asks for too.
const RESPONSES_MAX: usize = 2;

/// Maximum time until the whole first request of a stream has arrived: its bytes take memory until
/// then.
pub const FIRST_MAX: Duration = Duration::from_secs(10);

/// A request of ADS.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, optional, tag = "2")]
    node: Option<Node>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    response_nonce: String,
    #[prost(message, optional, tag = "6")]
    error_detail: Option<ErrorDetail>,
}

/// The reason why a response was refused.
#[derive(Clone, PartialEq, Message)]
struct ErrorDetail {
    #[prost(string, tag = "2")]
    message: String,
}

/// A response of ADS.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    version_info: String,
    /// Encoded messages of the type `Any`, which streams share.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    resources: Vec<Bytes>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

/// Shape of the memory of a decoded `DiscoveryRequest`.
pub static DISCOVERY_SHAPE: Shape = Shape(&[Field { number: 2, item: 0, of: &NODE_SHAPE }]);

/// The server.
#[derive(Debug, Clone)]
pub struct PodServer {
    /// The set that is published.
    pub published: watch::Receiver<Arc<PublishedSet>>,
    /// Number of times that the database said whether it is the last version.
    polls: watch::Receiver<u64>,
    /// The streams that are open.
    pub streams: Streams,
    /// The domains that each node gets.
    pub selection: Arc<Selection>,
    /// Hits of the rollouts, as pods report them.
    pub counts: RolloutCounts,
    /// Hits of all domains, as pods report them.
    pub fleet: Fleet,
    /// Responses that are on their way to pods.
    pub deliveries: Deliveries,
    /// The time that is compared with that of versions, and with what other replicas wrote.
    pub clock: DatabaseClock,
}

/// A stream.
struct Stream {
    server: PodServer,
    responses: mpsc::Sender<DiscoveryResponse>,
    pod: ConnectedPod,
    /// The nodes that its certificate is for; none without TLS.
    certified: Arc<CertifiedNodes>,
    node: Option<Arc<NodeInfo>>,
    /// The pod's rules of the last set that was looked at.
    selected: Option<(Arc<PublishedSet>, Arc<Selected>)>,
    /// The type and the rules of the pod; `None` before its first request.
    subscription: Option<Subscription>,
    /// The running version of a pod of release 0.2 that has asked for rule files after the other
    /// type. It is `None` again when the pod gets the rule files.
    asks_rules_too: Option<i64>,
    /// Whether a pod waits until the database was asked.
    is_held: bool,
}

// === impl PodServer ===

impl PodServer {
    /// Serves the published set, to each node the domains that are selected for it. With the set
    /// comes the number of times that the database was asked for it, and answered.
    pub fn new(
        (published, polls): (watch::Receiver<Arc<PublishedSet>>, watch::Receiver<u64>),
        streams: Streams,
        selection: Selection,
        (counts, fleet): (RolloutCounts, Fleet),
        clock: DatabaseClock,
    ) -> Self {
        let selection = Arc::new(selection);
        let deliveries = Deliveries::default();
        Self { published, polls, streams, selection, counts, fleet, deliveries, clock }
    }

    /// Serves a stream, and returns its responses.
    ///
    /// # Errors
    /// Fails if the request names no connection, which does not happen.
    pub fn open(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<BoxStream<'static, Result<DiscoveryResponse, Status>>, Status> {
        let Some(pod) = request.extensions().get::<ConnectedPod>().cloned() else {
            return Err(Status::internal("a stream without a connection"));
        };
        let certified = pod.certified(&self.selection);
        let (sender, waiting) = mpsc::channel(RESPONSES_MAX);
        let guard = pod.client.connection.begin_stream();
        let stream = Stream {
            server: self.clone(),
            responses: sender,
            pod,
            certified,
            node: None,
            selected: None,
            subscription: None,
            asks_rules_too: None,
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
        // A pod of 0.2 asks for both types at once.
        if let Some(Some(second)) = self.pod.message(&mut requests).now_or_never() {
            self.take(second)?;
        }
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
                () = room_for(&mut self.subscription) => return Ok(true),
            }
            // Other tasks of the thread run between the messages of a hostile pod.
            tokio::task::yield_now().await;
        }
    }

    /// Takes a request: a subscription, or the answer to a response. Returns whether there may be
    /// something to send now.
    fn take(&mut self, mut request: DiscoveryRequest) -> Result<bool, Status> {
        let running = version_of(&request);
        if let (Some(node), None) = (request.node.take(), &self.node) {
            let mut node = NodeInfo::of(node)?;
            node.origin = self.pod.origin(&self.certified, &node.id);
            self.node = Some(Arc::new(node));
            self.selected = None;
        }
        let known = [CONFIG_TYPE, RULES_TYPE].into_iter().find(|url| *url == request.type_url);
        let of = known.ok_or_else(|| {
            let shown = ratelease_rules::excerpt(&request.type_url);
            Status::invalid_argument(format!("no resources of the type {shown}"))
        })?;
        match &mut self.subscription {
            Some(subscription) if subscription.of == of => {
                Ok(subscription.take_answer(request, &self.server, &self.pod))
            }
            None => self.subscribe(of, running).map(|()| true),
            // The answer to a response without resources, or to one before the type changed.
            Some(_) if !request.response_nonce.is_empty() => Ok(false),
            Some(_) if of == CONFIG_TYPE => self.send_none().map(|()| false),
            Some(_) => {
                self.asks_rules_too = Some(running);
                Ok(true)
            }
        }
    }

    /// Subscribes a pod that runs this version to a type.
    fn subscribe(&mut self, of: &'static str, running: i64) -> Result<(), Status> {
        let domains = self.is_limited().then(Arc::default);
        let node = self.node.clone().unwrap_or_default();
        let row = PodRow {
            domains,
            node: node.id.clone(),
            origin: node.origin,
            agent: node.agent.clone(),
            peer: self.pod.client.address.to_string(),
            type_url: of.to_owned(),
            connected_at: self.server.clock.now(),
            ..PodRow::default()
        };
        let shown = ratelease_rules::excerpt(&row.node);
        let peer = &row.peer;
        let memory = self.node.as_ref().and_then(|it| it.memory);
        info!(node = %shown, %peer, memory, "a pod asks for {of}");
        let since = row.connected_at;
        let polls = *self.server.polls.borrow();
        let row = self.server.streams.add(row, self.pod.client.address.ip());
        let row = row.ok_or_else(|| Status::resource_exhausted("too many pods; ask another"))?;
        let running = Running { version: running, polls };
        self.subscription = Some(Subscription::new(of, row, since, running));
        Ok(())
    }

    /// Gives rule files from now on to a pod that asked for both types: the other type says less,
    /// and a domain must not come twice. Waits for the answer to a response that is on its way.
    fn prefer_rules(&mut self) -> Result<(), Status> {
        if self.subscription.as_ref().is_some_and(|it| it.open.is_some()) {
            return Ok(());
        }
        let Some(running) = self.asks_rules_too.take() else { return Ok(()) };
        self.subscription = None; // its row leaves before the other one comes
        self.send_none()?;
        self.subscribe(RULES_TYPE, running)
    }

    /// Answers a pod of 0.2, which asks for both types and waits for both, that there is nothing of
    /// the type `RateLimitConfig`.
    fn send_none(&mut self) -> Result<(), Status> {
        self.send(DiscoveryResponse {
            version_info: self.server.published.borrow().version.to_string(),
            resources: Vec::new(),
            type_url: CONFIG_TYPE.to_owned(),
            nonce: NONE_NONCE.to_owned(),
        })
    }

    /// Sends the pod its rules if they differ from those that it has. One that has not answered the
    /// last response gets the next one when it has.
    async fn send_changes(&mut self) -> Result<(), Status> {
        // A poll is counted after its set is there, so that the set is no older than the count.
        let polls = *self.server.polls.borrow_and_update();
        let set = Arc::clone(&self.server.published.borrow_and_update());
        self.is_held = false;
        self.prefer_rules()?;
        if set.version == 0 {
            return Ok(()); // a pod keeps its own rules until there are some
        }
        let node = self.node.clone().unwrap_or_default();
        let allowed = self.server.selection.allowed(&self.certified, &node.id);
        let chosen_by = set.chosen(&node, allowed.as_ref());
        let selected = self.selected(&set, &node);
        let limited_to = self.is_limited().then(|| Arc::clone(&selected.names));
        let Some(subscription) = &mut self.subscription else { return Ok(()) };
        if subscription.open.is_some() {
            return Ok(());
        }
        if subscription.running.may_be_newer(set.version, polls) {
            self.is_held = true;
            subscription.waiting = None;
            return Ok(());
        }
        let is_same = |(sent, version)| sent == selected.content && selected.changed <= version;
        if subscription.content.is_some_and(is_same) {
            subscription.note_chosen(&chosen_by, limited_to);
            subscription.note_same(set.version);
            return Ok(());
        }
        let peer = Peer::of(Some(self.pod.client.address.ip()));
        let Some(room) = subscription.room(&self.server.deliveries, peer, selected.bytes) else {
            return Ok(());
        };
        let way = Way { room, pod: &self.pod };
        let response = subscription.response(&set, &selected, way).await;
        subscription.note_chosen(&chosen_by, limited_to);
        self.send(response)
    }

    fn send(&self, response: DiscoveryResponse) -> Result<(), Status> {
        let sent = self.responses.try_send(response);
        sent.map_err(|_| Status::aborted("the pod does not read"))
    }

    /// The pod's rules of this set.
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

/// Resolves once there is room for the response that waits for it.
async fn room_for(subscription: &mut Option<Subscription>) {
    match subscription.as_mut().and_then(|it| it.waiting.as_mut()) {
        Some(waiting) => waiting.await,
        None => std::future::pending().await,
    }
}

/// The version that a pod says it runs; 0 if it says none of this server.
fn version_of(request: &DiscoveryRequest) -> i64 {
    let text = request.node.as_ref().and_then(|node| node.text(RULES_VERSION_KEY));
    text.unwrap_or(&request.version_info).parse().unwrap_or_default()
}

// The subscription of a pod: its state, and the next response.

/// The nonce of a response without resources, the answer to which says nothing.
const NONE_NONCE: &str = "none";

/// A pod's subscription to its type of resources.
struct Subscription {
    /// The URL of the type.
    of: &'static str,
    row: Row,
    /// When the pod asked for its rules, in milliseconds since the Unix epoch.
    since: i64,
    /// The version that the pod ran then.
    running: Running,
    /// The number of the last response.
    nonce: u64,
    /// The response that is not answered yet.
    open: Option<Sent>,
    /// The last response: an identifier of its texts, and its version.
    content: Option<(blake3::Hash, i64)>,
    /// While the next response waits for room.
    waiting: Option<RoomWait>,
}

/// The version that a pod ran when it asked for rules.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// The version; 0 if the pod named none.
    version: i64,
    /// How often the database had been asked for the last version.
    polls: u64,
}

/// The room that a response takes on its way, and the pod that it goes to.
struct Way<'w> {
    room: Room,
    pod: &'w ConnectedPod,
}

/// A response that is not answered yet.
struct Sent {
    version: i64,
    at: i64,
    unanswered: Unanswered,
}

// === impl Running ===

impl Running {
    /// Whether the pod may run a newer version than `version`, which is the last that this replica
    /// knows after `polls` polls. A replica that cannot ask the database may know an old version. A
    /// poll that begins after the pod has asked tells the truth, whatever the pod says: the pod's
    /// version may come from another database. One poll may have begun before the pod asked.
    fn may_be_newer(self, version: i64, polls: u64) -> bool {
        self.version > version && polls < self.polls.saturating_add(2)
    }
}

// === impl Subscription ===

impl Subscription {
    fn new(of: &'static str, row: Row, since: i64, running: Running) -> Self {
        Self { of, row, since, running, nonce: 0, open: None, content: None, waiting: None }
    }

    /// Takes the answer to the last response: the pod accepts or refuses it. Returns whether it is
    /// that.
    fn take_answer(
        &mut self,
        request: DiscoveryRequest,
        server: &PodServer,
        pod: &ConnectedPod,
    ) -> bool {
        if request.response_nonce != self.nonce.to_string() {
            return false; // the answer to an earlier response
        }
        let Some(Sent { version, at, unanswered }) = self.open.take() else { return false };
        unanswered.answered();
        match request.error_detail {
            None => {
                // A version from before the subscription says nothing about the push.
                if at >= self.since {
                    server.streams.note_lag(at, server.clock.now());
                }
                self.row.change(|row| {
                    (row.accepted, row.refused, row.unanswered_at) = (version, 0, 0);
                });
            }
            Some(ErrorDetail { message: fault }) => {
                server.streams.note_refusal();
                let shown = ratelease_rules::excerpt(&fault);
                warn!(version, peer = %pod.client.address, "a pod refused a version: {shown}");
                self.row.change(|row| {
                    (row.refused, row.fault, row.unanswered_at) = (version, fault, 0);
                });
            }
        }
        true
    }

    /// Notes the rollouts that chose the pod, and the domains that it is limited to.
    fn note_chosen(&mut self, rollouts: &[i64], limited_to: Option<Arc<[String]>>) {
        self.row.change(|row| (row.chosen_by, row.domains) = (rollouts.to_vec(), limited_to));
    }

    /// Notes that this version has the rules that the pod runs.
    fn note_same(&mut self, version: i64) {
        self.waiting = None;
        self.row.change(|row| {
            if row.refused == 0 {
                (row.sent, row.accepted) = (version, version);
            }
        });
    }

    /// Room for a response of this size; `None` while the response waits for it.
    fn room(&mut self, deliveries: &Deliveries, peer: Peer, bytes: usize) -> Option<Room> {
        let waiting = self.waiting.take().filter(|it| it.is_for(bytes));
        let waiting = waiting.unwrap_or_else(|| deliveries.wait(peer, bytes));
        waiting.take().map_err(|waiting| self.waiting = Some(waiting)).ok()
    }

    /// Makes the next response, and notes that it is sent.
    async fn response(
        &mut self,
        set: &PublishedSet,
        selected: &Selected,
        way: Way<'_>,
    ) -> DiscoveryResponse {
        let (resources, fault) = resources(self.of, &selected.domains).await;
        self.nonce += 1;
        let PublishedSet { version, at, .. } = *set;
        // Domains that the type cannot say are not sent; `GET /v1/pods` shows which, and why.
        if !fault.is_empty() {
            let shown = ratelease_rules::excerpt(&fault);
            warn!(version, "a pod lacks rules: {shown}");
        }
        self.row.change(|row| (row.sent, row.fault, row.unanswered_at) = (version, fault, at));
        let response = DiscoveryResponse {
            version_info: version.to_string(),
            resources,
            type_url: self.of.to_owned(),
            nonce: self.nonce.to_string(),
        };
        let unanswered = way.room.deliver(&response, way.pod);
        way.pod.note_response();
        self.open = Some(Sent { version, at, unanswered });
        self.content = Some((selected.content, version));
        response
    }
}

/// The resources of these domains as this type, and why others cannot be said in it.
async fn resources(of: &str, domains: &[Arc<PublishedDomain>]) -> (Vec<Bytes>, String) {
    let mut resources = Vec::new();
    let mut faults = Vec::new();
    for domain in domains {
        if of == RULES_TYPE {
            resources.push(domain.rules().clone());
            continue;
        }
        match domain.config().await {
            Ok(resource) => resources.push(resource),
            Err(why) => faults.push(why),
        }
    }
    (resources, faults.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_a_newer_version_until_the_database_was_asked_after_it() {
        let running = Running { version: 7, polls: 3 };
        assert!(running.may_be_newer(6, 3) && running.may_be_newer(6, 4));
        assert!(!running.may_be_newer(6, 5), "the database says that there is no newer one");
        assert!(!running.may_be_newer(7, 3) && !running.may_be_newer(8, 3));
        assert!(!Running { version: 0, polls: 3 }.may_be_newer(1, 3));
    }
}
