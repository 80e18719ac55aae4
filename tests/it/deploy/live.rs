//! A real Prometheus scrapes a real pod under load; then each query of the dashboards, and each
//! expression of the rules, must find its metrics, and alerts must rise when they should.

use std::collections::BTreeSet;

use serde_json::Value;

use super::board;
use super::prometheus::Prometheus;
use super::scene::{GATEWAY_DOMAIN, GATEWAY_MATCH, GATEWAY_ROUTE, PATIENCE, Scene};
use crate::support::redis::{Cluster, Single};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_the_dashboards_and_the_rules_finds_data() {
    let scene = Scene::set(&Cluster::shared().places(), &[]).await;
    ours(&scene).await;
    envoy_gateways(&scene).await;
    alerts(&scene).await;
    // A pod of the control plane that answers nothing.
    scene.publishing.pod.process.signal("STOP");
    scene.finds(&raised("RateleaseControlLagging")).await;
    scene.pod.is_unharmed();
}

/// Alerts wait before they fire: this test only checks that they are pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_rise_when_redis_is_gone_and_rules_are_refused() {
    let redis = Single::start();
    let url = format!("127.0.0.1:{}", redis.server.port());
    let env = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url)];
    let scene = Scene::set(&[], &env).await;
    for (alert, is_raised) in [
        ("RateleaseRejectionsHigh", true),
        ("RateleaseRulesRefused", false),
        ("RateleaseInvariantViolated", false),
    ] {
        // One alert for each domain affected.
        let count = format!("count({}) or vector(0)", raised(alert));
        scene.finds(&format!("(({count}) > bool 0) == {}", u8::from(is_raised))).await;
    }
    drop(redis);
    scene.write_rules("domain: [");
    for alert in ["RateleaseBreakerOpen", "RateleaseFailureModeActive", "RateleaseRulesRefused"] {
        scene.finds(&raised(alert)).await;
    }
    scene.pod.is_unharmed();
}

/// An alert that is pending or firing.
fn raised(alert: &str) -> String {
    format!("ALERTS{{alertname=\"{alert}\"}}")
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
/// `go_memstats_gc_cpu_fraction`, is about a garbage collector, which ratelease does not have.
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
    // Fifty pass in an hour, the last ten of them near the limit.
    scene.finds(&format!("{} > 50", queries[0])).await;
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
    // An expression about a missing metric evaluates without an error, and never fires.
    scene.finds_each(metrics).await;
}

async fn rules_of(prometheus: &Prometheus) -> Vec<Value> {
    let data = prometheus.get("rules").await.expect("rules");
    let groups = data["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
}

/// The metrics in an expression.
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
