//! Reports hits of domains to a control plane that asks for them: the load reporting service (LRS),
//! on the channel of the rules.
//!
//! A cluster is a domain, a request that was issued is a hit that passed, and one that was dropped
//! is a hit that was denied. Nothing is read or sent until the server names domains. A report has
//! what was counted since the last one that was sent, also after a new connection, so that no hit
//! is reported twice.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use ratelease_cli::settings::Xds;
use ratelease_engine::time::{Clock, Time};
use ratelease_server::metrics::{DomainHits, Meters};
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Extensions, Request, Status};
use tracing::debug;

use super::wire::{
    self, ClusterStats, DroppedRequests, LoadReportingServiceClient, LoadStatsRequest,
    LoadStatsResponse, Node, UpstreamLocalityStats,
};

/// Bounds of the pause between reports, whatever the server asks for.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Maximum number of domains that are reported.
const DOMAINS_MAX: usize = 1000;

/// Maximum bytes of a response: a name takes 24 bytes of memory besides, and as few as two in it.
const RESPONSE_BYTES_MAX: usize = 512 << 10;

/// Pause before a server is asked again that ended the stream, and one that has no such service.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
const UNKNOWN_PAUSE: Duration = Duration::from_secs(3600);

/// The category of hits that would have been denied, but for shadow mode.
const SHADOW: &str = "shadow";

/// What is reported, over all connections.
#[derive(Debug)]
pub(super) struct LoadReporter {
    meters: Meters,
    clock: Clock,
    /// What the server asks for; empty if it asks for nothing.
    domains: Vec<String>,
    interval: Duration,
    /// The hits of each of these domains that were reported.
    reported: HashMap<String, DomainHits>,
    reported_at: Time,
}

/// Ends the reports of a connection when it is dropped.
#[derive(Debug)]
pub(super) struct Reporting(pub(super) AbortHandle);

impl Drop for Reporting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reports on this channel, for as long as it is the channel of the rules. Does not return.
pub(super) async fn report(
    channel: Channel,
    settings: Arc<Xds>,
    node: Node,
    reporter: Arc<Mutex<LoadReporter>>,
) {
    let mut reporter = reporter.lock().await;
    loop {
        let ended = stream_reports(channel.clone(), &settings, &node, &mut reporter).await;
        let wait = match ended {
            Err(status) if status.code() == Code::Unimplemented => UNKNOWN_PAUSE,
            Err(status) => {
                debug!("hits are not reported: {:?}", status.code());
                RETRY_PAUSE
            }
            Ok(()) => RETRY_PAUSE,
        };
        sleep(wait).await;
    }
}

/// Reports until the stream ends.
async fn stream_reports(
    channel: Channel,
    settings: &Xds,
    node: &Node,
    reporter: &mut LoadReporter,
) -> Result<(), Status> {
    // At most one report is on its way: a server that does not read gets one less.
    let (requests, waiting) = mpsc::channel(1);
    let first = LoadStatsRequest { node: Some(node.clone()), cluster_stats: Vec::new() };
    let _ = requests.try_send(first);
    let outgoing = stream::unfold(waiting, |mut waiting| async move {
        waiting.recv().await.map(|request| (request, waiting))
    });
    let headers = MetadataMap::from_headers(settings.headers.clone());
    let request = Request::from_parts(headers, Extensions::default(), outgoing);
    let client = LoadReportingServiceClient::new(channel);
    let mut client = client.max_decoding_message_size(RESPONSE_BYTES_MAX);
    let mut responses = client.stream_load_stats(request).await?.into_inner();
    let mut is_asked = false;
    loop {
        let next = async {
            if is_asked && !reporter.domains.is_empty() {
                sleep(reporter.interval).await;
            } else {
                pending::<()>().await;
            }
        };
        tokio::select! {
            response = responses.message() => match response? {
                Some(response) => {
                    reporter.take(response);
                    is_asked = true;
                }
                None => return Ok(()),
            },
            () = next => if let Ok(place) = requests.try_reserve() {
                place.send(reporter.report());
            },
        }
    }
}

// === impl LoadReporter ===

impl LoadReporter {
    pub(super) fn new(meters: Meters, clock: Clock) -> Self {
        let domains = Vec::new();
        let reported = HashMap::new();
        let interval = INTERVAL_MAX;
        let reported_at = clock.now();
        Self { meters, clock, domains, interval, reported, reported_at }
    }

    /// Takes what the server asks for. Hits of a domain that it did not
    /// ask for before count from now on.
    fn take(&mut self, response: LoadStatsResponse) {
        let interval = response.load_reporting_interval.unwrap_or_default();
        let seconds = u64::try_from(interval.seconds).unwrap_or_default();
        let nanos = u32::try_from(interval.nanos).unwrap_or_default().min(999_999_999);
        self.interval = Duration::new(seconds, nanos).clamp(INTERVAL_MIN, INTERVAL_MAX);
        self.domains = response.clusters;
        self.domains.truncate(DOMAINS_MAX);
        self.domains.sort();
        self.domains.dedup();
        let hits = self.meters.hits_of(&self.domains);
        let mut former = std::mem::take(&mut self.reported);
        if former.is_empty() {
            self.reported_at = self.clock.now();
        }
        for (domain, hits) in self.domains.iter().zip(hits) {
            let reported = former.remove(domain).unwrap_or(hits);
            self.reported.insert(domain.clone(), reported);
        }
    }

