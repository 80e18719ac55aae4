//! Strangers at the port of pods: they hold no place for long, and pods are served beside them.

#[allow(dead_code)] // other tests use more of it
#[path = "../../../../tests/it/support/papers.rs"]
mod papers;

use std::time::Duration;

use discovery::DiscoveryRequest;
use discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterStats;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
use envoy_types::pb::google::protobuf::{Struct, Value as Field, value::Kind};
use futures_util::stream::{self, StreamExt};
use load_stats::LoadStatsRequest;
use load_stats::load_reporting_service_client::LoadReportingServiceClient;
use ratelease_tls::ServerFiles;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use super::files::large;
use super::pods::{Pod, RULES, channel, node};
use super::rollbacks::stats;
use super::support::{Place, SOON, now, rule, wait_for};

/// More than the time that a connection may be silent, on a machine that also compiles.
const GIVEN_UP: Duration = Duration::from_secs(60);

#[tokio::test]
async fn handshakes_that_do_not_go_on_leave_places_to_pods() {
    let place = Place::sqlite();
    let papers = papers::Papers::new("localhost");
    let file = |name: &str, text: &str| {
        let path = place.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = ServerFiles {
        certificate: file("cert", &papers.server.cert),
        key: file("key", &papers.server.key),
        client_roots: Some(file("ca", &papers.root)),
        client_name: None,
    };
    let server = place.serve_with(|settings| settings.pods_tls = Some(files)).await;
    server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    let tls = ClientTlsConfig::new()
        .domain_name("localhost")
        .ca_certificate(Certificate::from_pem(&papers.root))
        .identity(Identity::from_pem(&papers.client.cert, &papers.client.key));
    let endpoint = Channel::from_shared(format!("https://{}", server.pods)).unwrap();
    let endpoint = endpoint.tls_config(tls).unwrap();
    let mut rounds = Vec::new();
    // A busy machine may delay a pod in one round; a pod that waits for strangers does so in each.
    for _ in 0..3 {
        let began = now();
        let mut strangers = Vec::new();
        for _ in 0..400 {
            strangers.push(TcpStream::connect(server.pods).await.unwrap());
        }
        let channel = endpoint.connect().await.unwrap();
        let mut honest = Pod::over(channel, node("edge", "test"), &[RULES]).await;
        honest.next().await;
        let took = began.elapsed();
        for mut stranger in strangers {
            let ended = timeout(GIVEN_UP, stranger.read(&mut [0; 64])).await;
            assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        }
        // A stranger's handshake may take 5 s, and this pod waited for none.
        if took < Duration::from_secs(5) {
            return server.stop().await;
        }
        rounds.push(took);
    }
    panic!("a pod had its rules after {rounds:?}");
}

#[tokio::test]
async fn a_connection_without_a_stream_is_closed_and_one_with_a_stream_is_not() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let mut pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    let mut silent = TcpStream::connect(server.pods).await.unwrap();
    let closed = timeout(GIVEN_UP, async {
        while silent.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
    });
    assert!(closed.await.is_ok(), "it is still open");
    // The pod is older, and is sent what is published.
    server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    pod.next().await;
    server.stop().await;
}

#[tokio::test]
async fn a_pod_that_does_not_answer_is_disconnected_and_others_are_served() {
    let place = Place::sqlite();
    // Pods of this size may load as many rules.
    let server = place.serve_with(|settings| settings.pod_memory = 256 << 20).await;
    server.import(&large("shop", 20_000)).await;
    server.publish().await;
    // The response is more than a megabyte, and its client takes 64 KiB before it is read.
    let channel = Channel::from_shared(format!("http://{}", server.pods)).unwrap();
    let channel = channel.initial_stream_window_size(65_535).connect().await.unwrap();
    let deaf = Pod::over(channel, node("deaf", "test"), &[RULES]).await;
    let is_known = async || {
        let pods = server.json("/v1/pods").await;
        (pods["pods"][0]["node"] == "deaf").then_some(())
    };
    wait_for("pod that does not read", is_known).await;
    let mut honest = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    let response = honest.next().await;
    honest.accept(&response).await;
    // A pod may take a minute and more for its answer.
    let end = now() + 2 * GIVEN_UP;
    loop {
        let pods = server.json("/v1/pods").await;
        let nodes: Vec<_> = pods["pods"].as_array().unwrap().iter().map(|it| &it["node"]).collect();
        if nodes == [&json!("edge")] {
            break;
        }
        assert!(now() < end, "still there: {pods}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    drop(deaf);
    server.stop().await;
}

#[tokio::test]
async fn a_node_that_says_too_much_is_refused() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let kind = Some(Kind::StringValue("x,".repeat(40_000)));
    let fields = [("domains".to_owned(), Field { kind })].into_iter().collect();
    let many = Node { metadata: Some(Struct { fields }), ..node("edge", "test") };
    for node in [node(&"i".repeat(5000), "test"), many] {
        let mut pod = Pod::connect(&server, node, &[RULES]).await;
        let refused = timeout(GIVEN_UP, pod.responses.message()).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    assert_eq!(server.json("/v1/pods").await["pods"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_its_stream_and_other_calls_are_not_implemented() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    let channel = channel(server.pods).await;
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
    let refused = client.delta_aggregated_resources(stream::empty()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented, "{refused:?}");
    for (bytes, is_taken) in [(200 << 10, true), (300 << 10, false)] {
        let (type_url, response_nonce) = (RULES.to_owned(), "n".repeat(bytes));
        let node = Some(node("edge", "test"));
        let request = DiscoveryRequest { node, type_url, response_nonce, ..Default::default() };
        let mut pod = Pod::with(channel.clone(), vec![request]).await;
        let response = timeout(SOON, pod.responses.message()).await.unwrap().unwrap();
        assert_eq!(response.is_some(), is_taken, "{bytes} bytes");
    }
    let named = |bytes: usize| vec![stats(&"d".repeat(bytes), 1, 0, 0)];
    // A megabyte of these would be many in memory.
    let small = vec![ClusterStats::default(); 500_000];
    for (cluster_stats, is_taken) in
        [(named(900 << 10), true), (named(1100 << 10), false), (small, false)]
    {
        let report = LoadStatsRequest { node: Some(node("edge", "test")), cluster_stats };
        let reports = stream::iter([report]).chain(stream::pending());
        let mut client = LoadReportingServiceClient::new(channel.clone());
        let mut asked = client.stream_load_stats(reports).await.unwrap().into_inner();
        let asked = timeout(SOON, asked.message()).await.unwrap().unwrap();
        assert_eq!(asked.is_some(), is_taken);
    }
    server.stop().await;
}

#[tokio::test]
async fn pods_are_listed_in_pages() {
    let place = Place::postgres().await;
    let server = place.serve().await;
    let mut pods = Vec::new();
    for at in 0..5 {
        pods.push(Pod::connect(&server, node(&format!("pod-{at}"), "test"), &[RULES]).await);
    }
    let all = async || {
        let pods = server.json("/v1/pods").await;
        (pods["pods"].as_array().unwrap().len() == 5).then_some(())
    };
    wait_for("list of five pods", all).await;
    let (mut path, mut found) = ("/v1/pods?limit=2".to_owned(), Vec::new());
    loop {
        let page = server.json(&path).await;
        found.extend(page["pods"].as_array().unwrap().iter().map(|it| it["node"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/pods?limit=2&after={}", next.replace('\n', "%0A"));
    }
    assert_eq!(json!(found), json!(["pod-0", "pod-1", "pod-2", "pod-3", "pod-4"]));
    server.stop().await;
}
