//! Reports of pods by the load reporting service (LRS): hits of their domains, and hot keys.
//!
//! ```text
//! pod ─▶ ClusterStats: a domain, hits that passed, hits that were dropped ─▶ fleet, RolloutCounts
//!  ◀── LoadStatsResponse: the domains of rollouts, and how often ── rollout begins or ends
//! ```
//! A pod is asked for all its domains, which `fleet` shows, and by name for domains of rollouts. A
//! report counts for a rollout's step if the pod ran the version of the step at the report before
//! it too, so that no hit of other rules counts. A rollout whose chosen pods deny too much is
//! rolled back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::load_stats::v3::LoadStatsResponse;
use envoy_types::pb::google::protobuf;
use futures_util::stream::{BoxStream, StreamExt};
use prost::Message;
use ratelease_engine::time::Time;
use ratelease_rules::domain_of_candidate;
use ratelease_xds::shape::{FLAT, Field, Shape};
use tokio::sync::mpsc;
use tokio::time::{Interval, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use tracing::debug;

use super::connections::ConnectedPod;
use super::fleet::{FleetPod, HotKey, KEYS_OF_POD_MAX};
use super::published::{PublishedRollout, PublishedSet};
use super::rollout_counts::Note;
use super::selection::{CertifiedNodes, NODE_SHAPE, Node, NodeInfo};
use super::server::{FIRST_MAX, PodServer};
use crate::store::{CountKey, HitCount};

/// Pause between reports of a pod while a rollout is under way, for up to [`PODS_PER_SECOND`] pods.
/// With more pods the pauses are longer.
const ROLLOUT_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between reports of a pod while no rollout concerns the pod.
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

/// Hits of a domain that count for each second since the report before: a pod decides some 10^6
/// requests a second. If a report has more, only its shares count.
const HITS_PER_SECOND: u64 = 1_000_000;

/// Maximum number of seconds for which a report counts: a longer time since the report before is
/// cut to a minute.
const SECONDS_MAX: u64 = 60;

/// Seconds for which hits of a key count: a pod reports the hits of the last one to two minutes.
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

/// Shape of the memory of a decoded `LoadStatsRequest`.
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
    /// Hits that further reports in the second of the last report may have.
    left: u64,
    second: u64,
}

// === impl PodServer ===

impl PodServer {
    /// Takes the reports of a stream, and returns the requests for further reports.
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

    /// Requests reports of all domains, and by name of the domains of the rollout, if these differ
    /// from the last request. Returns whether the pod reads.
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
        // The choice that the pod was sent counts, even if the request names another node.
        let is_chosen = self.server.streams.is_chosen(&self.peer, rollout.id);
        let pod = counts.pod(self.pod.identity(&self.node.id));
        for (domain, count) in with_candidates(hits.collect(), is_chosen) {
            let (version, domain) = (rollout.version, domain.to_owned());
            let key = CountKey { version, domain, is_chosen };
            counts.note(key, pod, &count.scaled(hits_max), note);
        }
    }

    /// Adds a report's hits of the published domains that the pod may have to the fleet's counts.
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
    /// The budget of a stream that begins at this second. A stream that is opened again has no
    /// more.
    fn at(second: u64) -> Self {
        Self { left: HITS_PER_SECOND, second }
    }

    /// How many hits of a domain count in a report at this second. The report has `hits`.
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
    /// Whether the entry is of a key, whose hits its domain has too.
    fn is_key(&self) -> bool {
        !self.cluster_service_name.is_empty()
    }
}

/// The hits of each domain, together with those of its candidate rules. On chosen pods the hits
/// that would be denied are those that the candidate rules would deny; hits that the rules in force
/// would deny but for shadow mode are left out. Rules may limit requests that no rule limited
/// before, so the hits are counted by the rules in force or by the candidates, whichever have more.
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

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
    use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
    use ratelease_xds::shape::{Undecoded, decode};

    use super::*;
    use crate::push::server::{DISCOVERY_SHAPE, DiscoveryRequest};

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
