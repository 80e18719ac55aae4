//! Pods: what they are sent, and what is known of them. `tests/it/xds` has real ones.

use std::net::SocketAddr;
use std::time::Duration;

use discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use discovery::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::google::protobuf::{Struct, Value as Field, value::Kind};
use envoy_types::pb::google::rpc::Status;
use prost::Message;
use ratelease_control::settings::Settings;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::rollouts::pushed;
use super::support::{Call, Place, SOON, Server, now, places, rule, wait_for};
use super::tokens::token;

const CONFIG: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
pub(crate) const RULES: &str = "type.googleapis.com/ratelease.config.v1.Rules";

/// How long a test waits for what must not happen.
pub(crate) const NEVER: Duration = Duration::from_millis(700);

/// A rule file as a resource.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rules {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) yaml: String,
}

/// A pod that a test plays.
pub(crate) struct Pod {
    requests: mpsc::Sender<DiscoveryRequest>,
    pub(crate) responses: Streaming<DiscoveryResponse>,
}

// === impl Pod ===

impl Pod {
    /// Connects as a node and asks for these types.
    pub(crate) async fn connect(server: &Server, node: Node, types: &[&str]) -> Self {
        Self::over(channel(server.pods).await, node, types).await
    }

    /// The same on a connection that has other streams too.
    pub(crate) async fn over(channel: Channel, node: Node, types: &[&str]) -> Self {
        let first = |type_url: &&str| {
            let (node, type_url) = (Some(node.clone()), (*type_url).to_owned());
            DiscoveryRequest { node, type_url, ..DiscoveryRequest::default() }
        };
        Self::with(channel, types.iter().map(first).collect()).await
    }

    /// Connects with these requests.
    pub(crate) async fn with(channel: Channel, first: Vec<DiscoveryRequest>) -> Self {
        let client = AggregatedDiscoveryServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(64 << 20);
        let (requests, waiting) = mpsc::channel(8);
        for request in first {
            requests.send(request).await.unwrap();
        }
        let stream = ReceiverStream::new(waiting);
        let responses = client.stream_aggregated_resources(stream).await.unwrap().into_inner();
        Self { requests, responses }
    }

    /// The next response.
    pub(crate) async fn next(&mut self) -> DiscoveryResponse {
        let next = timeout(SOON, self.responses.message()).await.expect("a response");
        next.unwrap().expect("the stream goes on")
    }

    pub(crate) async fn gets_nothing(&mut self) {
        let next = timeout(NEVER, self.responses.message()).await;
        assert!(next.is_err(), "{next:?}");
    }

    /// The next response, if one comes within the time in which none is expected.
    pub(crate) async fn next_soon(&mut self) -> Option<DiscoveryResponse> {
        let next = timeout(NEVER, self.responses.message()).await.ok()?;
        next.unwrap()
    }

    pub(crate) async fn accept(&self, response: &DiscoveryResponse) {
        self.answer(response, None).await;
    }

    pub(crate) async fn refuse(&self, response: &DiscoveryResponse, why: &str) {
        let error = Status { code: 3, message: why.to_owned(), details: Vec::new() };
        self.answer(response, Some(error)).await;
    }

