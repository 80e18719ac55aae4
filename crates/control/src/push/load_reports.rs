//! What pods report, by the load reporting service (LRS): hits of their domains, and hot keys.
//!
//! ```text
//! pod ─▶ ClusterStats: a domain, hits that passed, hits that were dropped ─▶ fleet, RolloutCounts
//!  ◀── LoadStatsResponse: the domains of rollouts, and how often ── rollout begins or ends
//! ```
//! A pod is asked for all its domains, which `fleet` shows, and by name for domains of rollouts. A
//! report counts for a rollout's step if the pod ran the version of the step at the report before
//! it too, so that no hit of other rules counts. A rollout whose chosen pods deny too much is
//! rolled back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::service::load_stats::v3::LoadStatsResponse;
use envoy_types::pb::google::protobuf;
use futures_util::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use ratelease_engine::rng::next_u64;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::domain_of_candidate;
use ratelease_xds::shape::{FLAT, Field, Shape};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Interval, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use tracing::{debug, warn};

use super::connections::ConnectedPod;
use super::fleet::{FleetPod, HotKey, KEYS_OF_POD_MAX};
use super::published::{PublishedRollout, PublishedSet};
use super::selection::{CertifiedNodes, NODE_SHAPE, Node, NodeInfo};
use super::server::{FIRST_MAX, PodServer};
use crate::store::{
    Author, Bound, CountKey, HitCount, Hits, ReplicaCount, Stage, Store, StoreError, StoreResult,
    percent,
};

/// Pause between reports of a pod: while a rollout is under way, for up to [`PODS_PER_SECOND`] pods,
/// of which more have longer pauses; and else.
const ROLLOUT_INTERVAL: Duration = Duration::from_secs(1);
const FLEET_INTERVAL: Duration = Duration::from_secs(10);

/// A response is repeated at this interval. The pings of HTTP/2 are sent only to a pod that says
/// nothing, and a pod that reports would take this server for hung.
const BEAT_INTERVAL: Duration = Duration::from_secs(20);

/// Reports that this process takes in a second.
const PODS_PER_SECOND: usize = 1000;

/// Responses on their way to a pod.
const RESPONSES_MAX: usize = 4;

/// Maximum hits of a domain in one report; more are a fault.
const HITS_MAX: u64 = 1 << 40;

/// Hits of a domain that count for each second since the report before, of at least one second and
/// at most a minute. A pod decides some 10^6 requests in a second. Of more, the shares count.
const HITS_PER_SECOND: u64 = 1_000_000;
const SECONDS_MAX: u64 = 60;

/// Hits of a key are those of the last one to two minutes.
const KEY_SECONDS: u64 = 120;

/// The category of hits that would have been dropped, but for shadow mode.
const SHADOW: &str = "shadow";

/// The category of requests that candidate rules were not tried on.
const LEFT_OUT: &str = "left_out";

/// A report of LRS.
#[derive(Clone, PartialEq, Message)]
pub struct LoadStatsRequest {
    #[prost(message, optional, tag = "1")]
    node: Option<Node>,
    #[prost(message, repeated, tag = "2")]
    cluster_stats: Vec<ClusterStats>,
}

/// The hits of a domain, or of a key of it.
#[derive(Clone, PartialEq, Message)]
struct ClusterStats {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    upstream_locality_stats: Vec<UpstreamLocalityStats>,
    #[prost(uint64, tag = "3")]
    total_dropped_requests: u64,
    #[prost(message, repeated, tag = "5")]
    dropped_requests: Vec<DroppedRequests>,
    /// The key: see [`HotKey::read`]. Empty for the domain.
    #[prost(string, tag = "6")]
    cluster_service_name: String,
}

/// Hits that passed.
#[derive(Clone, PartialEq, Message)]
struct UpstreamLocalityStats {
    #[prost(uint64, tag = "8")]
    total_issued_requests: u64,
}

/// Hits of a category that were dropped.
#[derive(Clone, PartialEq, Message)]
struct DroppedRequests {
    #[prost(string, tag = "1")]
    category: String,
    #[prost(uint64, tag = "2")]
    dropped_count: u64,
}

/// What a `LoadStatsRequest` takes in memory.
pub static REPORT_SHAPE: Shape = Shape(&[
    Field { number: 1, item: 0, of: &NODE_SHAPE },
    Field { number: 2, item: size_of::<ClusterStats>(), of: &STATS_SHAPE },
]);

static STATS_SHAPE: Shape = Shape(&[
    Field { number: 2, item: size_of::<UpstreamLocalityStats>(), of: &FLAT },
    Field { number: 5, item: size_of::<DroppedRequests>(), of: &FLAT },
]);

/// The reports of one pod.
struct Reports {
    server: PodServer,
    responses: mpsc::Sender<LoadStatsResponse>,
    pod: ConnectedPod,
    peer: String,
    certified: Arc<CertifiedNodes>,
    node: NodeInfo,
    /// The domains that the pod was asked for by name, once it was asked.
    asked: Option<BTreeSet<String>>,
    /// The last response, and when it is repeated.
    last: LoadStatsResponse,
    beat: Interval,
    /// The steps that the pod ran when it was asked, or at its last report, by rollout.
    steps: BTreeMap<i64, i64>,
    budget: HitBudget,
}

/// The hits of a domain that count. All reports of a second have no more than one has.
#[derive(Debug)]
struct HitBudget {
    /// What is left for further reports of the second of the last one.
    left: u64,
    second: u64,
}

