//! What pods report of a rollout, and what becomes of one that denies too much.

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_stats::DroppedRequests;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterStats, UpstreamLocalityStats};
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
use load_stats::load_reporting_service_client::LoadReportingServiceClient;
use load_stats::{LoadStatsRequest, LoadStatsResponse};
use ratelease_control::{CountKey, HitCount, ReplicaCount, Store};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::pods::{Pod, RULES, channel};
use super::rollouts::{node_in, prepare, shop_of, to_zone_a, version_of};
use super::support::{Call, Place, SOON, Server, places, wait_for, wait_for_seen};
use super::tokens::token;

/// A pod that reports what a test tells it, on the connection of its rules.
pub(super) struct Reporter {
    pub(super) pod: Pod,
    reports: mpsc::Sender<LoadStatsRequest>,
    asked: Streaming<LoadStatsResponse>,
}

// === impl Reporter ===

impl Reporter {
    pub(super) async fn connect(server: &Server, node: Node) -> Self {
        let channel = channel(server.pods).await;
        let pod = Pod::over(channel.clone(), node.clone(), &[RULES]).await;
        let (reports, waiting) = mpsc::channel(8);
        let first = LoadStatsRequest { node: Some(node), cluster_stats: Vec::new() };
        reports.send(first).await.unwrap();
        let mut client = LoadReportingServiceClient::new(channel);
        let asked = client.stream_load_stats(ReceiverStream::new(waiting)).await.unwrap();
        Self { pod, reports, asked: asked.into_inner() }
    }

    /// Accepts the next set, which is of this version.
    async fn runs(&mut self, version: &str) -> DiscoveryResponse {
        let set = self.pod.next().await;
        assert_eq!(set.version_info, version);
        self.pod.accept(&set).await;
        set
    }

    /// The domains that the server asks for by name next, besides all others.
    pub(super) async fn asked(&mut self) -> Vec<String> {
        // The server asks again after 20 s, which is as long as `SOON`.
        let asked = timeout(2 * SOON, self.asked.message()).await.expect("a question in time");
        let asked = asked.unwrap().expect("the stream goes on");
        assert!(asked.send_all_clusters);
        asked.clusters
    }

    /// Reports hits of `shop` that passed, were denied, and would have been denied.
    async fn report(&self, passed: u64, denied: u64, shadow: u64) {
        self.report_of(vec![stats("shop", passed, denied, shadow)]).await;
    }

    pub(super) async fn report_of(&self, cluster_stats: Vec<ClusterStats>) {
        let report = LoadStatsRequest { node: None, cluster_stats };
        self.reports.send(report).await.unwrap();
    }
}

/// Hits of a domain that passed, were denied, and would have been denied.
pub(super) fn stats(domain: &str, passed: u64, denied: u64, shadow: u64) -> ClusterStats {
    let locality =
        UpstreamLocalityStats { total_issued_requests: passed, ..UpstreamLocalityStats::default() };
    let shadow = DroppedRequests { category: "shadow".into(), dropped_count: shadow };
    ClusterStats {
        cluster_name: domain.to_owned(),
        upstream_locality_stats: vec![locality],
        total_dropped_requests: denied,
        dropped_requests: vec![shadow],
        ..ClusterStats::default()
    }
}

/// A pod of zone a that runs version 2 of a rollout and has reported once.
async fn chosen(server: &Server, id: &str) -> Reporter {
    let mut pod = Reporter::connect(server, node_in(id, "a")).await;
    pod.runs("2").await;
    assert_eq!(pod.asked().await, ["shop"]);
    pod
}

/// Waits until so many streams are known, and all of them run this version.
async fn all_run(server: &Server, count: usize, version: i64) {
    let are = async || {
        let pods = super::pods::pods(server).await;
        let all = pods.iter().all(|it| it["accepted"] == version);
        (pods.len() == count && all).then_some(())
    };
    wait_for(&format!("list of {count} pods that run {version}"), are).await;
}

