//! A real Prometheus reads a real pod under load; then each query of the dashboards, and each
//! expression of the rules, has to find what it asks for.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::board;
use super::prometheus::Prometheus;
use crate::support::now;
use crate::support::process::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, bytes_field};
use crate::support::redis::Cluster;

/// Of Envoy Gateway, as its dashboard has it.
const GATEWAY_DOMAIN: &str = "default/eg/http";
const GATEWAY_ROUTE: &str = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
const GATEWAY_MATCH: &str = "rule-0-match-0";

/// Metrics that are named here and that no part exposes yet. One that is there leaves this list.
const AWAITED: [&str; 1] = ["ratelease_shard_hot_key"];

/// Until each series has samples enough, and each query its answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two rounds of requests of a client.
const PAUSE: Duration = Duration::from_millis(20);
const CLIENTS: usize = 2;

fn rules() -> TempDir {
    let dir = TempDir::new().unwrap();
    let shop = "
domain: shop
descriptors:
  - {key: plenty, rate_limit: {unit: minute, requests_per_unit: 1000000}}
  - {key: few, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
";
    let gateway = format!(
        "
domain: {GATEWAY_DOMAIN}
descriptors:
  - key: {GATEWAY_ROUTE}
    value: {GATEWAY_ROUTE}
    descriptors:
      - {{key: {GATEWAY_MATCH}, value: {GATEWAY_MATCH},
         rate_limit: {{unit: hour, requests_per_unit: 3}}}}
"
    );
    fs::write(dir.path().join("shop.yaml"), shop).unwrap();
    fs::write(dir.path().join("gateway.yaml"), gateway).unwrap();
    dir
}

fn add_rule(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    let more = "  - {key: more, rate_limit: {unit: day, requests_per_unit: 9}}\n";
    fs::write(file, text + more).unwrap();
}

fn request(domain: &str, entries: &[(&str, &str)]) -> Vec<u8> {
    let entry = |(key, value): &(&str, &str)| {
        bytes_field(1, [bytes_field(1, key), bytes_field(2, value)].concat())
    };
    let descriptor = entries.iter().flat_map(entry).collect::<Vec<_>>();
    [bytes_field(1, domain), bytes_field(2, descriptor)].concat()
}

/// Sends one request of each kind a round, over and over; dropped, it ends.
fn load(grpc: SocketAddr) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            let connection = Connection::open(grpc).await;
            let mut ticks = tokio::time::interval(PAUSE);
            for round in 0_u64.. {
                ticks.tick().await;
                // Ten keys, so that each shard has some.
                let user = format!("{client}-{}", round % 5);
                for message in [
                    request("shop", &[("plenty", &user)]),
                    request("shop", &[("few", &user)]),
                    request("shop", &[("shadow", &user)]),
                    request(
                        GATEWAY_DOMAIN,
                        &[(GATEWAY_ROUTE, GATEWAY_ROUTE), (GATEWAY_MATCH, GATEWAY_MATCH)],
                    ),
                ] {
                    connection.call(&message).await;
                }
            }
        });
    }
    clients
}

/// One pod of a Redis Cluster under load, and a Prometheus that reads it.
struct Scene {
    /// Ends before the pod does.
    _load: JoinSet<()>,
    prometheus: Prometheus,
    pod: Ratelease,
    _rules: TempDir,
}

// === impl Scene ===

impl Scene {
    async fn set() -> Self {
        let rules = rules();
        let metrics = format!("127.0.0.1:{}", free_port());
        let env = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", metrics.as_str())];
        let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &env).await;
        let load = load(pod.grpc);
        // How long a change takes is known once there is one.
        add_rule(&rules.path().join("shop.yaml"));
        let prometheus = Prometheus::start(&configuration(&metrics)).await;
        let scene = Self { _load: load, prometheus, pod, _rules: rules };
        scene.finds("count_over_time(ratelease_build_info[1m]) > 5").await;
        scene
    }

    /// Waits until an expression has a value.
    async fn finds(&self, expression: &str) {
        let found = async || match self.prometheus.query(expression).await {
            Ok(values) => !values.is_empty(),
            Err(fault) => self.prometheus.process.fail(&format!("{expression}: {fault}")),
        };
        let what = format!("finding a value of {expression}");
        self.prometheus.process.until(&what, PATIENCE, found).await;
    }

    /// Waits until each of the expressions has a value, [`AWAITED`] apart.
    async fn finds_each(&self, expressions: impl IntoIterator<Item = String>) {
        let is_awaited = |text: &String| AWAITED.iter().any(|metric| text.contains(metric));
        let (awaited, mut without): (Vec<_>, Vec<_>) =
            expressions.into_iter().partition(is_awaited);
        let end = now() + PATIENCE;
        while !without.is_empty() {
            without = self.without_value(without).await;
            assert!(now() < end, "{} without a value:\n{}", without.len(), without.join("\n"));
        }
        let still = self.without_value(awaited.clone()).await;
        assert_eq!(still, awaited, "those that are there leave the list of the awaited");
    }

    /// Those of the expressions that have no value yet.
    async fn without_value(&self, expressions: Vec<String>) -> Vec<String> {
        let mut without = Vec::new();
        for expression in expressions {
            match self.prometheus.query(&expression).await {
                Ok(values) if !values.is_empty() => {}
                Ok(_) => without.push(expression),
                Err(fault) => panic!("{expression}: {fault}"),
            }
        }
        without
    }
}