// === impl PodServer ===

impl PodServer {
    /// Takes the reports of a stream, and returns what the pod is asked for.
    ///
    /// # Errors
    /// Fails if the request names no connection, which does not happen.
    pub fn open_reports(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<BoxStream<'static, Result<LoadStatsResponse, Status>>, Status> {
        let Some(pod) = request.extensions().get::<ConnectedPod>().cloned() else {
            return Err(Status::internal("a stream without a connection"));
        };
        let certified = pod.certified(&self.selection);
        let (responses, waiting) = mpsc::channel(RESPONSES_MAX);
        let mut beat = interval(BEAT_INTERVAL);
        beat.reset(); // not at once
        let reports = Reports {
            server: self.clone(),
            responses,
            peer: pod.client.address.to_string(),
            pod: pod.clone(),
            certified,
            node: NodeInfo::default(),
            asked: None,
            last: LoadStatsResponse::default(),
            beat,
            steps: BTreeMap::new(),
            budget: HitBudget::at(self.counts.clock().now().since(Time::default()).as_secs()),
        };
        let guard = pod.client.connection.begin_stream();
        tokio::spawn(async move {
            let _guard = guard;
            reports.run(request.into_inner()).await;
        });
        Ok(ReceiverStream::new(waiting).map(Ok).boxed())
    }
}

// === impl Reports ===

impl Reports {
    /// Takes reports until the pod or this process ends the stream.
    async fn run(mut self, mut requests: Streaming<LoadStatsRequest>) {
        let first = timeout(FIRST_MAX, self.pod.message(&mut requests)).await;
        let Ok(Some(first)) = first else { return };
        let Ok(node) = NodeInfo::of(first.node.unwrap_or_default()) else { return };
        self.node = node;
        let Some(_reporting) = self.server.streams.note_reporting(&self.peer) else { return };
        let fleet = self.server.fleet.add(&self.node.id, &self.peer);
        loop {
            let set = Arc::clone(&self.server.published.borrow_and_update());
            if !self.ask(&set) || !self.take_until_changed(&mut requests, &fleet).await {
                return;
            }
        }
    }

    /// Takes reports until another set is published. Returns whether the stream goes on.
    async fn take_until_changed(
        &mut self,
        requests: &mut Streaming<LoadStatsRequest>,
        fleet: &FleetPod,
    ) -> bool {
        loop {
            tokio::select! {
                message = self.pod.message(requests) => match message {
                    Some(report) => self.take(&report.cluster_stats, fleet),
                    None => return false,
                },
                _ = self.beat.tick() => self.ask_again(),
                changed = self.server.published.changed() => return changed.is_ok(),
                () = self.responses.closed() => return false,
            }
            tokio::task::yield_now().await;
        }
    }