/// Waits for the rollout to be as `is` wants it.
async fn rollout_is(server: &Server, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let probe = async || {
        let found = server.json("/v1/rollouts/1").await;
        if is(&found) { Ok(found) } else { Err(found) }
    };
    wait_for_seen(what, probe).await
}

/// A rollout to zone a that is rolled back above a twentieth.
fn bounded(stage: &str) -> Value {
    let mut body = to_zone_a(stage);
    body["bound"] = json!({"denied_share": 0.05, "hits_min": 100});
    body
}

#[tokio::test]
async fn hits_of_both_groups_are_shown_side_by_side_and_only_those_of_the_step() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare(&server).await;
    let mut chosen = Reporter::connect(&server, node_in("one", "a")).await;
    let mut other = Reporter::connect(&server, node_in("two", "b")).await;
    chosen.runs("1").await;
    other.runs("1").await;
    for pod in [&mut chosen, &mut other] {
        assert_eq!(pod.asked().await, Vec::<String>::new(), "no rollout");
    }
    server.post("/v1/rollouts", &bounded("shadow")).await;
    for pod in [&mut chosen, &mut other] {
        assert_eq!(pod.asked().await, ["shop", "shop@candidate"]);
    }
    chosen.runs("2").await;
    other.runs("2").await;
    all_run(&server, 2, 2).await;
    // It was asked before it had the rules of the step: its first report has hits of others.
    chosen.report(1000, 1000, 0).await;
    other.report(0, 0, 0).await;
    // What the rules in force have in shadow mode themselves is no part of what the draft denies.
    // That rules in force deny more than the bound allows rolls nothing back.
    chosen.report_of(vec![stats("shop", 170, 20, 7), stats("shop@candidate", 150, 0, 40)]).await;
    chosen.report(10, 0, 0).await;
    // What contradicts itself does not count.
    other.report(u64::MAX, 1, 0).await;
    other.report(1, 0, 2).await;
    other.report(95, 5, 0).await;
    // Hits and pods reach the database one without the other.
    let pods = json!({"connected": 1, "current": 1, "refused": 0, "without_reports": 0});
    let is_counted = |it: &Value| {
        let of = |group: &str, hits: u64| {
            it["domains"][0][group]["hits"] == hits && it["pods"][group] == pods
        };
        of("chosen", 200) && of("others", 100)
    };
    let shown = rollout_is(&server, "hits and pods of both groups", is_counted).await;
    let domain = &shown["domains"][0];
    assert_eq!(domain["chosen"]["shadow_denied_share"], 0.2, "{shown}");
    assert_eq!(domain["chosen"]["denied_share"], 0.1, "{shown}");
    assert_eq!(domain["others"]["denied_share"], 0.05, "{shown}");
    // What would be denied is above the bound: the next step has to be forced.
    let advance = "/v1/rollouts/1/advance";
    let refused = server.post(advance, &json!({"stage": "enforced"})).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text.contains("40 of 200 hits (20.0 %)"), "{refused:?}");
    let forced = server.post(advance, &json!({"stage": "enforced", "force": true})).await;
    assert_eq!(version_of(&forced, 200), "3");
    assert_eq!(chosen.asked().await, ["shop"], "there are no candidate rules now");
    // Counts of a stage are its own.
    let shown = server.json("/v1/rollouts/1").await;
    assert_eq!(shown["domains"][0]["chosen"]["hits"], 0, "{shown}");
    server.post("/v1/rollouts/1/abort", &Value::Null).await;
    assert_eq!(chosen.asked().await, Vec::<String>::new());
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("ratelease_control_load_reports_total"), "{metrics}");
    assert!(!metrics.contains("ratelease_control_load_reports_total 0\n"), "{metrics}");
    server.stop().await;
}

