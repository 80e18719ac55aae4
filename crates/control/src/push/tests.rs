//! Pods on real connections, beside ones that leave little room. `tests/control/pods.rs` has more.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3 as discovery;

use discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use discovery::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::delivery::Deliveries;
use super::published::PublishedDomain;
use super::wire::{CONFIG_TYPE, Node, RULES_TYPE};
use super::*;

/// Limit for what takes milliseconds.
const SOON: Duration = Duration::from_secs(20);

/// A pod that a test plays.
struct Pod {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

// === impl Pod ===

impl Pod {
    async fn connect(address: &str, types: &[&str]) -> Self {
        let client = AggregatedDiscoveryServiceClient::connect(address.to_owned());
        let (requests, waiting) = mpsc::channel(8);
        for type_url in types {
            let type_url = (*type_url).to_owned();
            let node = Some(Node { user_agent_name: "ratelease".into(), ..Node::default() });
            let request = DiscoveryRequest { node, type_url, ..DiscoveryRequest::default() };
            requests.send(request).await.unwrap();
        }
        let stream = ReceiverStream::new(waiting);
        let responses = client.await.unwrap().stream_aggregated_resources(stream).await;
        Self { requests, responses: responses.unwrap().into_inner() }
    }

    async fn next(&mut self) -> DiscoveryResponse {
        let next = timeout(SOON, self.responses.message()).await.expect("a response");
        next.unwrap().expect("the stream goes on")
    }

    async fn accept(&self, response: &DiscoveryResponse) {
        let request = DiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }
}

/// A set of one domain of 1.5 KiB.
fn set(version: i64) -> Arc<PublishedSet> {
    let domain = PublishedDomain::new("shop", version.to_string(), "#".repeat(1536));
    let domains = BTreeMap::from([("shop".to_owned(), Arc::new(domain))]);
    Arc::new(PublishedSet { version, domains, ..PublishedSet::default() })
}

/// Waits until `is` holds.
async fn wait_until(what: &str, is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(SOON, waiting).await.is_ok(), "after {SOON:?}, there is still no {what}");
}

#[tokio::test]
async fn a_pod_that_waits_for_room_answers_meanwhile_and_gets_the_newest_set() {
    let (sender, published) = watch::channel(set(1));
    let (_polls, polled) = watch::channel(0);
    let (streams, counts) = (Streams::default(), RolloutCounts::default());
    let selection = Selection::default();
    let mut server = PodServer::new((published, polled), streams.clone(), selection, counts);
    // For one set, and for one that is empty.
    server.deliveries = Deliveries::new(3, 3);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, None, server, pending()));

    let mut first = Pod::connect(&address, &[RULES_TYPE]).await;
    let taken = first.next().await;
    let mut waits = Pod::connect(&address, &[CONFIG_TYPE, RULES_TYPE]).await;
    let empty = waits.next().await;
    assert_eq!((&*empty.type_url, empty.resources.len()), (CONFIG_TYPE, 0));
    waits.accept(&empty).await;
    let has_accepted = |it: &crate::store::PodRow| it.type_url == CONFIG_TYPE && it.accepted == 1;
    wait_until("answer that is read", || streams.rows().iter().any(has_accepted)).await;

    sender.send_replace(set(2));
    sender.send_replace(set(3));
    first.accept(&taken).await;
    assert_eq!(waits.next().await.version_info, "3");
}