    /// Asks for all domains, and by name for those of the rollout, if they are others than before.
    /// Returns whether the pod reads.
    fn ask(&mut self, set: &PublishedSet) -> bool {
        let names = |it: &'_ Arc<PublishedRollout>| {
            let candidates = it.domains.keys().chain(it.others.keys());
            it.names.iter().chain(candidates).cloned().collect::<Vec<_>>()
        };
        let domains = set.rollouts.iter().flat_map(names);
        let allowed = self.server.selection.allowed(&self.certified, &self.node.id);
        let is_of = |name: &String| {
            let domain = domain_of_candidate(name).unwrap_or(name);
            allowed.as_ref().is_none_or(|it| it.contains(domain))
                && self.node.domains().is_none_or(|it| it.contains(domain))
        };
        let domains: BTreeSet<_> = domains.filter(is_of).collect();
        if self.asked.as_ref() == Some(&domains) {
            return true;
        }
        let is_first = self.asked.replace(domains.clone()).is_none();
        // A report that is on its way answers the question before.
        self.steps = if is_first { self.steps_of(set) } else { BTreeMap::new() };
        let pods = self.server.streams.count().div_ceil(PODS_PER_SECOND).max(1);
        let interval = ROLLOUT_INTERVAL * u32::try_from(pods).unwrap_or(u32::MAX);
        let interval = if domains.is_empty() { interval.max(FLEET_INTERVAL) } else { interval };
        let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
        let response = LoadStatsResponse {
            clusters: domains.into_iter().collect(),
            send_all_clusters: true,
            load_reporting_interval: Some(protobuf::Duration { seconds, nanos: 0 }),
            ..LoadStatsResponse::default()
        };
        self.last = response.clone();
        self.responses.try_send(response).is_ok()
    }

    /// Asks for the same again, which tells the pod that this server lives.
    fn ask_again(&self) {
        // Without room others are on their way; a stream that has ended is noticed elsewhere.
        let _ = self.responses.try_send(self.last.clone());
    }

    /// The steps of rollouts whose versions the pod runs.
    fn steps_of(&self, set: &PublishedSet) -> BTreeMap<i64, i64> {
        let runs = self.server.streams.version_of(&self.peer).unwrap_or_default();
        let steps = set.rollouts.iter().filter(|it| runs >= it.version);
        steps.map(|it| (it.id, it.version)).collect()
    }

    /// Counts a report: for the fleet, and for the steps of rollouts unless some of its hits are of
    /// rules before them.
    fn take(&mut self, report: &[ClusterStats], fleet: &FleetPod) {
        let set = Arc::clone(&self.server.published.borrow());
        let counts = self.server.counts.clone();
        let second = counts.clock().now().since(Time::default()).as_secs();
        let mut hits = self.read(report, &set);
        let most = hits.values().map(|it| it.hits).max();
        let hits_max = self.budget.take(most.unwrap_or_default(), second);
        self.show(report, &hits, hits_max, &set, fleet);
        let steps = self.steps_of(&set);
        let since = std::mem::replace(&mut self.steps, steps);
        hits.retain(|domain, _| self.is_asked_for(domain));
        let is_since = |it: &&Arc<PublishedRollout>| since.get(&it.id) == Some(&it.version);
        let mut is_counted = false;
        for rollout in set.rollouts.iter().filter(is_since) {
            self.count(rollout, &hits, hits_max, second);
            is_counted = true;
        }
        if is_counted {
            counts.note_report();
        }
    }

    /// Counts hits for the step of a rollout.
    fn count(
        &self,
        rollout: &PublishedRollout,
        hits: &BTreeMap<&str, HitCount>,
        hits_max: u64,
        second: u64,
    ) {
        let counts = &self.server.counts;
        let is_of = |name: &str| rollout.names.contains(domain_of_candidate(name).unwrap_or(name));
        let hits = hits.iter().filter(|(name, _)| is_of(name)).map(|(name, it)| (*name, *it));
        let note = Note {
            hits_min: rollout.bound.map_or(0, |it| it.hits_min).unsigned_abs(),
            second,
            is_evidence: self.server.clock.now() >= rollout.tells_at,
        };
        // What the pod was sent counts, whatever node it says here that it is.
        let is_chosen = self.server.streams.is_chosen(&self.peer, rollout.id);
        let pod = counts.pod(self.pod.identity(&self.node.id));
        for (domain, count) in with_candidates(hits.collect(), is_chosen) {
            let (version, domain) = (rollout.version, domain.to_owned());
            let key = CountKey { version, domain, is_chosen };
            counts.note(key, pod, &count.scaled(hits_max), note);
        }
    }

    /// Shows what a report has of the published domains that the pod may have.
    fn show(
        &self,
        report: &[ClusterStats],
        hits: &BTreeMap<&str, HitCount>,
        hits_max: u64,
        set: &PublishedSet,
        fleet: &FleetPod,
    ) {
        let allowed = self.server.selection.allowed(&self.certified, &self.node.id);
        let is_of = |domain: &str| {
            set.domains.contains_key(domain)
                && allowed.as_ref().is_none_or(|it| it.contains(domain))
        };
        let domains = hits.iter().filter(|(domain, _)| is_of(domain));
        let domains = domains.map(|(domain, count)| (*domain, count.scaled(hits_max)));
        let keys = report.iter().filter(|it| it.is_key() && is_of(&it.cluster_name));
        let key = |stats: &ClusterStats| {
            let count = read(stats)?.scaled(KEY_SECONDS * HITS_PER_SECOND);
            HotKey::read(&stats.cluster_name, &stats.cluster_service_name, count)
        };
        fleet.take(domains, keys.take(KEYS_OF_POD_MAX).filter_map(key).collect());
    }

    /// Whether the pod was asked for this domain by name.
    fn is_asked_for(&self, domain: &str) -> bool {
        self.asked.as_ref().is_some_and(|it| it.contains(domain))
    }

    /// The hits of each domain of a report that there is. One that the report has several times is
    /// counted once, with the sum.
    fn read<'r>(
        &self,
        report: &'r [ClusterStats],
        set: &PublishedSet,
    ) -> BTreeMap<&'r str, HitCount> {
        let is_known = |it: &str| set.domains.contains_key(it) || self.is_asked_for(it);
        let mut counts = BTreeMap::<_, HitCount>::new();
        let mut odd = BTreeSet::new();
        for stats in report.iter().filter(|it| !it.is_key() && is_known(&it.cluster_name)) {
            match read(stats) {
                Some(count) => counts.entry(&*stats.cluster_name).or_default().add(&count),
                None => drop(odd.insert(&*stats.cluster_name)),
            }
        }
        if !odd.is_empty() {
            let shown = ratelease_rules::excerpt(&self.node.id);
            debug!(node = %shown, "a report of a pod is not counted: it contradicts itself");
        }
        counts.retain(|domain, _| !odd.contains(domain));
        counts
    }
}

// === impl HitBudget ===

impl HitBudget {
    /// Of a stream that begins at this second: one that is opened again has no more.
    fn at(second: u64) -> Self {
        Self { left: HITS_PER_SECOND, second }
    }

    /// How many hits of a domain count in a report at this second, which has so many.
    fn take(&mut self, hits: u64, second: u64) -> u64 {
        let passed = second - std::mem::replace(&mut self.second, second);
        let max = match passed {
            0 => self.left,
            _ => passed.min(SECONDS_MAX) * HITS_PER_SECOND,
        };
        self.left = max.saturating_sub(hits).min(HITS_PER_SECOND);
        max
    }
}

// === impl ClusterStats ===

impl ClusterStats {
    /// Whether it is of a key, whose hits its domain has too.
    fn is_key(&self) -> bool {
        !self.cluster_service_name.is_empty()
    }
}