#[tokio::test]
async fn a_bound_that_is_exceeded_rolls_back_once_whichever_replica_sees_it() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        let mut replicas = vec![server];
        if place.postgres.is_some() {
            replicas.push(place.serve().await);
        }
        let (first, last) = (&replicas[0], &replicas[replicas.len() - 1]);
        let mut pods = Vec::new();
        for (server, id) in [(first, "one"), (last, "two")] {
            let mut pod = Reporter::connect(server, node_in(id, "a")).await;
            pod.runs("1").await;
            assert_eq!(pod.asked().await, Vec::<String>::new());
            pods.push(pod);
        }
        first.post("/v1/rollouts", &bounded("enforced")).await;
        for pod in &mut pods {
            assert_eq!(pod.asked().await, ["shop"]);
            let set = pod.runs("2").await;
            assert!(shop_of(&set).contains("requests_per_unit: 3"));
        }
        all_run(first, 2, 2).await;
        for pod in &pods {
            pod.report(0, 0, 0).await;
            pod.report(60, 0, 0).await;
        }
        // Both are above the bound together, and neither has enough hits alone.
        for pod in &pods {
            pod.report(0, 5, 0).await;
        }
        for pod in &mut pods {
            let set = pod.runs("3").await;
            assert!(shop_of(&set).contains("requests_per_unit: 5"), "{}", shop_of(&set));
        }
        let shown = last.json("/v1/rollouts/1").await;
        assert_eq!(shown["stage"], "rolled_back", "{shown}");
        let step = &shown["steps"][1];
        assert_eq!((&step["author"], &step["version"]), (&json!("rollout"), &json!(3)));
        let reason = step["reason"].as_str().unwrap();
        assert!(reason.contains("'shop'") && reason.contains("the bound is 5.0 %"), "{reason}");
        let log = first.json("/v1/audit").await.to_string();
        assert_eq!(log.matches("rollout.rolled_back").count(), 1, "{log}");
        assert_eq!(log.matches(reason).count(), 1, "{log}");
        let mut rolled_back = 0;
        for server in &replicas {
            let metrics = server.get("/metrics").await.text;
            rolled_back += metrics.matches("ratelease_control_rollbacks_total 1\n").count();
        }
        assert_eq!(rolled_back, 1);
        for server in replicas {
            server.stop().await;
        }
    }
}

