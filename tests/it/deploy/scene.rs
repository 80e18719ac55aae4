//! A pod under load, and a Prometheus that scrapes it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;

use super::control::Publishing;
use super::prometheus::Prometheus;
use crate::support::files::{dir_of, put};
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{self, Connection, descriptor};

/// A pod, with its load and its Prometheus, and a control plane beside them.
pub(super) struct Scene {
    /// Dropped before the pod.
    _load: JoinSet<()>,
    pub(super) prometheus: Prometheus,
    pub(super) pod: Ratelease,
    pub(super) publishing: Publishing,
    rules: TempDir,
}

/// The domain of Envoy Gateway, as in its dashboard.
pub(super) const GATEWAY_DOMAIN: &str = "default/eg/http";
pub(super) const GATEWAY_ROUTE: &str =
    "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
pub(super) const GATEWAY_MATCH: &str = "rule-0-match-0";

const SHOP: &str = "
domain: shop
descriptors:
  - {key: plenty, rate_limit: {unit: minute, requests_per_unit: 1000000}}
  - {key: few, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
";

/// Maximum time until each series has enough samples, and each query has a result.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The interval in [`configuration`].
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between two rounds of requests of a client.
const PAUSE: Duration = Duration::from_millis(20);
const CLIENTS: usize = 2;

// === impl Scene ===

impl Scene {
    /// Starts everything, with a pod on the nodes of a Redis Cluster, or on the store that `env`
    /// names; waits until some samples exist.
    pub(super) async fn set(redis: &[SocketAddr], env: &[(&str, &str)]) -> Self {
        let rules = rules();
        let metrics = format!("127.0.0.1:{}", free_port());
        let own = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", metrics.as_str())];
        let pod = Ratelease::start(rules.path(), redis, &[&own, env].concat()).await;
        let load = load(pod.grpc);
        let publishing = Publishing::start().await;
        let configuration = configuration(&metrics, publishing.control.http);
        let prometheus = Prometheus::start(&configuration).await;
        let scene = Self { _load: load, prometheus, pod, publishing, rules };
        // The duration of a change is known only after one.
        let more = "  - {key: more, rate_limit: {unit: day, requests_per_unit: 9}}\n";
        scene.write_rules(&format!("{SHOP}{more}"));
        scene.finds("count_over_time(ratelease_build_info[1m]) > 5").await;
        scene
    }

    /// Changes the rules of one domain.
    pub(super) fn write_rules(&self, text: &str) {
        put(self.rules.path().join("shop.yaml"), text);
    }

    /// Waits until an expression has a value.
    pub(super) async fn finds(&self, expression: &str) {
        let found = async || match self.prometheus.query(expression).await {
            Ok(values) => !values.is_empty(),
            Err(fault) => self.prometheus.process.fail(&format!("{expression}: {fault}")),
        };
        let what = format!("finding a value of {expression}");
        self.prometheus.process.until(&what, PATIENCE, found).await;
    }

    /// Waits until each of the expressions has a value.
    pub(super) async fn finds_each(&self, expressions: impl IntoIterator<Item = String>) {
        let mut without = expressions.into_iter().collect();
        let end = now() + PATIENCE;
        loop {
            without = self.without_value(without).await;
            if without.is_empty() {
                return;
            }
            assert!(now() < end, "{} without a value:\n{}", without.len(), without.join("\n"));
            tokio::time::sleep(SCRAPE_INTERVAL).await;
        }
    }

    /// The expressions that have no value yet.
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

/// The configuration shown in deploy/README.md, except for the interval. The label is that of Envoy
/// Gateway's pods.
fn configuration(metrics: &str, control: SocketAddr) -> String {
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
  - job_name: ratelease-control
    static_configs: [{{targets: ['{control}']}}]
",
        rules.display()
    )
}

fn rules() -> TempDir {
    let gateway = format!(
        "
domain: {GATEWAY_DOMAIN}
descriptors:
  - key: {GATEWAY_ROUTE}
    value: {GATEWAY_ROUTE}
    descriptors:
      - {{key: {GATEWAY_MATCH}, value: {GATEWAY_MATCH},
         rate_limit: {{unit: hour, requests_per_unit: 50}}}}
"
    );
    dir_of(&[("shop.yaml", SHOP), ("gateway.yaml", &gateway)])
}

fn request(domain: &str, entries: &[(&str, &str)]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(key, value)| descriptor(key, value));
    raw_grpc::request(domain, &[entries.collect()])
}

/// Sends one request of each kind per round, repeatedly; stops when dropped.
fn load(grpc: SocketAddr) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            let connection = Connection::open(grpc).await;
            let mut ticks = tokio::time::interval(PAUSE);
            for round in 0_u64.. {
                ticks.tick().await;
                // Ten keys, so that each shard owns some.
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