/// The hits of each domain, in whose place those of its candidate rules are taken too: on chosen
/// pods what would be denied is what these say, and what the rules in force have in shadow mode
/// themselves is no part of it. Rules may be added for what nothing limits yet, so that the hits are
/// those of the rules in force or of the candidates, whichever are more.
fn with_candidates(
    mut counts: BTreeMap<&str, HitCount>,
    is_chosen: bool,
) -> BTreeMap<&str, HitCount> {
    let is_candidate = |name: &&str, _: &mut HitCount| domain_of_candidate(name).is_some();
    let candidates: Vec<_> = counts.extract_if(.., is_candidate).collect();
    for (name, candidate) in candidates.into_iter().filter(|_| is_chosen) {
        let Some(domain) = domain_of_candidate(name) else { continue };
        let count = counts.entry(domain).or_default();
        count.hits = count.hits.max(candidate.hits);
        count.shadow = candidate.shadow;
        count.left_out = candidate.left_out;
    }
    counts
}

/// The hits of a domain; `None` if they cannot be.
fn read(stats: &ClusterStats) -> Option<HitCount> {
    let issued = stats.upstream_locality_stats.iter().map(|it| it.total_issued_requests);
    let issued = issued.fold(0_u64, u64::saturating_add);
    let denied = stats.total_dropped_requests;
    let of = |category: &str| {
        let dropped = stats.dropped_requests.iter().filter(|it| it.category == category);
        dropped.map(|it| it.dropped_count).fold(0_u64, u64::saturating_add)
    };
    let (shadow, left_out) = (of(SHADOW), of(LEFT_OUT).min(HITS_MAX));
    let hits = issued.saturating_add(denied);
    (hits <= HITS_MAX && shadow <= issued).then_some(HitCount { hits, denied, shadow, left_out })
}

// Hits that pods reported of a rollout: all of them, and as they are weighed for its bound.
//
// What a pod reports is its own word, so that one pod must not decide about a rollout. Of each
// window of time a pod weighs at most a tenth of the hits that its replica has of a domain (with
// fewer than ten pods, its equal part), or the `hits_min` of the bound if that is more. Of three
// or more pods, the share that is denied is that of the others without the one that denies most.

/// Seconds of a window. The recent hits are those of the present window and the one before.
const WINDOW_SECONDS: u64 = 15;

/// The part of all hits that one of many pods may have.
const PARTS: usize = 10;

/// Pods of which the one that denies most is left out.
const TRIMMED_MIN: usize = 3;

/// Maximum number of pods, each counted for each domain that it reports, of a window. Further ones
/// weigh together what one pod does.
const ENTRIES_MAX: usize = 1 << 18;

/// Identifies a pod within this process.
type PodId = u64;

/// The pods beyond [`ENTRIES_MAX`].
const OTHERS: PodId = 0;

/// Hits that pods reported to this replica. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct RolloutCounts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    hasher: RandomState,
    state: Mutex<State>,
    changed: Notify,
    reports: AtomicU64,
    rollbacks: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Tells the rows of this process from those of others.
    replica: u32,
    counts: BTreeMap<CountKey, Counted>,
    /// The number of the present window.
    window: u64,
    /// Pods of the present window, over all counts.
    entries: usize,
}

/// The hits of one domain and group of pods.
#[derive(Debug, Default)]
struct Counted {
    all: HitCount,
    /// The weighed hits of windows that have ended.
    weighed: HitCount,
    former: HashMap<PodId, HitCount>,
    present: HashMap<PodId, HitCount>,
    /// How often hits were added.
    changes: u64,
    /// The `hits_min` of the bound of its rollout.
    hits_min: u64,
    /// Whether they are evidence for the next step: of a stage whose counts began empty, the hits
    /// since its longest window has turned.
    is_evidence: bool,
}

/// How hits of a report are counted.
#[derive(Debug, Clone, Copy)]
struct Note {
    /// The `hits_min` of the bound of the rollout.
    hits_min: u64,
    /// When, by the clock of the counts.
    second: u64,
    /// Whether they are evidence for the next step.
    is_evidence: bool,
}

/// What is to be written.
#[derive(Debug)]
struct Rows {
    replica: u32,
    counts: Vec<(CountKey, ReplicaCount)>,
    /// The number of the last change of each count.
    changes: Vec<u64>,
}

// === impl RolloutCounts ===

impl Default for RolloutCounts {
    fn default() -> Self {
        Self(Arc::new(Shared {
            clock: Clock::start(),
            hasher: RandomState::new(),
            state: Mutex::default(),
            changed: Notify::new(),
            reports: AtomicU64::default(),
            rollbacks: AtomicU64::default(),
        }))
    }
}

impl RolloutCounts {
    /// Number of reports that were counted so far.
    pub fn reports(&self) -> u64 {
        self.0.reports.load(Ordering::Relaxed)
    }

    /// Number of rollouts that this process rolled back.
    pub fn rollbacks(&self) -> u64 {
        self.0.rollbacks.load(Ordering::Relaxed)
    }

