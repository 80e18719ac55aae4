//! Reports hits of domains, and hot keys, to a control plane that asks for them: the load reporting
//! service (LRS), on the channel of the rules.
//!
//! A cluster is a domain, a request that was issued is a hit that passed, and one that was dropped
//! is a hit that was denied. Nothing is read or sent until the server asks. A report has what was
//! counted since the last one that was sent, also after a new connection, so that no hit is reported
//! twice.
//!
//! A server that asks for all clusters gets the busiest domains besides those that it names, and
//! the hottest keys. A key is a service of its cluster: its name is the key's hash, the path of its
//! rule and, with `HOT_KEYS_VALUES` only, its entries, each on a line; its hits are those of the last
//! one to two minutes, of which each report has all.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use ratelease_cli::settings::Xds;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::excerpt;
use ratelease_server::hot_keys::{HotKey, HotKeys, HottestKeys, PERIOD};
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

/// After a longer silence, hits of domains that the server does not name are none of the recent past,
/// which is what it shows.
const RECENT: Duration = Duration::from_secs(60);

/// Maximum number of domains that a server may name.
const DOMAINS_MAX: usize = 1000;

/// Maximum number of the other domains in a report, and of hot keys.
const BUSIEST_MAX: usize = 32;
const KEYS_MAX: usize = 10;

/// The keys that are denied most, among which those of the report are looked for.
const DENIED_MAX: usize = 100;

/// What the node of a client says that may be asked for all clusters.
const ALL_CLUSTERS: &str = "envoy.lrs.supports_send_all_clusters";

/// Maximum bytes of a response: a name takes 24 bytes of memory besides, and as few as two in it.
const RESPONSE_BYTES_MAX: usize = 512 << 10;

/// Pause before a server is asked again that ended the stream, and one that has no such service.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
const UNKNOWN_PAUSE: Duration = Duration::from_secs(3600);

/// The category of hits that would have been denied, but for shadow mode.
const SHADOW: &str = "shadow";

/// The category of hits that candidate rules were not tried on.
const LEFT_OUT: &str = "left_out";

/// What is reported, over all connections.
#[derive(Debug)]
pub struct LoadReporter {
    meters: Meters,
    hot_keys: HotKeys,
    clock: Clock,
    /// The domains that the server names.
    named: Vec<String>,
    /// Whether it asks for the others too, and for hot keys.
    wants_all: bool,
    interval: Duration,
    /// The hits of each domain that were reported, or that were counted before the server asked.
    reported: HashMap<Box<str>, DomainHits>,
    reported_at: Time,
}

/// Ends the reports of a connection when it is dropped.
#[derive(Debug)]
pub struct Reporting(pub AbortHandle);