/// As deploy/README.md shows it, but for the interval. The label is that of Envoy Gateway's pods.
fn configuration(metrics: &str) -> String {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join(super::RULES);
    format!(
        "
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ['{}']
scrape_configs:
  - job_name: ratelease
    static_configs:
      - targets: ['{metrics}']
        labels: {{app_kubernetes_io_component: ratelimit}}
",
        rules.display()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_the_dashboards_and_the_rules_finds_data() {
    let scene = Scene::set().await;
    ours(&scene).await;
    envoy_gateways(&scene).await;
    alerts(&scene).await;
    scene.pod.is_unharmed();
}

async fn ours(scene: &Scene) {
    let board: Value = serde_json::from_str(&super::read(super::DASHBOARD)).unwrap();
    for board::Variable { label, selector } in board::variables(&board) {
        let values = scene.prometheus.label_values(&label, &selector).await;
        assert!(
            values.as_ref().is_ok_and(|it| !it.is_empty()),
            "{label} of {selector}: {values:?}"
        );
    }
    let queries = board::queries(&board);
    assert!(queries.len() > 50, "{} queries", queries.len());
    scene.finds_each(queries).await;
}

/// The queries of the dashboard that Envoy Gateway ships for the reference. One more,
/// `go_memstats_gc_cpu_fraction`, is about the collector of garbage that we have not.
async fn envoy_gateways(scene: &Scene) {
    let route = format!("{GATEWAY_ROUTE}_{GATEWAY_ROUTE}");
    let labels = format!(
        "domain=\"{GATEWAY_DOMAIN}\", key1=\"{route}\", key2=\"{GATEWAY_MATCH}_{GATEWAY_MATCH}\""
    );
    let mut queries: Vec<_> = ["total_hits", "near_limit", "over_limit"]
        .map(|name| format!("ratelimit_service_rate_limit_{name}{{{labels}}}"))
        .into();
    for size in ["resident", "virtual"] {
        let of_pods = "{app_kubernetes_io_component=\"ratelimit\"}";
        queries.push(format!("(process_{size}_memory_bytes{of_pods})/1000000"));
    }
    scene.finds_each(queries.clone()).await;
    // Three pass in an hour, of which the third is near the limit.
    scene.finds(&format!("{} > 3", queries[0])).await;
    scene.finds(&format!("{} > 0", queries[2])).await;
}

async fn alerts(scene: &Scene) {
    let evaluated = async || {
        let rules = rules_of(&scene.prometheus).await;
        rules.iter().all(|rule| rule["health"] != "unknown")
    };
    scene.prometheus.process.until("done with each rule once", PATIENCE, evaluated).await;
    let rules = rules_of(&scene.prometheus).await;
    assert!(rules.len() > 20, "{} rules", rules.len());
    let mut metrics = BTreeSet::new();
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        metrics.extend(names(rule["query"].as_str().expect("a query")));
    }
    // An expression about a metric that is not there evaluates well, and never fires.
    scene.finds_each(metrics).await;
}

async fn rules_of(prometheus: &Prometheus) -> Vec<Value> {
    let data = prometheus.get("rules").await.expect("rules");
    let groups = data["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
}

/// The metrics that an expression names.
fn names(expression: &str) -> impl Iterator<Item = String> {
    // Every other part is a string.
    let code = expression.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words: Vec<_> = code.split(|c| !is_of_name(c)).map(str::to_owned).collect();
    words
        .into_iter()
        .filter(|word| word == "up" || word.contains(':') || word.starts_with("ratelease_"))
}

#[test]
fn the_metrics_of_an_expression_are_found_and_nothing_else() {
    let expression =
        "sum by (job) (rate(ratelease_a_total{how=~\"ratelease_x\"}[2m])) > up / a:b:c";
    let found: Vec<_> = names(expression).collect();
    assert_eq!(found, ["ratelease_a_total", "up", "a:b:c"]);
}
