//! Pods on real connections, beside ones that leave little room. `tests/control/pods.rs` has more.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::google::rpc::Status as Refusal;

use discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use discovery::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::deliveries::Deliveries;
use super::published::PublishedDomain;
use super::*;
use crate::store::{Backend, DatabaseClock};
use ratelease_xds::{CONFIG_TYPE, RULES_TYPE};

/// How long a test waits for what must not happen.
const NEVER: Duration = Duration::from_millis(700);

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
            let node = Some(Node::default());
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

    /// Asks for a further type.
    async fn ask(&self, type_url: &str) {
        let type_url = type_url.to_owned();
        let asks = DiscoveryResponse { type_url, ..DiscoveryResponse::default() };
        self.accept(&asks).await;
    }

    async fn accept(&self, response: &DiscoveryResponse) {
        self.answer(response, None).await;
    }

    async fn refuse(&self, response: &DiscoveryResponse) {
        self.answer(response, Some(Refusal::default())).await;
    }

    async fn answer(&self, response: &DiscoveryResponse, error_detail: Option<Refusal>) {
        let request = DiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    async fn gets_nothing(&mut self) {
        let next = timeout(NEVER, self.responses.message()).await;
        assert!(next.is_err(), "{next:?}");
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

/// The set of this version and text, which has this domain since the version `changed`.
fn set_of(version: i64, text: &str, changed: i64) -> Arc<PublishedSet> {
    let domain = PublishedDomain::new("shop", text.to_owned(), text.to_owned());
    let domains = BTreeMap::from([("shop".to_owned(), Arc::new(domain))]);
    let changed = BTreeMap::from([("shop".to_owned(), changed)]);
    Arc::new(PublishedSet { version, domains, changed, ..PublishedSet::default() })
}

/// A server of a set, and its address.
async fn serve_set(set: Arc<PublishedSet>) -> (watch::Sender<Arc<PublishedSet>>, String) {
    let (sender, published) = watch::channel(set);
    // The database was asked often enough for what any pod says to count.
    let (_, polled) = watch::channel(2);
    let (streams, counts) = (Streams::default(), RolloutCounts::default());
    let server = PodServer::new(
        (published, polled),
        streams,
        Selection::default(),
        (counts, Fleet::default()),
        DatabaseClock::new(Backend::Sqlite),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, None, server, pending()));
    (sender, address)
}

#[tokio::test]
async fn domains_are_selected_once_for_all_pods_and_messages_that_change_nothing_select_none() {
    let domain = Arc::new(PublishedDomain::new("shop", "1".into(), "domain: shop\n".into()));
    let domains = (0..5000).map(|at| (format!("d{at}"), Arc::clone(&domain))).collect();
    let set = Arc::new(PublishedSet { version: 1, domains, ..PublishedSet::default() });
    let (sender, address) = serve_set(Arc::clone(&set)).await;
    for _ in 0..3 {
        let mut pod = Pod::connect(&address, &[RULES_TYPE]).await;
        let response = pod.next().await;
        assert_eq!(response.resources.len(), 5000);
        let stale = DiscoveryResponse { nonce: "77".into(), ..response.clone() };
        pod.accept(&response).await;
        for _ in 0..25 {
            pod.accept(&stale).await;
            pod.accept(&response).await;
        }
        // The messages above are read in order, before this one, which asks for another type.
        pod.ask(CONFIG_TYPE).await;
        assert_eq!(pod.next().await.type_url, CONFIG_TYPE);
    }
    let selected = || set.selections.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(selected(), 1);
    drop(sender);
}

#[tokio::test]
async fn a_pod_hears_of_a_version_that_restores_what_it_has() {
    let (sender, address) = serve_set(set_of(5, "x", 5)).await;
    let mut pod = Pod::connect(&address, &[RULES_TYPE]).await;
    let first = pod.next().await;
    // While its answer is out, version 6 has another text, and version 7 the former one.
    sender.send_replace(set_of(6, "y", 6));
    sender.send_replace(set_of(7, "x", 7));
    pod.accept(&first).await;
    let second = pod.next().await;
    assert_eq!((&*second.version_info, &second.resources), ("7", &first.resources));
    pod.accept(&second).await;
    sender.send_replace(set_of(8, "x", 7));
    pod.gets_nothing().await; // what the version changes is of other pods
}

#[tokio::test]
async fn the_first_set_of_the_asked_type_is_sent_at_once() {
    let (_sender, address) = serve_set(set_of(1, "domain: shop\n", 1)).await;
    for of in [CONFIG_TYPE, RULES_TYPE] {
        let mut pod = Pod::connect(&address, &[of]).await;
        let first = pod.next().await;
        assert_eq!((&*first.type_url, first.resources.len()), (of, 1));
        pod.refuse(&first).await;
        pod.gets_nothing().await; // what was refused is not sent again
    }
}

/// As one of 0.2, which waits for a set of each type.
#[tokio::test]
async fn a_pod_that_asks_for_both_types_gets_rule_files_alone() {
    let (_sender, address) = serve_set(set_of(1, "domain: shop\n", 1)).await;
    for types in [[CONFIG_TYPE, RULES_TYPE], [RULES_TYPE, CONFIG_TYPE]] {
        let mut pod = Pod::connect(&address, &types).await;
        let mut counts = BTreeMap::new();
        for _ in types {
            let response = pod.next().await;
            pod.accept(&response).await;
            counts.insert(response.type_url.clone(), response.resources.len());
        }
        let expected = [(CONFIG_TYPE, 0), (RULES_TYPE, 1)].map(|(of, count)| (of.into(), count));
        assert_eq!(counts, BTreeMap::from(expected));
        pod.gets_nothing().await;
    }
    // One that asks late, before it has answered.
    let mut pod = Pod::connect(&address, &[CONFIG_TYPE]).await;
    let config = pod.next().await;
    assert_eq!((&*config.type_url, config.resources.len()), (CONFIG_TYPE, 1));
    pod.ask(RULES_TYPE).await;
    pod.gets_nothing().await;
    pod.accept(&config).await;
    let (none, rules) = (pod.next().await, pod.next().await);
    assert_eq!((&*none.type_url, none.resources.len()), (CONFIG_TYPE, 0));
    assert_eq!((&*rules.type_url, rules.resources.len()), (RULES_TYPE, 1));
}

#[tokio::test]
async fn a_pod_that_waits_for_room_answers_meanwhile_and_gets_the_newest_set() {
    let (sender, published) = watch::channel(set(1));
    let (_polls, polled) = watch::channel(0);
    let (streams, counts) = (Streams::default(), RolloutCounts::default());
    let selection = Selection::default();
    let clock = DatabaseClock::new(Backend::Sqlite);
    let counts = (counts, Fleet::default());
    let mut server = PodServer::new((published, polled), streams.clone(), selection, counts, clock);
    // For one set.
    server.deliveries = Deliveries::new(3, 3);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, None, server, pending()));

    let mut first = Pod::connect(&address, &[RULES_TYPE]).await;
    let taken = first.next().await;
    let mut waits = Pod::connect(&address, &[RULES_TYPE]).await;
    wait_until("second pod", || streams.count() == 2).await;
    // The server reads requests of a waiting pod meanwhile.
    waits.ask(CONFIG_TYPE).await;
    let none = waits.next().await;
    assert_eq!((&*none.type_url, none.resources.len()), (CONFIG_TYPE, 0));

    sender.send_replace(set(2));
    sender.send_replace(set(3));
    first.accept(&taken).await;
    assert_eq!(waits.next().await.version_info, "3");
}
