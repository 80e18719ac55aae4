//! What pods report of a rollout: hits of its domains, by the load reporting service (LRS).
//!
//! ```text
//! pod ─▶ ClusterStats: a domain, hits that passed, hits that were dropped ─▶ RolloutCounts
//!  ◀── LoadStatsResponse: the domains of the rollout, and how often ── rollout begins or ends
//! ```
//! A pod is asked for nothing while no rollout is under way. A report counts for a step if the pod
//! ran that step's version at the report before it too, so that no hit of other rules counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt};
use ratelease_engine::time::Time;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use tracing::debug;

use super::connections::ConnectedPod;
use super::node::NodeInfo;
use super::published::{PublishedRollout, PublishedSet};
use super::requests::{ClusterStats, LoadStatsRequest};
use super::selection::CertifiedNodes;
use super::server::{FIRST_MAX, PodServer};
use super::wire::{self, LoadStatsResponse};
use crate::store::{CountKey, HitCount};

/// Pause between reports of a pod, for up to [`PODS_PER_SECOND`] pods; more have longer pauses.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

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

/// The category of hits that would have been dropped, but for shadow mode.
const SHADOW: &str = "shadow";

/// The reports of one pod.
struct Reports {
    server: PodServer,
    responses: mpsc::Sender<LoadStatsResponse>,
    pod: ConnectedPod,
    peer: String,
    certified: Arc<CertifiedNodes>,
    node: NodeInfo,
    /// The domains that the pod was asked for.
    asked: BTreeSet<String>,
    /// The step that the pod ran when it was asked, or at its last report.
    step: Option<i64>,
    /// The second of its last report.
    reported_at: u64,
}

// === impl PodServer ===

impl PodServer {
    /// Takes the reports of a stream, and returns what the pod is asked for.
    ///
    /// # Errors
    /// Fails if the request names no connection, which does not happen.
    pub(super) fn open_reports(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<BoxStream<'static, Result<LoadStatsResponse, Status>>, Status> {
        let Some(pod) = request.extensions().get::<ConnectedPod>().cloned() else {
            return Err(Status::internal("a stream without a connection"));
        };
        let certified = pod.certified(&self.selection);
        let (responses, waiting) = mpsc::channel(RESPONSES_MAX);
        let reports = Reports {
            server: self.clone(),
            responses,
            peer: pod.address.to_string(),
            pod: pod.clone(),
            certified,
            node: NodeInfo::default(),
            asked: BTreeSet::new(),
            step: None,
            reported_at: 0,
        };
        let guard = pod.begin_stream();
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
        loop {
            let set = Arc::clone(&self.server.published.borrow_and_update());
            if !self.ask(&set) || !self.take_until_changed(&mut requests).await {
                return;
            }
        }
    }

    /// Takes reports until another set is published. Returns whether the stream goes on.
    async fn take_until_changed(&mut self, requests: &mut Streaming<LoadStatsRequest>) -> bool {
        loop {
            tokio::select! {
                message = self.pod.message(requests) => match message {
                    Some(report) => self.take(&report.cluster_stats),
                    None => return false,
                },
                changed = self.server.published.changed() => return changed.is_ok(),
                () = self.responses.closed() => return false,
            }
            tokio::task::yield_now().await;
        }
    }

    /// Asks for the domains of the rollout, if they are others than before. Returns whether the
    /// pod reads.
    fn ask(&mut self, set: &PublishedSet) -> bool {
        let domains = set.rollout.iter().flat_map(|it| it.domains.keys());
        let allowed = self.server.selection.allowed(&self.certified, &self.node.id);
        let is_of = |name: &&String| allowed.as_ref().is_none_or(|it| it.contains(name.as_str()));
        let domains: BTreeSet<_> = domains.filter(is_of).cloned().collect();
        if domains == self.asked {
            return true;
        }
        self.asked.clone_from(&domains);
        self.step = set.rollout.as_deref().and_then(|it| self.step_of(it));
        let pods = self.server.streams.count().div_ceil(PODS_PER_SECOND).max(1);
        let interval = REPORT_INTERVAL * u32::try_from(pods).unwrap_or(u32::MAX);
        let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
        let response = LoadStatsResponse {
            clusters: domains.into_iter().collect(),
            load_reporting_interval: Some(wire::Duration { seconds, nanos: 0 }),
            ..LoadStatsResponse::default()
        };
        self.responses.try_send(response).is_ok()
    }

    /// The step of the rollout, if the pod runs its version.
    fn step_of(&self, rollout: &PublishedRollout) -> Option<i64> {
        let runs = self.server.streams.version_of(&self.peer);
        runs.filter(|version| *version >= rollout.version).map(|_| rollout.version)
    }

    /// Counts a report, unless some of its hits are of rules before the step.
    fn take(&mut self, report: &[ClusterStats]) {
        let set = Arc::clone(&self.server.published.borrow());
        let Some(rollout) = set.rollout.as_deref() else { return };
        let since = self.step;
        self.step = self.step_of(rollout);
        let counts = self.server.counts.clone();
        let second = counts.clock().now().since(Time::default()).as_secs();
        let elapsed = second - std::mem::replace(&mut self.reported_at, second);
        let hits_max = elapsed.clamp(1, SECONDS_MAX) * HITS_PER_SECOND;
        if since != Some(rollout.version) {
            return;
        }
        let hits_min = rollout.bound.map_or(0, |it| it.hits_min).unsigned_abs();
        // What the pod was sent counts, whatever node it says here that it is.
        let is_chosen = self.server.streams.is_chosen(&self.peer, rollout.id);
        let pod = counts.pod(self.pod.identity(&self.node.id));
        for (domain, count) in self.read(report) {
            let (version, domain) = (rollout.version, domain.to_owned());
            let (key, count) = (CountKey { version, domain, is_chosen }, count.scaled(hits_max));
            counts.note(key, pod, &count, (hits_min, second));
        }
        counts.note_report();
    }

    /// The hits of each domain that the pod was asked for. One that the report has several times is
    /// counted once, with the sum.
    fn read<'r>(&self, report: &'r [ClusterStats]) -> BTreeMap<&'r str, HitCount> {
        let (mut counts, mut odd) = (BTreeMap::<_, HitCount>::new(), BTreeSet::new());
        for stats in report.iter().filter(|it| self.asked.contains(&it.cluster_name)) {
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

/// The hits of a domain; `None` if they cannot be.
fn read(stats: &ClusterStats) -> Option<HitCount> {
    let issued = stats.upstream_locality_stats.iter().map(|it| it.total_issued_requests);
    let issued = issued.fold(0_u64, u64::saturating_add);
    let denied = stats.total_dropped_requests;
    let shadow = stats.dropped_requests.iter().filter(|it| it.category == SHADOW);
    let shadow = shadow.map(|it| it.dropped_count).fold(0_u64, u64::saturating_add);
    let hits = issued.saturating_add(denied);
    (hits <= HITS_MAX && shadow <= issued).then_some(HitCount { hits, denied, shadow })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::requests::{DroppedRequests, UpstreamLocalityStats};

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
        let expected = HitCount { hits: 10, denied: 3, shadow: 2 };
        assert_eq!(read(&stats(7, 3, 2)), Some(expected));
        assert_eq!(read(&ClusterStats::default()), Some(HitCount::default()));
    }

    #[test]
    fn a_report_that_cannot_be_is_not_counted() {
        assert_eq!(read(&stats(1, 0, 2)), None, "more in shadow than passed");
        assert_eq!(read(&stats(u64::MAX, u64::MAX, 0)), None);
    }
}