impl Drop for Reporting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reports on this channel, for as long as it is the channel of the rules. Does not return.
pub async fn report(
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
    let node = Node { client_features: vec![ALL_CLUSTERS.to_owned()], ..node.clone() };
    let first = LoadStatsRequest { node: Some(node), cluster_stats: Vec::new() };
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
            if is_asked && reporter.wants_any() {
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
    pub fn new((meters, hot_keys): (Meters, HotKeys), clock: Clock) -> Self {
        let named = Vec::new();
        let reported = HashMap::new();
        let interval = INTERVAL_MAX;
        let reported_at = clock.now();
        Self { meters, hot_keys, clock, named, wants_all: false, interval, reported, reported_at }
    }

    fn wants_any(&self) -> bool {
        self.wants_all || !self.named.is_empty()
    }

    /// Takes what the server asks for. Hits of a domain that it did not ask for before, or now asks
    /// for by name, count from now on; and so do those of the others after a long silence.
    fn take(&mut self, response: LoadStatsResponse) {
        let interval = response.load_reporting_interval.unwrap_or_default();
        let seconds = u64::try_from(interval.seconds).unwrap_or_default();
        let nanos = u32::try_from(interval.nanos).unwrap_or_default().min(999_999_999);
        self.interval = Duration::new(seconds, nanos).clamp(INTERVAL_MIN, INTERVAL_MAX);
        if !self.wants_any() {
            self.reported_at = self.clock.now();
        }
        let mut named = response.clusters;
        named.truncate(DOMAINS_MAX);
        named.sort();
        named.dedup();
        let former = std::mem::replace(&mut self.named, named);
        let is_recent = self.clock.now().since(self.reported_at) <= RECENT;
        let all_before = std::mem::replace(&mut self.wants_all, response.send_all_clusters);
        let all_before = all_before && is_recent;
        let mut reported = self.meters.hits_by_domain();
        for (domain, hits) in &mut reported {
            let goes_on = has(&former, domain) || (all_before && !has(&self.named, domain));
            if goes_on {
                *hits = self.reported.get(domain).copied().unwrap_or_default();
            }
        }
        self.reported = reported;
    }

    /// What was counted since the last report.
    fn report(&mut self) -> LoadStatsRequest {
        let now = self.clock.now();
        let interval = now.since(self.reported_at);
        self.reported_at = now;
        let hits = self.meters.hits_by_domain();
        let former = std::mem::take(&mut self.reported);
        let of =
            |hits: &HashMap<_, DomainHits>, it: &str| hits.get(it).copied().unwrap_or_default();
        let since = |domain: &str| of(&hits, domain).since(&of(&former, domain));
        let named = self.named.iter().map(|it| cluster_stats(it, &since(it), interval));
        let mut stats: Vec<_> = named.collect();
        if self.wants_all {
            let others = hits.keys().filter(|it| !has(&self.named, it));
            let mut others: Vec<_> = others.map(|it| (it, since(it))).collect();
            others.retain(|(_, hits)| hits.total > 0);
            others.sort_unstable_by_key(|(domain, hits)| (Reverse(hits.total), *domain));
            let busiest = others.into_iter().take(BUSIEST_MAX);
            stats.extend(busiest.map(|(domain, hits)| cluster_stats(domain, &hits, interval)));
            stats.extend(self.hottest());
        }
        self.reported = hits;
        LoadStatsRequest { node: None, cluster_stats: stats }
    }

    /// The hottest keys of rules, hottest first.
    fn hottest(&self) -> Vec<ClusterStats> {
        let HottestKeys { requested, denied } = self.hot_keys.top(DENIED_MAX);
        let denied: HashMap<_, _> = denied.iter().map(|it| (&*it.key, it.count)).collect();
        let stats = |key: &HotKey| {
            let denied = denied.get(&*key.key).map_or(0, |count| key.count.min(*count));
            let hits = DomainHits { total: key.count, denied, ..DomainHits::default() };
            let domain = key.domain.as_deref()?;
            Some(ClusterStats {
                cluster_service_name: key_text(key),
                ..cluster_stats(domain, &hits, PERIOD)
            })
        };
        requested.iter().filter_map(stats).take(KEYS_MAX).collect()
    }
}

/// The hash of a key, its rule, and its entries if they may be shown.
fn key_text(HotKey { key, rule, values, .. }: &HotKey) -> String {
    let lines = [Some(key.clone()), Some(excerpt(rule)), values.as_deref().map(excerpt)];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// Whether a domain is one of these, which are in order.
fn has(names: &[String], domain: &str) -> bool {
    names.binary_search_by(|name| name.as_str().cmp(domain)).is_ok()
}

fn cluster_stats(domain: &str, hits: &DomainHits, interval: Duration) -> ClusterStats {
    let DomainHits { total, denied, shadow, left_out } = *hits;
    let locality = UpstreamLocalityStats {
        total_issued_requests: total - denied,
        ..UpstreamLocalityStats::default()
    };
    let dropped = [(SHADOW, shadow), (LEFT_OUT, left_out)].into_iter().filter(|it| it.1 > 0);
    let dropped = dropped.map(|(category, dropped_count)| {
        let category = category.to_owned();
        DroppedRequests { category, dropped_count }
    });
    ClusterStats {
        cluster_name: domain.to_owned(),
        upstream_locality_stats: vec![locality],
        total_dropped_requests: denied,
        dropped_requests: dropped.collect(),
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

    /// Counts a hit of each of these domains.
    fn hit(meters: &Meters, domains: &[&str]) {
        for domain in domains {
            let text = format!(
                "domain: {domain}\ndescriptors:\n- key: a\n  rate_limit: {{unit: hour, \
                 requests_per_unit: 5}}\n"
            );
            let source = Source { name: "a".into(), text: text.into() };
            let rules = load(&[source], Options::default()).unwrap().rules;
            let entries = [Entry { key: "a", value: "" }].into_iter().collect();
            let descriptor = Descriptor { entries, ..Descriptor::default() };
            let descriptors = [descriptor].into_iter().collect();
            let call = Call { domain, descriptors, hits_addend: 1 };
            meters.note_unanswered(&call, &resolve(&rules, &call, &KeyHasher::new("")));
        }
    }

    fn reporter(meters: &Meters) -> LoadReporter {
        LoadReporter::new((meters.clone(), HotKeys::default()), Clock::start())
    }

    fn asked(domains: &[&str], seconds: i64) -> LoadStatsResponse {
        LoadStatsResponse {
            clusters: domains.iter().map(|it| (*it).to_owned()).collect(),
            load_reporting_interval: Some(wire::Duration { seconds, nanos: 0 }),
            ..LoadStatsResponse::default()
        }
    }

    /// Asks for all clusters.
    fn all(named: &[&str]) -> LoadStatsResponse {
        LoadStatsResponse { send_all_clusters: true, ..asked(named, 1) }
    }

    /// The hits of each domain of a report.
    fn hits(report: &LoadStatsRequest) -> Vec<(&str, u64)> {
        let issued = |it: &ClusterStats| it.upstream_locality_stats[0].total_issued_requests;
        report.cluster_stats.iter().map(|it| (&*it.cluster_name, issued(it))).collect()
    }

    #[test]
    fn a_hit_is_reported_once_and_only_if_it_came_after_the_question() {
        let meters = Meters::default();
        let mut reporter = reporter(&meters);
        hit(&meters, &["shop"]);
        reporter.take(asked(&["shop"], 1));
        assert_eq!(hits(&reporter.report()), [("shop", 0)]);
        hit(&meters, &["shop", "shop"]);
        assert_eq!(hits(&reporter.report()), [("shop", 2)]);
        hit(&meters, &["shop"]);
        // The same question on another connection.
        reporter.take(asked(&["bank", "shop"], 1));
        assert_eq!(hits(&reporter.report()), [("bank", 0), ("shop", 1)]);
        reporter.take(asked(&[], 1));
        hit(&meters, &["shop"]);
        assert_eq!(hits(&reporter.report()), []);
        reporter.take(asked(&["shop"], 1));
        assert_eq!(hits(&reporter.report()), [("shop", 0)]);
    }

    #[test]
    fn all_domains_are_those_with_hits_and_one_that_is_named_begins_again() {
        let meters = Meters::default();
        let mut reporter = reporter(&meters);
        hit(&meters, &["bank", "shop"]);
        reporter.take(all(&[]));
        assert_eq!(hits(&reporter.report()), []);
        hit(&meters, &["bank", "lab", "shop", "shop"]);
        reporter.take(all(&[])); // on another connection
        assert_eq!(hits(&reporter.report()), [("shop", 2), ("bank", 1), ("lab", 1)]);
        // Hits of a step of a rollout are those after the question.
        hit(&meters, &["bank", "shop"]);
        reporter.take(all(&["shop"]));
        hit(&meters, &["shop"]);
        assert_eq!(hits(&reporter.report()), [("shop", 1), ("bank", 1)]);
        hit(&meters, &["shop"]);
        reporter.take(all(&[]));
        assert_eq!(hits(&reporter.report()), [("shop", 1)]);
    }

    #[test]
    fn a_report_has_the_busiest_domains_only() {
        let meters = Meters::default();
        let mut reporter = reporter(&meters);
        reporter.take(all(&[]));
        let names: Vec<_> = (0..3 * BUSIEST_MAX).map(|at| format!("d{at:03}")).collect();
        let names: Vec<_> = names.iter().map(|it| &**it).collect();
        hit(&meters, &names);
        hit(&meters, &names[BUSIEST_MAX..]);
        hit(&meters, &names[2 * BUSIEST_MAX..]);
        let report = reporter.report();
        let expected: Vec<_> = names[2 * BUSIEST_MAX..].iter().map(|it| (*it, 3)).collect();
        assert_eq!(hits(&report), expected);
    }

    #[test]
    fn a_key_has_its_entries_only_if_they_are_kept_and_its_text_is_bounded() {
        let key = |values: Option<&str>| HotKey {
            key: "1b".into(),
            rule: format!("shop.user_{}\n", "é".repeat(5000)),
            domain: Some("shop".into()),
            count: 4,
            share: 0.5,
            values: values.map(str::to_owned),
        };
        let lines = |key: &HotKey| key_text(key).lines().map(str::to_owned).collect::<Vec<_>>();
        let hidden = lines(&key(None));
        assert_eq!((hidden.len(), &*hidden[0]), (2, "1b"));
        assert!(hidden[1].starts_with("shop.user_é") && hidden[1].len() < 200, "{hidden:?}");
        let shown = lines(&key(Some("user=\n7")));
        assert_eq!(shown[2], "user=\\n7");
    }

    #[test]
    fn what_a_server_asks_for_is_bounded() {
        let mut reporter = reporter(&Meters::default());
        for (seconds, expected) in [(-5, INTERVAL_MIN), (0, INTERVAL_MIN), (i64::MAX, INTERVAL_MAX)]
        {
            reporter.take(asked(&["a"], seconds));
            assert_eq!(reporter.interval, expected, "{seconds}");
        }
        let many: Vec<_> = (0..2 * DOMAINS_MAX).map(|it| it.to_string()).collect();
        reporter.take(asked(&many.iter().map(|it| &**it).collect::<Vec<_>>(), 1));
        assert_eq!(
            (reporter.named.len(), hits(&reporter.report()).len()),
            (DOMAINS_MAX, DOMAINS_MAX)
        );
    }
}
