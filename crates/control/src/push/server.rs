//! The calls of ADS: a task for each stream, what its pod has of each type, and the responses that
//! are on their way to it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use futures_util::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use prost::Message;
use ratelease_listener::Peer;
use ratelease_xds::shape::{Field, Shape};
use ratelease_xds::{CONFIG_TYPE, RULES_TYPE, RULES_VERSION_KEY};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Sleep, sleep, timeout};
use tonic::{Request, Status, Streaming};
use tracing::{debug, info, warn};

use super::connections::ConnectedPod;
use super::fleet::Fleet;
use super::load_reports::RolloutCounts;
use super::published::{PublishedDomain, PublishedSet, Selected};
use super::selection::{CertifiedNodes, NODE_SHAPE, Node, NodeInfo, Selection};
use super::streams::{Row, Streams};
use crate::rates::{Permit, Permits};
use crate::store::PodRow;

/// Responses on their way to a pod: at most one of each type.
const RESPONSES_MAX: usize = 4;

/// Maximum time until the whole first request of a stream: what has arrived of it takes memory.
pub const FIRST_MAX: Duration = Duration::from_secs(10);

/// How long a pod of ratelease is given to ask for rule files too, before it gets the type that
/// says less. It asks for both at once, if it asks for both. No stall of a unit test is as long.
const GRACE: Duration =
    if cfg!(test) { Duration::from_secs(5) } else { Duration::from_millis(200) };

/// The name of ratelease in its node.
const AGENT: &str = "ratelease";

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

/// Why a response was refused.
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

/// What a `DiscoveryRequest` takes in memory.
pub static DISCOVERY_SHAPE: Shape = Shape(&[Field { number: 2, item: 0, of: &NODE_SHAPE }]);

/// The server.
#[derive(Debug, Clone)]
pub struct PodServer {
    /// What is published.
    pub published: watch::Receiver<Arc<PublishedSet>>,
    /// Number of times that the database said whether it is the last version.
    polls: watch::Receiver<u64>,
    /// The streams that are open.
    pub streams: Streams,
    /// Which node gets what.
    pub selection: Arc<Selection>,
    /// What pods report of a rollout.
    pub counts: RolloutCounts,
    /// What they report of all their domains.
    pub fleet: Fleet,
    /// Responses that are on their way to pods.
    pub deliveries: Deliveries,
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
        (counts, fleet): (RolloutCounts, Fleet),
    ) -> Self {
        let selection = Arc::new(selection);
        let deliveries = Deliveries::default();
        Self { published, polls, streams, selection, counts, fleet, deliveries }
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
                warn!(version, peer = %self.pod.client.address, "a pod refused a version: {shown}");
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
            peer: self.pod.client.address.to_string(),
            type_url: type_url.to_owned(),
            connected_at: Timestamp::now().as_millisecond(),
            ..PodRow::default()
        };
        if type_url == RULES_TYPE {
            self.grace = None;
        } else if row.agent == AGENT && !self.subscriptions.contains_key(RULES_TYPE) {
            self.grace = Some(Box::pin(sleep(GRACE)));
        }
        let shown = ratelease_rules::excerpt(&row.node);
        let peer = &row.peer;
        let memory = self.node.as_ref().and_then(|it| it.memory);
        info!(node = %shown, %peer, memory, "a pod asks for {type_url}");
        let since = row.connected_at;
        let polls = *self.server.polls.borrow();
        let row = self.server.streams.add(row, self.pod.client.address.ip());
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
            let peer = Peer::of(Some(self.pod.client.address.ip()));
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
    let text = request.node.as_ref().and_then(|node| node.text(RULES_VERSION_KEY));
    text.unwrap_or(&request.version_info).parse().unwrap_or_default()
}

// What a pod has of one type of resources, and the next response of it.

/// What a pod has of one type.
struct Subscription {
    row: Row,
    /// When the pod asked for it, in milliseconds since the Unix epoch.
    since: i64,
    /// What the pod ran then.
    running: Running,
    /// The number of the last response.
    nonce: u64,
    /// The response that is not answered yet.
    open: Option<Sent>,
    /// What was sent last: an identifier of the texts, and the version.
    content: Option<(blake3::Hash, i64)>,
    /// Whether the pod refused the last response that it answered.
    is_refused: bool,
    /// Whether the pod may have resources of the type from this stream: some were sent, and it has
    /// not answered an empty response since.
    may_have_some: bool,
    /// While the next response waits for room.
    waiting: Option<RoomWait>,
}

/// What a pod ran when it asked for rules.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// The version; 0 if the pod named none.
    version: i64,
    /// How often the database had been asked for the last version.
    polls: u64,
}

/// What a response needs on its way.
struct Way<'w> {
    room: Room,
    pod: &'w ConnectedPod,
}