    async fn answer(&self, response: &DiscoveryResponse, error_detail: Option<Status>) {
        let request = DiscoveryRequest {
            type_url: response.type_url.clone(),
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }
}

/// A connection to a port for pods.
pub(crate) async fn channel(pods: SocketAddr) -> Channel {
    let url = format!("http://{pods}");
    Endpoint::from_shared(url).unwrap().connect().await.unwrap()
}

pub(crate) fn node(id: &str, agent: &str) -> Node {
    let (id, user_agent_name) = (id.to_owned(), agent.to_owned());
    Node { id, user_agent_name, ..Node::default() }
}

/// The names of the resources.
pub(crate) fn names(response: &DiscoveryResponse) -> Vec<String> {
    let all = response.resources.iter();
    all.map(|it| Rules::decode(&*it.value).unwrap().name).collect()
}

pub(crate) async fn pods(server: &Server) -> Vec<Value> {
    server.json("/v1/pods").await["pods"].as_array().unwrap().clone()
}

/// Waits for the state of the one stream.
async fn pod_is(server: &Server, expected: Value) {
    let is = async || {
        let pods = pods(server).await;
        let found = pods.first().is_some_and(|pod| {
            expected.as_object().unwrap().iter().all(|(name, value)| pod[name] == *value)
        });
        (pods.len() == 1 && found).then_some(())
    };
    wait_for(&format!("a pod that is {expected}"), is).await;
}

#[tokio::test]
async fn a_pod_gets_each_version_that_concerns_it_and_what_it_says_is_known() {
    for place in places().await {
        let server = place.serve().await;
        let mut pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
        pod.gets_nothing().await; // nothing was ever published
        server.add(&rule("shop", "user", "", 5)).await;
        server.add(&rule("bank", "card", "", 5)).await;
        server.publish().await;
        let first = pod.next().await;
        assert_eq!(
            (&*first.version_info, names(&first)),
            ("1", vec!["bank".into(), "shop".into()])
        );
        pod_is(&server, json!({"node": "edge", "sent": 1, "accepted": 0})).await;
        pod.accept(&first).await;
        pod_is(&server, json!({"accepted": 1, "agent": "test", "type": RULES})).await;

        // What is published while an answer is out is sent together.
        server.post("/v1/rules?publish=true", &rule("shop", "user", "1", 5)).await;
        let second = pod.next().await;
        for value in ["2", "3", "4"] {
            let answer =
                server.post("/v1/rules?publish=true", &rule("shop", "user", value, 5)).await;
            assert_eq!(answer.status, 201, "{answer:?}");
        }
        pushed(&server, 5).await;
        pod.gets_nothing().await;
        pod.refuse(&second, "shop: line 1: no").await;
        pod_is(&server, json!({"accepted": 1, "sent": 5})).await;
        let third = pod.next().await;
        assert_eq!(third.version_info, "5");
        pod.refuse(&third, "shop: line 2: no").await;
        pod_is(&server, json!({"accepted": 1, "refused": 5, "fault": "shop: line 2: no"})).await;
        // A set that was refused is not sent again.
        pod.gets_nothing().await;
        drop(pod);
        let gone = async || pods(&server).await.is_empty().then_some(());
        wait_for("a pod that is gone", gone).await;
        let metrics = server.get("/metrics").await.text;
        assert!(metrics.contains("ratelease_control_refusals_total 2\n"), "{metrics}");
        assert!(metrics.contains("ratelease_control_push_seconds_count 1\n"), "{metrics}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_node_gets_its_own_domains_and_nothing_when_others_change() {
    let place = Place::sqlite();
    let server = place.serve_with(|settings| {
        settings.selection.0.insert("edge".into(), vec!["shop".into(), "bank".into()]);
    });
    let server = server.await;
    for domain in ["shop", "bank", "lab"] {
        server.add(&rule(domain, "user", "", 5)).await;
    }
    server.publish().await;
    let mut choosy = Pod::connect(&server, asking("edge", "shop, lab"), &[RULES]).await;
    let mut free = Pod::connect(&server, asking("other", "shop, lab"), &[RULES]).await;
    let (of_choosy, of_free) = (choosy.next().await, free.next().await);
    assert_eq!(names(&of_choosy), ["shop"]);
    assert_eq!(names(&of_free), ["lab", "shop"]);
    choosy.accept(&of_choosy).await;
    free.accept(&of_free).await;
    server.post("/v1/rules?publish=true", &rule("lab", "user", "1", 5)).await;
    assert_eq!(free.next().await.version_info, "2");
    choosy.gets_nothing().await;
    // It runs what the new version says all the same.
    let is_current = async || {
        let pods = pods(&server).await;
        pods.iter().any(|pod| pod["node"] == "edge" && pod["accepted"] == 2).then_some(())
    };
    wait_for("a pod that is not concerned and is current", is_current).await;
    server.stop().await;
}

#[tokio::test]
async fn pods_of_other_programs_get_the_type_that_they_know() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "user", "", 5)).await;
    let mut sliding = rule("bank", "card", "", 5);
    sliding["rate_limit"]["algorithm"] = "sliding_log".into();
    server.add(&sliding).await;
    server.publish().await;
    let mut reference = Pod::connect(&server, node("a", "grpc-go"), &[CONFIG]).await;
    let set = reference.next().await;
    assert_eq!(set.resources.len(), 1, "the other domain cannot be said in that type");
    assert_eq!(set.resources[0].type_url, CONFIG);
    let fault = "bank: rate_limit.algorithm: the type RateLimitConfig has no such option";
    pod_is(&server, json!({"fault": fault})).await;
    reference.accept(&set).await;
    drop(reference);
    // One of ratelease does without its setting, too.
    let mut plain = Pod::connect(&server, node("c", "ratelease"), &[CONFIG]).await;
    assert_eq!(plain.next().await.resources.len(), 1);
    drop(plain);
    // A pod of 0.2 asks for both types. It gets rule files alone, and is one pod.
    let mut both = Pod::connect(&server, node("b", "ratelease"), &[CONFIG, RULES]).await;
    for _ in 0..2 {
        let set = both.next().await;
        both.accept(&set).await;
        assert_eq!(set.resources.len(), if set.type_url == RULES { 2 } else { 0 });
    }
    pod_is(&server, json!({"node": "b", "type": RULES, "accepted": 1})).await;
    let mut odd = Pod::connect(&server, node("d", "x"), &["type.googleapis.com/odd"]).await;
    let refused = timeout(SOON, odd.responses.message()).await.unwrap();
    assert_eq!(refused.unwrap_err().code(), tonic::Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn a_token_of_some_domains_does_not_see_what_a_refusal_quotes() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let mut pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    server.add(&rule("bank", "card", "", 5)).await;
    server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    let set = pod.next().await;
    pod.refuse(&set, "bank: line 2: 'card'").await;
    pod_is(&server, json!({"refused": 1, "fault": "bank: line 2: 'card'"})).await;
    let scoped = token(&place, &["create", "--name", "x", "--domains", "shop"]).await.unwrap();
    let seen = server.send(Call::new("GET", "/v1/pods").token(&scoped)).await;
    assert_eq!(seen.json()["pods"][0]["refused"], 1, "{seen:?}");
    assert!(!seen.text.contains("card"), "{seen:?}");
    server.stop().await;
}

/// A node that asks for these domains.
fn asking(id: &str, domains: &str) -> Node {
    let text = Field { kind: Some(Kind::StringValue(domains.to_owned())) };
    let metadata = Some(Struct { fields: [("domains".to_owned(), text)].into() });
    Node { metadata, ..node(id, "test") }
}

/// The version of a list of pods; of each its node, and what it was sent, runs and refused.
fn short(list: &Value) -> (Value, Vec<Value>) {
    let pods = list["pods"].as_array().unwrap().iter();
    let pod = |it: &Value| json!([it["node"], it["sent"], it["accepted"], it["refused"]]);
    (list["version"].clone(), pods.map(pod).collect())
}

#[tokio::test]
async fn a_token_of_some_domains_sees_the_pods_and_the_versions_of_these() {
    for place in places().await {
        let limit = |settings: &mut Settings| {
            settings.selection.0.insert("edge".into(), vec!["shop".into()]);
            settings.selection.0.insert("vault".into(), vec!["bank".into()]);
        };
        let server = place.serve_with(limit).await;
        server.add(&rule("shop", "user", "", 5)).await;
        server.add(&rule("bank", "card", "", 5)).await;
        server.publish().await;
        let nodes = [
            node("edge", "test"),
            node("vault", "test"),
            node("free", "test"),
            asking("hidden", "bank, lab"),
            asking("lent", "bank, shop"),
        ];
        let mut all = Vec::new();
        for node in nodes {
            let mut pod = Pod::connect(&server, node, &[RULES]).await;
            let first = pod.next().await;
            pod.accept(&first).await;
            all.push(pod);
        }
        server.post("/v1/rules?publish=true", &rule("bank", "card", "1", 5)).await;
        // All but the first get it; one of them refuses it.
        for (at, pod) in all.iter_mut().enumerate().skip(1) {
            let second = pod.next().await;
            if at == 2 {
                pod.refuse(&second, "bank: no").await;
            } else {
                pod.accept(&second).await;
            }
        }
        let is_known = async || {
            let known = |pod: &Value| pod["accepted"] == 2 || pod["refused"] == 2;
            let pods = pods(&server).await;
            (pods.len() == 5 && pods.iter().all(known)).then_some(())
        };
        wait_for("five pods that have answered", is_known).await;

        let seen = async |domain: &str, query: &str| {
            let create = ["create", "--name", "x", "--domains", domain];
            let token = token(&place, &create).await.unwrap();
            let call = Call::new("GET", &format!("/v1/pods{query}")).token(&token);
            server.send(call).await.json()
        };
        let none = Value::Null;
        let of_shop = ["edge", "free", "lent"].map(|node| json!([node, 1, 1, none]));
        assert_eq!(short(&seen("shop", "").await), (json!(1), of_shop.to_vec()));
        let (version, of_bank) = short(&seen("bank", "").await);
        assert_eq!((version, &of_bank[0]), (json!(2), &json!(["free", 2, 1, 2])));
        let nodes: Vec<_> = of_bank.iter().map(|it| &it[0]).collect();
        assert_eq!(nodes, ["free", "hidden", "lent", "vault"]);
        // Another case, a part of the name, and what is not published.
        for other in ["SHOP", "hop", "lab", "shop\nbank"] {
            assert_eq!(short(&seen(other, "").await).1, [json!(["free", 0, 0, none])], "{other}");
        }
        // Pages neither stop early nor tell of the others.
        let first = seen("shop", "?limit=2").await;
        let next = first["next"].as_str().unwrap();
        assert!(next.starts_with("free"), "{first}");
        let rest = seen("shop", &format!("?limit=2&after={}", next.replace('\n', "%0A"))).await;
        assert_eq!((rest["pods"][0]["node"].clone(), &rest["next"]), (json!("lent"), &none));
        server.stop().await;
    }
}

#[tokio::test]
async fn replicas_share_versions_and_show_each_others_pods() {
    let place = Place::postgres().await;
    let (one, other) = (place.serve().await, place.serve().await);
    let mut pod = Pod::connect(&one, node("edge", "test"), &[RULES]).await;
    for version in 1..=5 {
        let value = version.to_string();
        let began = now();
        other.post("/v1/rules?publish=true", &rule("shop", "user", &value, 5)).await;
        let set = pod.next().await;
        assert_eq!(set.version_info, value);
        eprintln!("another replica's version after {:?}", began.elapsed());
        pod.accept(&set).await;
    }
    pod_is(&other, json!({"node": "edge", "accepted": 5})).await;
    one.stop().await;
    other.stop().await;
}