    /// What was counted since the last report.
    fn report(&mut self) -> LoadStatsRequest {
        let now = self.clock.now();
        let interval = now.since(self.reported_at);
        self.reported_at = now;
        let hits = self.meters.hits_of(&self.domains);
        let mut stats = Vec::with_capacity(hits.len());
        for (domain, hits) in self.domains.iter().zip(hits) {
            let former = self.reported.insert(domain.clone(), hits).unwrap_or(hits);
            stats.push(cluster_stats(domain, &hits.since(&former), interval));
        }
        LoadStatsRequest { node: None, cluster_stats: stats }
    }
}

fn cluster_stats(domain: &str, hits: &DomainHits, interval: Duration) -> ClusterStats {
    let DomainHits { total, denied, shadow } = *hits;
    let locality = UpstreamLocalityStats {
        total_issued_requests: total - denied,
        ..UpstreamLocalityStats::default()
    };
    let shadow = DroppedRequests { category: SHADOW.to_owned(), dropped_count: shadow };
    ClusterStats {
        cluster_name: domain.to_owned(),
        upstream_locality_stats: vec![locality],
        total_dropped_requests: denied,
        dropped_requests: if shadow.dropped_count > 0 { vec![shadow] } else { Vec::new() },
        load_report_interval: Some(wire::Duration {
            seconds: i64::try_from(interval.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(interval.subsec_nanos()).unwrap_or_default(),
        }),
        ..ClusterStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_engine::limiter::resolve;
    use ratelease_rules::key::KeyHasher;
    use ratelease_rules::request::{Descriptor, Entry, Request as Call};
    use ratelease_rules::{Options, Source, load};

    const RULES: &str = "domain: shop\ndescriptors:\n- key: a\n  rate_limit: {unit: hour, \
                         requests_per_unit: 5}\n";

    /// Counts a hit of the domain.
    fn hit(meters: &Meters) {
        let source = Source { name: "a".into(), text: RULES.into() };
        let rules = load(&[source], Options::default()).unwrap().rules;
        let entries = [Entry { key: "a", value: "" }].into_iter().collect();
        let descriptor = Descriptor { entries, ..Descriptor::default() };
        let descriptors = [descriptor].into_iter().collect();
        let call = Call { domain: "shop", descriptors, hits_addend: 1 };
        meters.note_unanswered(&call, &resolve(&rules, &call, &KeyHasher::new("")));
    }

    fn asked(domains: &[&str], seconds: i64) -> LoadStatsResponse {
        LoadStatsResponse {
            clusters: domains.iter().map(|it| (*it).to_owned()).collect(),
            load_reporting_interval: Some(wire::Duration { seconds, nanos: 0 }),
            ..LoadStatsResponse::default()
        }
    }

    /// The hits of each domain of a report.
    fn hits(report: &LoadStatsRequest) -> Vec<(&str, u64)> {
        let issued = |it: &ClusterStats| it.upstream_locality_stats[0].total_issued_requests;
        report.cluster_stats.iter().map(|it| (&*it.cluster_name, issued(it))).collect()
    }

    #[test]
    fn a_hit_is_reported_once_and_only_if_it_came_after_the_question() {
        let meters = Meters::default();
        let mut reporter = LoadReporter::new(meters.clone(), Clock::start());
        hit(&meters);
        reporter.take(asked(&["shop"], 1));
        assert_eq!(hits(&reporter.report()), [("shop", 0)]);
        hit(&meters);
        hit(&meters);
        assert_eq!(hits(&reporter.report()), [("shop", 2)]);
        hit(&meters);
        // The same question on another connection.
        reporter.take(asked(&["bank", "shop"], 1));
        assert_eq!(hits(&reporter.report()), [("bank", 0), ("shop", 1)]);
        reporter.take(asked(&[], 1));
        hit(&meters);
        assert_eq!(hits(&reporter.report()), []);
        reporter.take(asked(&["shop"], 1));
        assert_eq!(hits(&reporter.report()), [("shop", 0)]);
    }

    #[test]
    fn what_a_server_asks_for_is_bounded() {
        let mut reporter = LoadReporter::new(Meters::default(), Clock::start());
        for (seconds, expected) in [(-5, INTERVAL_MIN), (0, INTERVAL_MIN), (i64::MAX, INTERVAL_MAX)]
        {
            reporter.take(asked(&["a"], seconds));
            assert_eq!(reporter.interval, expected, "{seconds}");
        }
        let many: Vec<_> = (0..2 * DOMAINS_MAX).map(|it| it.to_string()).collect();
        reporter.take(asked(&many.iter().map(|it| &**it).collect::<Vec<_>>(), 1));
        assert_eq!((reporter.domains.len(), reporter.reported.len()), (DOMAINS_MAX, DOMAINS_MAX));
    }
}