    fn note_rollback(&self) {
        self.0.rollbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// The clock that all seconds are of.
    fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The number of the pod with this identity.
    fn pod(&self, identity: impl Hash) -> PodId {
        self.0.hasher.hash_one(identity)
    }

    /// Adds hits of a pod.
    fn note(&self, key: CountKey, pod: PodId, count: &HitCount, note: Note) {
        let mut state = self.0.state.lock();
        state.turn(note.second);
        let is_full = state.entries >= ENTRIES_MAX;
        let counted = state.counts.entry(key).or_default();
        if note.is_evidence && !counted.is_evidence {
            // Earlier hits met empty counts, and would make the shares smaller than they will be.
            *counted =
                Counted { is_evidence: true, changes: counted.changes, ..Counted::default() };
        }
        counted.hits_min = note.hits_min;
        counted.changes += 1;
        counted.all.add(count);
        let pod = if is_full && !counted.present.contains_key(&pod) { OTHERS } else { pod };
        let before = counted.present.len();
        counted.present.entry(pod).or_default().add(count);
        state.entries += counted.present.len() - before;
    }

    /// What the database is to have of this replica at this second. There are as many rows as the
    /// steps have domains, twice.
    fn rows(&self, second: u64) -> Rows {
        let mut state = self.0.state.lock();
        state.turn(second);
        let replica = state.replica;
        let counts = state.counts.iter().map(|(key, it)| (key.clone(), it.row()));
        let changes = state.counts.values().map(|it| it.changes).collect();
        Rows { replica, counts: counts.collect(), changes }
    }

    /// Notes that the database has these rows. Rows of other versions than `present`, the last steps',
    /// are forgotten unless they have changed since.
    fn written(&self, rows: &Rows, present: &[i64]) {
        let mut state = self.0.state.lock();
        for ((key, _), changes) in rows.counts.iter().zip(&rows.changes) {
            let is_written = state.counts.get(key).is_some_and(|it| it.changes == *changes);
            if is_written && !present.contains(&key.version) {
                state.counts.remove(key);
            }
        }
    }

    /// Notes that a report was counted.
    fn note_report(&self) {
        self.0.reports.fetch_add(1, Ordering::Relaxed);
        self.0.changed.notify_one();
    }

    /// Resolves after the next report.
    async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        let replica = u32::try_from(next_u64() >> 33).unwrap_or_default().max(1);
        Self { replica, counts: BTreeMap::new(), window: 0, entries: 0 }
    }
}

impl State {
    /// Begins the window of this second.
    fn turn(&mut self, second: u64) {
        let window = second / WINDOW_SECONDS;
        let passed = window.saturating_sub(self.window);
        if passed == 0 {
            return;
        }
        (self.window, self.entries) = (window, 0);
        for counted in self.counts.values_mut() {
            let ended = std::mem::take(&mut counted.present);
            counted.weighed.add(&weigh(ended.values(), counted.hits_min));
            counted.former = if passed == 1 { ended } else { HashMap::new() };
        }
    }
}

// === impl Counted ===

impl Counted {
    fn row(&self) -> ReplicaCount {
        let hits_min = self.hits_min;
        let mut weighed = self.weighed;
        weighed.add(&weigh(self.present.values(), hits_min));
        let mut both = self.former.clone();
        for (pod, count) in &self.present {
            both.entry(*pod).or_default().add(count);
        }
        let (all, is_evidence) = (self.all, self.is_evidence);
        ReplicaCount { all, weighed, is_evidence, recent: weigh(both.values(), hits_min) }
    }
}

/// The hits of all these pods, of which none weighs too much.
fn weigh<'c>(pods: impl Iterator<Item = &'c HitCount>, hits_min: u64) -> HitCount {
    let mut pods: Vec<_> = pods.filter(|it| it.hits > 0).copied().collect();
    pods.sort_by_key(|it| it.hits);
    let max = hits_max(&pods, PARTS.min(pods.len())).max(hits_min);
    let mut sum = HitCount::default();
    for pod in &mut pods {
        *pod = pod.scaled(max);
        sum.add(pod);
    }
    let denies_most = pods.iter().max_by_key(|it| it.denied.saturating_add(it.shadow));
    let (Some(most), true) = (denies_most, pods.len() >= TRIMMED_MIN) else { return sum };
    let others = HitCount {
        hits: sum.hits.saturating_sub(most.hits),
        denied: sum.denied.saturating_sub(most.denied),
        shadow: sum.shadow.saturating_sub(most.shadow),
        left_out: sum.left_out.saturating_sub(most.left_out),
    };
    others.scaled_to(sum.hits)
}

/// The hits of which no pod has more than one of so many `parts`, if pods with more have these. The
/// pods are in the order of their hits.
fn hits_max(pods: &[HitCount], parts: usize) -> u64 {
    let parts = parts as u128;
    let mut below: u128 = pods.iter().map(|it| u128::from(it.hits)).sum();
    for (above, pod) in pods.iter().rev().enumerate() {
        // `above` pods have the result, and the others have `below` together.
        let Some(rest) = parts.checked_sub(above as u128).filter(|rest| *rest > 0) else { break };
        let max = below / rest;
        if max >= u128::from(pod.hits) {
            return u64::try_from(max).unwrap_or(u64::MAX);
        }
        below -= u128::from(pod.hits);
    }
    pods.first().map_or(0, |it| it.hits)
}

// Ends a rollout that denies too much. Each replica writes what its pods report, and looks at what
// all replicas wrote; the one that sees first that the bound is exceeded rolls back.

/// Pause after reports were written, so that those of many pods are written together.
const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause between two looks at the counts: other replicas write too.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time of a look. A database that hangs is asked again.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Waits for the database, [`LOOK_MAX`] at most.
pub async fn in_time<T>(reply: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    let reply = timeout(LOOK_MAX, reply).await;
    reply.unwrap_or_else(|_| Err(StoreError::Unavailable(format!("silent for {LOOK_MAX:?}"))))
}

/// The author of steps that the control plane takes.
pub const AUTHOR: &str = "rollout";