/// A response that is not answered yet.
struct Sent {
    version: i64,
    is_empty: bool,
    at: i64,
    unanswered: Unanswered,
}

// === impl Running ===

impl Running {
    /// Whether the pod may run a newer version than this one, which is the last that this replica
    /// knows after this many polls. A replica that cannot ask the database may know an old one.
    /// What the database says after the pod has asked is true, whatever the pod says: its version
    /// may be one of another database. One poll may have begun before the pod asked.
    fn may_be_newer(self, version: i64, polls: u64) -> bool {
        self.version > version && polls < self.polls.saturating_add(2)
    }
}

// === impl Subscription ===

impl Subscription {
    fn new(row: Row, since: i64, running: Running) -> Self {
        Self {
            row,
            since,
            running,
            nonce: 0,
            open: None,
            content: None,
            is_refused: false,
            may_have_some: false,
            waiting: None,
        }
    }

    /// Notes the rollout that chose the pod, and the domains that it is limited to.
    fn note_chosen(&mut self, rollout: i64, limited_to: Option<Arc<[String]>>) {
        self.row.change(|row| (row.chosen_by, row.domains) = (rollout, limited_to));
    }

    /// Notes that this version holds what the pod has.
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
        type_url: &'static str,
        set: &PublishedSet,
        domains: &[Arc<PublishedDomain>],
        way: Way<'_>,
    ) -> DiscoveryResponse {
        let mut resources = Vec::new();
        let mut faults = Vec::new();
        for domain in domains {
            if type_url == RULES_TYPE {
                resources.push(domain.rules().clone());
                continue;
            }
            match domain.config().await {
                Ok(resource) => resources.push(resource),
                Err(why) => faults.push(why),
            }
        }
        self.nonce += 1;
        let PublishedSet { version, at, .. } = *set;
        // Domains that the type cannot say are not sent; `GET /v1/pods` shows which, and why.
        let fault = faults.join("\n");
        if !fault.is_empty() {
            let shown = ratelease_rules::excerpt(&fault);
            warn!(version, "a pod lacks rules: {shown}");
        }
        self.row.change(|row| (row.sent, row.fault, row.unanswered_at) = (version, fault, at));
        let response = DiscoveryResponse {
            version_info: version.to_string(),
            resources,
            type_url: type_url.to_owned(),
            nonce: self.nonce.to_string(),
        };
        let unanswered = way.room.deliver(&response, way.pod);
        way.pod.note_response();
        let is_empty = response.resources.is_empty();
        self.may_have_some |= !is_empty;
        self.open = Some(Sent { version, is_empty, at, unanswered });
        response
    }
}

// Responses on their way to pods: their bytes are bounded, and a pod that does not answer is
// disconnected.

/// Maximum bytes of all responses that are not answered yet, in KiB: what a pod has not read is
/// held here. Further responses wait.
const UNANSWERED_KIB_MAX: u32 = 256 << 10;

/// The same for those to one client: clients that do not answer leave room to others.
const UNANSWERED_OF_PEER_KIB_MAX: u32 = UNANSWERED_KIB_MAX / 4;

/// A pod has this long to answer a response, and further time for its size: that of a link of 2
/// Mbit/s.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 256 << 10;

/// The same while responses of other clients wait for room: pods that do not answer must not hold
/// all of it for minutes.
const PRESSED_MAX: Duration = Duration::from_secs(10);
const PRESSED_BYTES_PER_SECOND: u64 = 1 << 20;

/// The KiB that may be on their way. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct Deliveries {
    permits: Permits<Peer>,
}

/// A wait for room, which resolves once there is some.
struct RoomWait {
    bytes: usize,
    room: MaybeDone<BoxFuture<'static, Room>>,
}

/// Room for a response.
#[derive(Debug)]
struct Room {
    _permit: Permit<Peer>,
    /// Number of responses that wait for room of other clients than their own.
    waiting: watch::Receiver<usize>,
}

/// A response that is not answered yet.
#[derive(Debug)]
struct Unanswered(oneshot::Sender<()>);

// === impl Deliveries ===

impl Default for Deliveries {
    fn default() -> Self {
        Self::new(UNANSWERED_KIB_MAX, UNANSWERED_OF_PEER_KIB_MAX)
    }
}

impl Deliveries {
    /// At most so many KiB of all responses, and of those to one client.
    pub fn new(kib_max: u32, of_peer_kib_max: u32) -> Self {
        Self { permits: Permits::new(kib_max as usize, of_peer_kib_max) }
    }

    /// Begins to wait until a response of this size to this client may be made. The largest one
    /// waits until the client has no other.
    fn wait(&self, peer: Peer, bytes: usize) -> RoomWait {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let waiting = self.permits.waiting();
        let room = self.permits.take_many(peer, kib).map(|_permit| Room { _permit, waiting });
        RoomWait { bytes, room: maybe_done(room.boxed()) }
    }
}

