//! Envoy's access log, as a pod receives it: an entry of each request, with the id that Envoy has given
//! it, also where one message is large and where the pod ends the log.

use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::stand::{MACHINE, PATIENT, Rules, before, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions, filter};
use crate::support::load::Load;
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

/// Maximum time for entries to arrive, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(30);

const MIB: u64 = 1 << 20;

pub(crate) const TYPE: &str = "type.googleapis.com/envoy.extensions";

/// An Envoy that gives each request an id, and logs it.
pub(crate) fn logging(options: EnvoyOptions, flush: &str) -> EnvoyOptions {
    let id = json!({
        "object_key": "ratelease.id",
        "factory_key": "envoy.string",
        "format_string": {"text_format_source": {"inline_string": "%UNIQUE_ID%"}},
    });
    let named = filter(
        "set_filter_state",
        json!({
            "@type": format!("{TYPE}.filters.http.set_filter_state.v3.Config"),
            "on_request_headers": [id],
        }),
    );
    let tag = json!({"tag": "ratelease.id", "value": "%FILTER_STATE(ratelease.id:PLAIN)%"});
    let log = json!({
        "@type": format!("{TYPE}.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"),
        "common_config": {
            "log_name": "ratelease",
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "ratelease"}},
            "buffer_flush_interval": flush,
            "buffer_size_bytes": 64 * MIB,
            "custom_tags": [tag],
        },
    });
    let manager = json!({
        "access_log_options": {"access_log_flush_interval": "0.2s"},
        "access_log": [{"name": "envoy.access_loggers.http_grpc", "typed_config": log}],
    });
    let filters = [vec![named], options.filters.clone()].concat();
    EnvoyOptions { manager, filters, ..options }
}

/// A filter that delays each request by a second.
fn delay() -> Value {
    let kind = format!("{TYPE}.filters.http.fault.v3.HTTPFault");
    let always = json!({"numerator": 100});
    filter("fault", json!({"@type": kind, "delay": {"fixed_delay": "1s", "percentage": always}}))
}

async fn pod(rules: &Rules, env: &[(&str, &str)]) -> Ratelease {
    clear_of_midnight().await;
    let env = [&PATIENT[..], env].concat();
    Ratelease::start(rules.path(), &Cluster::shared().places(), &env).await
}

fn rules(domain: &str) -> Rules {
    Rules::new(&file(domain, &[rule("path", None, 1_000_000)]))
}

/// Waits until the pod has read as many ends. No request here has a start that holds anything.
async fn has_ends(pod: &Ratelease, count: u64) {
    let seen = async || pod.count("log_entries_end_unknown") >= count;
    pod.process.until(&format!("told of {count} ends"), SOON, seen).await;
    assert_eq!(pod.count("log_entries_end_unknown"), count);
    assert_eq!(pod.count("log_entries_without_id"), 0);
}

#[tokio::test]
async fn each_request_has_an_entry_with_its_id_and_signs_of_life() {
    let _shared = MACHINE.read().await;
    let rules = rules("logged");
    let pod = pod(&rules, &[]).await;
    let options = EnvoyOptions { filters: vec![delay()], ..before("logged", &[&pod]) };
    let envoy = Envoy::start(logging(options, "0.02s")).await;
    let tally = envoy.load(Load::new("/", 20, 20)).finish().await;
    assert_eq!(tally.passed(), 20, "{tally:?}");
    has_ends(&pod, 20).await;
    // One of each worker.
    let logs = pod.count("log_streams");
    assert!((1..=2).contains(&logs), "{logs} logs");
    let signs = pod.count("log_entries_alive_unknown");
    println!("{signs} signs of life of 20 requests that took a second, each 0.2 s");
    assert!(signs >= 40, "{signs}");
    envoy.stop().await;
    let gone = async || pod.count("log_streams") == 0;
    pod.process.until("rid of the log", SOON, gone).await;
    pod.is_unharmed();
}

#[tokio::test]
async fn a_message_of_many_entries_takes_little_memory() {
    const CLIENTS: usize = 20; // connections
    const REQUESTS: usize = 50; // at once on each of them
    let _shared = MACHINE.read().await;
    let rules = rules("large");
    let pod = pod(&rules, &[]).await;
    let options = EnvoyOptions { concurrency: 1, ..before("large", &[&pod]) };
    let envoy = Envoy::start(logging(options, "3s")).await;
    let path = format!("http://test/{}", "long/".repeat(1600));
    let client = async || {
        let stream = TcpStream::connect(envoy.ingress).await.expect("Envoy takes connections");
        let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        let driven = tokio::spawn(connection);
        let requests = (0..REQUESTS).map(async |_| {
            let request = Request::get(&path).body(()).expect("a request");
            let mut sender = sender.clone().ready().await.expect("a stream");
            sender.send_request(request, true).expect("a stream").0.await.expect("an answer");
        });
        join_all(requests).await;
        driven.abort();
    };
    join_all((0..CLIENTS).map(|_| client())).await;
    let before = pod.process.memory("VmHWM");
    has_ends(&pod, (CLIENTS * REQUESTS) as u64).await;
    let sent = envoy.counter("cluster.ratelease.upstream_cx_tx_bytes_total").await;
    let grown = pod.process.memory("VmHWM").saturating_sub(before);
    println!("{} KiB sent, {} KiB more memory", sent / 1024, grown / 1024);
    assert!(sent > 8 * MIB, "{sent} bytes");
    assert!(grown < 2 * MIB, "{grown} bytes");
    pod.is_unharmed();
}

/// Connections are asked to go away each tenth of a second, with the logs on them.
#[tokio::test]
async fn no_entry_is_lost_where_the_pod_ends_the_log() {
    let _shared = MACHINE.read().await;
    let rules = rules("aged");
    let pod = pod(&rules, &[("GRPC_MAX_CONNECTION_AGE", "100ms")]).await;
    let options = EnvoyOptions { concurrency: 1, ..before("aged", &[&pod]) };
    let envoy = Envoy::start(logging(options, "0.01s")).await;
    let load = envoy.load(Load::new("/", 8, u64::MAX));
    sleep(Duration::from_secs(6)).await;
    let tally = load.stop().await;
    // Requests that were under way when the load was stopped have an entry too.
    let stat = "http.ingress.downstream_rq_completed";
    let settled = async || envoy.counter("http.ingress.downstream_rq_active").await == 0;
    pod.process.until("done", SOON, settled).await;
    let requests = envoy.counter(stat).await;
    let opened = envoy.counter("cluster.ratelease.upstream_cx_total").await;
    println!("{tally:?}: {requests} requests, {opened} connections");
    assert!(opened > 10, "{opened} connections");
    has_ends(&pod, requests).await;
    pod.is_unharmed();
}