/// The beginning of the reason of a roll back. The rest names domains.
pub const ROLLBACK_REASON: &str = "chosen pods denied too much";

/// Writes what pods report, and rolls back. While the database is away the counts wait here; the
/// bound is looked at when it is back, with the hits that are recent then. Does not return.
pub async fn watch_rollout(
    store: Store,
    counts: RolloutCounts,
    published: watch::Receiver<Arc<PublishedSet>>,
    follower: Arc<Notify>,
) {
    let reserved = store.reserved();
    let clock = counts.clock();
    let mut is_away = false;
    loop {
        let _ = timeout(LOOK_INTERVAL, counts.changed()).await;
        let rollouts = published.borrow().rollouts.clone();
        let versions: Vec<_> = rollouts.iter().map(|it| it.version).collect();
        let looked = async {
            let second = clock.now().since(Time::default()).as_secs();
            write(&reserved, &counts, second, &versions).await?;
            let mut looked = Ok(());
            for rollout in &rollouts {
                match in_time(look(&store, &reserved, rollout)).await {
                    Ok(true) => {
                        counts.note_rollback();
                        follower.notify_one();
                    }
                    Ok(false) => {}
                    Err(error) => looked = Err(error), // which holds up no other one
                }
            }
            looked
        };
        match looked.await {
            Ok(()) => is_away = false,
            Err(error) if !is_away => {
                is_away = true;
                warn!("{error}: what pods report of a rollout waits");
            }
            Err(_) => {}
        }
        sleep(WRITE_PAUSE).await;
    }
}

/// Writes what this replica counted. If that fails it is written the next time; a write of which
/// only the answer was lost is replaced.
async fn write(
    store: &Store,
    counts: &RolloutCounts,
    second: u64,
    present: &[i64],
) -> StoreResult<()> {
    let rows = counts.rows(second);
    if !rows.counts.is_empty() {
        in_time(store.replace_hits(rows.replica, &rows.counts)).await?;
    }
    counts.written(&rows, present);
    Ok(())
}

/// Rolls back if the bound is exceeded. Returns whether this call did. In the stage `shadow` it is
/// the rules in force that deny, so that to go back would change nothing.
async fn look(store: &Store, reserved: &Store, rollout: &PublishedRollout) -> StoreResult<bool> {
    let bound = rollout.bound.filter(|_| rollout.stage == Stage::Enforced);
    let Some(bound) = bound else { return Ok(false) };
    let recent = reserved.recent_hits(rollout.version).await?;
    let Some(reason) = exceeded(&bound, &recent) else { return Ok(false) };
    let author = Author { name: AUTHOR.to_owned(), reason };
    let mut write = store.begin(&author).await?;
    // Another replica may have rolled it back already, or a client may have changed its step.
    let present = write.rollout(rollout.id).await?;
    let present = present.filter(|it| it.last().version == rollout.version);
    let Some(present) = present else { return Ok(false) };
    let version = write.end_rollout(&present, Stage::RolledBack).await?.number;
    write.note_rollout(&present, Stage::RolledBack, version).await?;
    write.commit().await?;
    warn!(rollout = rollout.id, version, "rolled back: {}", author.reason);
    Ok(true)
}