// === impl RoomWait ===

impl RoomWait {
    /// Whether the room is enough for a response of this size.
    fn is_for(&self, bytes: usize) -> bool {
        bytes <= self.bytes
    }

    /// The room, or this again if there is none yet.
    fn take(mut self) -> Result<Room, Self> {
        // The next poll of the wait has the task woken.
        let _ = (&mut self).now_or_never();
        Pin::new(&mut self.room).take_output().ok_or(self)
    }
}

impl Future for RoomWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.room).poll(cx)
    }
}

// === impl Room ===

impl Room {
    /// Keeps the room until the pod has answered `response`, or its connection has ended. If that
    /// takes too long, the connection is closed. The end of the stream alone frees nothing: what
    /// the pod has not read is still held.
    fn deliver(self, response: &DiscoveryResponse, pod: &ConnectedPod) -> Unanswered {
        let (sender, answer) = oneshot::channel();
        let bytes = u64::try_from(response.encoded_len()).unwrap_or(u64::MAX);
        let pod = pod.clone();
        tokio::spawn(async move {
            let Self { _permit, waiting } = self;
            let answered = async {
                if answer.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = answered => {}
                () = pod.client.connection.ended() => {}
                () = late(bytes, waiting) => {
                    debug!(peer = %pod.client.address, "a pod is disconnected: it did not answer");
                    pod.client.connection.close();
                }
            }
        });
        Unanswered(sender)
    }
}

/// Resolves once a pod has taken too long to answer a response of so many bytes, while this number
/// of others wait for room.
async fn late(bytes: u64, mut waiting: watch::Receiver<usize>) {
    let max = ANSWER_MAX + Duration::from_secs(bytes / BYTES_PER_SECOND);
    let pressed_max = PRESSED_MAX + Duration::from_secs(bytes / PRESSED_BYTES_PER_SECOND);
    sleep(pressed_max).await;
    tokio::select! {
        // An error means that nothing can wait any more.
        Ok(_) = waiting.wait_for(|number| *number > 0) => {}
        () = sleep(max.saturating_sub(pressed_max)) => {}
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Notes that the pod has answered, and so read the response.
    fn answered(self) {
        // An error means that the connection has ended.
        let _ = self.0.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ratelease_engine::time::{Clock, Time};

    use super::*;

    #[test]
    fn a_pod_keeps_a_newer_version_until_the_database_was_asked_after_it() {
        let running = Running { version: 7, polls: 3 };
        assert!(running.may_be_newer(6, 3) && running.may_be_newer(6, 4));
        assert!(!running.may_be_newer(6, 5), "the database says that there is no newer one");
        assert!(!running.may_be_newer(7, 3) && !running.may_be_newer(8, 3));
        assert!(!Running { version: 0, polls: 3 }.may_be_newer(1, 3));
    }

    fn peer(last: u8) -> Peer {
        Peer::of(Some(IpAddr::from([192, 0, 2, last])))
    }

    #[tokio::test]
    async fn a_client_that_answers_nothing_leaves_room_to_others() {
        let deliveries = Deliveries::default();
        let quarter = (UNANSWERED_OF_PEER_KIB_MAX as usize - 1) << 10;
        let hostile = deliveries.wait(peer(1), quarter).take().ok();
        assert!(hostile.is_some());
        let mut waiting = deliveries.wait(peer(1), 1).take().expect_err("it waits");
        assert!(waiting.is_for(1) && !waiting.is_for(2));
        let other = deliveries.wait(peer(2), quarter).take().ok();
        assert!(other.is_some(), "another client does not");
        drop(hostile);
        (&mut waiting).await;
        assert!(waiting.take().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_does_not_answer_has_less_time_while_others_wait_for_room() {
        let deliveries = Deliveries::new(4, 4);
        let took = async |waits_after: Option<u64>, of: u8| {
            let room = deliveries.wait(peer(1), 4 << 10).take().ok().unwrap();
            let clock = Clock::start();
            let late = late(1 << 20, room.waiting.clone());
            let other = async {
                let Some(after) = waits_after else { return };
                sleep(Duration::from_secs(after)).await;
                let waits = deliveries.wait(peer(of), 1).take().expect_err("there is no room");
                sleep(Duration::from_secs(1)).await;
                drop(waits);
            };
            tokio::join!(late, other);
            clock.now().since(Time::default()).as_secs()
        };
        assert_eq!(took(None, 2).await, 64);
        assert_eq!(took(Some(10), 2).await, 11);
        assert_eq!(took(Some(30), 2).await, 31);
        // A response that waited before, and waits no more.
        assert_eq!(took(Some(5), 2).await, 64);
        // One that waits for the room of its own client, which keeps none from others.
        assert_eq!(took(Some(10), 1).await, 64);
    }
}