#[tokio::test]
async fn a_rollout_that_exceeds_its_bound_while_the_database_is_away_is_rolled_back_later() {
    let mut place = Place::postgres().await;
    let server = place.serve().await;
    prepare(&server).await;
    let mut pod = Reporter::connect(&server, node_in("one", "a")).await;
    pod.runs("1").await;
    assert_eq!(pod.asked().await, Vec::<String>::new());
    server.post("/v1/rollouts", &bounded("enforced")).await;
    assert_eq!(pod.asked().await, ["shop"]);
    pod.runs("2").await;
    all_run(&server, 1, 2).await;
    pod.report(0, 0, 0).await;
    place.postgres.as_mut().unwrap().kill();
    pod.report(100, 100, 0).await;
    pod.pod.gets_nothing().await;
    place.postgres.as_mut().unwrap().restart().await;
    pod.runs("3").await;
    let shown = rollout_is(&server, "a roll back", |it| it["stage"] == "rolled_back").await;
    let reason = shown["steps"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("100 of 200 hits (50.0 %)"), "{reason}");
    let create = ["create", "--name", "ci", "--access", "read", "--domains", "shop"];
    let shop = token(&place, &create).await.unwrap();
    for path in ["/v1/rollouts/1", "/v1/versions"] {
        let seen = server.send(Call::new("GET", path).token(&shop)).await;
        assert!(seen.text.contains("denied too much") && !seen.text.contains("hits ("), "{seen:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_the_hits_do_not_say_is_said() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare(&server).await;
    // A pod of an earlier release, and one that has its id.
    let (mut silent, _) = super::rollouts::running(&server, "default", "a").await;
    let mut other = Reporter::connect(&server, node_in("default", "b")).await;
    other.runs("1").await;
    all_run(&server, 2, 1).await;
    server.post("/v1/rollouts", &json!({"pods": {"percent": 100}})).await;
    let set = silent.next().await;
    silent.accept(&set).await;
    other.runs("2").await;
    let is_told = |it: &Value| {
        it["pods"]["chosen"]["without_reports"] == 1 && it["pods"]["chosen"]["current"] == 2
    };
    let shown = rollout_is(&server, "a pod without reports", is_told).await;
    let text = shown["warnings"].to_string();
    for part in ["1 of 2 chosen pods report no hits", "the node id 'default'", "no hits yet"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Nothing goes forward by itself.
    assert_eq!(shown["stage"], "shadow");
    server.stop().await;
}

#[tokio::test]
async fn one_pod_of_several_neither_forces_nor_prevents_a_roll_back() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        server.post("/v1/rollouts", &bounded("enforced")).await;
        super::rollouts::pushed(&server, 2).await;
        let mut honest = Vec::new();
        for id in ["one", "two", "three", "four"] {
            honest.push(chosen(&server, id).await);
        }
        let liar = chosen(&server, "five").await;
        all_run(&server, 5, 2).await;
        for pod in honest.iter().chain([&liar]) {
            pod.report(0, 0, 0).await;
        }
        for pod in &honest {
            pod.report(1000, 0, 0).await;
        }
        liar.report(0, 1 << 39, 0).await;
        let is_counted = |it: &Value| {
            it["domains"][0]["chosen"]["denied"].as_u64().is_some_and(|denied| denied > 0)
        };
        let shown = rollout_is(&server, "hits of the liar", is_counted).await;
        // More hits than a pod can have are not counted: a million for each second since its report
        // before, of at most a minute.
        let denied = shown["domains"][0]["chosen"]["denied"].as_u64().unwrap();
        assert!(denied.is_multiple_of(1_000_000) && denied <= 60_000_000, "{shown}");
        for pod in &mut honest {
            pod.pod.gets_nothing().await;
        }
        assert_eq!(server.json("/v1/rollouts/1").await["stage"], "enforced");
        // It hides what the others deny just as little.
        liar.report(1 << 39, 0, 0).await;
        for pod in &honest {
            pod.report(500, 500, 0).await;
        }
        for pod in &mut honest {
            pod.runs("3").await;
        }
        assert_eq!(server.json("/v1/rollouts/1").await["stage"], "rolled_back");
        server.stop().await;
    }
}

/// Hits that are all recent, and evidence.
fn counted(all: HitCount) -> ReplicaCount {
    ReplicaCount { all, weighed: all, is_evidence: true, recent: all }
}

#[tokio::test]
async fn counts_that_are_written_again_count_once_and_sums_stay_in_their_range() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        server.post("/v1/rollouts", &bounded("shadow")).await;
        let store = Store::open(&place.database()).await.unwrap();
        let key = CountKey { version: 2, domain: "shop".to_owned(), is_chosen: true };
        let count = HitCount { hits: 100, denied: 10, ..HitCount::default() };
        let counts = [(key.clone(), counted(count))];
        for _ in 0..2 {
            store.replace_hits(7, &counts).await.unwrap();
        }
        let hits = store.hits(2).await.unwrap();
        assert_eq!([&hits.all, &hits.weighed, &hits.recent].map(|it| it[&key]), [count; 3]);
        let most =
            HitCount { hits: u64::MAX, denied: u64::MAX, shadow: u64::MAX, left_out: u64::MAX };
        let counts = [(key.clone(), counted(most))];
        for replica in 8..12 {
            store.replace_hits(replica, &counts).await.unwrap();
        }
        assert_eq!(store.hits(2).await.unwrap().all[&key].hits, u64::MAX);
        let hits = server.json("/v1/rollouts/1").await["domains"][0]["chosen"]["hits"].clone();
        assert_eq!(hits, u64::MAX);
        assert_eq!(server.json("/v1/rollouts").await["rollouts"][0]["rollout"], 1);
        store.close().await;
        server.stop().await;
    }
}