/// Which domains the chosen pods deny too much of, in words; `None` if there are none.
fn exceeded(bound: &Bound, recent: &Hits) -> Option<String> {
    let domains = bound.exceeded(recent, |it| it.denied)?;
    let bound = percent(bound.denied_share);
    Some(format!("{ROLLBACK_REASON} in the last 30 s: {domains}; the bound is {bound}"))
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
    use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
    use ratelease_xds::shape::{Undecoded, decode};

    use super::*;
    use crate::push::server::{DISCOVERY_SHAPE, DiscoveryRequest};
    use crate::store::Database;

    fn stats(issued: u64, denied: u64, shadow: u64) -> ClusterStats {
        let locality = UpstreamLocalityStats { total_issued_requests: issued };
        let shadow = DroppedRequests { category: SHADOW.to_owned(), dropped_count: shadow };
        ClusterStats {
            upstream_locality_stats: vec![locality],
            total_dropped_requests: denied,
            dropped_requests: vec![shadow],
            ..ClusterStats::default()
        }
    }

    #[test]
    fn hits_are_those_that_passed_and_those_that_were_dropped() {
        let mut of_candidates = stats(7, 3, 2);
        let left_out = DroppedRequests { category: LEFT_OUT.to_owned(), dropped_count: 5 };
        of_candidates.dropped_requests.push(left_out);
        let expected = HitCount { hits: 10, denied: 3, shadow: 2, left_out: 5 };
        assert_eq!(read(&of_candidates), Some(expected));
        assert_eq!(read(&ClusterStats::default()), Some(HitCount::default()));
    }

    #[test]
    fn a_report_that_cannot_be_is_not_counted() {
        assert_eq!(read(&stats(1, 0, 2)), None, "more in shadow than passed");
        assert_eq!(read(&stats(u64::MAX, u64::MAX, 0)), None);
    }

    #[test]
    fn a_pod_that_reports_more_often_has_no_more_hits_that_count() {
        let counted = |reports_a_second: u64| {
            let mut budget = HitBudget::at(0);
            let reports = (0..10).flat_map(|second| (0..reports_a_second).map(move |_| second));
            reports.map(|second| budget.take(HITS_MAX, second)).sum::<u64>()
        };
        assert_eq!((counted(1), counted(4)), (10 * HITS_PER_SECOND, 10 * HITS_PER_SECOND));
        let mut budget = HitBudget::at(0);
        assert_eq!(budget.take(1000, 3), 3 * HITS_PER_SECOND, "of each second that has passed");
        assert_eq!(budget.take(1000, 3), HITS_PER_SECOND, "of another report, one second's");
        assert_eq!(budget.take(0, 3), HITS_PER_SECOND - 1000);
        assert_eq!(budget.take(0, 3600), SECONDS_MAX * HITS_PER_SECOND);
    }

    #[test]
    fn on_chosen_pods_the_candidates_say_what_would_be_denied() {
        let hits = |hits, denied, shadow| HitCount { hits, denied, shadow, left_out: 0 };
        let counts = BTreeMap::from([
            ("bank@candidate", hits(7, 0, 5)),
            ("lab", hits(3, 1, 1)),
            ("shop", hits(10, 2, 4)),
            ("shop@candidate", hits(6, 0, 3)),
        ]);
        let chosen = [("bank", hits(7, 0, 5)), ("lab", hits(3, 1, 1)), ("shop", hits(10, 2, 3))];
        assert_eq!(with_candidates(counts.clone(), true), BTreeMap::from(chosen));
        let others = [("lab", hits(3, 1, 1)), ("shop", hits(10, 2, 4))];
        assert_eq!(with_candidates(counts, false), BTreeMap::from(others));
    }

    fn count(hits: u64, denied: u64) -> HitCount {
        HitCount { hits, denied, ..HitCount::default() }
    }

    fn share(pods: &[HitCount]) -> f64 {
        weigh(pods.iter(), 100).denied_share().unwrap()
    }

    #[test]
    fn a_pod_weighs_a_tenth_of_all_or_its_equal_part_of_fewer_pods() {
        let honest = |number| vec![count(1000, 0); number];
        for number in 1..40 {
            let mut pods = honest(number);
            pods.push(count(1 << 40, 0));
            let limit = *[10, number + 1].iter().min().unwrap() as u64;
            let sum = weigh(pods.iter(), 0).hits;
            let weighs = sum - 1000 * number as u64;
            assert!(weighs <= sum / limit + 1, "{number} others: {weighs} of {sum}");
            assert!(weighs >= 999, "{number} others: {weighs}");
        }
        assert_eq!(weigh([count(7, 3)].iter(), 0), count(7, 3), "one pod alone is what there is");
        assert_eq!(weigh([].iter(), 100), HitCount::default());
    }

    #[test]
    fn one_pod_neither_forces_nor_masks_that_the_others_deny_too_much() {
        for number in 2..40 {
            let mut pods = vec![count(1000, 0); number];
            pods.push(count(1 << 40, 1 << 40));
            assert!(share(&pods) < 0.05, "forced among {number}: {}", share(&pods));
            let mut pods = vec![count(1000, 200); number];
            pods.push(count(1 << 40, 0));
            assert!(share(&pods) > 0.05, "masked among {number}: {}", share(&pods));
        }
        // Of two pods each weighs half, however many hits it reports.
        assert!((share(&[count(1000, 0), count(1 << 40, 1 << 40)]) - 0.5).abs() < 0.001);
        assert!((share(&[count(1000, 1000), count(1 << 40, 0)]) - 0.5).abs() < 0.001);
    }

    #[test]
    fn pods_with_few_hits_take_no_weight_from_others() {
        let pods = [count(1, 1), count(2000, 100), count(1000, 50)];
        let weighed = weigh(pods.iter(), 100);
        assert!(weighed.hits >= 100 && (share(&pods) - 0.05).abs() < 0.01, "{weighed:?}");
        // As many hits as the bound needs are there if they were reported.
        assert!(weigh([count(100, 0), count(1, 0)].iter(), 100).hits >= 100);
    }

    #[test]
    fn counts_are_kept_until_they_are_written_and_recent_ones_for_two_windows() {
        let counts = RolloutCounts::default();
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let note = |second| {
            let note = Note { hits_min: 100, second, is_evidence: true };
            counts.note(key.clone(), 7, &count(10, 1), note);
        };
        let recent = |second| counts.rows(second).counts[0].1.recent.hits;
        note(0);
        assert_eq!((recent(14), recent(15), recent(29)), (10, 10, 10));
        note(29);
        assert_eq!((recent(29), recent(30), recent(44), recent(45)), (20, 10, 10, 0));
        let rows = counts.rows(45);
        assert_eq!((rows.counts[0].1.all, rows.counts[0].1.weighed), (count(20, 2), count(20, 2)));
        counts.written(&rows, &[1]);
        note(45); // while the next step is written
        counts.written(&rows, &[2]);
        let rows = counts.rows(46);
        assert_eq!(rows.counts[0].1.all, count(30, 3));
        counts.written(&rows, &[2, 3]);
        assert!(counts.rows(46).counts.is_empty());
    }

    #[test]
    fn hits_before_the_longest_window_has_turned_are_no_evidence() {
        let counts = RolloutCounts::default();
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let note = |second, hits, is_evidence| {
            let note = Note { hits_min: 100, second, is_evidence };
            counts.note(key.clone(), 7, &hits, note);
            let row = counts.rows(second).counts[0].1;
            (row.all, row.weighed, row.recent)
        };
        let (early, late) = (count(900, 0), count(100, 30));
        assert_eq!(note(1, early, false), (early, early, early));
        assert_eq!(note(2, late, true), (late, late, late));
        let both = count(200, 60);
        assert_eq!(note(3, late, true), (both, both, both));
    }

    #[tokio::test]
    async fn hits_that_are_no_evidence_stay_none_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = Database::Sqlite(dir.path().join("rules.db"));
        let store = Store::open(&file).await.unwrap();
        let key = |version| CountKey { version, domain: "shop".to_owned(), is_chosen: true };
        let report = async |counts: &RolloutCounts, version, hits, is_evidence| {
            let note = Note { hits_min: 100, second: 1, is_evidence };
            counts.note(key(version), 7, &hits, note);
            write(&store, counts, 1, &[version]).await.unwrap();
            let hits = store.hits(version).await.unwrap();
            let hits = [hits.all, hits.weighed, hits.early];
            hits.map(|it| it.get(&key(version)).map_or(0, |it| it.hits))
        };
        let (early, late) = (count(900, 0), count(100, 30));
        let [dead, other, next] = [(); 3].map(|()| RolloutCounts::default());
        assert_eq!(report(&dead, 1, early, false).await, [900, 0, 900]);
        assert_eq!(report(&other, 1, early, false).await, [1800, 0, 1800]);
        assert_eq!(report(&next, 1, late, true).await, [100, 100, 1800], "of one replica");
        assert_eq!(report(&other, 1, late, true).await, [200, 200, 1800]);
        // All hits of the stage `enforced` are evidence.
        let [dead, next] = [(); 2].map(|()| RolloutCounts::default());
        assert_eq!(report(&dead, 2, early, true).await, [900, 900, 0]);
        assert_eq!(report(&next, 2, late, true).await, [1000, 1000, 0]);
    }

    fn recent(domain: &str, is_chosen: bool, hits: u64, denied: u64) -> (CountKey, HitCount) {
        let key = CountKey { version: 1, domain: domain.to_owned(), is_chosen };
        (key, HitCount { hits, denied, ..HitCount::default() })
    }

    #[test]
    fn only_chosen_pods_with_enough_hits_above_the_bound_roll_back() {
        let bound = Bound { denied_share: 0.05, hits_min: 100 };
        let of = |rows: &[(CountKey, HitCount)]| exceeded(&bound, &rows.iter().cloned().collect());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[recent("shop", true, 100, 5)]), None, "the bound itself is allowed");
        assert_eq!(of(&[recent("shop", true, 99, 99)]), None, "too few hits");
        assert_eq!(of(&[recent("shop", false, 100, 100)]), None, "the others");
        assert_eq!(of(&[recent("shop", true, 0, 0)]), None);
        let reason = of(&[recent("bank", true, 100, 0), recent("shop", true, 200, 122)]).unwrap();
        let expected = "chosen pods denied too much in the last 30 s: 'shop': 122 of 200 hits \
                        (61.0 %); the bound is 5.0 %";
        assert_eq!(reason, expected);
    }

    fn report(bytes: &[u8]) -> Result<LoadStatsRequest, Undecoded> {
        decode(bytes, &REPORT_SHAPE, usize::MAX)
    }

    #[test]
    fn reports_and_requests_that_would_fill_the_memory_are_not_decoded() {
        let field = |number: u8, content: &[u8]| {
            let mut bytes = vec![number << 3 | 2];
            prost::encoding::encode_varint(content.len() as u64, &mut bytes);
            [&bytes, content].concat()
        };
        let stats = |fields: &[u8]| report(&field(2, fields));
        assert!(matches!(report(&[0x12, 0].repeat(500_000)), Err(Undecoded::TooLarge(_))));
        let localities = stats(&[0x12, 0].repeat(500_000)).unwrap();
        assert_eq!(localities.cluster_stats[0].upstream_locality_stats.len(), 500_000);
        assert!(size_of::<UpstreamLocalityStats>() <= 8, "500 000 of them take 8 MiB");
        assert!(matches!(stats(&[0x2a, 0].repeat(500_000)), Err(Undecoded::TooLarge(_))));
        // Extensions of the node are skipped.
        let node = |fields: &[u8]| {
            decode::<DiscoveryRequest>(&field(2, fields), &DISCOVERY_SHAPE, usize::MAX)
        };
        assert!(node(&[0x4a, 0].repeat(100_000)).is_ok());
    }

    #[test]
    fn the_fields_that_are_read_are_those_of_the_protocol() {
        let stats = endpoint::ClusterStats {
            cluster_name: "shop".into(),
            upstream_locality_stats: vec![endpoint::UpstreamLocalityStats {
                total_issued_requests: 7,
                total_successful_requests: 6,
                ..Default::default()
            }],
            total_dropped_requests: 3,
            dropped_requests: vec![endpoint::cluster_stats::DroppedRequests {
                category: "shadow".into(),
                dropped_count: 2,
            }],
            ..Default::default()
        };
        let many = load_stats::LoadStatsRequest { cluster_stats: vec![stats; 1000], node: None };
        let read = report(&many.encode_to_vec()).unwrap().cluster_stats;
        let ClusterStats { cluster_name, upstream_locality_stats: passed, .. } = &read[999];
        assert_eq!((read.len(), &**cluster_name), (1000, "shop"));
        assert_eq!((passed[0].total_issued_requests, read[0].total_dropped_requests), (7, 3));
        let dropped = &read[0].dropped_requests[0];
        assert_eq!((&*dropped.category, dropped.dropped_count), ("shadow", 2));
    }
}
